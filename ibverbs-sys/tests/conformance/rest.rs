//! Cases that do not belong to one object: objects of other contexts, several threads, and verbs
//! that few devices support. A device without such a verb must return the error for it.

use std::ptr;
use std::thread;

use ibverbs_sys::ibv_qp_type as Service;
use ibverbs_sys::ibv_wc_status as Status;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        queue_pairs_of_two_contexts_talk,
        contexts_close_in_any_order,
        threads_post_to_one_queue_pair,
        threads_post_to_queue_pairs_of_one_queue,
        threads_poll_one_queue,
        thread_that_waits_for_an_event_is_woken,
        flow_steering_works_or_is_unsupported,
        flow_actions_work_or_are_unsupported,
        a_rate_limit_works_or_is_unsupported,
        tag_operations_work_or_are_unsupported,
        indirection_tables_work_or_are_unsupported,
        link_address_of_a_known_gid_is_found,
        source_port_of_a_flow_label_is_in_its_range,
    ]
}

fn queue_pairs_of_two_contexts_talk(device: &Device) {
    let other = device.reopened();
    let plan = Plan::new(Service::IBV_QPT_RC);
    let (pd, other_pd) = (Pd::new(device), Pd::new(&other));
    let (a, b) = (
        End::new(&pd, &plan, SPACE),
        End::new(&other_pd, &plan, SPACE),
    );
    a.qp.connect(b.qp.number());
    b.qp.connect(a.qp.number());
    Pair { a, b, pd }.exchange(20_000);
}

fn contexts_close_in_any_order(device: &Device) {
    let (first, second) = (device.reopened(), device.reopened());
    let pair = Pair::rc(&second);
    drop(first);
    pair.exchange(100);
    drop(pair);
    drop(second);
    Pair::rc(device).exchange(100);
}

/// A pointer that threads share. Verbs guarantee that these objects are thread-safe.
#[derive(Clone, Copy)]
struct Shared<T>(*mut T);

unsafe impl<T> std::marker::Send for Shared<T> {}

impl<T> Shared<T> {
    fn get(self) -> *mut T {
        self.0
    }
}

/// Posts `count` unsignaled empty writes, and a signaled one.
fn post_from_a_thread(qp: Shared<ibv_qp>, id: u64, count: usize) {
    for at in (0..count).rev() {
        let mut wr = ibv_send_wr {
            wr_id: id,
            opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            ..Default::default()
        };
        if at == 0 {
            wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        let mut bad = ptr::null_mut();
        unsafe { ibv_post_send(qp.get(), &mut wr, &mut bad) }.succeeds("ibv_post_send");
    }
}

fn ids(cq: &Cq, count: usize) -> Vec<u64> {
    let mut ids: Vec<_> = (0..count)
        .map(|_| {
            let completion = cq.next();
            equal("the status", completion.status, Status::IBV_WC_SUCCESS);
            completion.wr_id
        })
        .collect();
    ids.sort_unstable();
    ids
}

fn threads_post_to_one_queue_pair(device: &Device) {
    let mut plan = Plan::new(Service::IBV_QPT_RC);
    plan.cap.max_send_wr = 400;
    let pair = Pair::new(device, &plan);
    let qp = Shared(pair.a.qp.raw());
    let threads: Vec<_> = (0..4)
        .map(|id| thread::spawn(move || post_from_a_thread(qp, id, 100)))
        .collect();
    equal("the requests", ids(&pair.a.cq, 4), (0..4).collect());
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("the thread ends"));
}

fn threads_post_to_queue_pairs_of_one_queue(device: &Device) {
    let (pd, cq) = (Pd::new(device), Cq::new(device, 64));
    let mut plan = Plan::new(Service::IBV_QPT_RC);
    plan.cap.max_send_wr = 100;
    let qps: Vec<_> = (0..4).map(|_| Qp::new(&pd, &cq, &plan)).collect();
    qps.iter().for_each(|qp| qp.connect(qp.number()));
    let threads: Vec<_> = (0..4)
        .map(|id| {
            let qp = Shared(qps[id as usize].raw());
            thread::spawn(move || post_from_a_thread(qp, id, 100))
        })
        .collect();
    equal("the requests", ids(&cq, 4), (0..4).collect());
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("the thread ends"));
}

fn threads_poll_one_queue(device: &Device) {
    let pair = Pair::rc(device);
    let cq = Shared(pair.a.cq.raw());
    let end = std::time::Instant::now() + max_wait();
    let threads: Vec<_> = (0..2)
        .map(|_| {
            thread::spawn(move || {
                let mut ids = Vec::new();
                // Both threads stop when one of them gets the completion of the last request, or at
                // the deadline.
                while std::time::Instant::now() < end && ids.len() < 5 {
                    let mut wc = ibv_wc::default();
                    if unsafe { ibv_poll_cq(cq.get(), 1, &mut wc) } == 1 {
                        ids.push(wc.wr_id);
                    } else {
                        thread::yield_now();
                    }
                }
                ids
            })
        })
        .collect();
    for id in 0..10 {
        pair.a.qp.post(pair.a.write(&pair.b, 0, 8).id(id));
    }
    let mut ids: Vec<_> = threads
        .into_iter()
        .flat_map(|thread| thread.join().expect("the thread ends"))
        .collect();
    ids.sort_unstable();
    equal("the requests", ids, (0..10).collect());
}

fn thread_that_waits_for_an_event_is_woken(device: &Device) {
    let channel = Channel::new(device);
    let (pd, cq) = (Pd::new(device), Cq::on_channel(&channel, 4));
    let qp = Qp::new(&pd, &cq, &Plan::new(Service::IBV_QPT_RC));
    qp.connect(qp.number());
    cq.arm(false);
    let waiting = Shared(channel.raw());
    let thread = thread::spawn(move || {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        let result = unsafe { ibv_get_cq_event(waiting.get(), &mut cq, &mut context) };
        unsafe { ibv_ack_cq_events(cq, 1) };
        (result, cq as usize)
    });
    thread::sleep(QUIET);
    qp.post(Request::write(&[], 0, 0));
    let (result, woken) = thread.join().expect("the thread ends");
    equal("the result", result, 0);
    equal("the queue", woken, cq.raw() as usize);
}

/// The error numbers of an unsupported verb.
const ABSENT: &[i32] = &[libc::EOPNOTSUPP, libc::ENOSYS];

fn flow_steering_works_or_is_unsupported(device: &Device) {
    let pair = Datagrams::new(device);
    let mut attr = ibv_flow_attr {
        size: std::mem::size_of::<ibv_flow_attr>() as u16,
        port: PORT,
        ..Default::default()
    };
    match pointer(unsafe { ibv_create_flow(pair.a.qp.raw(), &mut attr) }) {
        Ok(flow) => unsafe { ibv_destroy_flow(flow) }.succeeds("ibv_destroy_flow"),
        Err(number) => {
            let refusals = [ABSENT, &[libc::EINVAL, libc::EPERM]].concat();
            Err::<(), _>(number).fails("ibv_create_flow", &refusals);
        }
    }
}

fn flow_actions_work_or_are_unsupported(device: &Device) {
    let mut attr = ibv_flow_action_esp_attr::default();
    let action = unsafe { ibv_create_flow_action_esp(device.context(), &mut attr) };
    let refusals = [ABSENT, &[libc::EINVAL]].concat();
    action.fails("ibv_create_flow_action_esp", &refusals);
}

fn a_rate_limit_works_or_is_unsupported(device: &Device) {
    let pair = Pair::rc(device);
    let mut attr = ibv_qp_rate_limit_attr {
        rate_limit: 1000,
        ..Default::default()
    };
    let result = unsafe { ibv_modify_qp_rate_limit(pair.a.qp.raw(), &mut attr) };
    if device.attr_ex().packet_pacing_caps.supported_qpts == 0 {
        result.fails(
            "ibv_modify_qp_rate_limit",
            &[ABSENT, &[libc::EINVAL]].concat(),
        );
    } else {
        result.succeeds("ibv_modify_qp_rate_limit");
    }
}

fn tag_operations_work_or_are_unsupported(device: &Device) {
    if device.attr_ex().tm_caps.max_num_tags != 0 {
        ignore("the device has tag matching, which is not looked at here");
    }
    let srq = Srq::new(&Pd::new(device), 4);
    let mut wr = ibv_ops_wr::default();
    let mut bad = ptr::null_mut();
    unsafe { ibv_post_srq_ops(srq.raw(), &mut wr, &mut bad) }.fails("ibv_post_srq_ops", ABSENT);
}

fn indirection_tables_work_or_are_unsupported(device: &Device) {
    if device.attr_ex().rss_caps.max_rwq_indirection_tables != 0 {
        ignore("the device has indirection tables, which are not looked at here");
    }
    let mut attr = ibv_rwq_ind_table_init_attr::default();
    unsafe { ibv_create_rwq_ind_table(device.context(), &mut attr) }.fails(
        "ibv_create_rwq_ind_table",
        &[ABSENT, &[libc::EINVAL]].concat(),
    );
}

fn link_address_of_a_known_gid_is_found(device: &Device) {
    let mut attr = path(device);
    let (mut mac, mut vlan) = ([0_u8; 6], 0_u16);
    let result = unsafe {
        ibv_resolve_eth_l2_from_gid(device.context(), &mut attr, mac.as_mut_ptr(), &mut vlan)
    };
    if result != 0 && device.gid().ndev_ifindex == 0 {
        ignore("the GID belongs to no network device, so it has no link address");
    }
    result.succeeds("ibv_resolve_eth_l2_from_gid");
}

fn source_port_of_a_flow_label_is_in_its_range(_: &Device) {
    // The manual: the high bits of a source port of RoCE v2 are set, IANA's dynamic range.
    for label in [0, 1, 0x1234, 0x000f_ffff] {
        let port = unsafe { ibv_flow_label_to_udp_sport(label) };
        assert!(port >= 0xc000, "{port:#x}");
    }
}
