//! The facts about functions and types that the generator cannot read from the headers.

/// The headers whose declarations are bound. Types of other headers are bound if these declarations
/// use them.
pub(crate) const HEADERS: [&str; 8] = [
    "infiniband/verbs.h",
    "infiniband/ib.h",
    "infiniband/opcode.h",
    "infiniband/sa.h",
    "infiniband/tm_types.h",
    "rdma/rdma_cma.h",
    "rdma/rdma_verbs.h",
    "rdma/rsocket.h",
];

/// The header whose `#define`s give the kernel's enumerations the names that verbs use.
pub(crate) const ALIASES: &str = "infiniband/verbs_api.h";

/// Enumerations of the kernel that must be bound although no declaration names them: verbs have
/// other names for some of their enumerators, but not for the enumeration itself.
pub(crate) const KERNEL_FLAGS: [&str; 3] = [
    "ib_uverbs_access_flags",
    "ib_uverbs_advise_mr_flag",
    "ib_uverbs_query_port_flags",
];

/// The text of the file that lists functions and macros that are not bound, one per line with the
/// reason.
pub(crate) const EXCLUDED: &str = include_str!("../../shim/EXCLUDED");

/// Functions whose shim is written by hand, in `shim/by_hand.c`, instead of being generated. The
/// file states the reasons.
pub(crate) const BY_HAND: [&str; 2] = ["ibv_query_gid_table", "rfcntl"];

/// Pairs of a function to bind and the Rust name of its binding. The header declares a function of
/// the second name for old programs, which is not bound, and hides it behind a macro of the same
/// name. The macro calls the first function.
pub(crate) const RENAMED: [(&str, &str); 1] = [("___ibv_query_port", "ibv_query_port")];

/// Types that are taken from the crate libc, which defines them for each architecture.
pub(crate) const LIBC: [&str; 15] = [
    "fd_set",
    "iovec",
    "msghdr",
    "nfds_t",
    "off_t",
    "pollfd",
    "pthread_cond_t",
    "pthread_mutex_t",
    "sockaddr",
    "sockaddr_in",
    "sockaddr_in6",
    "sockaddr_storage",
    "socklen_t",
    "timespec",
    "timeval",
];

/// Types of [`LIBC`] that other structs contain and whose sizes depend on the architecture, with
/// the sizes in bytes on x86-64, where the bindings are generated.
pub(crate) const PTHREAD: [(&str, usize); 2] = [("pthread_cond_t", 48), ("pthread_mutex_t", 40)];

/// Structs that the caller provides and that may grow at their end in newer releases. The shim
/// copies such an argument to or from a local variable of the header's type. In 44.0 to 65.0 only
/// `ibv_port_attr` grew; the others have a `comp_mask` or a size argument for later growth.
pub(crate) const COPIED: [&str; 25] = [
    "ibv_alloc_dm_attr",
    "ibv_counter_attach_attr",
    "ibv_counters_init_attr",
    "ibv_cq_init_attr_ex",
    "ibv_device_attr_ex",
    "ibv_ece",
    "ibv_flow_action_esp_attr",
    "ibv_gid_entry",
    "ibv_modify_cq_attr",
    "ibv_parent_domain_init_attr",
    "ibv_poll_cq_attr",
    "ibv_port_attr",
    "ibv_qp_attr",
    "ibv_qp_init_attr_ex",
    "ibv_qp_open_attr",
    "ibv_qp_rate_limit_attr",
    "ibv_query_device_ex_input",
    "ibv_rwq_ind_table_init_attr",
    "ibv_srq_init_attr_ex",
    "ibv_td_init_attr",
    "ibv_values_ex",
    "ibv_wq_attr",
    "ibv_wq_init_attr",
    "ibv_xrcd_init_attr",
    "rdma_cm_join_mc_attr_ex",
];

/// Structs that the library allocates and returns pointers to. The structs may grow at their end,
/// but the fields that are bound keep their offsets. Structs that other structs begin or end with,
/// `ibv_qp` and `ibv_context`, are not in this list.
pub(crate) const HANDLES: [&str; 20] = [
    "ibv_ah",
    "ibv_comp_channel",
    "ibv_counters",
    "ibv_cq",
    "ibv_cq_ex",
    "ibv_device",
    "ibv_dm",
    "ibv_flow",
    "ibv_flow_action",
    "ibv_mr",
    "ibv_mw",
    "ibv_pd",
    "ibv_qp_ex",
    "ibv_rwq_ind_table",
    "ibv_srq",
    "ibv_td",
    "ibv_wq",
    "ibv_xrcd",
    "rdma_cm_event",
    "rdma_cm_id",
];

/// The struct that grows at its front: its fields keep their distance from the end.
pub(crate) const GROWS_AT_FRONT: &str = "verbs_context";

/// Patterns for the names of enumerations whose values are combined by `|`. The Rust types of these
/// enumerations get the bit operators.
pub(crate) const FLAGS: [&str; 10] = [
    "ibv_.*_flags2?",
    "ibv_.*_mask",
    "ibv_.*_cap_bits",
    "ibv_odp_general_caps",
    "ibv_raw_packet_caps",
    "ibv_rx_hash_fields",
    "ibv_pci_atomic_op_size",
    "ib_uverbs_.*_flags?",
    "rdma_.*_mask",
    "rdma_.*_flags",
];
