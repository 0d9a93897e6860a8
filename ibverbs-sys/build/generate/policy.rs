//! What the headers cannot tell the generator.

/// The headers whose declarations are bound. Types of others come along where these need them.
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

/// The header that gives kernel enumerations verbs' names by `#define`.
pub(crate) const ALIASES: &str = "infiniband/verbs_api.h";

/// Enumerations of the kernel that have single values with verbs' names.
pub(crate) const KERNEL_FLAGS: [&str; 3] = [
    "ib_uverbs_access_flags",
    "ib_uverbs_advise_mr_flag",
    "ib_uverbs_query_port_flags",
];

/// Functions and macros that are not bound, with the reason, one a line.
pub(crate) const EXCLUDED: &str = include_str!("../../shim/EXCLUDED");

/// Their shim is in `shim/by_hand.c`, with the reason.
pub(crate) const BY_HAND: [&str; 2] = ["ibv_query_gid_table", "rfcntl"];

/// The header declares the second function for old programs, and hides it behind a macro of the
/// same name; the first is what the macro calls, whose prototype is the one to bind.
pub(crate) const RENAMED: [(&str, &str); 1] = [("___ibv_query_port", "ibv_query_port")];

/// Types that are not the libraries' own: the libc crate has them, right for each architecture.
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

/// Those of them that other structs contain and that have another size on another architecture,
/// with the size on x86-64, where the bindings are generated.
pub(crate) const PTHREAD: [(&str, usize); 2] = [("pthread_cond_t", 48), ("pthread_mutex_t", 40)];

/// Structs that the caller provides and that may grow at their end, from release to release: as
/// arguments they pass through a local of the header's type. In 44.0 to 65.0 one of them did,
/// `ibv_port_attr`; the others have a `comp_mask` or a size argument for the day they do.
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

/// Structs that the library allocates and hands out pointers to. What we bind of them stays where
/// it is, and they may grow at their end; but not those that others begin or end with, `ibv_qp` and
/// `ibv_context`.
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

/// Grows at its front: fields keep their distance from the end.
pub(crate) const GROWS_AT_FRONT: &str = "verbs_context";

/// Enumerations whose values are combined by `|`.
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
