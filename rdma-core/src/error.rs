//! What can go wrong, told so that it can be put right.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::cm::ConnectionError;
use crate::completion::WorkError;
use crate::queue_pair::RefusedModification;

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation on a verbs object failed.
///
/// Every variant says which object it was about; [`Error::Verb`] adds the C name of the verb, the
/// `errno` it gave and, where the usual cause is known, what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verb returned an error.
    #[error("{verb} on {object} failed: {errno}{}", hint_text(*hint))]
    Verb {
        /// The C name of the verb, for example `ibv_reg_mr`.
        verb: &'static str,
        /// What it was called on, for example `device rxe_0`.
        object: String,
        /// The error number it gave.
        errno: Errno,
        /// The usual cause and what to do, where one is known.
        hint: Option<&'static str>,
    },

    /// A queue pair was not modified. Says what is wrong with the request.
    #[error(transparent)]
    RefusedModification(Box<RefusedModification>),

    /// The system has no RDMA device at all.
    #[error(
        "no RDMA device found: load a driver, build with the feature `softroce` for a device in \
         user space, or set up the kernel's Soft-RoCE with \
         `rdma link add rxe_0 type rxe netdev <interface>`"
    )]
    NoDevice,

    /// The system has RDMA devices, and none can be used.
    #[error(
        "no RDMA device of this machine can be used: {}{}",
        reasons.join("; "),
        instead_text(instead.as_deref())
    )]
    NoUsableDevice {
        /// What each of them lacks.
        reasons: Vec<String>,
        /// The user-space device that can be taken instead, by its name.
        instead: Option<String>,
    },

    /// No device has the wanted name.
    #[error("no RDMA device named {name:?}; available: {}", listed(available))]
    UnknownDevice {
        /// The name asked for.
        name: String,
        /// The names that exist.
        available: Vec<String>,
    },

    /// The device has no port of that number.
    #[error("device {device} has no port {port}; its ports are 1 to {ports}")]
    UnknownPort {
        /// The device's name.
        device: String,
        /// The port number asked for.
        port: u8,
        /// How many ports the device has.
        ports: u8,
    },

    /// The port's GID table has no entry at that index.
    #[error(
        "device {device} port {port} has no GID at index {index}; valid: {}",
        listed(valid)
    )]
    UnknownGidIndex {
        /// The device's name.
        device: String,
        /// The port number.
        port: u8,
        /// The GID index asked for.
        index: u32,
        /// The indices that hold a GID, each with the GID and its type.
        valid: Vec<String>,
    },

    /// No port of the device can carry traffic.
    #[error("device {device} has no usable port: {reason}")]
    NoUsablePort {
        /// The device's name.
        device: String,
        /// What each port lacks.
        reason: String,
    },

    /// An argument is outside of what the operation allows.
    #[error("{what}: {reason}")]
    InvalidArgument {
        /// Which argument of which operation.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },

    /// The queue holds as many work requests as it can.
    #[error(
        "the {queue} queue is full: {capacity} work requests are outstanding; poll the completion queue"
    )]
    QueueFull {
        /// `send` or `receive`.
        queue: &'static str,
        /// How many work requests it holds.
        capacity: usize,
    },

    /// The work request carries more scatter/gather elements than fit.
    #[error("{elements} scatter/gather elements are more than the limit of {limit}")]
    TooManyElements {
        /// How many the request has.
        elements: usize,
        /// How many are possible.
        limit: usize,
    },

    /// A range reaches outside of the memory it was taken from.
    #[error("range {start}..{end} is outside of a region of {len} bytes")]
    OutOfRange {
        /// First byte of the range.
        start: u64,
        /// One past its last byte.
        end: u64,
        /// How long the memory is.
        len: u64,
    },

    /// Memory is in use by the device, or borrowed, in a way that excludes this access.
    #[error("the memory is in use: {holder}; wait for the operation to complete")]
    InUse {
        /// Who holds it.
        holder: &'static str,
    },

    /// Something did not happen in the time that was given for it.
    #[error("waited {timeout:?} for {what}, in vain")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// How long.
        timeout: Duration,
    },

    /// The device does not have what was asked for.
    #[error("device {device} does not have {what}")]
    Unsupported {
        /// What was asked for, for example `memory windows of type 2`.
        what: &'static str,
        /// The device's name.
        device: String,
    },

    /// Two ends did not connect, or are connected no more.
    #[error(transparent)]
    Connection(#[from] ConnectionError),

    /// A work request failed.
    #[error(transparent)]
    Work(#[from] WorkError),

    /// The memory can be read but not written by the device.
    #[error("read-only memory cannot be the destination of a receive, an RDMA read or an atomic")]
    NotWritable,
}

impl Error {
    /// The error of `verb` on `object` with its `errno` and the hint that fits.
    pub(crate) fn verb(verb: &'static str, object: impl Into<String>, errno: Errno) -> Self {
        Self::Verb {
            verb,
            object: object.into(),
            errno,
            hint: hint(verb, errno),
        }
    }

    pub(crate) fn invalid(what: &'static str, reason: impl Into<String>) -> Self {
        Self::InvalidArgument {
            what,
            reason: reason.into(),
        }
    }

    /// Whether the device, or its driver, does not have what was asked for.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Unsupported { .. } | Self::Connection(ConnectionError::NoManager { .. }) => true,
            Self::Verb { errno, .. } => errno.is_unsupported(),
            Self::RefusedModification(refused) => refused.is_unsupported(),
            _ => false,
        }
    }

    /// The error number, where a verb gave one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Verb { errno, .. } => Some(*errno),
            Self::RefusedModification(refused) => Some(refused.errno),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Verb { errno, .. } => io::Error::from_raw_os_error(errno.0).kind(),
            Error::RefusedModification(refused) => {
                io::Error::from_raw_os_error(refused.errno.0).kind()
            }
            Error::NoDevice | Error::UnknownDevice { .. } => io::ErrorKind::NotFound,
            Error::QueueFull { .. } | Error::InUse { .. } => io::ErrorKind::WouldBlock,
            Error::TimedOut { .. } => io::ErrorKind::TimedOut,
            Error::NoUsablePort { .. } => io::ErrorKind::NetworkDown,
            Error::Unsupported { .. } => io::ErrorKind::Unsupported,
            Error::Connection(error) => error.kind(),
            Error::Work(_) => io::ErrorKind::Other,
            _ => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, error)
    }
}

/// An error number of the operating system.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// The calling thread's current `errno`.
    pub(crate) fn last() -> Self {
        Self(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// Whether it says that the device or its driver does not have something.
    pub(crate) fn is_unsupported(self) -> bool {
        matches!(self.0, libc::EOPNOTSUPP | libc::ENOSYS)
    }

    /// Whether it says that there is no way to a peer.
    pub(crate) fn is_no_route(self) -> bool {
        matches!(
            self.0,
            libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH
        )
    }

    /// The symbolic name, for the numbers that verbs use.
    pub fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            libc::EPERM => "EPERM",
            libc::ENOENT => "ENOENT",
            libc::EINTR => "EINTR",
            libc::EIO => "EIO",
            libc::EAGAIN => "EAGAIN",
            libc::ENOMEM => "ENOMEM",
            libc::EACCES => "EACCES",
            libc::EFAULT => "EFAULT",
            libc::EBUSY => "EBUSY",
            libc::ENODEV => "ENODEV",
            libc::EINVAL => "EINVAL",
            libc::EMFILE => "EMFILE",
            libc::ENOSPC => "ENOSPC",
            libc::ENOSYS => "ENOSYS",
            libc::ENODATA => "ENODATA",
            libc::EOVERFLOW => "EOVERFLOW",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            libc::ENETUNREACH => "ENETUNREACH",
            libc::ETIMEDOUT => "ETIMEDOUT",
            libc::EADDRINUSE => "EADDRINUSE",
            libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
            libc::ECONNREFUSED => "ECONNREFUSED",
            libc::ECONNRESET => "ECONNRESET",
            libc::ENOTCONN => "ENOTCONN",
            libc::ENXIO => "ENXIO",
            libc::EHOSTUNREACH => "EHOSTUNREACH",
            _ => return None,
        })
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl std::error::Error for Errno {}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = io::Error::from_raw_os_error(self.0).to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        write!(f, "{text} ({self:?})")
    }
}

/// What usually causes `errno` from `verb`, and the way out.
fn hint(verb: &str, errno: Errno) -> Option<&'static str> {
    Some(match (verb, errno.0) {
        ("ibv_get_device_list", libc::ENOSYS) => {
            "the kernel has no RDMA support: load ib_uverbs and a device's driver"
        }
        ("ibv_open_device", libc::ENOENT | libc::ENODEV) => {
            "/dev/infiniband/uverbs* is missing: load ib_uverbs"
        }
        ("ibv_open_device", libc::EACCES | libc::EPERM) => {
            "/dev/infiniband/uverbs* must be readable and writable for this user"
        }
        ("ibv_reg_mr" | "ibv_reg_buf_mr", libc::ENOMEM) => {
            "the locked-memory limit is reached: raise it with `ulimit -l` or in limits.d (memlock)"
        }
        ("ibv_reg_mr" | "ibv_reg_buf_mr", libc::EINVAL) => {
            "remote write and remote atomic access need local write access as well"
        }
        ("ibv_reg_mr_iova2" | "ibv_reg_dmabuf_mr", libc::EINVAL) => {
            "the address of requests must have the same offset in a page as the memory"
        }
        ("ibv_reg_mr" | "ibv_reg_buf_mr" | "ibv_reg_mr_iova2", libc::EFAULT | libc::EACCES) => {
            "the memory is not mapped, or is read-only and local write access was asked for"
        }
        ("ibv_reg_dmabuf_mr", libc::EBADF) => "the file descriptor is none of a dma-buf",
        ("ibv_dereg_mr" | "ibv_rereg_mr", libc::EBUSY) => {
            "a memory window is bound to the region, or it is in use in another way"
        }
        ("ibv_advise_mr", libc::ENOENT | libc::EINVAL | libc::EFAULT) => {
            "the memory must be registered with AccessFlags::ON_DEMAND, and mapped"
        }
        ("ibv_alloc_mw" | "ibv_alloc_dm" | "ibv_reg_dm_mr", libc::ENOMEM | libc::ENOSPC) => {
            "the device has no more of this: see DeviceAttributes"
        }
        ("ibv_fork_init", libc::EINVAL) => "memory has been registered already",
        ("mmap", libc::ENOMEM) => {
            "no free pages of this size: for huge ones see /proc/sys/vm/nr_hugepages"
        }
        ("mmap", libc::EINVAL) => {
            "the machine has no pages of this size, or the offset is not aligned"
        }
        ("ibv_create_cq" | "ibv_create_qp" | "ibv_create_qp_ex", libc::EINVAL) => {
            "a requested size is above the device's limit (see DeviceAttributes)"
        }
        ("ibv_create_qp" | "ibv_create_qp_ex", libc::EPERM) => {
            "raw packet queue pairs need the right CAP_NET_RAW"
        }
        ("ibv_open_qp", libc::EINVAL) => {
            "no XRC target of this number is in the XRC domain, which its maker must have shared"
        }
        ("ibv_create_qp" | "ibv_create_qp_ex" | "ibv_create_cq", libc::ENOMEM) => {
            "the device is out of this resource, or the locked-memory limit is reached (`ulimit -l`)"
        }
        ("ibv_post_send" | "ibv_post_recv", libc::EINVAL) => {
            "the queue pair's state does not allow it, or it has too many scatter/gather elements or too much inline data"
        }
        ("ibv_post_send" | "ibv_post_recv", libc::ENOMEM) => {
            "the queue is full: poll its completion queue"
        }
        ("rdma_create_event_channel", libc::EACCES) => {
            "/dev/infiniband/rdma_cm must be readable and writable for this user"
        }
        ("rdma_bind_addr" | "rdma_resolve_addr", libc::ENODEV | libc::EADDRNOTAVAIL) => {
            "no RDMA device of this machine has that address, or a way to it"
        }
        ("rdma_bind_addr" | "rdma_listen", libc::EADDRINUSE) => "another program has this port",
        (
            "rdma_connect" | "rdma_accept" | "rdma_establish" | "rdma_disconnect"
            | "rdma_resolve_route" | "rdma_resolve_addr" | "rdma_init_qp_attr",
            libc::EINVAL | libc::ENOTCONN,
        ) => "the connection is not in a state for this: the peer may have given it up meanwhile",
        ("ibv_create_ah", libc::EINVAL) => {
            "usually a GID index without an address, or a destination of another kind than the GID at that index"
        }
        ("ibv_create_ah", libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH) => {
            "no route to the GID from the chosen GID index"
        }
        ("ibv_init_ah_from_wc", _) => {
            "the datagram begins with no header, or it was sent to a group and not to a GID of the port"
        }
        ("ibv_create_srq_ex", libc::EINVAL) => {
            "a requested size is above the device's limit (see DeviceAttributes)"
        }
        ("ibv_create_srq_ex", libc::ENOMEM) => {
            "the device is out of this resource, or the locked-memory limit is reached (`ulimit -l`)"
        }
        ("ibv_modify_srq", libc::EINVAL) => {
            "the limit is above the queue's size, or more receives are in flight than the new size has room for"
        }
        ("ibv_open_xrcd", libc::EAGAIN) => {
            "nobody has the domain of this file open, and this was not to make it"
        }
        ("ibv_attach_mcast", libc::EINVAL) => {
            "the GID is of no group, or its LID is not one of a group"
        }
        ("ibv_attach_mcast", libc::ENOMEM) => {
            "the device is out of groups, or the group out of members (see DeviceAttributes)"
        }
        ("ibv_create_flow", libc::EPERM) => "steering packets wants the capability CAP_NET_RAW",
        (_, libc::EOPNOTSUPP | libc::ENOSYS) => "the device or its driver does not support this",
        (_, libc::EMFILE) => "too many open files: raise the limit with `ulimit -n`",
        _ => return None,
    })
}

fn instead_text(device: Option<&str>) -> String {
    device.map_or_else(String::new, |name| {
        format!("; to use the device in user space instead, set RDMA_DEVICE={name}")
    })
}

fn hint_text(hint: Option<&'static str>) -> String {
    hint.map(|hint| format!(": {hint}")).unwrap_or_default()
}

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verb_errors_name_verb_object_errno_and_hint() {
        let error = Error::verb("ibv_reg_mr", "device rxe_0", Errno(libc::ENOMEM));
        let text = error.to_string();
        assert_eq!(
            text,
            "ibv_reg_mr on device rxe_0 failed: Cannot allocate memory (ENOMEM): the \
             locked-memory limit is reached: raise it with `ulimit -l` or in limits.d (memlock)"
        );
    }

    #[test]
    fn unknown_numbers_still_print() {
        assert_eq!(format!("{:?}", Errno(4242)), "errno 4242");
        assert!(Errno(4242).to_string().contains("4242"));
    }

    #[test]
    fn io_errors_keep_the_kind() {
        let error: io::Error = Error::verb("x", "y", Errno(libc::EACCES)).into();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
