//! Contexts that share their objects, and imported objects.

mod common;

use std::os::fd::AsFd;

use common::{Pair, bytes, carry_out, context, pattern, where_supported};
use rdma_core::memory::DeviceMemory;
use rdma_core::{AccessFlags, ConnectOptions, Context, ProtectionDomain, SendRequest};

/// Returns two contexts that share their objects; `None` if the device does not support this.
fn shared() -> Option<(Context, Context)> {
    let context = context();
    let second = where_supported(context.share())?;
    Some((context, second))
}

fn pair_in(domain: &ProtectionDomain) -> Pair {
    Pair::in_domain(domain, |builder| builder, &ConnectOptions::default())
}

#[test]
fn a_descriptor_that_is_no_device_s_is_refused() {
    let file = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: the import fails, so no context exists.
    let refused = unsafe { Context::import(file.into()) }.unwrap_err();
    assert!(
        refused.to_string().contains("ibv_import_device"),
        "{refused}"
    );
}

#[test]
fn an_imported_domain_is_used_as_the_original_one() {
    let Some((context, second)) = shared() else {
        return;
    };
    let domain = context.protection_domain().unwrap();
    let same = second
        .import_protection_domain(domain.object_handle())
        .unwrap();
    assert_eq!(same.object_handle(), domain.object_handle());
    // A request of the original domain writes to a region of the imported one.
    let pair = pair_in(&domain);
    let target = same
        .allocate(64)
        .unwrap()
        .expose(AccessFlags::REMOTE_WRITE)
        .unwrap();
    let mut sends = pair.left.send_queue();
    let source = pattern(&domain, 64, 1);
    carry_out(
        &pair.left,
        &mut sends,
        SendRequest::write(source, target.remote()),
    );
    let mut content = [0; 64];
    target.read_at(0, &mut content).unwrap();
    assert_eq!(content[..], bytes(64, 1));
    // A context is closed after its last object is destroyed.
    drop((context, domain, pair, sends));
    drop(second);
    assert!(same.allocate(64).is_ok());
}

#[test]
fn an_imported_region_has_the_key_of_the_region() {
    let Some((context, second)) = shared() else {
        return;
    };
    let domain = context.protection_domain().unwrap();
    let same = second
        .import_protection_domain(domain.object_handle())
        .unwrap();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let buffer = pattern(&domain, 64, 2);
    let first = buffer.as_ptr().addr() as u64;
    let handle = buffer.object_handle();
    // SAFETY: the region is used only as the source of a request, and its owner only reads it.
    let region = unsafe { same.import_region(handle, first, access, ()) }.unwrap();
    assert_eq!(region.len(), 64);
    assert_eq!(region.object_handle(), handle);
    let pair = pair_in(&same);
    let target = same
        .allocate(64)
        .unwrap()
        .expose(AccessFlags::REMOTE_WRITE)
        .unwrap();
    let mut sends = pair.left.send_queue();
    carry_out(
        &pair.left,
        &mut sends,
        SendRequest::write(region, target.remote()),
    );
    let mut content = [0; 64];
    target.read_at(0, &mut content).unwrap();
    assert_eq!(content[..], bytes(64, 2));
    drop(buffer);
    // SAFETY: the import fails, so no region exists.
    let gone = unsafe { same.import_region(handle, first, access, ()) };
    assert!(gone.is_err());
}

#[test]
fn imported_device_memory_has_the_bytes_of_the_original() {
    let Some((context, second)) = shared() else {
        return;
    };
    let Some(memory) = where_supported(context.device_memory(64, 8)) else {
        return;
    };
    let same: DeviceMemory = second
        .import_device_memory(memory.object_handle(), 64)
        .unwrap();
    memory.write_at(8, &bytes(16, 3)).unwrap();
    let mut back = [0; 16];
    same.read_at(8, &mut back).unwrap();
    assert_eq!(back[..], bytes(16, 3));
    let long = second
        .import_device_memory(memory.object_handle(), 4096)
        .unwrap();
    assert!(long.read_at(60, &mut back).is_err(), "the memory ends");
    let handle = memory.object_handle();
    drop((long, same, memory));
    assert!(second.import_device_memory(handle, 64).is_err());
}

#[test]
fn the_command_descriptor_is_duplicated_by_the_program() {
    let Some((context, _)) = shared() else {
        return;
    };
    let command = context.command_fd().expect("an importable context has one");
    let duplicate = command.as_fd().try_clone_to_owned().unwrap();
    // SAFETY: all objects are created in this process.
    let second = unsafe { Context::import(duplicate) }.unwrap();
    assert_eq!(second.name(), context.name());
    let stranger = common::context().protection_domain().unwrap();
    assert!(
        second
            .import_protection_domain(stranger.object_handle())
            .is_err(),
        "the domain of a context that shares no objects"
    );
}
