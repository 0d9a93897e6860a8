use std::mem;
use std::ptr;

use ibverbs_sys::{
    __VERBS_ABI_IS_EXTENDED, ibv_context, ibv_context_ops, ibv_flow, ibv_flow_attr, ibv_qp,
    verbs_context,
};
use libc::c_int;

use super::{
    completion, device_memory, memory, pd, query, queue_pair, srq, unsupported, window,
    work_request, xrc,
};

/// Returns a new verbs context with all function pointers set. No pointer is null, because inline
/// functions in `verbs.h` call some of them without a check.
pub(super) fn context() -> verbs_context {
    verbs_context {
        query_port: Some(query::query_port),
        advise_mr: Some(memory::advise_mr),
        alloc_null_mr: Some(memory::alloc_null_mr),
        read_counters: Some(unsupported::read_counters),
        attach_counters_point_flow: Some(unsupported::attach_counters_point_flow),
        create_counters: Some(unsupported::create_counters),
        destroy_counters: Some(unsupported::destroy_counters),
        reg_dm_mr: Some(device_memory::reg_dm_mr),
        alloc_dm: Some(device_memory::alloc_dm),
        free_dm: Some(device_memory::free_dm),
        modify_flow_action_esp: Some(unsupported::modify_flow_action_esp),
        destroy_flow_action: Some(unsupported::destroy_flow_action),
        create_flow_action_esp: Some(unsupported::create_flow_action_esp),
        modify_qp_rate_limit: Some(unsupported::modify_qp_rate_limit),
        alloc_parent_domain: Some(pd::alloc_parent_domain),
        dealloc_td: Some(pd::dealloc_td),
        alloc_td: Some(pd::alloc_td),
        modify_cq: Some(completion::modify_cq),
        post_srq_ops: Some(unsupported::post_srq_ops),
        destroy_rwq_ind_table: Some(unsupported::destroy_rwq_ind_table),
        create_rwq_ind_table: Some(unsupported::create_rwq_ind_table),
        destroy_wq: Some(unsupported::destroy_wq),
        modify_wq: Some(unsupported::modify_wq),
        create_wq: Some(unsupported::create_wq),
        query_rt_values: Some(query::query_rt_values),
        create_cq_ex: Some(completion::create_cq_ex),
        // The private part of the real library, whose functions never get this context.
        priv_: ptr::null_mut(),
        query_device_ex: Some(query::query_device_ex),
        ibv_destroy_flow: Some(unsupported::destroy_flow),
        ABI_placeholder2: Some(DESTROY_FLOW),
        ibv_create_flow: Some(unsupported::create_flow),
        ABI_placeholder1: Some(CREATE_FLOW),
        open_qp: Some(queue_pair::open_qp),
        create_qp_ex: Some(queue_pair::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(xrc::open_xrcd),
        close_xrcd: Some(xrc::close_xrcd),
        _ABI_placeholder3: 0,
        sz: size_of::<verbs_context>(),
        context: operations(),
    }
}

/// Pointer to this device's `ibv_create_flow`, without its argument types. Stored in the table
/// entry in which programs that were built with libibverbs 1.1.8 expect the function.
// SAFETY: callers of this entry convert it back to the type of the function.
const CREATE_FLOW: unsafe extern "C" fn() = unsafe {
    mem::transmute::<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow, _>(
        unsupported::create_flow,
    )
};
/// Pointer to this device's `ibv_destroy_flow`, without its argument types. Stored in the table
/// entry in which programs that were built with libibverbs 1.1.8 expect the function.
// SAFETY: callers of this entry convert it back to the type of the function.
const DESTROY_FLOW: unsafe extern "C" fn() = unsafe {
    mem::transmute::<unsafe extern "C" fn(*mut ibv_flow) -> c_int, _>(unsupported::destroy_flow)
};

fn operations() -> ibv_context {
    // SAFETY: zeroes are valid for all fields: null pointers, integers, and an unlocked mutex.
    let mut context: ibv_context = unsafe { mem::zeroed() };
    context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    context.ops = ibv_context_ops {
        _compat_query_device: Some(query::ibv_query_device),
        _compat_query_port: Some(query::ibv_query_port),
        alloc_mw: Some(window::alloc_mw),
        bind_mw: Some(work_request::bind_mw),
        dealloc_mw: Some(window::dealloc_mw),
        poll_cq: Some(completion::poll_cq),
        req_notify_cq: Some(completion::req_notify_cq),
        post_srq_recv: Some(srq::post_srq_recv),
        post_send: Some(work_request::post_send),
        post_recv: Some(work_request::post_recv),
        _compat_alloc_pd: Some(unsupported::of_old),
        _compat_dealloc_pd: Some(unsupported::of_old),
        _compat_reg_mr: Some(unsupported::of_old),
        _compat_rereg_mr: Some(unsupported::of_old),
        _compat_dereg_mr: Some(unsupported::of_old),
        _compat_create_cq: Some(unsupported::of_old),
        _compat_cq_event: Some(unsupported::of_old),
        _compat_resize_cq: Some(unsupported::of_old),
        _compat_destroy_cq: Some(unsupported::of_old),
        _compat_create_srq: Some(unsupported::of_old),
        _compat_modify_srq: Some(unsupported::of_old),
        _compat_query_srq: Some(unsupported::of_old),
        _compat_destroy_srq: Some(unsupported::of_old),
        _compat_create_qp: Some(unsupported::of_old),
        _compat_query_qp: Some(unsupported::of_old),
        _compat_modify_qp: Some(unsupported::of_old),
        _compat_destroy_qp: Some(unsupported::of_old),
        _compat_create_ah: Some(unsupported::of_old),
        _compat_destroy_ah: Some(unsupported::of_old),
        _compat_attach_mcast: Some(unsupported::of_old),
        _compat_detach_mcast: Some(unsupported::of_old),
        _compat_async_event: Some(unsupported::of_old),
    };
    context
}

#[cfg(test)]
mod tests {
    use std::mem;
    use std::slice;

    use ibverbs_sys::{ibv_context_ops, verbs_context};

    #[test]
    fn every_function_of_the_tables_is_set() {
        let context = super::context();
        let words = |from: usize, to: usize| {
            assert!(from.is_multiple_of(8) && to.is_multiple_of(8) && from < to);
            // SAFETY: these parts of the context are initialized pointers.
            unsafe {
                slice::from_raw_parts(
                    (&raw const context).byte_add(from).cast::<usize>(),
                    (to - from) / 8,
                )
            }
        };
        let private = mem::offset_of!(verbs_context, priv_);
        let end = mem::offset_of!(verbs_context, _ABI_placeholder3);
        let operations = mem::offset_of!(verbs_context, context.ops);
        let parts = [
            (0, private),
            (private + 8, end),
            (operations, operations + size_of::<ibv_context_ops>()),
        ];
        for (from, to) in parts {
            let empty = words(from, to).iter().position(|&word| word == 0);
            assert_eq!(
                empty, None,
                "no function in the part from {from} to {to}, counted from there"
            );
        }
    }
}
