//! Checks that no failure leaves anything behind: descriptors, objects of the device, pinned
//! memory.

mod common;

use std::time::Duration;

use common::held::unchanged_by;
use common::{Pair, carry_out, completion, context, exposed, impatient, nobody, pattern, succeed};
use rdma_core::{
    AccessFlags, AddressChoice, Buffer, ConnectOptions, Context, Error, RemoteMemory, SendRequest,
    WorkStatus,
};

const ROUNDS: usize = 100;

fn good_path() {
    let pair = Pair::new();
    pair.check();
    let exposed = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    let mut sends = pair.left.send_queue();
    let source = pattern(&pair.domain, 64, 1);
    let source = carry_out(
        &pair.left,
        &mut sends,
        SendRequest::write(source, exposed.remote()),
    );
    carry_out(
        &pair.left,
        &mut sends,
        SendRequest::read(source, exposed.remote()),
    );
    assert!(exposed.revoke().is_ok());
}

fn announced() {
    let context = context();
    let channel = context.completion_channel().unwrap();
    let queue = context
        .completion_queue(16)
        .channel(&channel)
        .build()
        .unwrap();
    let domain = context.protection_domain().unwrap();
    let configure = |builder: rdma_core::QueuePairBuilder| builder.send_completions(&queue);
    let pair = Pair::in_domain(&domain, configure, &ConnectOptions::default());
    let exposed = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    let mut sends = pair.left.send_queue();
    queue.request_notification().unwrap();
    sends
        .post(SendRequest::write((), exposed.remote()))
        .unwrap();
    assert!(channel.wait(Some(Duration::from_secs(60))).unwrap());
    assert_eq!(channel.drain(|id| assert_eq!(id, queue.id())), Ok(1));
    succeed(&queue);
}

fn unknown_device() {
    let error = Context::open("no_such_device").unwrap_err();
    assert!(matches!(error, Error::UnknownDevice { .. }));
}

fn refused_address(choice: AddressChoice) {
    let domain = context().protection_domain().unwrap();
    let error = domain.queue_pair().address(choice).build().unwrap_err();
    assert!(matches!(
        error,
        Error::UnknownPort { .. } | Error::UnknownGidIndex { .. }
    ));
}

fn unknown_port() {
    refused_address(AddressChoice {
        port: Some(99),
        ..AddressChoice::default()
    });
}

fn unknown_gid_index() {
    refused_address(AddressChoice {
        gid_index: Some(250),
        ..AddressChoice::default()
    });
}

/// Performs an attempt to reach an unreachable peer: an address for documentation.
fn no_route() {
    let domain = context().protection_domain().unwrap();
    let prepared = domain.queue_pair().build().unwrap();
    let gid = rdma_core::Gid::from(std::net::IpAddr::from([192, 0, 2, 1]));
    let remote = rdma_core::Endpoint {
        gid,
        ..prepared.endpoint()
    };
    // Some devices detect the missing route when connecting, others when sending.
    if let Ok(pair) = prepared.connect(&remote, &impatient()) {
        let mut sends = pair.send_queue();
        sends
            .post(SendRequest::send(pattern(&domain, 8, 1)))
            .unwrap();
        assert!(completion(pair.send_completions()).result().is_err());
    }
}

/// Posts a request, and checks that it fails with this status.
fn fails(pair: &Pair, request: SendRequest<Buffer>, status: WorkStatus) {
    let mut sends = pair.left.send_queue();
    sends.post(request).unwrap();
    let failed = completion(pair.left.send_completions());
    assert_eq!(failed.status(), status, "{failed:?}");
    drop(sends);
}

fn outside(offset: i64) {
    let pair = Pair::new();
    let exposed = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    let remote = exposed.remote();
    let address = remote.address.wrapping_add_signed(offset);
    let request = SendRequest::write(
        pattern(&pair.domain, 16, 1),
        RemoteMemory { address, ..remote },
    );
    fails(&pair, request, WorkStatus::RemoteAccess);
}

fn before_the_grant() {
    outside(-16);
}

fn behind_the_grant() {
    outside(64);
}

fn across_the_end_of_the_grant() {
    outside(56);
}

fn revoked_key() {
    let pair = Pair::new();
    let exposed = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    let remote = exposed.remote();
    let buffer = exposed.revoke().unwrap();
    fails(
        &pair,
        SendRequest::read(buffer, remote),
        WorkStatus::RemoteAccess,
    );
}

fn access_not_granted() {
    let pair = Pair::new();
    let exposed = exposed(&pair.domain, 64, AccessFlags::REMOTE_READ);
    let source = pattern(&pair.domain, 16, 1);
    let request = SendRequest::write(source, exposed.remote());
    fails(&pair, request, WorkStatus::RemoteAccess);
}

fn no_peer() {
    let domain = context().protection_domain().unwrap();
    let prepared = domain.queue_pair().build().unwrap();
    let remote = nobody(prepared.endpoint());
    let pair = prepared.connect(&remote, &impatient()).unwrap();
    let mut sends = pair.send_queue();
    sends
        .post(SendRequest::send(pattern(&domain, 8, 1)))
        .unwrap();
    let given_up = completion(pair.send_completions());
    assert_eq!(given_up.status(), WorkStatus::RetryExceeded);
}

fn no_receive() {
    let options = ConnectOptions::default().rnr_retries(0).min_rnr_timer(1);
    let pair = Pair::with(|builder| builder, &options);
    let request = SendRequest::send(pattern(&pair.domain, 8, 1));
    fails(&pair, request, WorkStatus::RnrRetryExceeded);
}

fn message_too_long() {
    let pair = Pair::new();
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    let mut sends = pair.left.send_queue();
    sends
        .post(SendRequest::send(pattern(&pair.domain, 9, 1)))
        .unwrap();
    assert!(completion(pair.left.send_completions()).result().is_err());
}

fn refused_requests() {
    let pair = Pair::with(
        |builder| builder.send_requests(1),
        &ConnectOptions::default(),
    );
    let queue = pair.left.concurrent_send_queue();
    let slot = queue.reserve().unwrap();
    let many = [(); 20].map(|()| pair.domain.allocate(8).unwrap());
    assert!(queue.post(slot, SendRequest::send(many)).is_err());
    assert!(queue.reserve().is_some());
}

fn dropped_in_flight() {
    let domain = context().protection_domain().unwrap();
    let prepared = domain.queue_pair().build().unwrap();
    let remote = nobody(prepared.endpoint());
    let pair = prepared
        .connect(&remote, &ConnectOptions::default())
        .unwrap();
    let mut sends = pair.send_queue();
    let receives = pair.concurrent_receive_queue();
    for _ in 0..4 {
        sends
            .post(SendRequest::send(pattern(&domain, 4096, 1)))
            .unwrap();
        receives.post(domain.allocate(4096).unwrap()).unwrap();
    }
}

#[test]
fn nothing_is_left_behind() {
    let device = context().name().to_owned();
    // At its first use, a device may open descriptors that it keeps for ever.
    good_path();
    let kinds: [(&str, fn()); 17] = [
        ("good path", good_path),
        ("completion channel", announced),
        ("unknown device", unknown_device),
        ("unknown port", unknown_port),
        ("unknown GID index", unknown_gid_index),
        ("no route", no_route),
        ("access before the grant", before_the_grant),
        ("access behind the grant", behind_the_grant),
        (
            "access across the end of the grant",
            across_the_end_of_the_grant,
        ),
        ("revoked key", revoked_key),
        ("access not granted", access_not_granted),
        ("no peer", no_peer),
        ("no receive", no_receive),
        ("message too long", message_too_long),
        ("refused requests", refused_requests),
        ("dropped in flight", dropped_in_flight),
        ("good path again", good_path),
    ];
    unchanged_by(&device, ROUNDS, &kinds);
}
