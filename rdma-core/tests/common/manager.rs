//! The connection manager of the device under test.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use rdma_core::cm::{
    Connection, ConnectionError, ConnectionEvent, ConnectionEventKind, ConnectionParameters,
    Connector, EventChannel, Listener,
};
use rdma_core::{AddressChoice, Error};

/// Maximum time for a step of the connection manager, enough for an emulated machine under load.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(60);

/// Returns an IP address by which the connection manager finds the device under test. Returns
/// `None` for softroce, after a check of the error if there is no connection manager.
#[track_caller]
pub(crate) fn address() -> Option<IpAddr> {
    let context = crate::common::context();
    if !context.device().is_emulated() {
        EventChannel::new().expect("devices of the kernel have a connection manager");
        let address = context.address(AddressChoice::default()).unwrap();
        return Some(address.gid.to_ip());
    }
    match EventChannel::new() {
        Ok(_) => println!("the connection manager here is not for {}", context.name()),
        Err(error) => {
            assert_no_manager(&error);
            println!("{error}");
        }
    }
    None
}

/// Checks that the error is the one of a system without a connection manager.
#[track_caller]
pub(crate) fn assert_no_manager(error: &Error) {
    assert!(error.is_unsupported(), "{error:?}");
    assert!(
        matches!(error, Error::Connection(ConnectionError::NoManager { .. })),
        "{error:?}"
    );
    assert!(error.to_string().contains("rdma_ucm"), "{error}");
}

/// Creates a listener at a free port. Returns it with its address.
#[track_caller]
pub(crate) fn listener(address: IpAddr) -> (Listener, SocketAddr) {
    let listener = Listener::builder(SocketAddr::new(address, 0)).timeout(MAX_WAIT);
    let listener = listener.listen().unwrap();
    let address = listener
        .local_address()
        .expect("the address it is bound to");
    assert_ne!(address.port(), 0);
    (listener, address)
}

/// Waits for the next event of the channel. Panics if there is none.
#[track_caller]
pub(crate) fn event(channel: &EventChannel) -> ConnectionEvent {
    let event = channel.next(Some(MAX_WAIT)).unwrap();
    event.expect("an event in time")
}

/// Returns the error of a failed connection attempt.
#[track_caller]
pub(crate) fn connection_error<T: std::fmt::Debug>(outcome: Result<T, Error>) -> ConnectionError {
    match outcome {
        Err(Error::Connection(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Waits for the event that the address of an identifier is resolved.
#[track_caller]
pub(crate) fn resolved(channel: &EventChannel) -> ConnectionEvent {
    let event = event(channel);
    assert!(
        matches!(event.kind, ConnectionEventKind::AddressResolved),
        "{event:?}"
    );
    event
}

/// Returns both sides of a connection within this process: the connecting one and the accepting
/// one.
#[track_caller]
pub(crate) fn connected(address: IpAddr) -> (Connection, Connection) {
    let (listener, there) = listener(address);
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let incoming = listener.next(Some(MAX_WAIT)).unwrap().expect("a peer");
            let domain = incoming.context().unwrap().protection_domain().unwrap();
            let parameters = ConnectionParameters::default();
            incoming.accept(domain.queue_pair(), &parameters).unwrap()
        });
        let client = connector(there).connect(|context| {
            let domain = context.protection_domain()?;
            Ok(domain.queue_pair())
        });
        (client.unwrap(), server.join().unwrap())
    })
}

/// Returns a connector with [`MAX_WAIT`] as its time limit.
pub(crate) fn connector(there: SocketAddr) -> Connector {
    Connector::new(there).timeout(MAX_WAIT)
}
