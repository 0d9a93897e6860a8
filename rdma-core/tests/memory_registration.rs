//! Registrations of all kinds of memory: of the program, in huge pages, at other addresses.

mod common;

use std::sync::Arc;

use common::{Pair, bytes, carry_out, context, exposed, pattern, receive};
use rdma_core::memory::{DetachedMemory, HostMemory, HugePages, Pages};
use rdma_core::{AccessFlags, Buffer, Error, FrozenBuffer, ProtectionDomain, Refused, SendRequest};

fn domain() -> ProtectionDomain {
    context().protection_domain().unwrap()
}

/// Transfers `buffer` from one side of a pair to memory of the other side and back, and returns it.
#[track_caller]
fn there_and_back(domain: &ProtectionDomain, buffer: Buffer) -> Buffer {
    let pair = Pair::in_domain(
        domain,
        |builder| builder,
        &rdma_core::ConnectOptions::default(),
    );
    let mut receives = pair.right.receive_queue();
    receives
        .post(domain.allocate(buffer.len()).unwrap())
        .unwrap();
    let mut sends = pair.left.send_queue();
    let content = buffer.to_vec();
    let mut buffer = carry_out(&pair.left, &mut sends, SendRequest::send(buffer));
    let (_, received) = receive(&pair.right, &mut receives);
    assert_eq!(received[..], content);
    buffer.fill(0);
    let mut receives = pair.left.receive_queue();
    receives.post(buffer).unwrap();
    let mut sends = pair.right.send_queue();
    carry_out(&pair.right, &mut sends, SendRequest::send(received));
    let (_, buffer) = receive(&pair.left, &mut receives);
    assert_eq!(buffer[..], content);
    buffer
}

#[test]
fn a_vector_is_registered_and_comes_back() {
    let domain = domain();
    let mut vector = Vec::with_capacity(10_000);
    vector.extend_from_slice(&bytes(5000, 1));
    let place = vector.as_ptr();
    let buffer = domain.register(vector).unwrap();
    assert_eq!((buffer.as_ptr(), buffer.len()), (place, 5000));
    let buffer = there_and_back(&domain, buffer);
    let Refused {
        value: buffer,
        error,
    } = buffer
        .into_owner::<Box<[u8]>>()
        .expect_err("it is a vector");
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    let vector: Vec<u8> = buffer.into_owner().unwrap();
    assert_eq!((vector.as_ptr(), vector.capacity()), (place, 10_000));
    assert_eq!(vector, bytes(5000, 1));
}

#[test]
fn a_box_is_registered_and_comes_back() {
    let domain = domain();
    let boxed = bytes(3000, 2).into_boxed_slice();
    let buffer = domain.register(boxed).unwrap();
    let buffer = there_and_back(&domain, buffer);
    let boxed: Box<[u8]> = buffer.into_owner().unwrap();
    assert_eq!(boxed[..], bytes(3000, 2));
}

#[test]
fn bytes_of_others_are_registered_and_come_back() {
    let domain = domain();
    let mut mutable = bytes::BytesMut::from(&bytes(64, 3)[..]);
    let rest = mutable.split_off(16);
    let buffer = domain.register(mutable).unwrap();
    let buffer = there_and_back(&domain, buffer);
    let mut mutable: bytes::BytesMut = buffer.into_owner().unwrap();
    mutable.unsplit(rest);
    assert_eq!(mutable[..], bytes(64, 3));
}

/// Checks that a send can use memory that is shared with other owners.
#[track_caller]
fn is_a_source(domain: &ProtectionDomain, frozen: FrozenBuffer) -> FrozenBuffer {
    let pair = Pair::in_domain(
        domain,
        |builder| builder,
        &rdma_core::ConnectOptions::default(),
    );
    let mut receives = pair.right.receive_queue();
    receives
        .post(domain.allocate(frozen.len()).unwrap())
        .unwrap();
    let mut sends = pair.left.send_queue();
    let frozen = carry_out(&pair.left, &mut sends, SendRequest::send(frozen));
    let (_, received) = receive(&pair.right, &mut receives);
    assert_eq!(received[..], frozen[..]);
    frozen
}

#[test]
fn shared_memory_is_a_source_and_never_writable() {
    let domain = domain();
    let shared = bytes::Bytes::from(bytes(64, 4));
    let other = shared.clone();
    let frozen = domain.register_shared(shared).unwrap();
    let frozen = is_a_source(&domain, frozen);
    let frozen = frozen.thaw().expect_err("others read it");
    let clone = frozen.clone();
    let Refused {
        value: frozen,
        error,
    } = frozen.into_owner::<bytes::Bytes>().expect_err("a clone");
    assert!(matches!(error, Error::InUse { .. }));
    drop(clone);
    let part = frozen.slice(8..).unwrap();
    drop(frozen);
    let shared: bytes::Bytes = part.into_owner().unwrap();
    assert_eq!(shared.as_ptr(), other.as_ptr());

    let counted: Arc<[u8]> = bytes(32, 5).into();
    let frozen = domain.register_shared(Arc::clone(&counted));
    drop(is_a_source(&domain, frozen.unwrap()));
    assert_eq!(Arc::strong_count(&counted), 1, "the owner is dropped");
    let constant: &'static [u8] = b"constant";
    let frozen = domain.register_shared(constant);
    drop(is_a_source(&domain, frozen.unwrap()));
}

#[test]
fn memory_of_no_bytes_is_not_registered() {
    let domain = domain();
    assert!(matches!(
        domain.allocate(0),
        Err(Error::InvalidArgument { .. })
    ));
    let Refused {
        value: vector,
        error,
    } = domain.register(Vec::with_capacity(8)).expect_err("0 bytes");
    assert_eq!(
        (vector.capacity(), vector.len()),
        (8, 0),
        "the owner comes back"
    );
    assert!(matches!(error, Error::InvalidArgument { .. }));
    let nothing: &'static [u8] = &[];
    assert!(domain.register_shared(nothing).is_err());
    assert!(HostMemory::zeroed(0).is_err());
    for huge_pages in [HugePages::Prefer, HugePages::Require] {
        assert!(
            HostMemory::builder(0)
                .huge_pages(huge_pages)
                .build()
                .is_err()
        );
        let most = HostMemory::builder(usize::MAX).huge_pages(huge_pages);
        assert!(most.build().is_err());
    }
    assert!(HostMemory::zeroed(usize::MAX).is_err());
    assert!(HostMemory::builder(8).align(3).build().is_err());
}

#[test]
fn a_part_does_not_give_the_owner_back() {
    let domain = domain();
    let (left, right) = domain.allocate(64).unwrap().split_at(32);
    let Refused { value: left, error } = left.into_owner::<HostMemory>().expect_err("a part");
    assert!(matches!(error, Error::InUse { .. }));
    let whole = left.join(right).unwrap();
    let (whole, rest) = whole.split_at(64);
    let Refused {
        value: whole,
        error,
    } = whole.detach().expect_err("an empty part is held");
    assert!(matches!(error, Error::InUse { .. }));
    drop(rest);
    let memory: HostMemory = whole.into_owner().unwrap();
    assert_eq!(memory.len(), 64);
}

#[test]
fn memory_moves_from_one_domain_to_another() {
    let context = context();
    let (one, other) = (
        context.protection_domain().unwrap(),
        context.protection_domain().unwrap(),
    );
    let memory: DetachedMemory = pattern(&one, 64, 6).detach().unwrap();
    assert_eq!(memory.len(), 64);
    let buffer = other.registration().attach(memory).unwrap();
    let buffer = there_and_back(&other, buffer);
    assert_eq!(buffer[..], bytes(64, 6));
}

#[test]
fn memory_is_aligned_prefaulted_and_in_huge_pages_or_says_why_not() {
    let domain = domain();
    let page = 2 << 20;
    let memory = HostMemory::builder(3 << 20)
        .huge_pages(HugePages::Prefer)
        .align(8 << 20)
        .prefault()
        .build()
        .unwrap();
    assert!(memory.as_ptr().addr().is_multiple_of(8 << 20));
    assert!(memory.iter().all(|&byte| byte == 0));
    match memory.pages() {
        Pages::Huge(size) => assert_eq!((size, memory.fallback()), (page, None)),
        Pages::Transparent | Pages::Ordinary => {
            let reason = memory.fallback().expect("a reason").to_string();
            assert!(reason.contains("mmap"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let buffer = domain.register(memory).unwrap();
    let (mut small, rest) = buffer.split_at(4096);
    small.copy_from_slice(&bytes(4096, 7));
    let small = there_and_back(&domain, small);
    let memory: HostMemory = small.join(rest).unwrap().into_owner().unwrap();
    assert_eq!(memory[..4096], bytes(4096, 7));

    let required = HostMemory::builder(page)
        .huge_pages(HugePages::Require)
        .build();
    match required {
        Ok(memory) => assert_eq!(memory.pages(), Pages::Huge(page)),
        Err(error) => assert!(matches!(error, Error::Verb { verb: "mmap", .. }), "{error}"),
    }
}

#[test]
fn a_registration_takes_all_flags_for_local_use_and_none_for_peers() {
    let domain = domain();
    let local = AccessFlags::WINDOW_BIND | AccessFlags::RELAXED_ORDERING;
    let buffer = domain.registration().access(local).allocate(64).unwrap();
    assert_eq!(buffer.access(), local | AccessFlags::LOCAL_WRITE);
    drop(there_and_back(&domain, buffer));
    for flag in [
        AccessFlags::REMOTE_READ,
        AccessFlags::REMOTE_WRITE,
        AccessFlags::REMOTE_ATOMIC,
    ] {
        let refused = domain.registration().access(flag).register(vec![0; 8]);
        let Refused {
            value: vector,
            error,
        } = refused.expect_err("peers would reach a slice");
        assert!(matches!(error, Error::InvalidArgument { .. }));
        assert_eq!(vector, [0; 8]);
    }
    let unknown = AccessFlags::from_bits_retain(1 << 19);
    let refused = domain.registration().access(unknown).allocate(64);
    assert!(matches!(
        refused,
        Err(Error::Verb {
            verb: "ibv_reg_mr" | "ibv_reg_buf_mr",
            ..
        })
    ));
}

#[test]
fn relaxed_ordering_is_taken_or_ignored() {
    let pair = Pair::new();
    let access = AccessFlags::REMOTE | AccessFlags::RELAXED_ORDERING;
    let exposed = exposed(&pair.domain, 64, access);
    let mut sends = pair.left.send_queue();
    let source = pattern(&pair.domain, 64, 1);
    carry_out(
        &pair.left,
        &mut sends,
        SendRequest::write(source, exposed.remote()),
    );
    let buffer = exposed.revoke().unwrap();
    assert_eq!(buffer[..], bytes(64, 1));
}

#[test]
fn requests_use_the_address_that_the_registration_says() {
    let domain = domain();
    let there = 0x7654_3210_0000;
    let memory = HostMemory::zeroed(8192).unwrap();
    let mut buffer = domain.registration().at(there).register(memory).unwrap();
    buffer.copy_from_slice(&bytes(8192, 1));
    let buffer = there_and_back(&domain, buffer);
    let (_, part) = buffer.split_at(100);
    drop(there_and_back(&domain, part));
}

#[test]
fn huge_pages_are_larger_than_others() {
    for huge_pages in [HugePages::Prefer, HugePages::Require] {
        for size in [1, 4096] {
            let memory = HostMemory::builder(8).huge_pages(huge_pages);
            let refused = memory.huge_page_size(size).build().unwrap_err();
            assert!(
                matches!(refused, Error::InvalidArgument { .. }),
                "{refused}"
            );
        }
    }
    let memory = HostMemory::builder(8).huge_page_size(1).build().unwrap();
    assert_eq!(memory.pages(), Pages::Ordinary);
}

#[test]
fn a_further_grant_has_a_key_of_its_own_and_keeps_the_memory_exposed() {
    let domain = common::context().protection_domain().unwrap();
    let exposed = domain.allocate(64).unwrap();
    let exposed = exposed.expose(AccessFlags::REMOTE_READ).unwrap();
    let part = exposed.slice(8..24).unwrap();
    let (whole, of_part) = (
        exposed.grant(AccessFlags::REMOTE_READ).unwrap(),
        part.grant(AccessFlags::REMOTE_WRITE).unwrap(),
    );
    assert_eq!((whole.remote().len, of_part.remote().len), (64, 16));
    assert_eq!(of_part.remote().address, whole.remote().address + 8);
    assert_eq!(whole.remote().address, exposed.remote().address);
    let keys = [exposed.remote(), whole.remote(), of_part.remote()].map(|remote| remote.rkey);
    assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
    drop(part);
    let refused = exposed.revoke().unwrap_err();
    assert!(
        matches!(refused.error, Error::InUse { .. }),
        "{}",
        refused.error
    );
    whole.revoke().unwrap();
    drop(of_part);
    refused.value.revoke().unwrap();
}
