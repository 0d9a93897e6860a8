/// Reason for which a verb fails. Each variant stands for an error number that the manual pages
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// An argument is invalid.
    #[error("invalid argument")]
    Invalid,
    /// The device does not support the operation.
    #[error("not supported")]
    Unsupported,
    /// The object cannot be destroyed because another object uses it.
    #[error("in use")]
    Busy,
    /// The device has no resources left for the operation, or a limit is reached.
    #[error("out of resources")]
    Exhausted,
    /// The memory does not exist, or cannot be used for the operation.
    #[error("bad address")]
    Fault,
    /// The object belongs to another protection domain, or does not grant the access right.
    #[error("not permitted")]
    NotPermitted,
    /// The object does not exist.
    #[error("no such object")]
    Absent,
}

impl Refusal {
    /// Returns the error number that the verb returns to C code.
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
