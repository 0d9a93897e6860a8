/// Why a verb refuses: one variant for each errno that the manual pages name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// An argument is wrong.
    #[error("invalid argument")]
    Invalid,
    /// The device cannot do this.
    #[error("not supported")]
    Unsupported,
    /// Something still uses the object.
    #[error("in use")]
    Busy,
    /// A limit is reached.
    #[error("out of resources")]
    Exhausted,
    /// The memory is not there, or not for this.
    #[error("bad address")]
    Fault,
    /// The object is of another domain, or has no right to this.
    #[error("not permitted")]
    NotPermitted,
    /// There is no such object.
    #[error("no such object")]
    Absent,
}

impl Refusal {
    /// What C is told.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Invalid => libc::EINVAL,
            Self::Unsupported => libc::EOPNOTSUPP,
            Self::Busy => libc::EBUSY,
            Self::Exhausted => libc::ENOMEM,
            Self::Fault => libc::EFAULT,
            Self::NotPermitted => libc::EPERM,
            Self::Absent => libc::ENOENT,
        }
    }
}
