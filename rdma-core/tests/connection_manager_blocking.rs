//! The blocking interface of the connection manager: private data, rejections, many clients,
//! disconnections.

mod common;
#[path = "common/manager.rs"]
mod manager;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use common::{bytes, exposed, pattern, succeed};
use manager::{MAX_WAIT, connected, connection_error, connector, listener};
use rdma_core::cm::{
    Connection, ConnectionError, ConnectionParameters, ConnectionStep, Connector, Incoming,
    Listener, PortSpace, PreparedConnection, RejectReason, ResolvedPeer,
};
use rdma_core::queue_pair::EnhancedEstablishment;
use rdma_core::{
    AccessFlags, Buffer, Context, Error, QueuePairBuilder, QueuePairState, SendRequest,
};

/// Returns a builder for a queue pair in a new protection domain.
fn plain(context: &Context) -> rdma_core::Result<QueuePairBuilder> {
    Ok(context.protection_domain()?.queue_pair())
}

/// Accepts or rejects the next peer by calling `answer`, while a client connects with `parameters`.
fn meet<T: Send>(
    address: std::net::IpAddr,
    parameters: &ConnectionParameters,
    answer: impl FnOnce(Incoming) -> T + Send,
) -> (rdma_core::Result<Connection>, T) {
    let (listener, there) = listener(address);
    thread::scope(|scope| {
        let server = scope.spawn(|| answer(listener.next(Some(MAX_WAIT)).unwrap().unwrap()));
        let client = connector(there)
            .parameters(parameters.clone())
            .connect(plain);
        (client, server.join().unwrap())
    })
}

#[test]
fn ends_can_be_sent_to_and_shared_by_threads() {
    fn check<T: Send + Sync>() {}
    check::<Connection>();
    check::<Listener>();
    check::<Incoming>();
    check::<ResolvedPeer>();
    check::<PreparedConnection>();
    check::<rdma_core::cm::EventChannel>();
    check::<rdma_core::cm::ConnectionId>();
    check::<rdma_core::cm::ConnectionEvent>();
    // Without a connection manager, the test ends after checking the error.
    manager::address();
}

#[test]
fn private_data_of_the_greatest_length_goes_both_ways() {
    let Some(address) = manager::address() else {
        return;
    };
    let (question, answer) = (bytes(56, 1), bytes(196, 2));
    assert_eq!(PortSpace::Tcp.connect_limit(), question.len());
    assert_eq!(PortSpace::Tcp.accept_limit(), answer.len());
    let asking = ConnectionParameters::default().private_data(question.clone());
    let (client, server) = meet(address, &asking, |incoming| {
        assert_eq!(incoming.private_data(), question);
        assert_eq!(incoming.peer_address().unwrap().ip(), address);
        let builder = plain(&incoming.context().unwrap()).unwrap();
        let answering = ConnectionParameters::default().private_data(answer.clone());
        incoming.accept(builder, &answering).unwrap()
    });
    let client = client.unwrap();
    assert_eq!(client.private_data(), answer);
    assert_eq!(server.private_data(), question);
    let addresses = |end: &Connection| (end.id().local_address(), end.id().peer_address());
    let (here, there) = addresses(&client);
    assert_eq!(addresses(&server), (there, here));
    assert_eq!(client.peer().queue_pair, server.queue_pair().number());
}

#[test]
fn short_private_data_is_followed_by_zeros() {
    let Some(address) = manager::address() else {
        return;
    };
    let hello = ConnectionParameters::default().private_data(*b"hello");
    let (client, refused) = meet(address, &hello, |incoming| {
        let data = incoming.private_data().to_vec();
        incoming.reject(b"no").map(|()| data)
    });
    let data = refused.unwrap();
    assert!(data.starts_with(b"hello"));
    assert!(data[5..].iter().all(|&byte| byte == 0), "{data:?}");
    let error = connection_error(client);
    let ConnectionError::Rejected { private_data, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(private_data.starts_with(b"no\0"));
}

#[test]
fn private_data_that_does_not_fit_is_refused_before_it_is_sent() {
    let Some(address) = manager::address() else {
        return;
    };
    let too_long = ConnectionParameters::default().private_data(vec![1; 57]);
    let (listener, there) = listener(address);
    let error = connector(there).parameters(too_long).connect(plain);
    let error = error.unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    assert!(error.to_string().contains("57 bytes"), "{error}");
    let nobody = listener.next(Some(Duration::from_millis(100))).unwrap();
    assert!(nobody.is_none());
    // The parameters of the listening side are checked, too, and on an error the peer is rejected.
    let (client, outcome) = meet(address, &ConnectionParameters::default(), |incoming| {
        let builder = plain(&incoming.context().unwrap()).unwrap();
        let too_long = ConnectionParameters::default().private_data(vec![1; 197]);
        incoming.accept(builder, &too_long).map(drop)
    });
    assert!(matches!(outcome, Err(Error::InvalidArgument { .. })));
    let error = connection_error(client);
    assert!(
        matches!(error, ConnectionError::Rejected { .. }),
        "{error:?}"
    );
    let (client, outcome) = meet(address, &ConnectionParameters::default(), |incoming| {
        incoming.reject(&[1; 149])
    });
    assert!(matches!(outcome, Err(Error::InvalidArgument { .. })));
    connection_error(client);
}

#[test]
fn a_rejection_says_why() {
    let Some(address) = manager::address() else {
        return;
    };
    let parameters = ConnectionParameters::default();
    let why = bytes(148, 3);
    assert_eq!(PortSpace::Tcp.reject_limit(), why.len());
    let rejected = |client| match connection_error(client) {
        ConnectionError::Rejected {
            reason,
            private_data,
            peer,
        } => {
            assert!(peer.starts_with(&address.to_string()), "{peer}");
            (reason, private_data)
        }
        error => panic!("{error:?}"),
    };
    let (client, outcome) = meet(address, &parameters, |incoming| incoming.reject(&why));
    outcome.unwrap();
    assert_eq!(rejected(client), (RejectReason::ByProgram, why));
    // Dropping the request rejects the peer, before and after the queue pair was created.
    let (client, ()) = meet(address, &parameters, drop);
    assert_eq!(rejected(client).0, RejectReason::ByProgram);
    let (client, ()) = meet(address, &parameters, |incoming| {
        let builder = plain(&incoming.context().unwrap()).unwrap();
        drop(incoming.prepare(builder).unwrap());
    });
    assert_eq!(rejected(client).0, RejectReason::ByProgram);
    // The listener no longer exists.
    let (listener, there) = listener(address);
    drop(listener);
    let client = connector(there).connect(plain);
    assert_eq!(rejected(client).0, RejectReason::NobodyListens);
}

#[test]
fn connecting_to_an_unresponsive_peer_times_out() {
    let Some(address) = manager::address() else {
        return;
    };
    let (listener, there) = listener(address);
    // On a busy machine, the steps before connecting may take longer than the shortest of these
    // timeouts.
    let given_up = [300, 3000, 30_000].into_iter().any(|milliseconds| {
        let timeout = Duration::from_millis(milliseconds);
        let client = Connector::new(there).timeout(timeout).connect(plain);
        let expected = |step| ConnectionError::TimedOut {
            step,
            peer: there.to_string(),
            timeout,
        };
        let error = connection_error(client);
        let found = error == expected(ConnectionStep::Connecting);
        let before = [
            ConnectionStep::AddressResolution,
            ConnectionStep::RouteResolution,
        ];
        assert!(found || before.map(expected).contains(&error), "{error:?}");
        found
    });
    assert!(given_up, "the peer is not reached");
    // The listening side, too, gets an error for the request of the vanished peer in bounded time.
    let incoming = listener.next(Some(MAX_WAIT)).unwrap();
    if let Some(incoming) = incoming {
        let builder = plain(&incoming.context().unwrap()).unwrap();
        let error = incoming.accept(builder, &ConnectionParameters::default());
        assert!(error.is_err(), "{error:?}");
    }
}

#[test]
fn both_sides_know_the_parameters_of_each_other() {
    let Some(address) = manager::address() else {
        return;
    };
    let (client, server) = connected(address);
    for (one, other) in [(&client, &server), (&server, &client)] {
        let (one, other) = (one.queue_pair(), other.queue_pair());
        assert_eq!(one.state().unwrap(), QueuePairState::ReadyToSend);
        let (known, itself) = (one.remote().unwrap(), other.local());
        assert_eq!(known.queue_pair, itself.queue_pair);
        assert_eq!(known.packet_sequence, itself.packet_sequence);
        assert_eq!(known.gid, itself.gid);
        assert_eq!(known.gid.to_ip(), address);
    }
    // All connections share one open device.
    let context = client.id().context().unwrap();
    assert_eq!(context.as_raw(), server.id().context().unwrap().as_raw());
}

#[test]
fn what_is_read_is_what_was_written() {
    let Some(address) = manager::address() else {
        return;
    };
    // Both sides use the same device, so one protection domain serves both.
    let (listener, there) = listener(address);
    let peer = connector(there).resolve().unwrap();
    let domain = peer.context().unwrap().protection_domain().unwrap();
    let (client, server) = thread::scope(|scope| {
        let server = scope.spawn(|| {
            let incoming = listener.next(Some(MAX_WAIT)).unwrap().unwrap();
            let prepared = incoming
                .prepare(domain.queue_pair().incoming_reads(2))
                .unwrap();
            // The receive is posted before the peer can send.
            let mut receives = prepared.queue_pair().receive_queue::<Buffer>();
            receives.post(domain.allocate(64).unwrap()).unwrap();
            let connection = prepared.establish(&ConnectionParameters::default());
            (connection.unwrap(), receives)
        });
        let prepared = peer.prepare(domain.queue_pair().outgoing_reads(8)).unwrap();
        let client = prepared
            .establish(&ConnectionParameters::default())
            .unwrap();
        (client, server.join().unwrap())
    });
    let (server, mut receives) = server;
    // The limit of one side for incoming reads limits the outstanding reads of the other side.
    assert_eq!(client.queue_pair().local().outgoing_reads, 2);
    assert_eq!(server.queue_pair().local().incoming_reads, 2);

    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let target = exposed(&domain, 5000, access);
    let pair = client.queue_pair();
    let mut queue = pair.send_queue::<Buffer>();
    let written = SendRequest::write(pattern(&domain, 5000, 7), target.remote());
    let mut buffer = common::carry_out(pair, &mut queue, written);
    buffer.fill(0);
    let read = SendRequest::read(buffer, target.remote());
    let buffer = common::carry_out(pair, &mut queue, read);
    assert_eq!(buffer[..], bytes(5000, 7));
    let sent = SendRequest::send(pattern(&domain, 64, 9));
    common::carry_out(pair, &mut queue, sent);
    let (_, received) = common::receive(server.queue_pair(), &mut receives);
    assert_eq!(received[..], bytes(64, 9));
}

#[test]
fn many_clients_are_served_by_one_listener_and_one_shared_receive_queue() {
    let Some(address) = manager::address() else {
        return;
    };
    const CLIENTS: usize = 8;
    let (listener, there) = listener(address);
    let context = common::context();
    let domain = context.protection_domain().unwrap();
    let completions = context.completion_queue(64).build().unwrap();
    let shared = domain.shared_receive_queue(16).build::<Buffer>().unwrap();
    for _ in 0..CLIENTS {
        shared.post(domain.allocate(8).unwrap()).unwrap();
    }
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn(move || {
                    let number = ConnectionParameters::default().private_data([client as u8]);
                    let mut domain = None;
                    let connection = connector(there).parameters(number).connect(|context| {
                        let own = domain.insert(context.protection_domain()?);
                        Ok(own.queue_pair())
                    });
                    let (connection, domain) = (connection.unwrap(), domain.unwrap());
                    assert_eq!(connection.private_data()[0], client as u8);
                    // The server uses a shared receive queue, and has declared that to the client.
                    assert!(connection.peer().shared_receives);
                    let pair = connection.queue_pair();
                    let sent = SendRequest::send(pattern(&domain, 8, client as u8));
                    common::carry_out(pair, &mut pair.send_queue(), sent);
                    (pair.number(), connection)
                })
            })
            .collect();
        // Two threads accept clients.
        let serving: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut served = Vec::new();
                    for _ in 0..CLIENTS / 2 {
                        let incoming = listener.next(Some(MAX_WAIT)).unwrap().unwrap();
                        let echoed = incoming.private_data()[..1].to_vec();
                        let builder = domain.queue_pair().shared_receive_queue(&shared);
                        let builder = builder.receive_completions(&completions);
                        let parameters = ConnectionParameters::default().private_data(echoed);
                        served.push(incoming.accept(builder, &parameters).unwrap());
                    }
                    served
                })
            })
            .collect();
        let served: Vec<Connection> = serving
            .into_iter()
            .flat_map(|serving| serving.join().unwrap())
            .collect();
        let clients: Vec<_> = clients.into_iter().map(|it| it.join().unwrap()).collect();
        let numbers: HashSet<u32> = clients.iter().map(|(number, _)| *number).collect();
        let peers: HashSet<u32> = served.iter().map(|one| one.peer().queue_pair).collect();
        assert_eq!(peers, numbers);
        assert_eq!(served.len(), CLIENTS);
        let messages: HashSet<_> = (0..CLIENTS)
            .map(|_| shared.complete(&succeed(&completions)).unwrap().to_vec())
            .collect();
        let expected: HashSet<_> = (0..CLIENTS).map(|client| bytes(8, client as u8)).collect();
        assert_eq!(messages, expected);
        // Half of the clients disconnect; the other connections are not affected.
        let (leaving, staying): (Vec<_>, Vec<_>) = clients
            .into_iter()
            .enumerate()
            .partition(|(at, _)| at % 2 == 0);
        let left: HashSet<u32> = leaving.iter().map(|(_, (number, _))| *number).collect();
        drop(leaving);
        for one in &served {
            if left.contains(&one.peer().queue_pair) {
                assert!(one.wait_disconnected(Some(MAX_WAIT)).unwrap());
            } else {
                assert!(one.is_connected().unwrap());
            }
        }
        drop(staying);
    });
}

#[test]
fn a_sender_waits_for_a_receive_that_is_posted_late() {
    let Some(address) = manager::address() else {
        return;
    };
    let (listener, there) = listener(address);
    let peer = connector(there).resolve().unwrap();
    let domain = peer.context().unwrap().protection_domain().unwrap();
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let client = peer.prepare(domain.queue_pair()).unwrap();
            let client = client.establish(&ConnectionParameters::default()).unwrap();
            let mut sends = client.queue_pair().send_queue();
            sends
                .post(SendRequest::send(pattern(&domain, 8, 1)))
                .unwrap();
            succeed(client.queue_pair().send_completions());
            client
        });
        let incoming = listener.next(Some(MAX_WAIT)).unwrap().unwrap();
        let impatient = ConnectionParameters::default().min_rnr_timer(1);
        let server = incoming.accept(domain.queue_pair(), &impatient).unwrap();
        thread::sleep(Duration::from_millis(50));
        let mut receives = server.queue_pair().receive_queue();
        receives.post(domain.allocate(8).unwrap()).unwrap();
        let (_, received) = common::receive(server.queue_pair(), &mut receives);
        assert_eq!(received[..], bytes(8, 1));
        sending.join().unwrap();
    });
}

#[test]
fn ports_of_listeners_can_be_chosen() {
    let Some(address) = manager::address() else {
        return;
    };
    let (first, there) = listener(address);
    let error = Listener::bind(there).unwrap_err();
    assert_eq!(error.errno().map(|errno| errno.0), Some(libc::EADDRINUSE));
    drop(first);
    let again = Listener::bind(there).unwrap();
    assert_eq!(again.local_address(), Some(there));
    // A listener at the unspecified address accepts clients of every device.
    let everywhere = SocketAddr::new([0, 0, 0, 0].into(), 0);
    let everywhere = Listener::builder(everywhere).backlog(1).listen().unwrap();
    let port = everywhere.local_address().unwrap().port();
    assert_ne!(port, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let incoming = everywhere.next(Some(MAX_WAIT)).unwrap().unwrap();
            let builder = plain(&incoming.context().unwrap()).unwrap();
            incoming
                .accept(builder, &ConnectionParameters::default())
                .unwrap()
        });
        let there = SocketAddr::new(address, port);
        connector(there).connect(plain).unwrap();
    });
}

#[test]
fn options_of_the_vendor_are_offered_to_the_peer() {
    let Some(address) = manager::address() else {
        return;
    };
    let (ours, theirs) = (offer(0x1234, 0b0110), offer(0x1234, 0b0011));
    let (listener, there) = listener(address);
    thread::scope(|scope| {
        scope.spawn(|| {
            let incoming = listener.next(Some(MAX_WAIT)).unwrap().unwrap();
            let id = incoming.request().id().clone();
            assert_eq!(id.remote_ece().unwrap(), ours);
            id.set_local_ece(theirs).unwrap();
            let builder = plain(&incoming.context().unwrap()).unwrap();
            incoming
                .accept(builder, &ConnectionParameters::default())
                .unwrap()
        });
        let peer = connector(there).resolve().unwrap();
        let error = peer.id().set_local_ece(offer(0, 1)).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
        peer.id().set_local_ece(ours).unwrap();
        let builder = plain(&peer.context().unwrap()).unwrap();
        let prepared = peer.prepare(builder).unwrap();
        // The device itself may not support the options.
        match prepared.queue_pair().query_ece() {
            Ok(own) => println!("{own:?}"),
            Err(error) => assert!(error.is_unsupported(), "{error:?}"),
        }
        assert!(prepared.id().peer_address().is_some());
        let connection = prepared
            .establish(&ConnectionParameters::default())
            .unwrap();
        let offered = connection.id().remote_ece().unwrap();
        assert_eq!(offered, theirs);
        assert_eq!(ours.common(offered).options, 0b0010);
    });
}

fn offer(vendor: u32, options: u32) -> EnhancedEstablishment {
    EnhancedEstablishment { vendor, options }
}
