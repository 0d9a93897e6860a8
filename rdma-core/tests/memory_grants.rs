//! Further grants whose keys the device does not end. The failures are those of all calls in this
//! process, so this test has a process of its own.

mod common;

use rdma_core::{AccessFlags, Error};
use softroce::fault::{Errno, Failure, Verb};

#[test]
fn memory_whose_further_key_did_not_end_is_never_taken_back() {
    let context = common::context();
    if !context.device().is_emulated() {
        // Only softroce fails on request.
        return;
    }
    let domain = context.protection_domain().unwrap();
    let exposed = domain.allocate(64).unwrap();
    let exposed = exposed.expose(AccessFlags::REMOTE_READ).unwrap();
    let grant = exposed.grant(AccessFlags::REMOTE_READ).unwrap();
    // The revocation, and the second attempt at the end of the grant.
    for call in [1, 2] {
        softroce::faults().fail(Failure {
            verb: Verb::DeregMr,
            call,
            errno: Errno(libc::EBUSY),
        });
    }
    assert!(matches!(grant.revoke(), Err(Error::Verb { .. })));
    softroce::faults().forget_failures();
    let refused = exposed.revoke().unwrap_err();
    assert!(
        matches!(refused.error, Error::InUse { .. }),
        "{}",
        refused.error
    );
}
