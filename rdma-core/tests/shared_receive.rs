//! Receives shared by many queue pairs.

mod common;

use common::{bytes, pattern};
use rdma_core::{Buffer, Error, SharedReceiveQueue};

#[test]
fn a_full_shared_queue_gives_the_memory_back() {
    let domain = common::context().protection_domain().unwrap();
    let queue: SharedReceiveQueue<Buffer> = domain.shared_receive_queue(2).build().unwrap();
    for _ in 0..2 {
        queue.post(domain.allocate(8).unwrap()).unwrap();
    }
    let refused = queue.post(pattern(&domain, 8, 3)).unwrap_err();
    assert!(matches!(
        refused.error,
        Error::QueueFull { capacity: 2, .. }
    ));
    assert_eq!(refused.memory[..], bytes(8, 3));
}

#[test]
fn its_attributes_are_what_was_asked_for_or_more() {
    let domain = common::context().protection_domain().unwrap();
    let queue = domain.shared_receive_queue(5).elements(2);
    let queue = queue.build::<Buffer>().unwrap();
    let attributes = queue.attributes().unwrap();
    assert!(
        attributes.requests >= 5 && attributes.elements >= 2,
        "{attributes:?}"
    );
    assert_eq!((attributes.limit, queue.number()), (0, None));
    assert_eq!(queue.capacity(), 5);
}
