//! Regions of every kind: reregistered, null, of device memory, on demand, and zero-based; and the
//! domains that contain them.

mod common;

use std::os::fd::AsFd;

use common::{
    Pair, bytes, carry_out, completion, context, expose, exposed, pattern, receive, succeed,
    where_supported,
};
use rdma_core::memory::{
    DeviceMemory, FailedBuffer, Gather, HostMemory, Prefetch, Reregistration, UnmappedRegion,
};
use rdma_core::{
    AccessFlags, Buffer, ConnectOptions, Error, ProtectionDomain, RemoteMemory, SendRequest,
    ThreadDomain, WorkStatus,
};

fn domain() -> ProtectionDomain {
    context().protection_domain().unwrap()
}

fn pair_in(domain: &ProtectionDomain) -> Pair {
    Pair::in_domain(domain, |builder| builder, &ConnectOptions::default())
}

/// Sends `memory`, and returns the message that arrived, of at most `len` bytes.
#[track_caller]
fn sent<T: Gather + 'static>(pair: &Pair, memory: T, len: usize) -> Vec<u8> {
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(len).unwrap()).unwrap();
    let mut sends = pair.left.send_queue();
    carry_out(&pair.left, &mut sends, SendRequest::send(memory));
    let (completion, received) = receive(&pair.right, &mut receives);
    received[..completion.len()].to_vec()
}

#[test]
fn reregistering_changes_access_domain_and_memory() {
    let context = context();
    let (one, other) = (
        context.protection_domain().unwrap(),
        context.protection_domain().unwrap(),
    );
    let buffer = pattern(&one, 64, 1);
    let access = AccessFlags::WINDOW_BIND;
    let buffer = match buffer.reregister(Reregistration::new().access(access)) {
        Ok(done) => {
            assert!(done.old.is_none());
            done.buffer
        }
        Err(refused) => {
            // If the driver lacks the verb, the crate reports that the region was deregistered.
            assert!(where_supported(Err::<(), _>(refused.error)).is_none());
            let FailedBuffer::Unregistered(memory) = refused.buffer else {
                panic!("{}", refused.buffer);
            };
            let memory: HostMemory = memory.into_owner().unwrap();
            assert_eq!(memory[..], bytes(64, 1), "the memory is there");
            return;
        }
    };
    assert_eq!(buffer.access(), access | AccessFlags::LOCAL_WRITE);
    let buffer = buffer.reregister(Reregistration::new().domain(&other));
    let buffer = buffer.unwrap().buffer;
    assert_eq!(sent(&pair_in(&other), buffer.freeze(), 64), bytes(64, 1));

    let buffer = pattern(&one, 64, 2);
    let changes = Reregistration::new().memory(bytes(128, 3)).domain(&other);
    let done = buffer.reregister(changes).unwrap();
    let old: HostMemory = done.old.expect("it changed").into_owner().unwrap();
    assert_eq!(old[..], bytes(64, 2));
    assert_eq!(done.buffer.len(), 128);
    assert_eq!(
        sent(&pair_in(&other), done.buffer.freeze(), 128),
        bytes(128, 3)
    );
}

#[test]
fn a_refused_reregistration_leaves_the_buffer_as_it_was() {
    let domain = domain();
    let check = |left, what| match left {
        FailedBuffer::Unchanged(buffer) => buffer,
        left => panic!("{what}: {left}"),
    };
    let buffer = pattern(&domain, 64, 1);
    let refused = buffer.reregister(Reregistration::new()).unwrap_err();
    assert!(matches!(refused.error, Error::InvalidArgument { .. }));
    let buffer = check(refused.buffer, "no change");
    let remote = Reregistration::new().access(AccessFlags::REMOTE_READ);
    let refused = buffer.reregister(remote).unwrap_err();
    let buffer = check(refused.buffer, "remote rights");
    let stranger = context().protection_domain().unwrap();
    let foreign = Reregistration::new().domain(&stranger);
    let refused = buffer.reregister(foreign).unwrap_err();
    let buffer = check(refused.buffer, "another context's domain");
    let refused = buffer.reregister(Reregistration::new().memory(Vec::new()));
    let buffer = check(refused.unwrap_err().buffer, "no memory");
    let (left, _right) = buffer.split_at(32);
    let changes = Reregistration::new().access(AccessFlags::WINDOW_BIND);
    let refused = left.reregister(changes).unwrap_err();
    assert!(matches!(refused.error, Error::InUse { .. }));
    let left = check(refused.buffer, "a part");
    assert_eq!(
        sent(&pair_in(&domain), left.freeze(), 32),
        &bytes(64, 1)[..32]
    );
}

#[test]
fn a_null_region_reads_as_zeroes_and_forgets() {
    let pair = Pair::new();
    let Some(null) = where_supported(pair.domain.null_region()) else {
        return;
    };
    let source = (null.slice(..16).unwrap(), pattern(&pair.domain, 16, 1));
    let expected = [&[0; 16], &bytes(16, 1)[..]].concat();
    assert_eq!(sent(&pair, source, 32), expected);

    let mut receives = pair.right.receive_queue();
    let target = (null.slice(..16).unwrap(), pair.domain.allocate(16).unwrap());
    receives.post(target).unwrap();
    let mut sends = pair.left.send_queue();
    carry_out(
        &pair.left,
        &mut sends,
        SendRequest::send(pattern(&pair.domain, 32, 2)),
    );
    let (_, (_, rest)) = receive(&pair.right, &mut receives);
    assert_eq!(rest[..], bytes(32, 2)[16..]);

    let whole = SendRequest::send(null.clone());
    let refused = pair.left.send_queue().post(whole).unwrap_err();
    assert!(
        matches!(refused.error, Error::InvalidArgument { .. }),
        "too long"
    );
}

#[test]
fn what_has_no_address_is_not_copied_inline() {
    let pair = Pair::with(
        |builder| builder.inline_data(64),
        &ConnectOptions::default(),
    );
    let mut sends = pair.left.send_queue();
    let there = 0x7654_3210_0000;
    let memory = HostMemory::zeroed(64).unwrap();
    let elsewhere = pair
        .domain
        .registration()
        .at(there)
        .register(memory)
        .unwrap();
    let refused = sends
        .post(SendRequest::send(elsewhere).inline())
        .unwrap_err();
    assert!(matches!(refused.error, Error::InvalidArgument { .. }));
    let Some(null) = where_supported(pair.domain.null_region()) else {
        return;
    };
    let mut sends = pair.left.send_queue();
    let part = null.slice(..8).unwrap();
    let refused = sends.post(SendRequest::send(part).inline()).unwrap_err();
    assert!(matches!(refused.error, Error::InvalidArgument { .. }));
    let mut sends = pair.left.send_queue();
    let exposed = exposed(&pair.domain, 64, AccessFlags::ZERO_BASED);
    assert!(sends.post(SendRequest::send(exposed).inline()).is_err());
}

#[test]
fn device_memory_is_copied_from_and_to_and_registered() {
    let context = context();
    let Some(memory) = where_supported(context.device_memory(4096, 64)) else {
        return;
    };
    assert_eq!(memory.len(), 4096);
    memory.write_at(64, &bytes(256, 1)).unwrap();
    let mut back = [0; 128];
    memory.read_at(128, &mut back).unwrap();
    assert_eq!(back[..], bytes(256, 1)[64..192]);
    assert!(matches!(
        memory.write_at(4090, &[0; 8]),
        Err(Error::OutOfRange { .. })
    ));
    assert!(matches!(
        memory.read_at(usize::MAX, &mut back),
        Err(Error::OutOfRange { .. })
    ));
    memory.write_at(4096, &[]).unwrap();
    for (offset, len) in [(2, DeviceMemory::WORD), (0, DeviceMemory::WORD + 2)] {
        let errno = |outcome: rdma_core::Result<()>| outcome.unwrap_err().errno().unwrap().0;
        assert_eq!(errno(memory.write_at(offset, &bytes(len, 1))), libc::EINVAL);
        assert_eq!(
            errno(memory.read_at(offset, &mut back[..len])),
            libc::EINVAL
        );
    }

    let domain = context.protection_domain().unwrap();
    let region = domain
        .register_device_memory(&memory, 64..1088, AccessFlags::REMOTE)
        .unwrap();
    drop(memory.clone());
    let pair = pair_in(&domain);
    let local = region.slice(..256).unwrap();
    assert_eq!(sent(&pair, local, 256), bytes(256, 1));
    let part = region.slice(512..).unwrap();
    assert_eq!((part.remote().address, part.remote().len), (512, 512));
    let mut sends = pair.left.send_queue();
    let source = pattern(&domain, 128, 2);
    carry_out(
        &pair.left,
        &mut sends,
        SendRequest::write(source, part.remote()),
    );
    memory.read_at(64 + 512, &mut back).unwrap();
    assert_eq!(back[..], bytes(128, 2));
    let beyond = RemoteMemory {
        address: 1000,
        ..part.remote()
    };
    let source = pattern(&domain, 128, 2);
    sends.post(SendRequest::write(source, beyond)).unwrap();
    let refused = completion(pair.left.send_completions());
    assert_eq!(refused.status(), WorkStatus::RemoteAccess);
}

#[test]
fn device_memory_outside_of_its_bounds_is_refused() {
    let context = context();
    assert!(matches!(
        context.device_memory(0, 8),
        Err(Error::InvalidArgument { .. })
    ));
    assert!(matches!(
        context.device_memory(64, 3),
        Err(Error::InvalidArgument { .. })
    ));
    let Some(memory) = where_supported(context.device_memory(64, 8)) else {
        return;
    };
    let domain = context.protection_domain().unwrap();
    let register = |range| domain.register_device_memory(&memory, range, AccessFlags::empty());
    assert!(matches!(register(0..65), Err(Error::OutOfRange { .. })));
    assert!(matches!(register(8..8), Err(Error::InvalidArgument { .. })));
    let stranger = common::context().protection_domain().unwrap();
    let foreign = stranger.register_device_memory(&memory, .., AccessFlags::empty());
    assert!(matches!(foreign, Err(Error::InvalidArgument { .. })));
    let region = register(0..64).unwrap();
    drop(memory);
    assert!(region.slice(60..70).is_err());
    assert!(region.slice(u64::MAX..).is_err());
}

#[test]
fn a_dma_buf_is_unsupported_by_devices_in_software() {
    let domain = domain();
    let file = std::fs::File::open("/dev/zero").unwrap();
    let access = AccessFlags::REMOTE_READ;
    let error = domain
        .register_dmabuf(file.as_fd(), 0, 4096, 0, access)
        .unwrap_err();
    // A device with the verb would return EBADF or EINVAL for a file that is not a dma-buf.
    assert!(error.is_unsupported(), "{error}");
    assert!(error.to_string().contains("dma-buf"), "{error}");
    let nothing = domain.register_dmabuf(file.as_fd(), 0, 0, 0, access);
    assert!(matches!(nothing, Err(Error::InvalidArgument { .. })));
}

fn on_demand(domain: &ProtectionDomain, len: usize) -> Option<Buffer> {
    let on_demand = domain.registration().access(AccessFlags::ON_DEMAND);
    where_supported(on_demand.allocate(len))
}

#[test]
fn on_demand_memory_serves_requests_and_takes_advice() {
    let pair = Pair::new();
    let Some(mut buffer) = on_demand(&pair.domain, 1 << 16) else {
        return;
    };
    for how in [Prefetch::Read, Prefetch::Write, Prefetch::Present] {
        buffer.prefetch(4096..8192, how).unwrap();
    }
    buffer.prefetch(..0, Prefetch::Read).unwrap();
    assert!(matches!(
        buffer.prefetch(..=1 << 16, Prefetch::Read),
        Err(Error::OutOfRange { .. })
    ));
    buffer.copy_from_slice(&bytes(1 << 16, 1));
    assert_eq!(sent(&pair, buffer, 1 << 16), bytes(1 << 16, 1));

    let access = AccessFlags::REMOTE_WRITE | AccessFlags::ON_DEMAND;
    let exposed = exposed(&pair.domain, 4096, access);
    exposed.prefetch(.., Prefetch::Write).unwrap();
    let mut sends = pair.left.send_queue();
    let source = pattern(&pair.domain, 4096, 2);
    carry_out(
        &pair.left,
        &mut sends,
        SendRequest::write(source, exposed.remote()),
    );
    let buffer = exposed.revoke().unwrap();
    assert_eq!(buffer[..], bytes(4096, 2));
}

#[test]
fn advice_about_pinned_memory_is_an_error() {
    let buffer = domain().allocate(4096).unwrap();
    let error = buffer.prefetch(.., Prefetch::Read).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Verb {
                verb: "ibv_advise_mr",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn zero_based_memory_is_counted_from_zero() {
    let pair = Pair::new();
    let access = AccessFlags::REMOTE | AccessFlags::ZERO_BASED;
    let (_, part) = pair.domain.allocate(8192).unwrap().split_at(4096);
    let exposed = expose(part, access);
    assert_eq!(exposed.remote().address, 0);
    let place = exposed.slice(64..128).unwrap().remote();
    assert_eq!(place.address, 64);
    let mut sends = pair.left.send_queue();
    let source = pattern(&pair.domain, 64, 1);
    sends.post(SendRequest::write(source, place)).unwrap();
    succeed(pair.left.send_completions());
    let mut content = [0; 64];
    exposed.read_at(64, &mut content).unwrap();
    assert_eq!(content[..], bytes(64, 1));
    // Requests of this process can use the memory as well.
    let mut receives = pair.right.receive_queue();
    receives.post(exposed.slice(..64).unwrap()).unwrap();
    carry_out(
        &pair.left,
        &mut pair.left.send_queue(),
        SendRequest::send(exposed.slice(64..128).unwrap()),
    );
    succeed(pair.right.receive_completions());
    exposed.read_at(0, &mut content).unwrap();
    assert_eq!(content[..], bytes(64, 1));
}

#[test]
fn memory_is_exposed_at_an_address_of_choice() {
    let pair = Pair::new();
    let there = 0x6543_2100_0000;
    let exposed = pair
        .domain
        .allocate(8192)
        .unwrap()
        .expose_at(AccessFlags::REMOTE, there)
        .unwrap();
    assert_eq!(exposed.remote().address, there);
    let mut sends = pair.left.send_queue();
    let source = pattern(&pair.domain, 64, 1);
    let place = exposed.remote().slice(100..164).unwrap();
    carry_out(&pair.left, &mut sends, SendRequest::write(source, place));
    let buffer = exposed.revoke().unwrap();
    assert_eq!(buffer[100..164], bytes(64, 1));
}

#[test]
fn a_parent_domain_is_the_domain_it_is_made_of() {
    let domain = domain();
    let Some(parent) = where_supported(domain.parent()) else {
        return;
    };
    assert!(matches!(
        parent.parent(),
        Err(Error::InvalidArgument { .. })
    ));
    let pair = pair_in(&parent);
    pair.check();
    assert_eq!(sent(&pair, pattern(&domain, 64, 1), 64), bytes(64, 1));
    let pair = pair_in(&domain);
    drop(domain);
    assert_eq!(sent(&pair, pattern(&parent, 64, 2), 64), bytes(64, 2));
}

#[test]
fn a_thread_domain_serves_a_parent_domain() {
    let context = context();
    let Some(thread) = where_supported(context.thread_domain()) else {
        return;
    };
    assert!(!thread.as_raw().is_null());
    let domain = context.protection_domain().unwrap();
    // SAFETY: only this thread uses the objects of the domain.
    let parent = unsafe { domain.parent_with(&thread) }.unwrap();
    drop((thread, domain));
    pair_in(&parent).check();
    let stranger = common::context().thread_domain().unwrap();
    // SAFETY: only this thread uses the objects of the domain.
    let refused = unsafe { parent.parent_with(&stranger) };
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
}

#[test]
fn objects_of_c_become_objects_of_this_crate() {
    let context = context();
    // SAFETY: the context is open, and no other code uses the domain that is created here.
    let domain = unsafe {
        let raw = ibverbs_sys::ibv_alloc_pd(context.as_raw());
        assert!(!raw.is_null());
        ProtectionDomain::from_raw(&context, raw)
    };
    let mut vector = bytes(64, 1);
    let access = AccessFlags::LOCAL_WRITE;
    // SAFETY: the region covers the memory of the vector, which the buffer owns, and no other code
    // uses it.
    let buffer = unsafe {
        let start = vector.as_mut_ptr().cast();
        let raw = ibverbs_sys::ibv_reg_mr(domain.as_raw(), start, 64, access.bits() as _);
        assert!(!raw.is_null());
        Buffer::from_raw(&domain, raw, vector, access, None)
    };
    let pair = pair_in(&domain);
    assert_eq!(sent(&pair, buffer, 64), bytes(64, 1));

    // SAFETY: the page is mapped here, no other code uses it, and its new owner unmaps it.
    let mapped = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let start = libc::mmap(std::ptr::null_mut(), 4096, rights, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        let start = std::ptr::NonNull::new(start.cast()).unwrap();
        HostMemory::from_mapping(start, 4096)
    };
    let mut buffer = domain.register(mapped).unwrap();
    buffer.copy_from_slice(&bytes(4096, 2));
    // SAFETY: no other code uses the region, and no reference to its memory, the static below,
    // exists.
    let region = unsafe {
        static BYTES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(7);
        let start = BYTES.as_ptr();
        let raw = ibverbs_sys::ibv_reg_mr(domain.as_raw(), start.cast(), 8, access.bits() as _);
        assert!(!raw.is_null());
        UnmappedRegion::from_raw(&domain, raw, start as u64, 8, access, ())
    };
    assert_eq!(sent(&pair, buffer, 4096), bytes(4096, 2));
    assert_eq!(sent(&pair, region, 8), 7_u64.to_ne_bytes());
}

#[test]
fn device_memory_of_c_becomes_device_memory_of_this_crate() {
    let context = context();
    let mut attributes = ibverbs_sys::ibv_alloc_dm_attr {
        length: 4096,
        log_align_req: 3,
        comp_mask: 0,
    };
    // SAFETY: the context is open.
    let raw = unsafe { ibverbs_sys::ibv_alloc_dm(context.as_raw(), &mut attributes) };
    if where_supported(context.device_memory(4096, 8)).is_none() {
        assert!(raw.is_null());
        return;
    }
    // SAFETY: the memory has this length, and no other code uses it.
    let memory = unsafe { DeviceMemory::from_raw(&context, raw, 4096) };
    assert_eq!((memory.as_raw(), memory.len()), (raw, 4096));
    memory.write_at(64, &bytes(256, 1)).unwrap();
    let domain = context.protection_domain().unwrap();
    let region = domain
        .register_device_memory(&memory, 64..320, AccessFlags::empty())
        .unwrap();
    drop(memory);
    assert_eq!(sent(&pair_in(&domain), region, 256), bytes(256, 1));
}

#[test]
fn a_thread_domain_of_c_becomes_one_of_this_crate() {
    let context = context();
    let mut attributes = ibverbs_sys::ibv_td_init_attr { comp_mask: 0 };
    // SAFETY: the context is open.
    let raw = unsafe { ibverbs_sys::ibv_alloc_td(context.as_raw(), &mut attributes) };
    if where_supported(context.thread_domain()).is_none() {
        assert!(raw.is_null());
        return;
    }
    // SAFETY: no other code uses the thread domain.
    let thread = unsafe { ThreadDomain::from_raw(&context, raw) };
    assert_eq!(thread.as_raw(), raw);
    let domain = context.protection_domain().unwrap();
    // SAFETY: only this thread uses the objects of the domain.
    let parent = unsafe { domain.parent_with(&thread) }.unwrap();
    drop((thread, domain));
    pair_in(&parent).check();
}

#[test]
fn a_mapped_file_is_registered_and_written() {
    let domain = domain();
    let path = std::env::temp_dir().join(format!("rdma-core-{}", std::process::id()));
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    file.set_len(8192).unwrap();
    // SAFETY: no other code knows the file.
    let memory = unsafe { HostMemory::map_file(file.as_fd(), 4096, 4096) }.unwrap();
    let buffer = domain.register(memory).unwrap();
    let pair = pair_in(&domain);
    let mut receives = pair.right.receive_queue();
    receives.post(buffer).unwrap();
    let source = pattern(&domain, 4096, 3);
    carry_out(
        &pair.left,
        &mut pair.left.send_queue(),
        SendRequest::send(source),
    );
    drop(receive(&pair.right, &mut receives));
    let content = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(content[4096..], bytes(4096, 3));
}
