macro_rules! verbs {
    ($($verb:ident = $name:literal,)*) => {
        /// A verb that fault injection can make fail.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        #[expect(missing_docs, reason = "the verbs' own names")]
        pub enum Verb {
            $($verb,)*
        }

        impl Verb {
            /// All verbs, in the order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$verb,)*];

            /// Returns the verb's name without the prefix `ibv_`. The extended form of a verb
            /// counts as the same verb.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$verb => $name,)*
                }
            }
        }
    };
}

verbs! {
    GetDeviceList = "get_device_list",
    OpenDevice = "open_device",
    QueryDevice = "query_device",
    QueryPort = "query_port",
    QueryGid = "query_gid",
    QueryPkey = "query_pkey",
    AllocPd = "alloc_pd",
    DeallocPd = "dealloc_pd",
    AllocTd = "alloc_td",
    DeallocTd = "dealloc_td",
    AllocParentDomain = "alloc_parent_domain",
    RegMr = "reg_mr",
    ReregMr = "rereg_mr",
    DeregMr = "dereg_mr",
    AdviseMr = "advise_mr",
    AllocNullMr = "alloc_null_mr",
    AllocBuf = "alloc_buf",
    AllocDm = "alloc_dm",
    FreeDm = "free_dm",
    RegDmMr = "reg_dm_mr",
    AllocMw = "alloc_mw",
    DeallocMw = "dealloc_mw",
    BindMw = "bind_mw",
    CreateCompChannel = "create_comp_channel",
    DestroyCompChannel = "destroy_comp_channel",
    CreateCq = "create_cq",
    ResizeCq = "resize_cq",
    ModifyCq = "modify_cq",
    DestroyCq = "destroy_cq",
    ReqNotifyCq = "req_notify_cq",
    PollCq = "poll_cq",
    GetCqEvent = "get_cq_event",
    CreateSrq = "create_srq",
    ModifySrq = "modify_srq",
    QuerySrq = "query_srq",
    DestroySrq = "destroy_srq",
    PostSrqRecv = "post_srq_recv",
    CreateQp = "create_qp",
    OpenQp = "open_qp",
    ModifyQp = "modify_qp",
    QueryQp = "query_qp",
    DestroyQp = "destroy_qp",
    PostSend = "post_send",
    PostRecv = "post_recv",
    OpenXrcd = "open_xrcd",
    CloseXrcd = "close_xrcd",
    CreateAh = "create_ah",
    DestroyAh = "destroy_ah",
    AttachMcast = "attach_mcast",
    DetachMcast = "detach_mcast",
    GetAsyncEvent = "get_async_event",
}

impl Verb {
    /// Returns whether the verb fails after the device has failed. All verbs fail except queries,
    /// destruction, polling, and posting to a queue pair, which flushes the requests.
    /// `ibv_modify_qp` fails depending on the requested state.
    pub(super) const fn fails_with_device(self) -> bool {
        !matches!(
            self,
            Self::GetDeviceList
                | Self::QueryDevice
                | Self::QueryPort
                | Self::QueryGid
                | Self::QueryPkey
                | Self::DeallocPd
                | Self::DeallocTd
                | Self::DeregMr
                | Self::FreeDm
                | Self::DeallocMw
                | Self::DestroyCompChannel
                | Self::DestroyCq
                | Self::ReqNotifyCq
                | Self::PollCq
                | Self::GetCqEvent
                | Self::QuerySrq
                | Self::DestroySrq
                | Self::ModifyQp
                | Self::QueryQp
                | Self::DestroyQp
                | Self::PostSend
                | Self::PostRecv
                | Self::CloseXrcd
                | Self::DestroyAh
                | Self::DetachMcast
                | Self::GetAsyncEvent
        )
    }

    /// Returns the verb with the name `name`, which may have the prefix `ibv_`.
    pub fn named(name: &str) -> Option<Self> {
        let name = name.strip_prefix("ibv_").unwrap_or(name);
        Self::ALL.iter().copied().find(|verb| verb.name() == name)
    }
}

/// An error number (errno) that fault injection makes a verb return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// Parses an error number, given as a name such as `ENOMEM` or as a decimal number. Returns
    /// `None` if `name` is not a known name and not a number.
    pub fn named(name: &str) -> Option<Self> {
        let known = ERRNO_NAMES
            .iter()
            .find_map(|&(known, errno)| (known == name).then_some(errno));
        known
            .or_else(|| {
                name.parse()
                    .ok()
                    .filter(|number| (1..4096).contains(number))
            })
            .map(Self)
    }
}

/// Names and values of the error numbers that a fault-injection setting can contain by name. Verbs
/// and their system calls return these error numbers.
const ERRNO_NAMES: &[(&str, i32)] = &[
    ("EPERM", libc::EPERM),
    ("ENOENT", libc::ENOENT),
    ("EINTR", libc::EINTR),
    ("EIO", libc::EIO),
    ("ENXIO", libc::ENXIO),
    ("EBADF", libc::EBADF),
    ("EAGAIN", libc::EAGAIN),
    ("ENOMEM", libc::ENOMEM),
    ("EACCES", libc::EACCES),
    ("EFAULT", libc::EFAULT),
    ("EBUSY", libc::EBUSY),
    ("EEXIST", libc::EEXIST),
    ("ENODEV", libc::ENODEV),
    ("EINVAL", libc::EINVAL),
    ("EMFILE", libc::EMFILE),
    ("ENOSPC", libc::ENOSPC),
    ("ENOSYS", libc::ENOSYS),
    ("EPROTONOSUPPORT", libc::EPROTONOSUPPORT),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("ENOBUFS", libc::ENOBUFS),
    ("ETIMEDOUT", libc::ETIMEDOUT),
    ("EHOSTUNREACH", libc::EHOSTUNREACH),
    ("ENETUNREACH", libc::ENETUNREACH),
];
