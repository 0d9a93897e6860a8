//! Checks that keys and objects of one context are refused in requests of another context, whose
//! device would take them for its own.

mod common;

use std::time::Duration;

use common::{Pair, context};
use rdma_core::address::{AddressVector, Destination};
use rdma_core::memory::{Claim, SharedBuffer};
use rdma_core::{AccessFlags, Buffer, DatagramOptions, Error, SendRequest, Transport};

#[track_caller]
fn assert_invalid(error: &Error) {
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
}

#[test]
fn memory_of_another_context_is_refused_by_every_queue() {
    let pair = Pair::new();
    let other = context().protection_domain().unwrap();
    let memory = || other.allocate(8).unwrap();

    let mut sends = pair.left.send_queue::<Buffer>();
    assert_invalid(&sends.post(SendRequest::send(memory())).unwrap_err().error);
    let mut batch = sends.batch();
    assert_invalid(&batch.push(SendRequest::send(memory())).unwrap_err().error);
    drop(batch);
    let concurrent = pair.left.concurrent_send_queue::<Buffer>();
    let slot = concurrent.reserve().unwrap();
    let refused = concurrent.post(slot, SendRequest::send(memory()));
    assert_invalid(&refused.unwrap_err().error);

    let mut receives = pair.left.receive_queue::<Buffer>();
    assert_invalid(&receives.post(memory()).unwrap_err().error);
    assert_invalid(&receives.batch().push(memory()).unwrap_err().error);
    let concurrent = pair.left.concurrent_receive_queue::<Buffer>();
    assert_invalid(&concurrent.post(memory()).unwrap_err().error);
    assert_invalid(&concurrent.batch(1).push(memory()).unwrap_err().error);
    let shared = pair.domain.shared_receive_queue(1).build().unwrap();
    assert_invalid(&shared.post(memory()).unwrap_err().error);
    assert_invalid(&shared.batch(1).push(memory()).unwrap_err().error);

    let mut borrowed = memory();
    let refused = pair.left.scope(Duration::from_secs(5), |scope| {
        let (source, target) = borrowed.as_slice_mut().split_at_mut(4);
        assert_invalid(&scope.post(SendRequest::send(source)).unwrap_err().error);
        assert_invalid(&scope.post_receive(target).unwrap_err().error);
    });
    refused.unwrap();
    pair.check();
}

#[test]
fn every_kind_of_memory_of_another_context_is_refused() {
    let pair = Pair::new();
    let other = context().protection_domain().unwrap();
    let memory = || other.allocate(8).unwrap();
    let mut frozen = pair.left.send_queue();
    let refused = frozen.post(SendRequest::send(memory().freeze()));
    assert_invalid(&refused.unwrap_err().error);
    let exposed = memory().expose(AccessFlags::REMOTE).unwrap();
    let mut queue = pair.left.send_queue();
    assert_invalid(&queue.post(SendRequest::send(exposed)).unwrap_err().error);
    let claim = Claim::from(SharedBuffer::new(memory()).try_write(..).unwrap());
    let mut queue = pair.left.send_queue();
    // One element of another context is sufficient for the error.
    let pieces = (pair.domain.allocate(8).unwrap(), claim);
    assert_invalid(&queue.post(SendRequest::send(pieces)).unwrap_err().error);
}

#[test]
fn an_address_handle_of_another_context_is_refused() {
    let domain = context().protection_domain().unwrap();
    let other = context().protection_domain().unwrap();
    let builder = domain.queue_pair().transport(Transport::Datagram);
    let prepared = builder.build().unwrap();
    let vector = AddressVector::to_endpoint(prepared.address(), &prepared.endpoint());
    let pair = prepared.activate(&DatagramOptions::default()).unwrap();
    let destination = Destination {
        handle: other.address_handle(&vector).unwrap(),
        queue_pair: pair.number(),
        qkey: DatagramOptions::DEFAULT_QKEY,
    };
    let mut queue = pair.send_queue::<()>();
    let refused = queue.post(SendRequest::send(()).to(&destination));
    assert_invalid(&refused.unwrap_err().error);
    let own = Destination {
        handle: domain.address_handle(&vector).unwrap(),
        ..destination
    };
    queue.post(SendRequest::send(()).to(&own)).unwrap();
}
