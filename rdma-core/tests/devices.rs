//! Devices, ports and GIDs: the existing ones, the crate's choice, and the texts of errors.

mod common;

use common::context;
use rdma_core::device::{DeviceSelector, GidType, LinkLayer, PortState};
use rdma_core::{AddressChoice, Context, Error, devices};

#[test]
fn devices_are_listed_and_open() {
    let context = context();
    let device = devices()
        .unwrap()
        .into_iter()
        .find(|device| device.name() == context.name())
        .expect("the open device is in the list");
    assert_eq!(device.open().unwrap().name(), context.name());
    assert_eq!(context.device().guid(), device.guid());
    assert_ne!(device.guid(), 0);
}

#[test]
fn a_context_outlives_the_list_it_came_from() {
    let name = context().name().to_owned();
    let context = devices()
        .unwrap()
        .into_iter()
        .find(|device| device.name() == name)
        .unwrap()
        .open()
        .unwrap();
    assert!(context.attributes().unwrap().ports() > 0);
}

#[test]
fn attributes_are_plausible() {
    let attributes = context().attributes().unwrap();
    assert!(attributes.ports() >= 1);
    assert!(attributes.max_queue_pairs() > 0);
    assert!(attributes.max_work_requests() >= 128);
    assert!(attributes.max_elements() >= 1);
    assert!(attributes.max_completions() >= 256);
    assert!(attributes.max_regions() > 0);
    assert!(attributes.max_region_size() >= 1 << 20);
}

#[test]
fn ports_and_their_gids_agree() {
    let context = context();
    let ports = context.ports().unwrap();
    assert_eq!(
        ports.len(),
        usize::from(context.attributes().unwrap().ports())
    );
    let gids = context.gids().unwrap();
    for port in &ports {
        let own = gids.iter().filter(|entry| entry.port == port.number());
        assert!(own.count() <= port.gid_table_len());
        assert!(port.active_mtu() <= port.max_mtu());
    }
    assert!(gids.iter().all(|entry| !entry.gid.is_zero()));
}

#[test]
fn the_address_chosen_is_an_active_port_with_an_ipv4_gid_of_roce_v2() {
    let context = context();
    let address = context.address(AddressChoice::default()).unwrap();
    let port = context.port(address.port).unwrap();
    assert_eq!(port.state(), PortState::Active);
    assert_eq!(Some(address.mtu), port.active_mtu());
    let of_roce_v2_and_ipv4 = |entry: &&rdma_core::device::GidEntry| {
        entry.kind == GidType::RoceV2 && entry.gid.to_ipv4().is_some()
    };
    let gids = context.gids().unwrap();
    if port.link_layer() == LinkLayer::Ethernet
        && std::env::var_os(AddressChoice::GID_INDEX_VARIABLE).is_none()
        && gids.iter().any(|entry| of_roce_v2_and_ipv4(&entry))
    {
        assert_eq!(address.kind, Some(GidType::RoceV2));
        assert!(address.gid.to_ipv4().is_some(), "{address}");
        assert_eq!(address.reason, "RoCE v2, IPv4");
    }
}

#[test]
fn every_valid_gid_index_can_be_requested() {
    let context = context();
    let active = |number| context.port(number).unwrap().state() == PortState::Active;
    for entry in context.gids().unwrap() {
        if !active(entry.port) {
            continue;
        }
        let choice = AddressChoice {
            port: Some(entry.port),
            gid_index: Some(entry.index),
            ..AddressChoice::default()
        };
        let address = context.address(choice).unwrap();
        assert_eq!((address.gid_index, address.gid), (entry.index, entry.gid));
        let domain = context.protection_domain().unwrap();
        let prepared = domain.queue_pair().address(choice).build().unwrap();
        assert_eq!(prepared.endpoint().gid, entry.gid);
    }
}

#[test]
fn an_unknown_device_is_an_error_that_lists_the_known() {
    let context = context();
    let error = Context::open("no_such_device").unwrap_err();
    let Error::UnknownDevice { name, available } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(name, "no_such_device");
    assert!(available.iter().any(|name| name == context.name()));
    assert!(error.to_string().contains(context.name()), "{error}");

    let selector: DeviceSelector = "=no_such_device:1".parse().unwrap();
    let error = Context::open_selected(&selector).unwrap_err();
    assert!(
        matches!(&error, Error::UnknownDevice { available, .. } if !available.is_empty()),
        "{error:?}"
    );
}

#[test]
fn an_unknown_port_is_an_error_that_says_which_there_are() {
    let context = context();
    let ports = context.attributes().unwrap().ports();
    for number in [0, ports + 1, u8::MAX] {
        let expected = Error::UnknownPort {
            device: context.name().to_owned(),
            port: number,
            ports,
        };
        assert_eq!(context.port(number).unwrap_err(), expected);
        let choice = AddressChoice {
            port: Some(number),
            ..AddressChoice::default()
        };
        assert_eq!(context.address(choice).unwrap_err(), expected);
        let domain = context.protection_domain().unwrap();
        let error = domain.queue_pair().address(choice).build().unwrap_err();
        assert_eq!(error, expected);
    }
    let selector: DeviceSelector = format!("={}:{}", context.name(), ports + 1)
        .parse()
        .unwrap();
    let error = Context::open_selected(&selector).unwrap_err();
    assert!(matches!(error, Error::UnknownPort { .. }), "{error:?}");
}

#[test]
fn an_unknown_gid_index_is_an_error_that_lists_the_valid() {
    let context = context();
    for index in [200, 255, 256, u32::MAX] {
        let choice = AddressChoice {
            gid_index: Some(index),
            ..AddressChoice::default()
        };
        let error = context.address(choice).unwrap_err();
        let Error::UnknownGidIndex {
            index: told, valid, ..
        } = &error
        else {
            panic!("{error:?}");
        };
        assert_eq!(*told, index);
        assert!(!valid.is_empty());
        let domain = context.protection_domain().unwrap();
        let built = domain.queue_pair().address(choice).build();
        assert_eq!(built.unwrap_err(), error);
    }
}

#[test]
fn objects_of_two_contexts_do_not_mix() {
    let (one, other) = (context(), context());
    let queue = other.completion_queue(8).build().unwrap();
    let domain = one.protection_domain().unwrap();
    let error = domain.queue_pair().send_completions(&queue).build();
    assert!(matches!(error, Err(Error::InvalidArgument { .. })));
    let channel = other.completion_channel().unwrap();
    let error = one.completion_queue(8).channel(&channel).build();
    assert!(matches!(error, Err(Error::InvalidArgument { .. })));
}

#[test]
fn sizes_above_the_devices_limits_are_errors_of_the_verb_with_a_hint() {
    let context = context();
    let error = context.completion_queue(i32::MAX as u32).build();
    let Err(Error::Verb { verb, hint, .. }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(verb, "ibv_create_cq");
    assert!(hint.is_some());
    let domain = context.protection_domain().unwrap();
    assert!(domain.queue_pair().elements(100_000).build().is_err());
    assert!(domain.allocate(0).is_err());
    assert!(domain.allocate(isize::MAX as usize).is_err());
}

#[test]
fn an_endpoint_that_cannot_be_is_not_connected_to() {
    let domain = context().protection_domain().unwrap();
    let prepared = domain.queue_pair().build().unwrap();
    let remote = rdma_core::Endpoint {
        queue_pair: 1 << 24,
        ..prepared.endpoint()
    };
    let error = prepared.connect(&remote, &Default::default()).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
}

#[test]
fn a_context_opened_by_other_code_is_taken_over() {
    let device = context().device();
    // SAFETY: the device is valid for as long as its handle.
    let raw = unsafe { ibverbs_sys::ibv_open_device(device.as_raw()) };
    let raw = std::ptr::NonNull::new(raw).expect("the device opens");
    // SAFETY: the context is open, and no other code closes it.
    let context = unsafe { Context::from_raw(raw) }.unwrap();
    assert_eq!(context.as_raw(), raw.as_ptr());
    assert_eq!(context.name(), device.name());
    assert!(context.attributes().unwrap().ports() >= 1);
    let fd = context.async_fd();
    let link = format!("/proc/self/fd/{fd}");
    let opened = std::fs::read_link(&link).unwrap();
    assert!(opened.to_string_lossy().contains("event"), "{opened:?}");
    // Objects created from the context keep the context open and the device valid.
    let domain = context.protection_domain().unwrap();
    let again = context.device();
    drop(context);
    assert!(domain.allocate(8).is_ok());
    drop(domain);
    assert_eq!(again.guid(), device.guid());
    assert_eq!(again.open().unwrap().name(), device.name());
}

#[test]
fn devices_contexts_and_events_can_be_used_by_any_thread() {
    fn check<T: Send + Sync + 'static>(_: &T) {}
    let context = context();
    check(&context);
    check(&context.device());
    check(&context.async_events().unwrap());
    check(&context.info().unwrap());
    let name = std::thread::spawn({
        let context = context.clone();
        move || context.device().name()
    });
    assert_eq!(name.join().unwrap(), context.name());
}
