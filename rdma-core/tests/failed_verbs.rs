//! Verbs that end an object and fail, and errors before an object has an owner.

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{context, is_softroce};
use rdma_core::address::multicast_gid;
use rdma_core::memory::{LentMemory, SharedBuffer};
use rdma_core::{AddressChoice, DatagramOptions, QueuePairBuilder, Transport};
use softroce::fault::{Errno, Failure, Verb};
use softroce::{Kind, objects};

/// Excludes the other tests of this file, because failures are injected into the whole process.
/// Returns `None` if no failure can be injected.
fn alone() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    is_softroce().then_some(guard)
}

/// Makes a call of `verb` fail: the next one if `call` is 1.
fn fail(verb: Verb, call: u64) {
    softroce::faults().fail(Failure {
        verb,
        call,
        errno: Errno(libc::EIO),
    });
}

#[test]
fn lent_memory_whose_deregistration_fails_is_never_written_again() {
    let Some(_alone) = alone() else { return };
    let domain = context().protection_domain().unwrap();
    let mut shared = SharedBuffer::new(domain.allocate(64).unwrap());
    drop(LentMemory::new(shared.try_read(..32).unwrap()).unwrap());
    assert!(shared.is_unclaimed());
    let lent = LentMemory::new(shared.try_read(..32).unwrap()).unwrap();
    fail(Verb::DeregMr, 1);
    drop(lent);
    assert!(shared.try_write(..32).is_err(), "peers may still read it");
    assert!(!shared.is_unclaimed());
    let frozen = domain.allocate(64).unwrap().freeze();
    let lent = frozen.lend().unwrap();
    fail(Verb::DeregMr, 1);
    drop(lent);
    assert!(frozen.thaw().is_err(), "peers may still read it");
}

#[test]
fn a_membership_whose_end_has_failed_still_counts() {
    let Some(_alone) = alone() else { return };
    let domain = context().protection_domain().unwrap();
    let builder = domain.queue_pair().transport(Transport::Datagram);
    let prepared = builder.build().unwrap();
    let pair = prepared.activate(&DatagramOptions::default()).unwrap();
    let gid = multicast_gid([239, 77, 2, 1].into()).unwrap();
    let detaches = || {
        let raw = ibverbs_sys::ibv_gid { raw: gid.0 };
        // SAFETY: the queue pair and the GID are valid.
        unsafe { ibverbs_sys::ibv_detach_mcast(pair.as_raw(), &raw, 0) == 0 }
    };
    // The drop of the membership tries again.
    let membership = pair.attach_to_group(gid, 0).unwrap();
    fail(Verb::DetachMcast, 1);
    membership.leave().unwrap_err();
    assert!(!detaches());
    // Even if that fails as well, the queue pair can become a member again.
    let membership = pair.attach_to_group(gid, 0).unwrap();
    fail(Verb::DetachMcast, 1);
    fail(Verb::DetachMcast, 2);
    membership.leave().unwrap_err();
    assert!(detaches());
    let membership = pair.attach_to_group(gid, 0).unwrap();
    membership.leave().unwrap();
    assert!(!detaches());
}

#[test]
fn a_queue_pair_is_destroyed_if_taking_it_over_fails() {
    let Some(_alone) = alone() else { return };
    let before = [
        Kind::QueuePair,
        Kind::CompletionQueue,
        Kind::ProtectionDomain,
    ]
    .map(objects);
    let domain = context().protection_domain().unwrap();
    let completions = domain.context().completion_queue(64).build().unwrap();
    // SAFETY: a struct of zero bytes is a valid value of this C struct.
    let mut attributes: ibverbs_sys::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
    attributes.send_cq = completions.as_raw();
    attributes.recv_cq = completions.as_raw();
    attributes.qp_type = ibverbs_sys::ibv_qp_type::IBV_QPT_RC;
    let unknown_port = AddressChoice {
        port: Some(99),
        ..AddressChoice::default()
    };
    let failures: [&dyn Fn(QueuePairBuilder) -> QueuePairBuilder; 2] =
        [&|builder| builder.address(unknown_port), &|builder| {
            fail(Verb::QueryQp, 1);
            builder
        }];
    for failure in failures {
        // SAFETY: the domain and the completion queue outlive the queue pair.
        let raw = unsafe { ibverbs_sys::ibv_create_qp(domain.as_raw(), &mut attributes) };
        assert_eq!(objects(Kind::QueuePair), before[0] + 1);
        let builder = failure(domain.queue_pair().send_completions(&completions));
        // SAFETY: the queue pair was created from these two objects, and no other code uses it.
        unsafe { builder.from_raw(raw) }.unwrap_err();
        assert_eq!(objects(Kind::QueuePair), before[0]);
    }
    drop((domain, completions));
    let after = [
        Kind::QueuePair,
        Kind::CompletionQueue,
        Kind::ProtectionDomain,
    ]
    .map(objects);
    assert_eq!(after, before);
}

#[test]
fn an_imported_context_is_closed_if_its_device_is_unknown() {
    let Some(_alone) = alone() else { return };
    let context = context();
    let before = objects(Kind::Context);
    drop(context.share().unwrap());
    assert_eq!(objects(Kind::Context), before);
    fail(Verb::GetDeviceList, 1);
    context.share().unwrap_err();
    assert_eq!(objects(Kind::Context), before);
}
