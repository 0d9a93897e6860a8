//! Memory from the allocator of the device, or ordinary memory if the device has no allocator. A
//! program sees no difference.

mod common;

use std::sync::{Mutex, MutexGuard};

use common::{Pair, bytes, carry_out, context, is_softroce, pattern, receive, succeed};
use rdma_core::memory::{DetachedMemory, HostMemory, HugePages, Pages};
use rdma_core::{AccessFlags, Buffer, ProtectionDomain, Refused, SendRequest};
use softroce::fault::{Errno, Failure, Verb};
use softroce::{Kind, objects};

/// Returns a lock that makes the tests run one at a time, because they count objects of the device
/// and inject failures.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|broken| broken.into_inner())
}

fn domain() -> ProtectionDomain {
    context().protection_domain().unwrap()
}

/// Checks the number of buffers of the device. Only softroce reports its buffers, and only on
/// request.
#[track_caller]
fn buffers(expected: u64) {
    if is_softroce() {
        assert_eq!(objects(Kind::Buffer), expected);
    }
}

fn detach(buffer: Buffer) -> DetachedMemory {
    buffer.detach().unwrap()
}

#[test]
fn what_a_domain_allocates_is_the_devices() {
    let _alone = alone();
    let domain = domain();
    let buffer = domain.allocate(10_000).unwrap();
    buffers(1);
    assert!(buffer.iter().all(|byte| *byte == 0));
    assert_eq!(buffer.as_ptr().addr() % 4096, 0);
    let layout = std::alloc::Layout::from_size_align(100, 1 << 16).unwrap();
    let aligned = domain.allocate_layout(layout).unwrap();
    buffers(2);
    assert_eq!(
        (aligned.len(), aligned.as_ptr().addr() % (1 << 16)),
        (100, 0)
    );
    let mut memory: HostMemory = buffer.into_owner().unwrap();
    assert_eq!(memory.pages(), Pages::Ordinary);
    // Memory and buffers outlive the region, and keep the domain alive.
    drop(domain);
    memory.fill(7);
    drop(aligned);
    buffers(1);
    assert!(memory.iter().all(|byte| *byte == 7));
    drop(memory);
    buffers(0);
}

#[test]
fn alignment_prefaulting_and_huge_pages_are_respected() {
    let _alone = alone();
    let domain = domain();
    for (len, align) in [
        (1, 1),
        (10, 1 << 12),
        (5000, 1 << 13),
        (5000, 1 << 21),
        (1 << 20, 64),
    ] {
        let memory = HostMemory::builder(len)
            .align(align)
            .domain(&domain)
            .prefault();
        let mut memory = memory.build().unwrap();
        buffers(1);
        assert_eq!((memory.len(), memory.as_ptr().addr() % align), (len, 0));
        assert!(memory.iter().all(|byte| *byte == 0));
        memory.fill(7);
    }
    buffers(0);
    // Huge pages do not come from the device.
    let huge = HostMemory::builder(1 << 20).domain(&domain);
    let huge = huge.huge_pages(HugePages::Prefer).build().unwrap();
    buffers(0);
    assert!(huge.pages() != Pages::Ordinary || huge.fallback().is_some());
    for len in [0, usize::MAX, usize::MAX / 2] {
        HostMemory::builder(len)
            .domain(&domain)
            .build()
            .unwrap_err();
    }
}

#[test]
fn memory_of_the_device_moves_between_domains_and_is_divided() {
    let _alone = alone();
    let (one, other) = (domain(), domain());
    let mut buffer = one.allocate(8192).unwrap();
    buffer.copy_from_slice(&bytes(8192, 1));
    let address = buffer.as_ptr();
    for domain in [&other, &one, &one] {
        let attached = domain.registration().attach(detach(buffer));
        buffer = attached.unwrap();
        assert_eq!(buffer.as_ptr(), address);
    }
    // To the verb, a parent domain is another domain.
    let parent = one.parent().ok();
    if let Some(parent) = &parent {
        let attached = parent.registration().attach(detach(buffer));
        buffer = attached.unwrap();
    }
    let (left, right) = buffer.split_at(100);
    let buffer = left.join(right).unwrap();
    assert_eq!(buffer[..], bytes(8192, 1));
    let at_address = one.registration().at(1 << 30);
    let buffer = at_address.attach(detach(buffer)).unwrap();
    drop((one, other, parent));
    assert_eq!(buffer[..], bytes(8192, 1));
    drop(buffer);
    buffers(0);
}

#[test]
fn messages_and_peers_use_memory_of_the_device() {
    let _alone = alone();
    let pair = Pair::new();
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(8192).unwrap()).unwrap();
    let mut sends = pair.left.send_queue();
    let source = pattern(&pair.domain, 8192, 1);
    let source = carry_out(&pair.left, &mut sends, SendRequest::send(source));
    let (_, received) = receive(&pair.right, &mut receives);
    assert_eq!(received[..], bytes(8192, 1));
    // A part of the buffer is exposed by a second region, while the first one still uses the
    // memory.
    let (left, right) = received.split_at(5000);
    let exposed = left.expose(AccessFlags::REMOTE).unwrap();
    let (source, _) = source.split_at(5000);
    sends
        .post(SendRequest::write(source, exposed.remote()))
        .unwrap();
    succeed(pair.left.send_completions());
    let left = exposed.revoke().unwrap();
    assert_eq!(left[..], bytes(8192, 1)[..5000]);
    drop((left, right));
}

/// If the device refuses to allocate, for any reason, the memory is ordinary memory.
#[test]
fn ordinary_memory_replaces_memory_of_the_device() {
    let _alone = alone();
    if !is_softroce() {
        // The device under test always refuses, so no failure must be injected.
        domain().allocate(64).unwrap();
        return;
    }
    let domain = domain();
    for errno in [libc::EOPNOTSUPP, libc::ENOMEM] {
        softroce::faults().fail(Failure {
            verb: Verb::AllocBuf,
            call: 1,
            errno: Errno(errno),
        });
        let layout = std::alloc::Layout::from_size_align(10_000, 1 << 16).unwrap();
        let buffer = domain.allocate_layout(layout).unwrap();
        buffers(0);
        assert_eq!(buffer.as_ptr().addr() % (1 << 16), 0);
        assert!(buffer.iter().all(|byte| *byte == 0));
    }
    drop(domain.allocate(64).unwrap());
}

/// The memory is freed when the region was deregistered, and not before.
#[test]
fn a_failed_registration_gives_the_memory_back() {
    let _alone = alone();
    let domain = domain();
    let unknown = AccessFlags::from_bits_retain(1 << 19);
    domain
        .registration()
        .access(unknown)
        .allocate(64)
        .unwrap_err();
    buffers(0);
    let memory = HostMemory::builder(64).domain(&domain).build().unwrap();
    let refused = domain.registration().access(unknown).register(memory);
    let Refused { value: memory, .. } = refused.unwrap_err();
    buffers(1);
    drop(domain.register(memory).unwrap());
    buffers(0);
}
