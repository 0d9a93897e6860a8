//! The errors of this crate. An error message names the cause and the remedy.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::time::Duration;

use crate::cm::ConnectionError;
use crate::completion::WorkError;
use crate::queue_pair::RefusedModification;

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an operation on a verbs object failed.
///
/// The message names the cause. The message of [`Error::Verb`] contains the C name of the verb, the
/// object, the `errno` and, if the usual cause is known, a hint at the remedy.
///
/// `Debug` prints the same text as `Display`, so that a `main` that returns this error, or an
/// `unwrap`, prints the message and its hint:
///
/// ```text
/// Error: no RDMA device found: libibverbs lists none, ...
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verb (function of the C interface) returned an error.
    #[error("{verb} on {object} failed: {errno}{}", hint_text(*hint))]
    Verb {
        /// The C name of the verb, for example `ibv_reg_mr`.
        verb: &'static str,
        /// The verbs object that the verb was called on, for example `device rxe_0`.
        object: String,
        /// The error number that the verb returned.
        errno: Errno,
        /// The usual cause of this error number and the remedy, where they are known.
        hint: Option<&'static str>,
    },

    /// The device refused to modify a queue pair. The value lists the attributes of the
    /// modification that are wrong.
    #[error(transparent)]
    RefusedModification(Box<RefusedModification>),

    /// The system has no RDMA device at all.
    #[error("no RDMA device found: {NO_DEVICE_CAUSE}; {NO_DEVICE_REMEDY}")]
    NoDevice,

    /// The system has RDMA devices, but none of them is usable.
    #[error(
        "no RDMA device of this machine can be used: {}{}",
        reasons.join("; "),
        instead_text(instead.as_deref())
    )]
    NoUsableDevice {
        /// For each device, the reason why it is not usable.
        reasons: Vec<String>,
        /// The name of the user-space device that the program can choose instead.
        instead: Option<String>,
    },

    /// No device has the name that the program or `RDMA_DEVICE` requests.
    #[error(
        "no RDMA device named {name:?}; available: {}{}",
        listed(available),
        unlinked_text(name)
    )]
    UnknownDevice {
        /// The requested name.
        name: String,
        /// The names of the devices of this machine, from which the program can choose.
        available: Vec<String>,
    },

    /// The device has no port with the requested number.
    #[error("device {device} has no port {port}; its ports are 1 to {ports}")]
    UnknownPort {
        /// The device's name.
        device: String,
        /// The requested port number.
        port: u8,
        /// The number of ports of the device.
        ports: u8,
    },

    /// The port's GID table has no entry at the requested index.
    #[error(
        "device {device} port {port} has no GID at index {index}; valid: {}",
        listed(valid)
    )]
    UnknownGidIndex {
        /// The device's name.
        device: String,
        /// The number of the port.
        port: u8,
        /// The requested GID index.
        index: u32,
        /// The indices that hold a GID, each with the GID and its type.
        valid: Vec<String>,
    },

    /// No port of the device is usable.
    #[error("device {device} has no usable port: {reason}")]
    NoUsablePort {
        /// The device's name.
        device: String,
        /// For each port, the reason why it is not usable.
        reason: String,
    },

    /// An argument is outside of the range that the operation allows.
    #[error("{what}: {reason}")]
    InvalidArgument {
        /// The name of the argument, together with the operation that it was passed to.
        what: &'static str,
        /// The reason why the operation does not allow the value.
        reason: String,
    },

    /// The send or receive queue has no room for another work request.
    #[error(
        "the {queue} queue is full: {capacity} work requests are outstanding; poll the completion queue"
    )]
    QueueFull {
        /// The kind of the full queue: `"send"` or `"receive"`.
        queue: &'static str,
        /// The number of work requests that the queue can hold.
        capacity: usize,
    },

    /// The work request has too many scatter/gather elements.
    #[error("{elements} scatter/gather elements are more than the limit of {limit}")]
    TooManyElements {
        /// The number of elements of the request.
        elements: usize,
        /// The maximum number of elements that the queue pair allows.
        limit: usize,
    },

    /// A range is not inside of the memory that it refers to.
    #[error("range {start}..{end} is outside of a region of {len} bytes")]
    OutOfRange {
        /// Offset of the first byte of the range.
        start: u64,
        /// Offset of the first byte after the range.
        end: u64,
        /// The length of the memory in bytes.
        len: u64,
    },

    /// The object of the operation is in use, and that use excludes the operation.
    #[error("{object} is in use by {holder}")]
    InUse {
        /// The object, for example `leased memory` or `queue pair 17 on device mlx5_0`.
        object: Cow<'static, str>,
        /// The current user of the object, for example `a queue`.
        holder: &'static str,
    },

    /// An operation did not finish within its time limit.
    #[error("timed out after {timeout:?} while waiting for {what}")]
    TimedOut {
        /// The event that the operation was waiting for.
        what: &'static str,
        /// The time limit of the operation.
        timeout: Duration,
    },

    /// The device does not support the requested feature.
    #[error("device {device} does not support {what}")]
    Unsupported {
        /// The feature, for example `memory windows of type 2`.
        what: &'static str,
        /// The device's name.
        device: String,
    },

    /// Connecting failed, or an established connection ended.
    #[error(transparent)]
    Connection(#[from] ConnectionError),

    /// A work request completed with an error status.
    #[error(transparent)]
    Work(#[from] WorkError),

    /// The operation would write to memory that the device is only allowed to read.
    #[error("read-only memory cannot be the destination of a receive, an RDMA read or an atomic")]
    NotWritable,
}

impl Error {
    /// Creates the error for a call of `verb` on `object` that returned `errno`. Adds the hint for
    /// this verb and error number, if a hint exists.
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

    pub(crate) fn in_use(object: impl Into<Cow<'static, str>>, holder: &'static str) -> Self {
        Self::InUse {
            object: object.into(),
            holder,
        }
    }

    /// Returns whether the operation failed because the device or its driver does not support the
    /// feature.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Unsupported { .. } | Self::Connection(ConnectionError::NoManager { .. }) => true,
            Self::Verb { errno, .. } => errno.is_unsupported(),
            Self::RefusedModification(refused) => refused.is_unsupported(),
            _ => false,
        }
    }

    /// Returns the error number of the verb that failed, or `None` if no verb returned an error.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Verb { errno, .. } => Some(*errno),
            Self::RefusedModification(refused) => Some(refused.errno),
            _ => None,
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
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

/// An error number of the operating system (a value of `errno`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// Returns the calling thread's current `errno`, which a failed C function has set.
    pub(crate) fn last() -> Self {
        Self(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// Returns whether this error number means that the device or its driver lacks a feature.
    pub(crate) fn is_unsupported(self) -> bool {
        matches!(self.0, libc::EOPNOTSUPP | libc::ENOSYS)
    }

    /// Returns whether this error number means that no route leads to the peer.
    pub(crate) fn is_no_route(self) -> bool {
        matches!(
            self.0,
            libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH
        )
    }

    /// Returns the symbolic name of this error number, such as `EINVAL`, or `None` if verbs do not
    /// return this number.
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

/// The part of the message of [`Error::NoDevice`] that names the libraries that list no device.
const NO_DEVICE_CAUSE: &str = if cfg!(feature = "softroce") {
    "neither libibverbs nor softroce lists a device"
} else {
    "libibverbs lists none, and this program was built without the user-space device softroce"
};

const NO_DEVICE_REMEDY: &str = "enable the feature `softroce` of rdma-core, rdma-async or rdma-rpc, \
     which needs no hardware and no privileges, or load the driver of a network card; in this \
     project's repository, `cargo xtask softroce-setup --check` reports what this machine has and \
     what it lacks";

/// Returns the usual cause and the remedy, as text, of a failure of `verb` with `errno`; `None` if
/// they are not known.
fn hint(verb: &str, errno: Errno) -> Option<&'static str> {
    Some(match (verb, errno.0) {
        ("ibv_get_device_list", libc::ENOSYS) => {
            "the kernel has no RDMA support: load ib_uverbs and the driver of a device"
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
            "remote write and remote atomic access also need local write access"
        }
        ("ibv_reg_mr_iova2" | "ibv_reg_dmabuf_mr", libc::EINVAL) => {
            "the address that requests use must have the same offset in a page as the memory"
        }
        ("ibv_reg_mr" | "ibv_reg_buf_mr" | "ibv_reg_mr_iova2", libc::EFAULT | libc::EACCES) => {
            "the memory is not mapped, or it is read-only and the registration requests write access"
        }
        ("ibv_reg_dmabuf_mr", libc::EBADF) => "the file descriptor does not refer to a dma-buf",
        ("ibv_dereg_mr" | "ibv_rereg_mr", libc::EBUSY) => {
            "a memory window is bound to the region, or the region is in use in another way"
        }
        ("ibv_advise_mr", libc::ENOENT | libc::EINVAL | libc::EFAULT) => {
            "the memory must be mapped and registered with AccessFlags::ON_DEMAND"
        }
        ("ibv_alloc_mw" | "ibv_alloc_dm" | "ibv_reg_dm_mr", libc::ENOMEM | libc::ENOSPC) => {
            "the device has no free object of this type: DeviceAttributes has its limits"
        }
        ("ibv_fork_init", libc::EINVAL) => {
            "memory is already registered: call it before the first registration"
        }
        ("mmap", libc::ENOMEM) => {
            "no free pages of this size: /proc/sys/vm/nr_hugepages sets the number of huge pages"
        }
        ("mmap", libc::EINVAL) => {
            "the machine does not support pages of this size, or the offset is not aligned"
        }
        ("ibv_create_cq" | "ibv_create_qp" | "ibv_create_qp_ex", libc::EINVAL) => {
            "a requested size is above the device's limit (see DeviceAttributes)"
        }
        ("ibv_create_qp" | "ibv_create_qp_ex", libc::EPERM) => {
            "raw packet queue pairs need the capability CAP_NET_RAW"
        }
        ("ibv_open_qp", libc::EINVAL) => {
            "the XRC domain has no XRC target queue pair of this number: the process that created the target must have opened the same domain"
        }
        ("ibv_create_qp" | "ibv_create_qp_ex" | "ibv_create_cq", libc::ENOMEM) => {
            "the device has no free object of this type, or the locked-memory limit is reached (`ulimit -l`)"
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
            "no RDMA device of this machine has that address or a route to it"
        }
        ("rdma_bind_addr" | "rdma_listen", libc::EADDRINUSE) => "another program uses this port",
        (
            "rdma_connect" | "rdma_accept" | "rdma_establish" | "rdma_disconnect"
            | "rdma_resolve_route" | "rdma_resolve_addr" | "rdma_init_qp_attr",
            libc::EINVAL | libc::ENOTCONN,
        ) => {
            "the state of the connection does not allow this call: the peer may have closed the connection"
        }
        ("ibv_create_ah", libc::EINVAL) => {
            "the GID index usually has no address, or the destination is of another address family than the GID at that index"
        }
        ("ibv_create_ah", libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH) => {
            "no route leads from the chosen GID index to the destination GID"
        }
        ("ibv_init_ah_from_wc", _) => {
            "the datagram does not begin with a global routing header, or its destination is a multicast group and not a GID of the port"
        }
        ("ibv_create_srq_ex", libc::EINVAL) => {
            "a requested size is above the device's limit (see DeviceAttributes)"
        }
        ("ibv_create_srq_ex", libc::ENOMEM) => {
            "the device has no free object of this type, or the locked-memory limit is reached (`ulimit -l`)"
        }
        ("ibv_modify_srq", libc::EINVAL) => {
            "the limit is larger than the queue, or more receives are outstanding than the new size holds"
        }
        ("ibv_open_xrcd", libc::EAGAIN) => {
            "no process has the XRC domain of this file open, and the call did not ask to create it"
        }
        ("ibv_attach_mcast", libc::EINVAL) => "the GID or the LID is not a multicast address",
        ("ibv_attach_mcast", libc::ENOMEM) => {
            "the device has reached its limit of groups or of members of a group (see DeviceAttributes)"
        }
        ("ibv_create_flow", libc::EPERM) => "flow steering needs the capability CAP_NET_RAW",
        (_, libc::EOPNOTSUPP | libc::ENOSYS) => "the device or its driver does not support this",
        (_, libc::EMFILE) => "too many open files: raise the limit with `ulimit -n`",
        _ => return None,
    })
}

fn instead_text(device: Option<&str>) -> String {
    device.map_or_else(String::new, |name| {
        format!("; to use the user-space device instead, set RDMA_DEVICE={name}")
    })
}

/// Returns the hint that the device `name` needs the Cargo feature `softroce`, for the message of
/// [`Error::UnknownDevice`]. Returns an empty text if `name` is not a softroce device, or if the
/// program was built with the feature.
fn unlinked_text(name: &str) -> &'static str {
    if name.contains("softroce") && !cfg!(feature = "softroce") {
        "; the device softroce0 needs the feature `softroce` of rdma-core, rdma-async or rdma-rpc"
    } else {
        ""
    }
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
    fn debug_prints_the_message_and_the_hint() {
        let error = Error::verb("ibv_reg_mr", "device rxe_0", Errno(libc::ENOMEM));
        assert_eq!(format!("{error:?}"), error.to_string());
        let nested = Error::Work(WorkError {
            status: crate::completion::WorkStatus::RetryExceeded,
            vendor: 0x81,
            queue_pair: 17,
        });
        assert!(
            format!("{nested:?}").contains("vendor code 0x81"),
            "{nested:?}"
        );
    }

    #[test]
    fn an_object_in_use_is_named() {
        let memory = Error::in_use("leased memory", "a request that binds it");
        assert_eq!(
            memory.to_string(),
            "leased memory is in use by a request that binds it"
        );
        let queue_pair = Error::in_use("queue pair 0x11 of device rxe_0".to_owned(), "a queue");
        assert_eq!(
            queue_pair.to_string(),
            "queue pair 0x11 of device rxe_0 is in use by a queue"
        );
    }

    #[test]
    fn a_missing_device_is_reported_with_what_to_do() {
        let text = format!("{:?}", Error::NoDevice);
        for part in [
            "no RDMA device found: ",
            "libibverbs",
            "feature `softroce`",
            "`cargo xtask softroce-setup --check`",
        ] {
            assert!(text.contains(part), "no {part} in {text}");
        }
    }

    #[test]
    fn no_source_repeats_the_message() {
        use std::error::Error as _;
        for error in [
            Error::verb("ibv_reg_mr", "device rxe_0", Errno(libc::ENOMEM)),
            Error::Connection(ConnectionError::NoManager { errno: Errno(2) }),
        ] {
            assert!(error.source().is_none(), "{error}");
        }
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
