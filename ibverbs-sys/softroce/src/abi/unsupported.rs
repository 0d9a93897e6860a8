//! Verbs that this device does not support, with the result that the manual pages define: packet
//! steering, flow counters, receive-side scaling, IPsec, rate limits, tag matching. Old programs
//! call entries of a context's tables unchecked, so no entry is empty.

use std::ffi::c_void;

use ibverbs_sys::{
    ibv_context, ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_flow,
    ibv_flow_action, ibv_flow_action_esp_attr, ibv_flow_attr, ibv_ops_wr, ibv_qp,
    ibv_qp_rate_limit_attr, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_srq, ibv_wq,
    ibv_wq_attr, ibv_wq_init_attr,
};
use libc::c_int;

use super::real::Missing;

macro_rules! unsupported {
    ($($name:ident($($argument:ty),*) -> $answer:ty;)*) => {
        $(pub(super) unsafe extern "C" fn $name($(_: $argument),*) -> $answer {
            Missing::missing()
        })*
    };
}

unsupported! {
    create_counters(*mut ibv_context, *mut ibv_counters_init_attr) -> *mut ibv_counters;
    destroy_counters(*mut ibv_counters) -> c_int;
    attach_counters_point_flow(*mut ibv_counters, *mut ibv_counter_attach_attr, *mut ibv_flow) -> c_int;
    read_counters(*mut ibv_counters, *mut u64, u32, u32) -> c_int;
    create_flow(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow;
    destroy_flow(*mut ibv_flow) -> c_int;
    create_flow_action_esp(*mut ibv_context, *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action;
    modify_flow_action_esp(*mut ibv_flow_action, *mut ibv_flow_action_esp_attr) -> c_int;
    destroy_flow_action(*mut ibv_flow_action) -> c_int;
    modify_qp_rate_limit(*mut ibv_qp, *mut ibv_qp_rate_limit_attr) -> c_int;
    create_wq(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq;
    modify_wq(*mut ibv_wq, *mut ibv_wq_attr) -> c_int;
    destroy_wq(*mut ibv_wq) -> c_int;
    create_rwq_ind_table(*mut ibv_context, *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table;
    destroy_rwq_ind_table(*mut ibv_rwq_ind_table) -> c_int;
    of_old() -> *mut c_void;
}

/// Fails, because this device does not support tag matching on shared receive queues
/// (`ibv_post_srq_ops(3)`).
pub(super) unsafe extern "C" fn post_srq_ops(
    _: *mut ibv_srq,
    operation: *mut ibv_ops_wr,
    bad_operation: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: the C API requires `bad_operation` to be valid for writes.
    unsafe { *bad_operation = operation };
    Missing::missing()
}
