//! The device list, opening devices, and their attributes.

use std::ffi::{CStr, c_char};
use std::ptr;

use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        list_ends_with_a_null_pointer,
        list_without_a_count_is_the_same,
        list_is_memory_of_malloc,
        device_outlives_the_list_while_it_is_open,
        device_can_be_opened_more_than_once,
        names_are_short_and_differ,
        guid_equals_the_queried_guid,
        index_is_a_number_or_minus_one,
        node_is_a_channel_adapter_of_infiniband_transport,
        both_queries_agree,
        limits_are_positive,
        atomic_capability_is_one_of_three,
        query_refuses_an_unknown_input,
        completion_vectors_exist,
        real_time_values_can_be_read,
        statuses_have_words,
        unknown_statuses_have_words,
        events_have_words,
        node_types_and_port_states_have_words,
        rates_convert,
        fork_state_is_known,
        receive_side_scaling_is_refused_or_claimed,
        raw_packets_are_refused_or_claimed,
        counters_are_created_or_unsupported,
    ]
}

fn list_ends_with_a_null_pointer(_: &Device) {
    let list = DeviceList::new();
    let end = unsafe { *list.raw().add(list.devices().len()) };
    assert!(end.is_null());
}

fn list_without_a_count_is_the_same(_: &Device) {
    let counted: Vec<_> = DeviceList::new()
        .devices()
        .iter()
        .map(|d| name(*d))
        .collect();
    let list = unsafe { ibv_get_device_list(ptr::null_mut()) }.succeeds("ibv_get_device_list");
    let mut names = Vec::new();
    for at in 0.. {
        let device = unsafe { *list.add(at) };
        if device.is_null() {
            break;
        }
        names.push(name(device));
    }
    unsafe { ibv_free_device_list(list) };
    equal("the list", names, counted);
}

/// Some programs free the list by `free`. The devices then stay allocated.
fn list_is_memory_of_malloc(_: &Device) {
    for _ in 0..3 {
        let list = unsafe { ibv_get_device_list(ptr::null_mut()) }.succeeds("ibv_get_device_list");
        unsafe { libc::free(list.cast()) };
    }
    let list = unsafe { ibv_get_device_list(ptr::null_mut()) }.succeeds("ibv_get_device_list");
    unsafe { ibv_free_device_list(list) };
}

fn device_outlives_the_list_while_it_is_open(device: &Device) {
    // `Device::open` frees the list before anything else.
    let name = unsafe { CStr::from_ptr(ibv_get_device_name((*device.context()).device)) };
    equal("the name", name.to_string_lossy().as_ref(), device.name());
}

fn device_can_be_opened_more_than_once(device: &Device) {
    let other = device.reopened();
    assert!(
        other.context() != device.context(),
        "the same context came twice"
    );
    let (pd, other_pd) = (Pd::new(device), Pd::new(&other));
    assert!(pd.raw() != other_pd.raw());
}

fn names_are_short_and_differ(_: &Device) {
    let mut names: Vec<_> = DeviceList::new()
        .devices()
        .iter()
        .map(|d| name(*d))
        .collect();
    for name in &names {
        assert!(
            !name.is_empty() && name.len() < 64,
            "a device is called {name:?}"
        );
    }
    let count = names.len();
    names.sort();
    names.dedup();
    equal("the number of different names", names.len(), count);
}

fn guid_equals_the_queried_guid(device: &Device) {
    let guid = unsafe { ibv_get_device_guid((*device.context()).device) };
    equal("the GUID", guid, device.attr().node_guid);
    assert!(guid != 0, "the GUID is zero");
}

fn index_is_a_number_or_minus_one(device: &Device) {
    let index = unsafe { ibv_get_device_index((*device.context()).device) };
    assert!(index >= -1, "the index is {index}");
}

fn node_is_a_channel_adapter_of_infiniband_transport(device: &Device) {
    let raw = unsafe { &*(*device.context()).device };
    equal("the node type", raw.node_type, ibv_node_type::IBV_NODE_CA);
    equal(
        "the transport",
        raw.transport_type,
        ibv_transport_type::IBV_TRANSPORT_IB,
    );
}

fn both_queries_agree(device: &Device) {
    let mut attr = ibv_device_attr::default();
    unsafe { ibv_query_device(device.context(), &mut attr) }.succeeds("ibv_query_device");
    let extended = device.attr();
    equal("max_qp", attr.max_qp, extended.max_qp);
    equal("max_qp_wr", attr.max_qp_wr, extended.max_qp_wr);
    equal("max_sge", attr.max_sge, extended.max_sge);
    equal("max_cqe", attr.max_cqe, extended.max_cqe);
    equal("max_mr_size", attr.max_mr_size, extended.max_mr_size);
    equal("max_srq_wr", attr.max_srq_wr, extended.max_srq_wr);
    equal("node_guid", attr.node_guid, extended.node_guid);
    equal(
        "device_cap_flags",
        attr.device_cap_flags,
        extended.device_cap_flags,
    );
    equal("atomic_cap", attr.atomic_cap, extended.atomic_cap);
    equal("phys_port_cnt", attr.phys_port_cnt, extended.phys_port_cnt);
    let ports = device.attr_ex().phys_port_cnt_ex;
    equal("phys_port_cnt_ex", ports, attr.phys_port_cnt.into());
}

fn limits_are_positive(device: &Device) {
    let attr = device.attr();
    for (what, limit) in [
        ("max_qp", attr.max_qp),
        ("max_qp_wr", attr.max_qp_wr),
        ("max_sge", attr.max_sge),
        ("max_cq", attr.max_cq),
        ("max_cqe", attr.max_cqe),
        ("max_mr", attr.max_mr),
        ("max_pd", attr.max_pd),
        ("max_ah", attr.max_ah),
        ("max_pkeys", attr.max_pkeys.into()),
        ("phys_port_cnt", attr.phys_port_cnt.into()),
    ] {
        assert!(limit > 0, "{what} is {limit}");
    }
    assert!(
        attr.max_mr_size >= 1 << 30,
        "max_mr_size is {}",
        attr.max_mr_size
    );
    assert!(attr.page_size_cap != 0, "no page size is supported");
}

fn atomic_capability_is_one_of_three(device: &Device) {
    let known = [
        ibv_atomic_cap::IBV_ATOMIC_NONE,
        ibv_atomic_cap::IBV_ATOMIC_HCA,
        ibv_atomic_cap::IBV_ATOMIC_GLOB,
    ];
    assert!(known.contains(&device.attr().atomic_cap));
}

fn query_refuses_an_unknown_input(device: &Device) {
    let input = ibv_query_device_ex_input { comp_mask: 1 << 31 };
    let mut attr = ibv_device_attr_ex::default();
    unsafe { ibv_query_device_ex(device.context(), &input, &mut attr) }
        .fails("ibv_query_device_ex", &[libc::EINVAL, libc::EOPNOTSUPP]);
}

fn completion_vectors_exist(device: &Device) {
    let vectors = unsafe { (*device.context()).num_comp_vectors };
    assert!(vectors > 0, "there are {vectors} completion vectors");
}

fn real_time_values_can_be_read(device: &Device) {
    let read = || {
        let mut values = ibv_values_ex {
            comp_mask: ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0,
            ..Default::default()
        };
        unsafe { ibv_query_rt_values_ex(device.context(), &mut values) }
            .supported("ibv_query_rt_values_ex");
        (values.raw_clock.tv_sec, values.raw_clock.tv_nsec)
    };
    let first = read();
    assert!(read() >= first, "the clock goes backwards");
}

fn text(words: *const c_char) -> String {
    assert!(!words.is_null(), "there are no words");
    let words = unsafe { CStr::from_ptr(words) };
    words.to_string_lossy().into_owned()
}

fn statuses_have_words(_: &Device) {
    let words: Vec<_> = (0..=ibv_wc_status::IBV_WC_TM_RNDV_INCOMPLETE.0)
        .map(|number| text(unsafe { ibv_wc_status_str(ibv_wc_status(number)) }))
        .collect();
    equal("the word for 0", words[0].as_str(), "success");
    for (number, word) in words.iter().enumerate().skip(1) {
        assert!(
            !word.is_empty() && word != "success",
            "{number} is {word:?}"
        );
    }
}

fn unknown_statuses_have_words(_: &Device) {
    equal(
        "the word",
        text(unsafe { ibv_wc_status_str(ibv_wc_status(999)) }).as_str(),
        "unknown",
    );
}

fn events_have_words(_: &Device) {
    for number in 0..=ibv_event_type::IBV_EVENT_WQ_FATAL.0 {
        let word = text(unsafe { ibv_event_type_str(ibv_event_type(number)) });
        assert!(
            !word.is_empty() && word != "unknown",
            "{number} is {word:?}"
        );
    }
    equal(
        "the word",
        text(unsafe { ibv_event_type_str(ibv_event_type(999)) }).as_str(),
        "unknown",
    );
}

fn node_types_and_port_states_have_words(_: &Device) {
    let node = text(unsafe { ibv_node_type_str(ibv_node_type::IBV_NODE_CA) });
    equal("the node type", node.as_str(), "InfiniBand channel adapter");
    let state = text(unsafe { ibv_port_state_str(ibv_port_state::IBV_PORT_DOWN) });
    equal("the state", state.as_str(), "down");
    let state = text(unsafe { ibv_port_state_str(ibv_port_state::IBV_PORT_ACTIVE) });
    equal("the state", state.as_str(), "active");
    let _ = text(unsafe { ibv_node_type_str(ibv_node_type(999)) });
    let _ = text(unsafe { ibv_port_state_str(ibv_port_state(999)) });
}

fn rates_convert(_: &Device) {
    for (rate, multiple, mbps) in [
        (ibv_rate::IBV_RATE_2_5_GBPS, 1, 2500),
        (ibv_rate::IBV_RATE_10_GBPS, 4, 10000),
        (ibv_rate::IBV_RATE_40_GBPS, 16, 40000),
        (ibv_rate::IBV_RATE_120_GBPS, 48, 120_000),
    ] {
        equal("the multiple", unsafe { ibv_rate_to_mult(rate) }, multiple);
        equal("the rate", unsafe { mult_to_ibv_rate(multiple) }, rate);
        equal("the speed", unsafe { ibv_rate_to_mbps(rate) }, mbps);
    }
    equal(
        "no rate",
        unsafe { ibv_rate_to_mult(ibv_rate::IBV_RATE_MAX) },
        -1,
    );
    equal(
        "no multiple",
        unsafe { mult_to_ibv_rate(7) },
        ibv_rate::IBV_RATE_MAX,
    );
    equal(
        "no speed",
        unsafe { ibv_rate_to_mbps(ibv_rate::IBV_RATE_MAX) },
        -1,
    );
}

fn fork_state_is_known(_: &Device) {
    let known = [
        ibv_fork_status::IBV_FORK_DISABLED,
        ibv_fork_status::IBV_FORK_ENABLED,
        ibv_fork_status::IBV_FORK_UNNEEDED,
    ];
    assert!(known.contains(&unsafe { ibv_is_fork_initialized() }));
}

fn receive_side_scaling_is_refused_or_claimed(device: &Device) {
    let pd = Pd::new(device);
    let cq = Cq::new(device, 16);
    let mut attr = ibv_wq_init_attr {
        wq_type: ibv_wq_type::IBV_WQT_RQ,
        max_wr: 4,
        max_sge: 1,
        pd: pd.raw(),
        cq: cq.raw(),
        ..Default::default()
    };
    let wq = unsafe { ibv_create_wq(device.context(), &mut attr) };
    if device.attr_ex().max_wq_type_rq == 0 {
        return wq.fails("ibv_create_wq", &[libc::EOPNOTSUPP, libc::ENOSYS]);
    }
    let wq = wq.succeeds("ibv_create_wq");
    unsafe { ibv_destroy_wq(wq) }.succeeds("ibv_destroy_wq");
}

fn raw_packets_are_refused_or_claimed(device: &Device) {
    let pd = Pd::new(device);
    let cq = Cq::new(device, 16);
    let mut plan = Plan::new(ibv_qp_type::IBV_QPT_RAW_PACKET);
    plan.cap.max_inline_data = 0;
    let made = Qp::create(&pd, &cq, &cq, &plan);
    if device.attr().max_raw_ethy_qp == 0 {
        let refusals = [libc::EOPNOTSUPP, libc::EINVAL, libc::ENOSYS];
        made.map(drop).fails("ibv_create_qp(RAW_PACKET)", &refusals);
    } else {
        made.succeeds("ibv_create_qp(RAW_PACKET)");
    }
}

fn counters_are_created_or_unsupported(device: &Device) {
    let mut attr = ibv_counters_init_attr::default();
    let counters = unsafe { ibv_create_counters(device.context(), &mut attr) }
        .supported("ibv_create_counters");
    unsafe { ibv_destroy_counters(counters) }.succeeds("ibv_destroy_counters");
}
