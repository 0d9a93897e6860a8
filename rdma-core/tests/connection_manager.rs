//! The event interface of the connection manager: channels, identifiers, and refused operations.

mod common;
#[path = "common/manager.rs"]
mod manager;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use manager::{MAX_WAIT, assert_no_manager, event, resolved};
use rdma_core::cm::{
    AddressQuery, ConnectionError, ConnectionEventKind, ConnectionId, ConnectionIdOption,
    ConnectionParameters, Connector, EventChannel, Listener, PortSpace,
};
use rdma_core::{AccessFlags, Buffer, Error, QueuePairState, SendRequest, Transport};

#[test]
fn a_system_without_a_connection_manager_says_so_by_type() {
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    match EventChannel::new() {
        Ok(_) => assert!(std::path::Path::new("/dev/infiniband/rdma_cm").exists()),
        Err(error) => {
            assert_no_manager(&error);
            assert_no_manager(&Listener::bind(nowhere).unwrap_err());
            assert_no_manager(&Connector::new(nowhere).resolve().unwrap_err());
            let io: std::io::Error = error.into();
            assert_eq!(io.kind(), std::io::ErrorKind::Unsupported);
        }
    }
    // A machine with a device of the kernel has a connection manager.
    manager::address();
}

#[test]
fn a_channel_without_events_does_not_block_and_waits_end_in_time() {
    if manager::address().is_none() {
        return;
    }
    let channel = EventChannel::new().unwrap();
    assert!(channel.try_next().unwrap().is_none());
    let begin = Instant::now();
    let waited = Duration::from_millis(30);
    assert!(channel.next(Some(waited)).unwrap().is_none());
    assert!(begin.elapsed() >= waited);
    assert_eq!(channel.as_fd().as_raw_fd(), channel.as_raw_fd());
    assert_eq!(channel.identifiers(), 0);
}

#[test]
fn a_connection_is_made_event_by_event() {
    let Some(address) = manager::address() else {
        return;
    };
    // Both sides report on one channel; their identifiers distinguish the events.
    let channel = EventChannel::new().unwrap();
    let listener = ConnectionId::new(&channel, PortSpace::Tcp).unwrap();
    assert_eq!(listener.port_space(), PortSpace::Tcp);
    assert_eq!(listener.peer_address(), None);
    listener.bind(SocketAddr::new(address, 0)).unwrap();
    listener.listen(4).unwrap();
    let there = listener.local_address().unwrap();

    let client = ConnectionId::new(&channel, PortSpace::Tcp).unwrap();
    client.resolve_address(None, there, MAX_WAIT).unwrap();
    assert!(resolved(&channel).id.is(&client));
    assert_eq!(client.peer_address(), Some(there));
    assert_eq!(client.local_address().unwrap().ip(), address);
    let context = client.context().unwrap();
    assert_eq!(client.device_name().as_deref(), Some(context.name()));
    client.resolve_route(MAX_WAIT).unwrap();
    let kind = event(&channel).kind;
    assert!(matches!(kind, ConnectionEventKind::RouteResolved), "{kind}");

    let domain = context.protection_domain().unwrap();
    let parameters = ConnectionParameters::default();
    let prepared = client.prepare(domain.queue_pair()).unwrap();
    client.connect(&prepared, &parameters).unwrap();

    let asked = event(&channel);
    assert!(asked.id.is(&listener));
    let ConnectionEventKind::ConnectRequest(request) = asked.kind else {
        panic!("{}", asked.kind);
    };
    assert!(request.listener().is(&listener));
    assert_eq!(request.peer().queue_pair, prepared.endpoint().queue_pair);
    assert_eq!(request.peer_address().unwrap().ip(), address);
    let other = request.prepare(domain.queue_pair()).unwrap();
    let mut receives = other.receive_queue::<Buffer>();
    receives.post(domain.allocate(8).unwrap()).unwrap();
    let (server, right) = request.accept(other, &parameters).unwrap();

    let answered = event(&channel);
    assert!(answered.id.is(&client));
    let ConnectionEventKind::ConnectResponse(peer) = answered.kind else {
        panic!("{}", answered.kind);
    };
    assert_eq!(peer.queue_pair, right.number());
    let left = client.establish(prepared, &peer, &parameters).unwrap();
    let stands = event(&channel);
    assert!(stands.id.is(&server));
    assert!(matches!(stands.kind, ConnectionEventKind::Established(_)));
    assert_eq!(left.state().unwrap(), QueuePairState::ReadyToSend);
    assert_eq!(left.remote().unwrap().queue_pair, right.number());
    assert_eq!(right.remote().unwrap().queue_pair, left.number());
    assert_eq!(channel.identifiers(), 3);

    let mut sends = left.send_queue();
    sends
        .post(SendRequest::send(common::pattern(&domain, 8, 1)))
        .unwrap();
    common::succeed(left.send_completions());
    let (_, received) = common::receive(&right, &mut receives);
    assert_eq!(received[..], common::bytes(8, 1));

    client.disconnect().unwrap();
    // The other side gets the event, and its confirmation produces an event on this side.
    let told = event(&channel);
    assert!(matches!(told.kind, ConnectionEventKind::Disconnected));
    assert!(told.id.is(&server));
    server.disconnect().unwrap();
    let confirmed = event(&channel);
    assert!(matches!(confirmed.kind, ConnectionEventKind::Disconnected));
    assert!(confirmed.id.is(&client));
    drop((told, confirmed, asked.id, answered.id, stands.id));
    drop((client, server, listener));
    assert_eq!(channel.identifiers(), 0);
}

#[test]
fn calls_in_the_wrong_order_are_errors() {
    let Some(address) = manager::address() else {
        return;
    };
    let channel = EventChannel::new().unwrap();
    let fresh = ConnectionId::new(&channel, PortSpace::Tcp).unwrap();
    let context = common::context();
    let domain = context.protection_domain().unwrap();
    let prepared = domain.queue_pair().build().unwrap();
    let parameters = ConnectionParameters::default();
    let group = SocketAddr::from((Ipv4Addr::new(239, 1, 2, 3), 0));
    // In most of these calls librdmacm would dereference a null pointer.
    let refused = [
        fresh.resolve_route(MAX_WAIT).unwrap_err(),
        fresh.connect(&prepared, &parameters).unwrap_err(),
        fresh.disconnect().unwrap_err(),
        fresh.notify_established().unwrap_err(),
        fresh.context().unwrap_err(),
        fresh.prepare(domain.queue_pair()).unwrap_err(),
        fresh.join_multicast(group, false, 0).unwrap_err(),
        fresh.leave_multicast(group).unwrap_err(),
        fresh.find_datagram_peer(&parameters).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    }
    assert_eq!(fresh.device_name(), None);
    assert_eq!(fresh.port(), None);
    assert_eq!(fresh.local_address(), None);

    // For an identifier that has a device and is not connected, the kernel returns an error.
    fresh.bind(SocketAddr::new(address, 0)).unwrap();
    assert_eq!(fresh.context().unwrap().name(), context.name());
    assert!(fresh.bind(SocketAddr::new(address, 0)).is_err());
    let refused = [
        fresh.disconnect().unwrap_err(),
        fresh.connect(&prepared, &parameters).unwrap_err(),
        fresh.resolve_route(MAX_WAIT).unwrap_err(),
    ];
    for error in refused {
        let Error::Verb { errno, hint, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(errno.0, libc::EINVAL, "{error}");
        assert!(hint.is_some(), "{error}");
    }
}

#[test]
fn queue_pairs_that_do_not_fit_are_refused() {
    let Some(address) = manager::address() else {
        return;
    };
    let channel = EventChannel::new().unwrap();
    let id = ConnectionId::new(&channel, PortSpace::Tcp).unwrap();
    id.bind(SocketAddr::new(address, 0)).unwrap();
    let domain = id.context().unwrap().protection_domain().unwrap();
    let unreliable = domain
        .queue_pair()
        .transport(Transport::UnreliableConnected);
    let error = id.prepare(unreliable).unwrap_err();
    assert!(error.to_string().contains("UC"), "{error}");
    if let Ok(other) = rdma_core::Context::open("softroce0") {
        let domain = other.protection_domain().unwrap();
        let error = id.prepare(domain.queue_pair()).unwrap_err();
        assert!(error.to_string().contains("softroce0"), "{error}");
    }
    // A queue pair of any context of the device can be used.
    let another = common::context().protection_domain().unwrap();
    let prepared = id.prepare(another.queue_pair().access(AccessFlags::empty()));
    assert_eq!(prepared.unwrap().endpoint().gid.to_ip(), address);
}

#[test]
fn identifiers_move_with_their_events() {
    let Some(address) = manager::address() else {
        return;
    };
    let (from, to) = (EventChannel::new().unwrap(), EventChannel::new().unwrap());
    let (listener, there) = manager::listener(address);
    let id = ConnectionId::new(&from, PortSpace::Tcp).unwrap();
    id.resolve_address(None, there, MAX_WAIT).unwrap();
    // The event moves with the identifier, whether the event has already arrived or arrives later.
    id.migrate(&to).unwrap();
    assert_eq!((from.identifiers(), to.identifiers()), (0, 1));
    assert!(resolved(&to).id.is(&id));
    assert!(from.try_next().unwrap().is_none());
    id.migrate(&to).unwrap();
    assert_eq!(to.identifiers(), 1);
    // An identifier keeps its channel alive.
    drop((from, to));
    assert_eq!(id.channel().identifiers(), 1);
    id.resolve_route(MAX_WAIT).unwrap();
    let kind = event(&id.channel()).kind;
    assert!(matches!(kind, ConnectionEventKind::RouteResolved), "{kind}");
    drop(listener);
}

#[test]
fn two_threads_that_exchange_their_identifiers_do_not_wait_for_each_other() {
    if manager::address().is_none() {
        return;
    }
    let (left, right) = (EventChannel::new().unwrap(), EventChannel::new().unwrap());
    thread::scope(|scope| {
        for (one, other) in [(&left, &right), (&right, &left)] {
            scope.spawn(move || {
                let id = ConnectionId::new(one, PortSpace::Tcp).unwrap();
                for _ in 0..100 {
                    id.migrate(other).unwrap();
                    id.migrate(one).unwrap();
                }
            });
        }
    });
    assert_eq!((left.identifiers(), right.identifiers()), (0, 0));
}

#[test]
fn identifiers_can_be_dropped_before_their_events_are_taken() {
    let Some(address) = manager::address() else {
        return;
    };
    let channel = EventChannel::new().unwrap();
    let (listener, there) = manager::listener(address);
    thread::scope(|scope| {
        let taking = scope.spawn(|| {
            let mut taken = 0;
            while let Some(event) = channel.next(Some(Duration::from_secs(2))).unwrap() {
                assert!(matches!(event.kind, ConnectionEventKind::AddressResolved));
                taken += 1;
            }
            taken
        });
        for round in 0..200 {
            let id = ConnectionId::new(&channel, PortSpace::Tcp).unwrap();
            id.resolve_address(None, there, MAX_WAIT).unwrap();
            if round % 2 == 0 {
                thread::yield_now();
            }
        }
        assert!(taking.join().unwrap() <= 200);
    });
    assert_eq!(channel.identifiers(), 0);
    drop(listener);
}

#[test]
fn one_channel_serves_many_threads() {
    let Some(address) = manager::address() else {
        return;
    };
    let channel = EventChannel::new().unwrap();
    let (_listener, there) = manager::listener(address);
    const THREADS: usize = 4;
    const EACH: usize = 25;
    let ids: Vec<_> = (0..THREADS * EACH)
        .map(|_| ConnectionId::new(&channel, PortSpace::Tcp).unwrap())
        .collect();
    thread::scope(|scope| {
        for mine in ids.chunks(EACH) {
            let channel = &channel;
            scope.spawn(move || {
                for id in mine {
                    id.resolve_address(None, there, MAX_WAIT).unwrap();
                }
                // Each thread reads as many events as it has identifiers, whichever identifiers the
                // events name.
                for _ in mine {
                    let event = resolved(channel);
                    assert_eq!(event.id.peer_address(), Some(there));
                }
            });
        }
    });
    assert!(channel.try_next().unwrap().is_none());
    assert!(ids.iter().all(|id| id.device_name().is_some()));
}

#[test]
fn options_are_checked_and_set() {
    let Some(address) = manager::address() else {
        return;
    };
    let channel = EventChannel::new().unwrap();
    let id = ConnectionId::new(&channel, PortSpace::Tcp).unwrap();
    let error = id.set_option(ConnectionIdOption::AckTimeoutExponent(32));
    assert!(matches!(error, Err(Error::InvalidArgument { .. })));
    for option in [
        ConnectionIdOption::TypeOfService(0x20),
        ConnectionIdOption::ReuseAddress(true),
        ConnectionIdOption::AddressFamilyOnly(true),
        ConnectionIdOption::AckTimeoutExponent(14),
    ] {
        id.set_option(option).unwrap();
    }
    id.bind(SocketAddr::new(address, 0)).unwrap();
    // Two identifiers with the option can bind to the same address.
    let taken = id.local_address().unwrap();
    let second = ConnectionId::new(&channel, PortSpace::Tcp).unwrap();
    second
        .set_option(ConnectionIdOption::ReuseAddress(true))
        .unwrap();
    second.bind(taken).unwrap();
    // An identifier without the option gets an error with a hint.
    let third = ConnectionId::new(&channel, PortSpace::Tcp).unwrap();
    let error = third.bind(taken).unwrap_err();
    let Error::Verb {
        verb, errno, hint, ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!((*verb, errno.0), ("rdma_bind_addr", libc::EADDRINUSE));
    assert!(
        hint.is_some() && error.to_string().contains("EADDRINUSE"),
        "{error}"
    );
}

#[test]
fn an_address_that_no_device_has_is_an_error_with_a_hint() {
    if manager::address().is_none() {
        return;
    }
    // An address for documentation (RFC 5737), which no device has.
    let nobodys = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 7174));
    let error = Listener::bind(nobodys).unwrap_err();
    let Error::Verb { verb, hint, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(*verb, "rdma_bind_addr");
    assert!(hint.is_some(), "{error}");
}

#[test]
fn names_resolve_to_addresses() {
    let found = AddressQuery::new("127.0.0.1", "7174").numeric().resolve();
    if manager::address().is_none() {
        if let Err(error) = found {
            assert_no_manager(&error);
        }
        return;
    }
    let found = found.unwrap();
    let expected = SocketAddr::from((Ipv4Addr::LOCALHOST, 7174));
    assert_eq!(found[0].destination, Some(expected));
    assert_eq!(found[0].port_space, PortSpace::Tcp);
    let listen = AddressQuery::listen("7174").port_space(PortSpace::Udp);
    let listen = listen.resolve().unwrap();
    assert_eq!(listen[0].source.unwrap().port(), 7174);
    assert_eq!(listen[0].destination, None);
    assert_eq!(listen[0].port_space, PortSpace::Udp);

    let error = AddressQuery::new("not an address", "1").numeric().resolve();
    let error = manager::connection_error(error);
    assert!(
        matches!(error, ConnectionError::UnknownName { .. }),
        "{error}"
    );
    let error = AddressQuery::new("127.0.0.1\0.example", "1").resolve();
    assert!(
        matches!(error, Err(Error::InvalidArgument { .. })),
        "{error:?}"
    );
}

#[test]
fn what_was_made_elsewhere_can_be_taken_over() {
    let Some(address) = manager::address() else {
        return;
    };
    // SAFETY: the call has no requirements; ownership of the channel passes to the crate.
    let channel = unsafe { EventChannel::from_raw(ibverbs_sys::rdma_create_event_channel()) };
    let channel = channel.unwrap();
    let mut raw = ptr::null_mut();
    let space = ibverbs_sys::rdma_port_space::RDMA_PS_UDP;
    // SAFETY: the channel and the pointer to the identifier are valid.
    let failed =
        unsafe { ibverbs_sys::rdma_create_id(channel.as_raw(), &mut raw, ptr::null_mut(), space) };
    assert_eq!(failed, 0);
    // SAFETY: the identifier is new, on this channel, and no other code uses it.
    let id = unsafe { ConnectionId::from_raw(&channel, raw) };
    assert_eq!(id.as_raw(), raw);
    assert_eq!(id.port_space(), PortSpace::Udp);
    id.bind(SocketAddr::new(address, 0)).unwrap();
    let (_listener, there) = manager::listener(address);
    let other = ConnectionId::new(&channel, PortSpace::Tcp).unwrap();
    other.resolve_address(None, there, MAX_WAIT).unwrap();
    assert!(resolved(&channel).id.is(&other));
    assert_eq!(channel.identifiers(), 2);
}
