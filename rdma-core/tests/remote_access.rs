//! Forbidden accesses of a peer, and a peer that does not exist.

mod common;

use common::{Pair, completion, context, expose, impatient, nobody, pattern, until_failed};
use rdma_core::{
    AccessFlags, Buffer, ConnectOptions, ExposedMemory, QueuePairState, RemoteMemory, SendRequest,
    WorkStatus,
};

/// The middle 64 of 192 bytes, exposed to peers. The bytes before and after belong to the same
/// registration.
struct Guarded {
    before: Buffer,
    exposed: ExposedMemory,
    after: Buffer,
}

impl Guarded {
    fn new(pair: &Pair, access: AccessFlags) -> Self {
        let (before, rest) = pair.domain.allocate(192).unwrap().split_at(64);
        let (middle, after) = rest.split_at(64);
        let exposed = expose(middle, access);
        Self {
            before,
            exposed,
            after,
        }
    }

    fn untouched(&self) -> bool {
        let mut content = [1; 64];
        self.exposed.read_at(0, &mut content).unwrap();
        let guards = self.before.iter().chain(&self.after[..]);
        content.iter().chain(guards).all(|&byte| byte == 0)
    }
}

/// Posts a request, and checks that the peer refuses it.
fn refused(pair: &Pair, request: SendRequest<Buffer>) {
    let mut sends = pair.left.send_queue();
    sends.post(request).unwrap();
    let refused = completion(pair.left.send_completions());
    assert_eq!(refused.status(), WorkStatus::RemoteAccess, "{refused:?}");
    assert_eq!(sends.complete(&refused).count(), 1, "the memory comes back");
    let error = refused.result().unwrap_err();
    assert!(error.to_string().contains("remote key"), "{error}");
    until_failed(&pair.left);
}

/// Returns a descriptor of memory at `offset` from the start of the memory that `remote` describes.
fn moved(remote: RemoteMemory, offset: i64) -> RemoteMemory {
    RemoteMemory {
        address: remote.address.wrapping_add_signed(offset),
        ..remote
    }
}

/// Posts, on a new pair, a request that exceeds the rights `access` to 16 bytes of memory. Checks
/// that neither the memory nor another queue pair is affected.
fn forbid(access: AccessFlags, request: impl Fn(Buffer, RemoteMemory) -> SendRequest<Buffer>) {
    let bystander = Pair::new();
    let pair = Pair::in_domain(
        &bystander.domain,
        |builder| builder,
        &ConnectOptions::default(),
    );
    let guarded = Guarded::new(&pair, access);
    let memory = pattern(&pair.domain, 16, 1);
    refused(&pair, request(memory, guarded.exposed.remote()));
    assert!(guarded.untouched());
    assert_eq!(bystander.left.state().unwrap(), QueuePairState::ReadyToSend);
    bystander.check();
}

#[test]
fn writing_outside_of_the_grant() {
    for offset in [-64, -16, -1, 49, 63, 64, 100, i64::MAX] {
        forbid(AccessFlags::REMOTE, |memory, remote| {
            SendRequest::write(memory, moved(remote, offset))
        });
    }
}

#[test]
fn reading_outside_of_the_grant() {
    for offset in [-64, -16, -1, 49, 63, 64, 100] {
        forbid(AccessFlags::REMOTE, |memory, remote| {
            SendRequest::read(memory, moved(remote, offset))
        });
    }
}

#[test]
fn atomics_outside_of_the_grant() {
    for offset in [-8, 64] {
        forbid(AccessFlags::REMOTE, |memory, remote| {
            let (memory, _) = memory.split_at(8);
            SendRequest::fetch_and_add(memory, moved(remote, offset), 1)
        });
    }
}

#[test]
fn an_unused_key() {
    forbid(AccessFlags::REMOTE, |memory, remote| {
        let rkey = remote.rkey ^ 0x00ff_ff00;
        SendRequest::write(memory, RemoteMemory { rkey, ..remote })
    });
}

#[test]
fn the_local_key_of_memory_that_is_not_exposed() {
    let pair = Pair::new();
    let guarded = Guarded::new(&pair, AccessFlags::REMOTE);
    // Keys can be guessed. The test tries the keys next to a granted one, which must grant nothing.
    for guess in 1..=4 {
        let pair = Pair::in_domain(&pair.domain, |builder| builder, &ConnectOptions::default());
        let remote = guarded.exposed.remote();
        let rkey = remote.rkey.wrapping_sub(guess);
        let remote = moved(RemoteMemory { rkey, ..remote }, -64);
        refused(
            &pair,
            SendRequest::write(pattern(&pair.domain, 16, 1), remote),
        );
        assert!(guarded.untouched());
    }
}

#[test]
fn writing_to_memory_exposed_for_reading() {
    forbid(AccessFlags::REMOTE_READ, SendRequest::write);
}

#[test]
fn reading_memory_exposed_for_writing() {
    forbid(AccessFlags::REMOTE_WRITE, SendRequest::read);
}

#[test]
fn atomics_on_memory_exposed_for_reading_and_writing() {
    let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    forbid(access, |memory, remote| {
        SendRequest::fetch_and_add(memory.split_at(8).0, remote, 1)
    });
}

#[test]
fn a_revoked_key() {
    let pair = Pair::new();
    let guarded = Guarded::new(&pair, AccessFlags::REMOTE);
    let remote = guarded.exposed.remote();
    let buffer = guarded.exposed.revoke().unwrap();
    refused(
        &pair,
        SendRequest::write(pattern(&pair.domain, 16, 1), remote),
    );
    assert!(buffer.iter().all(|&byte| byte == 0));
}

#[test]
fn a_key_of_another_protection_domain() {
    let pair = Pair::new();
    let stranger = Pair::new();
    let guarded = Guarded::new(&stranger, AccessFlags::REMOTE);
    let source = pattern(&pair.domain, 16, 1);
    refused(&pair, SendRequest::write(source, guarded.exposed.remote()));
    assert!(guarded.untouched());
}

#[test]
fn what_the_queue_pair_does_not_allow() {
    let pair = Pair::with(
        |builder| builder.access(AccessFlags::REMOTE_READ),
        &ConnectOptions::default(),
    );
    let guarded = Guarded::new(&pair, AccessFlags::REMOTE);
    let mut sends = pair.left.send_queue();
    let request = SendRequest::write(pattern(&pair.domain, 16, 1), guarded.exposed.remote());
    sends.post(request).unwrap();
    let refused = completion(pair.left.send_completions());
    // The specification requires an invalid request error; some devices report an access error.
    assert!(
        matches!(
            refused.status(),
            WorkStatus::RemoteInvalidRequest | WorkStatus::RemoteAccess
        ),
        "{refused:?}"
    );
    assert!(guarded.untouched());
}

#[test]
fn requests_behind_a_refused_one_are_flushed() {
    let pair = Pair::new();
    let guarded = Guarded::new(&pair, AccessFlags::REMOTE_READ);
    let mut sends = pair.left.send_queue();
    for seed in 0..5 {
        let source = pattern(&pair.domain, 16, seed);
        sends
            .post(SendRequest::write(source, guarded.exposed.remote()))
            .unwrap();
    }
    let first = completion(pair.left.send_completions());
    assert_eq!(first.status(), WorkStatus::RemoteAccess);
    assert_eq!(sends.complete(&first).count(), 1);
    for _ in 0..4 {
        let flushed = completion(pair.left.send_completions());
        assert_eq!(flushed.status(), WorkStatus::Flushed);
        assert_eq!(sends.complete(&flushed).count(), 1);
    }
    assert!(guarded.untouched());
}

#[test]
fn a_missing_peer() {
    let domain = context().protection_domain().unwrap();
    let prepared = domain.queue_pair().build().unwrap();
    let remote = nobody(prepared.endpoint());
    let pair = prepared.connect(&remote, &impatient()).unwrap();
    let mut sends = pair.send_queue();
    sends
        .post(SendRequest::send(pattern(&domain, 8, 1)))
        .unwrap();
    let given_up = completion(pair.send_completions());
    assert_eq!(given_up.status(), WorkStatus::RetryExceeded, "{given_up:?}");
    assert_eq!(sends.complete(&given_up).count(), 1);
    until_failed(&pair);
}

#[test]
fn a_vanished_peer() {
    let Pair {
        domain,
        left,
        right,
    } = Pair::with(|builder| builder, &impatient());
    drop(right);
    let mut sends = left.send_queue();
    sends
        .post(SendRequest::send(pattern(&domain, 8, 1)))
        .unwrap();
    let given_up = completion(left.send_completions());
    assert_eq!(given_up.status(), WorkStatus::RetryExceeded, "{given_up:?}");
    assert_eq!(sends.complete(&given_up).count(), 1);
}
