//! Zero-based regions: the device and the crate must agree on the byte to which an address refers.

mod common;

use common::{Pair, bytes, carry_out, context, pattern, receive, succeed, where_supported};
use rdma_core::memory::{FailedBuffer, HostMemory, Reregistered, Reregistration};
use rdma_core::{AccessFlags, Buffer, Error, ProtectionDomain, Refused, SendRequest};

const PAGE: usize = 4096;

/// Returns a buffer of two pages that requests address from 0.
#[track_caller]
fn zero_based(domain: &ProtectionDomain) -> Buffer {
    let registration = domain.registration().access(AccessFlags::ZERO_BASED);
    let memory = HostMemory::zeroed(2 * PAGE).unwrap();
    registration.register(memory).unwrap()
}

/// Receives a message into the right half of a buffer, and checks that only this half changes.
#[track_caller]
fn only_the_right_half_receives(pair: &Pair, buffer: Buffer) {
    let (left, right) = buffer.split_at(PAGE);
    let mut receives = pair.right.receive_queue();
    receives.post(right).unwrap();
    let message = SendRequest::send(pattern(&pair.domain, 64, 1));
    carry_out(&pair.left, &mut pair.left.send_queue(), message);
    let (_, right) = receive(&pair.right, &mut receives);
    assert!(left.iter().all(|&byte| byte == 0), "the left half changed");
    assert_eq!(right[..64], bytes(64, 1));
}

/// Returns the changed buffer; `None` if the device has no such verb, as softroce.
#[track_caller]
fn reregistered(buffer: Buffer, changes: Reregistration) -> Option<Reregistered> {
    where_supported(buffer.reregister(changes).map_err(Error::from))
}

#[test]
fn the_device_counts_from_where_the_crate_says() {
    let pair = Pair::new();
    let (left, right) = zero_based(&pair.domain).split_at(PAGE);
    let buffer = left.join(right).unwrap();
    only_the_right_half_receives(&pair, buffer);
}

#[test]
fn a_first_byte_that_is_to_be_both_zero_and_another_address_is_refused() {
    let pair = Pair::new();
    let memory = HostMemory::zeroed(2 * PAGE).unwrap();
    let second_page = memory.as_ptr() as u64 + PAGE as u64;
    let registration = pair.domain.registration().access(AccessFlags::ZERO_BASED);
    match registration.clone().at(second_page).register(memory) {
        Ok(buffer) => {
            // The device may keep the address of the first byte when the flag is removed.
            let plain = Reregistration::new().access(AccessFlags::LOCAL_WRITE);
            if let Some(changed) = reregistered(buffer, plain) {
                only_the_right_half_receives(&pair, changed.buffer);
            }
            panic!("it was registered");
        }
        Err(Refused {
            value: memory,
            error,
        }) => {
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
            assert!(registration.at(0).register(memory).is_ok(), "both are 0");
        }
    }
    let access = AccessFlags::REMOTE | AccessFlags::ZERO_BASED;
    let buffer = pair.domain.allocate(PAGE).unwrap();
    let Refused {
        value: buffer,
        error,
    } = buffer.expose_at(access, 1 << 30).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    assert!(buffer.expose_at(access, 0).is_ok(), "both are 0");
}

/// Devices map whole pages, so the address 0 must be at the beginning of a page.
#[test]
fn memory_that_begins_inside_of_a_page_cannot_count_from_zero() {
    let domain = context().protection_domain().unwrap();
    let (_, part) = domain.allocate(2 * PAGE).unwrap().split_at(100);
    let access = AccessFlags::REMOTE | AccessFlags::ZERO_BASED;
    let Refused { value: part, error } = part.expose(access).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    assert_eq!(part.len(), 2 * PAGE - 100);
}

#[test]
fn a_dma_buf_counts_from_the_address_that_is_given() {
    use std::os::fd::AsFd;
    let domain = context().protection_domain().unwrap();
    let no_dma_buf = std::fs::File::open("/dev/null").unwrap();
    let access = AccessFlags::REMOTE | AccessFlags::ZERO_BASED;
    let first = 1 << 30;
    let refused = domain.register_dmabuf(no_dma_buf.as_fd(), 0, PAGE, first, access);
    let error = refused.unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
}

#[test]
fn reregistration_keeps_the_addresses_of_requests() {
    let pair = Pair::new();
    let counted = AccessFlags::WINDOW_BIND | AccessFlags::ZERO_BASED;
    let changes = Reregistration::new().access(counted);
    let Some(changed) = reregistered(zero_based(&pair.domain), changes) else {
        return;
    };
    only_the_right_half_receives(&pair, changed.buffer);

    let there = 0x7654_3210_0000;
    let memory = HostMemory::zeroed(2 * PAGE).unwrap();
    let buffer = pair
        .domain
        .registration()
        .at(there)
        .register(memory)
        .unwrap();
    let changes = Reregistration::new().access(AccessFlags::WINDOW_BIND);
    let changed = reregistered(buffer, changes).unwrap();
    only_the_right_half_receives(&pair, changed.buffer);
}

#[test]
fn new_memory_is_counted_by_its_addresses() {
    let pair = Pair::new();
    let new = || HostMemory::zeroed(2 * PAGE).unwrap();
    let plain = AccessFlags::LOCAL_WRITE;
    let changes = Reregistration::new().memory(new()).access(plain);
    let Some(changed) = reregistered(zero_based(&pair.domain), changes) else {
        return;
    };
    only_the_right_half_receives(&pair, changed.buffer);
}

#[test]
fn a_change_of_addresses_that_the_verb_cannot_express_is_refused() {
    let domain = context().protection_domain().unwrap();
    let new = || HostMemory::zeroed(2 * PAGE).unwrap();
    let (plain, counted) = (AccessFlags::LOCAL_WRITE, AccessFlags::ZERO_BASED);
    for (of, changes) in [
        ("no flag", Reregistration::new().access(plain)),
        ("memory alone", Reregistration::new().memory(new())),
        ("both", Reregistration::new().memory(new()).access(counted)),
    ] {
        let refused = zero_based(&domain).reregister(changes);
        let refused = refused.expect_err(of);
        let error = refused.error;
        assert!(
            matches!(error, Error::InvalidArgument { .. }),
            "{of}: {error}"
        );
        assert!(matches!(refused.buffer, FailedBuffer::Unchanged(_)), "{of}");
    }
    let buffer = domain.allocate(2 * PAGE).unwrap();
    let refused = buffer.reregister(Reregistration::new().access(counted));
    let error = refused.expect_err("another first byte").error;
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
}

/// The device must use the address 0 for the first byte, even if the crate reported another one.
#[test]
fn peers_count_from_zero() {
    let pair = Pair::new();
    let access = AccessFlags::REMOTE | AccessFlags::ZERO_BASED;
    let (before, part) = pair.domain.allocate(2 * PAGE).unwrap().split_at(PAGE);
    let exposed = part.expose(access).unwrap();
    assert_eq!(exposed.remote().address, 0);
    let source = pattern(&pair.domain, 64, 1);
    let there = exposed.slice(64..128).unwrap().remote();
    let mut sends = pair.left.send_queue();
    sends.post(SendRequest::write(source, there)).unwrap();
    succeed(pair.left.send_completions());
    let buffer = exposed.revoke().unwrap();
    assert_eq!(buffer[64..128], bytes(64, 1));
    assert!(before.iter().all(|&byte| byte == 0));
}
