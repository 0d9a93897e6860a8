//! Protection domains, thread domains and parent domains.

use std::ptr;

use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        domain_names_its_context,
        many_domains_exist_at_once,
        domain_with_a_region_is_busy,
        domain_with_a_queue_pair_is_busy,
        domain_with_a_shared_receive_queue_is_busy,
        domain_with_an_address_handle_is_busy,
        domain_with_a_window_is_busy,
        a_thread_domain_is_allocated_and_freed,
        a_parent_domain_replaces_its_domain,
        a_parent_domain_accepts_a_thread_domain,
        parent_domain_keeps_its_domain_busy,
        parent_domain_needs_a_domain,
        thread_domain_in_use_is_busy,
    ]
}

/// Tries to free a domain that is in use, which then works on.
#[track_caller]
fn busy(pd: &Pd) {
    unsafe { ibv_dealloc_pd(pd.raw()) }.fails("ibv_dealloc_pd", &[libc::EBUSY]);
}

fn domain_names_its_context(device: &Device) {
    let pd = Pd::new(device);
    equal(
        "the context",
        unsafe { (*pd.raw()).context },
        device.context(),
    );
}

fn many_domains_exist_at_once(device: &Device) {
    let domains: Vec<_> = (0..64).map(|_| Pd::new(device)).collect();
    let mut handles: Vec<_> = domains
        .iter()
        .map(|pd| unsafe { (*pd.raw()).handle })
        .collect();
    handles.sort_unstable();
    handles.dedup();
    equal(
        "the number of different handles",
        handles.len(),
        domains.len(),
    );
}

fn domain_with_a_region_is_busy(device: &Device) {
    let pd = Pd::new(device);
    let _mr = Mr::new(&pd, 4096, ALL_ACCESS);
    busy(&pd);
}

fn domain_with_a_queue_pair_is_busy(device: &Device) {
    let pd = Pd::new(device);
    let _qp = Qp::new(
        &pd,
        &Cq::new(device, 16),
        &Plan::new(ibv_qp_type::IBV_QPT_RC),
    );
    busy(&pd);
}

fn domain_with_a_shared_receive_queue_is_busy(device: &Device) {
    let pd = Pd::new(device);
    let _srq = Srq::new(&pd, 16);
    busy(&pd);
}

fn domain_with_an_address_handle_is_busy(device: &Device) {
    let pd = Pd::new(device);
    let _ah = Ah::own(&pd);
    busy(&pd);
}

fn domain_with_a_window_is_busy(device: &Device) {
    let pd = Pd::new(device);
    let mw =
        unsafe { ibv_alloc_mw(pd.raw(), ibv_mw_type::IBV_MW_TYPE_1) }.supported("ibv_alloc_mw");
    let result = unsafe { ibv_dealloc_pd(pd.raw()) };
    unsafe { ibv_dealloc_mw(mw) }.succeeds("ibv_dealloc_mw");
    result.fails("ibv_dealloc_pd", &[libc::EBUSY]);
}

/// A thread domain, freed at its end.
struct Td(*mut ibv_td);

impl Td {
    fn new(device: &Device) -> Self {
        let mut attr = ibv_td_init_attr::default();
        Self(unsafe { ibv_alloc_td(device.context(), &mut attr) }.supported("ibv_alloc_td"))
    }
}

impl Drop for Td {
    fn drop(&mut self) {
        must("ibv_dealloc_td", unsafe { ibv_dealloc_td(self.0) });
    }
}

fn parent(pd: &Pd, td: *mut ibv_td) -> Pd {
    let mut attr = ibv_parent_domain_init_attr {
        pd: pd.raw(),
        td,
        ..Default::default()
    };
    let raw = unsafe { ibv_alloc_parent_domain(pd.device().context(), &mut attr) };
    Pd::from_raw(pd.device(), raw.supported("ibv_alloc_parent_domain"))
}

fn a_thread_domain_is_allocated_and_freed(device: &Device) {
    let _td = Td::new(device);
}

fn a_parent_domain_replaces_its_domain(device: &Device) {
    let pd = Pd::new(device);
    let parent = parent(&pd, ptr::null_mut());
    let plan = Plan::new(ibv_qp_type::IBV_QPT_RC);
    // The regions are of the domain, the queue pairs of the parent domain.
    let (a, b) = (
        End::new(&parent, &plan, SPACE),
        End::new(&parent, &plan, SPACE),
    );
    a.qp.connect(b.qp.number());
    b.qp.connect(a.qp.number());
    let mr = Mr::new(&pd, 4096, ALL_ACCESS);
    mr.write(0, b"domain");
    b.receive(1, 0, 64);
    a.qp.post(Request::send(&[mr.sge(0, 6)]));
    a.cq.success(1);
    b.cq.success(1);
    equal("what came", b.mr.read(0, 6), b"domain".to_vec());
}

fn a_parent_domain_accepts_a_thread_domain(device: &Device) {
    let td = Td::new(device);
    let pd = Pd::new(device);
    let parent = parent(&pd, td.0);
    let _mr = Mr::new(&parent, 4096, ALL_ACCESS);
}

fn parent_domain_keeps_its_domain_busy(device: &Device) {
    let pd = Pd::new(device);
    let _parent = parent(&pd, ptr::null_mut());
    busy(&pd);
}

fn parent_domain_needs_a_domain(device: &Device) {
    let pd = Pd::new(device);
    drop(parent(&pd, ptr::null_mut()));
    let mut attr = ibv_parent_domain_init_attr::default();
    unsafe { ibv_alloc_parent_domain(device.context(), &mut attr) }
        .fails("ibv_alloc_parent_domain", &[libc::EINVAL]);
}

fn thread_domain_in_use_is_busy(device: &Device) {
    let td = Td::new(device);
    let pd = Pd::new(device);
    let _parent = parent(&pd, td.0);
    unsafe { ibv_dealloc_td(td.0) }.fails("ibv_dealloc_td", &[libc::EBUSY]);
}
