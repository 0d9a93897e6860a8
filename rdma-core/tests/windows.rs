//! Memory windows, and leases, which end at the device.

mod common;

use common::{
    Pair, bytes, carry_out, completion, context, eventually, exposed, is_softroce, pattern,
    succeed, until_failed, where_supported,
};
use rdma_core::memory::{LeaseState, MemoryWindow, WindowLease, WindowType};
use rdma_core::queue_pair::SendOperations;
use rdma_core::{
    AccessFlags, Buffer, ConnectOptions, Error, ProtectionDomain, QueuePair, QueuePairState,
    Refused, RemoteMemory, Result, SendRequest, Transport, WorkCompletion, WorkStatus,
};

const TYPES: [WindowType; 2] = [WindowType::One, WindowType::Two];

/// Allocates a memory window. Returns `None` if the device does not support the type and reports
/// that; softroce supports both types.
#[track_caller]
fn window(domain: &ProtectionDomain, kind: WindowType) -> Option<MemoryWindow> {
    where_supported(domain.memory_window(kind))
}

/// Returns a window whose key has this index, which an earlier window had, if the device reuses the
/// index soon. softroce uses all indexes in turn, but a concurrent test may be using this one.
#[track_caller]
fn window_with_index(domain: &ProtectionDomain, index: u32) -> Option<MemoryWindow> {
    (0..10_000).find_map(|_| {
        let window = window(domain, WindowType::Two)?;
        // SAFETY: the window is valid, and no other code changes it.
        let key = unsafe { (*window.as_raw()).rkey };
        (key >> 8 == index).then_some(window)
    })
}

/// Registers memory to which windows can be bound.
#[track_caller]
fn memory(domain: &ProtectionDomain, len: usize) -> Buffer {
    let registration = domain.registration().access(AccessFlags::WINDOW_BIND);
    registration.allocate(len).unwrap()
}

#[track_caller]
fn lease(domain: &ProtectionDomain, kind: WindowType, access: AccessFlags) -> Option<WindowLease> {
    let window = window(domain, kind)?;
    let lease = memory(domain, 4096).lease(window, access);
    Some(lease.unwrap())
}

/// Posts a request without memory, and waits for its success.
#[track_caller]
fn carry_out_bare(queue_pair: &QueuePair, request: Result<SendRequest<()>>) {
    let mut queue = queue_pair.send_queue::<()>();
    queue.post_inline(request.unwrap()).unwrap();
    let done = succeed(queue_pair.send_completions());
    assert_eq!(queue.complete(&done).count(), 0);
    assert_eq!(queue.in_flight(), 0);
}

/// Returns a lease that the right side has bound.
#[track_caller]
fn bound(pair: &Pair, kind: WindowType, access: AccessFlags) -> Option<WindowLease> {
    let lease = lease(&pair.domain, kind, access)?;
    carry_out_bare(&pair.right, lease.bind());
    Some(lease)
}

/// Sends a message from the left side that invalidates a key. Returns the completion of the
/// receive, which was not passed to a queue yet.
#[track_caller]
fn give_back(pair: &Pair, key: u32) -> WorkCompletion {
    let request = SendRequest::send_with_invalidate(pattern(&pair.domain, 8, 4), key);
    carry_out(&pair.left, &mut pair.left.send_queue(), request);
    succeed(pair.right.receive_completions())
}

/// Writes to a peer's memory from the left side, and returns the status.
#[track_caller]
fn write(pair: &Pair, remote: RemoteMemory, seed: u8) -> WorkStatus {
    let mut sends = pair.left.send_queue();
    let source = pattern(&pair.domain, 64, seed);
    sends.post(SendRequest::write(source, remote)).unwrap();
    let done = completion(pair.left.send_completions());
    assert_eq!(sends.complete(&done).count(), 1);
    done.status()
}

#[track_caller]
fn part(lease: &WindowLease) -> RemoteMemory {
    lease.remote().expect("it is bound").slice(64..128).unwrap()
}

#[test]
fn a_lease_grants_and_ends_at_the_device() {
    for kind in TYPES {
        let pair = Pair::new();
        let Some(lease) = lease(&pair.domain, kind, AccessFlags::REMOTE) else {
            continue;
        };
        assert_eq!((lease.state(), lease.remote()), (LeaseState::Free, None));
        carry_out_bare(&pair.right, lease.bind());
        assert_eq!(lease.state(), LeaseState::Bound);
        let token = lease.remote().unwrap();
        assert_eq!(token.len, 4096);
        assert_eq!(write(&pair, part(&lease), 1), WorkStatus::Success);
        let mut content = [0; 64];
        lease.volatile().read_at(64, &mut content).unwrap();
        assert_eq!(content[..], bytes(64, 1));
        let lease = lease.finish().expect_err("peers reach the memory");

        carry_out_bare(&pair.right, lease.unbind());
        assert_eq!((lease.state(), lease.remote()), (LeaseState::Free, None));
        let (mut buffer, window) = lease.finish().expect("no peer reaches it");
        assert_eq!(buffer[64..128], bytes(64, 1));
        assert_eq!(window.kind(), kind);
        buffer.fill(7);
        assert_eq!(
            write(&pair, token.slice(64..128).unwrap(), 2),
            WorkStatus::RemoteAccess,
            "a late peer"
        );
        assert!(buffer.iter().all(|&byte| byte == 7));
        until_failed(&pair.left);
    }
}

#[test]
fn a_window_is_bound_again_and_again_with_new_keys() {
    for kind in TYPES {
        let pair = Pair::new();
        let Some(mut lease) = lease(&pair.domain, kind, AccessFlags::REMOTE) else {
            continue;
        };
        let mut keys = Vec::new();
        for round in 0..20 {
            carry_out_bare(&pair.right, lease.bind());
            let remote = part(&lease);
            assert!(!keys.contains(&remote.rkey), "{keys:x?}");
            keys.push(remote.rkey);
            assert_eq!(write(&pair, remote, round), WorkStatus::Success);
            carry_out_bare(&pair.right, lease.unbind());
            if round % 5 == 4 {
                let (buffer, window) = lease.finish().expect("free");
                assert_eq!(buffer[64..128], bytes(64, round));
                let again = buffer.lease(window, AccessFlags::REMOTE_WRITE);
                lease = again.unwrap();
            }
        }
    }
}

#[test]
fn a_peer_gives_back_by_its_send() {
    let pair = Pair::new();
    let Some(lease) = bound(&pair, WindowType::Two, AccessFlags::REMOTE) else {
        return;
    };
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    let token = lease.remote().unwrap();
    assert_eq!(write(&pair, part(&lease), 3), WorkStatus::Success);
    let arrived = give_back(&pair, token.rkey);
    assert_eq!(
        lease.state(),
        LeaseState::Bound,
        "not before the receive is completed"
    );
    assert_eq!(receives.complete(&arrived).unwrap()[..], bytes(8, 4));
    let buffer = match arrived.invalidated_key() {
        Some(key) => {
            assert_eq!(key, token.rkey);
            assert_eq!((lease.state(), lease.remote()), (LeaseState::Free, None));
            lease.finish().expect("the peer gave it back").0
        }
        None => {
            // Contrary to ibv_poll_cq(3), Soft-RoCE of Linux 6.1 does not report the invalidated
            // key, so the window must be freed.
            assert!(!is_softroce());
            lease.revoke().unwrap()
        }
    };
    assert_eq!(buffer[64..128], bytes(64, 3));
    let late = write(&pair, token.slice(64..128).unwrap(), 5);
    assert_eq!(late, WorkStatus::RemoteAccess);
    assert_eq!(buffer[64..128], bytes(64, 3));
}

#[test]
fn an_invalidation_by_the_peer_is_reported_by_every_receive_queue() {
    let pair = Pair::new();
    let Some(lease) = bound(&pair, WindowType::Two, AccessFlags::REMOTE) else {
        return;
    };
    let receives = pair.right.concurrent_receive_queue();
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    let key = lease.remote().unwrap().rkey;
    let arrived = give_back(&pair, key);
    assert!(receives.complete(&arrived).is_some());
    if arrived.invalidated_key().is_some() {
        assert_eq!(lease.state(), LeaseState::Free);
    } else {
        assert!(!is_softroce());
        assert_eq!(lease.state(), LeaseState::Bound);
    }
}

#[test]
fn a_completion_that_is_passed_twice_ends_nothing() {
    let pair = Pair::new();
    let Some(lease) = bound(&pair, WindowType::Two, AccessFlags::REMOTE) else {
        return;
    };
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    let key = lease.remote().unwrap().rkey;
    let arrived = give_back(&pair, key);
    if arrived.invalidated_key().is_none() {
        assert!(!is_softroce());
        return;
    }
    assert!(receives.complete(&arrived).is_some());
    // The key repeats after 256 bindings.
    for _ in 0..255 {
        carry_out_bare(&pair.right, lease.bind());
        carry_out_bare(&pair.right, lease.unbind());
    }
    carry_out_bare(&pair.right, lease.bind());
    assert_eq!(lease.remote().unwrap().rkey, key);
    assert!(receives.complete(&arrived).is_none(), "it is old");
    assert_eq!(lease.state(), LeaseState::Bound);

    // A completion that is passed to the queue only after the window was freed and its key given to
    // another window.
    drop(lease);
    let mut attempt = || {
        let lease = bound(&pair, WindowType::Two, AccessFlags::REMOTE).unwrap();
        let key = lease.remote().unwrap().rkey;
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
        let arrived = give_back(&pair, key);
        lease.revoke().unwrap();
        let window = window_with_index(&pair.domain, key >> 8);
        if window.is_none() {
            assert!(receives.complete(&arrived).is_some());
        }
        Some((arrived, key, window?))
    };
    let again = if is_softroce() {
        Some(eventually("the number of a freed window", attempt))
    } else {
        attempt()
    };
    let Some((arrived, key, window)) = again else {
        eprintln!("not on this device: the number of a freed window, soon");
        return;
    };
    let lease = memory(&pair.domain, 4096)
        .lease(window, AccessFlags::REMOTE)
        .unwrap();
    let same = (0..256).any(|_| {
        carry_out_bare(&pair.right, lease.bind());
        if lease.remote().unwrap().rkey == key {
            return true;
        }
        carry_out_bare(&pair.right, lease.unbind());
        false
    });
    assert!(same, "all keys of the number had their turn");
    assert!(receives.complete(&arrived).is_some());
    assert_eq!(lease.state(), LeaseState::Bound, "that was another lease");
    assert_eq!(write(&pair, part(&lease), 1), WorkStatus::Success);
}

#[test]
fn a_lease_grants_what_it_says_and_no_more() {
    for kind in TYPES {
        let pair = Pair::new();
        let Some(lease) = lease(&pair.domain, kind, AccessFlags::REMOTE_READ) else {
            continue;
        };
        lease.volatile().fill(9);
        carry_out_bare(&pair.right, lease.bind());
        let mut sends = pair.left.send_queue();
        let target = pair.domain.allocate(64).unwrap();
        let read = carry_out(
            &pair.left,
            &mut sends,
            SendRequest::read(target, part(&lease)),
        );
        assert!(read.iter().all(|&byte| byte == 9));
        assert_eq!(write(&pair, part(&lease), 1), WorkStatus::RemoteAccess);
        assert!(lease.volatile().to_vec().iter().all(|&byte| byte == 9));
    }
}

#[test]
fn a_lease_ends_where_its_memory_does() {
    for kind in TYPES {
        let pair = Pair::new();
        let Some(window) = window(&pair.domain, kind) else {
            continue;
        };
        let (before, rest) = memory(&pair.domain, 8192).split_at(1024);
        let (middle, after) = rest.split_at(1024);
        // IBTA 10.6.7 requires the check; Soft-RoCE of Linux 6.1 only checks the bounds of the
        // region.
        let lease = middle.lease(window, AccessFlags::REMOTE);
        let Some(lease) = where_supported(lease) else {
            continue;
        };
        carry_out_bare(&pair.right, lease.bind());
        let beyond = RemoteMemory {
            address: lease.remote().unwrap().address + 1000,
            len: 64,
            ..lease.remote().unwrap()
        };
        assert_eq!(write(&pair, beyond, 1), WorkStatus::RemoteAccess);
        assert!(before.iter().chain(&after[..]).all(|&byte| byte == 0));
    }
}

#[test]
fn a_lease_counts_from_zero_where_it_says_so() {
    let pair = Pair::new();
    let access = AccessFlags::REMOTE | AccessFlags::ZERO_BASED;
    let Some(lease) = bound(&pair, WindowType::Two, access) else {
        return;
    };
    assert_eq!(lease.remote().unwrap().address, 0);
    assert_eq!(write(&pair, part(&lease), 6), WorkStatus::Success);
    let mut content = [0; 64];
    lease.volatile().read_at(64, &mut content).unwrap();
    assert_eq!(content[..], bytes(64, 6));
}

#[test]
fn a_revoked_lease_ends_at_the_device_in_any_state() {
    for kind in TYPES {
        let pair = Pair::new();
        let Some(free) = lease(&pair.domain, kind, AccessFlags::REMOTE) else {
            continue;
        };
        assert_eq!(free.revoke().unwrap().len(), 4096);
        let bound = bound(&pair, kind, AccessFlags::REMOTE).unwrap();
        let token = part(&bound);
        let mut buffer = bound.revoke().unwrap();
        buffer.fill(1);
        assert_eq!(write(&pair, token, 2), WorkStatus::RemoteAccess);
        assert!(buffer.iter().all(|&byte| byte == 1));
    }
}

#[test]
fn a_dropped_lease_ends_at_the_device() {
    for kind in TYPES {
        let pair = Pair::new();
        let Some(lease) = bound(&pair, kind, AccessFlags::REMOTE) else {
            continue;
        };
        let token = part(&lease);
        drop(lease);
        assert_eq!(write(&pair, token, 2), WorkStatus::RemoteAccess);
    }
}

#[test]
fn a_forgotten_lease_keeps_its_memory() {
    let pair = Pair::new();
    let Some(window) = window(&pair.domain, WindowType::Two) else {
        return;
    };
    let (leased, rest) = memory(&pair.domain, 8192).split_at(4096);
    let lease = leased.lease(window, AccessFlags::REMOTE);
    let Some(lease) = where_supported(lease) else {
        return;
    };
    carry_out_bare(&pair.right, lease.bind());
    let token = part(&lease);
    std::mem::forget(lease);
    assert_eq!(write(&pair, token, 1), WorkStatus::Success, "it is granted");
    let Refused {
        value: _rest,
        error,
    } = rest.detach().expect_err("a part is leased");
    assert!(matches!(error, Error::InUse { .. }));
}

#[test]
fn requests_out_of_turn_are_refused() {
    for kind in TYPES {
        let pair = Pair::new();
        let Some(lease) = lease(&pair.domain, kind, AccessFlags::REMOTE) else {
            continue;
        };
        let refused = |request: Result<SendRequest<()>>| {
            assert!(matches!(request, Err(Error::InUse { .. })), "{request:?}");
        };
        refused(lease.unbind());
        let request = lease.bind().unwrap();
        assert_eq!(lease.state(), LeaseState::Binding);
        refused(lease.bind());
        refused(lease.unbind());
        let Refused {
            value: lease,
            error,
        } = lease.revoke().expect_err("a request has it");
        assert!(matches!(error, Error::InUse { .. }));
        let lease = lease.finish().expect_err("a request has it");
        drop(request);
        assert_eq!(lease.state(), LeaseState::Free, "nothing has happened");
        carry_out_bare(&pair.right, lease.bind());
        refused(lease.bind());
        drop(lease.unbind().unwrap());
        assert_eq!(lease.state(), LeaseState::Bound, "nothing has happened");
        assert_eq!(write(&pair, part(&lease), 1), WorkStatus::Success);
        carry_out_bare(&pair.right, lease.unbind());
        assert!(lease.finish().is_ok());
    }
}

#[test]
fn a_refused_request_changes_nothing() {
    let pair = Pair::with(
        |builder| builder.send_requests(1),
        &ConnectOptions::default(),
    );
    let stranger = Pair::new();
    let Some(lease) = lease(&pair.domain, WindowType::Two, AccessFlags::REMOTE) else {
        return;
    };
    let mut queue = stranger.right.send_queue::<()>();
    let refused = queue.post_inline(lease.bind().unwrap()).unwrap_err();
    assert!(matches!(refused.error, Error::InvalidArgument { .. }));
    assert_eq!(lease.state(), LeaseState::Free);
    let mut queue = pair.right.send_queue::<Buffer>();
    queue
        .post(SendRequest::write(
            pattern(&pair.domain, 8, 1),
            exposed(&pair.domain, 8, AccessFlags::REMOTE).remote(),
        ))
        .unwrap();
    let refused = queue.post_inline(lease.bind().unwrap()).unwrap_err();
    assert!(matches!(refused.error, Error::QueueFull { .. }));
    assert_eq!(lease.state(), LeaseState::Free);
    let queue = pair.right.concurrent_send_queue::<()>();
    let other = stranger.right.concurrent_send_queue::<()>();
    let reserved = other.reserve();
    let refused = queue.post_inline(reserved.unwrap(), lease.bind().unwrap());
    assert!(refused.is_err(), "a slot of another queue");
    assert!(lease.finish().is_ok());
}

#[test]
fn a_request_that_fails_leaves_a_lease_to_be_revoked() {
    for kind in TYPES {
        let pair = Pair::new();
        let Some(lease) = bound(&pair, kind, AccessFlags::REMOTE) else {
            continue;
        };
        let token = part(&lease);
        pair.right.fail().unwrap();
        let mut queue = pair.right.send_queue::<()>();
        queue.post_inline(lease.unbind().unwrap()).unwrap();
        let flushed = completion(pair.right.send_completions());
        assert_eq!(flushed.status(), WorkStatus::Flushed);
        queue.complete(&flushed);
        assert_eq!((lease.state(), lease.remote()), (LeaseState::Unknown, None));
        assert!(lease.bind().is_err() && lease.unbind().is_err());
        let lease = lease.finish().expect_err("nobody knows");
        let buffer = lease.revoke().unwrap();
        let other = Pair::in_domain(&pair.domain, |it| it, &ConnectOptions::default());
        assert_eq!(write(&other, token, 1), WorkStatus::RemoteAccess);
        assert!(buffer.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_request_lost_with_its_queue_leaves_a_lease_to_be_revoked() {
    let pair = Pair::new();
    let Some(lease) = lease(&pair.domain, WindowType::Two, AccessFlags::REMOTE) else {
        return;
    };
    let mut queue = pair.right.send_queue::<()>();
    queue.post_inline(lease.bind().unwrap()).unwrap();
    succeed(pair.right.send_completions());
    assert_eq!(
        lease.state(),
        LeaseState::Binding,
        "nobody gave it to the queue"
    );
    drop(queue);
    let Refused {
        value: lease,
        error,
    } = lease.revoke().expect_err("the queue pair has it");
    assert!(matches!(error, Error::InUse { .. }));
    drop(pair);
    assert_eq!(lease.state(), LeaseState::Unknown);
    assert!(lease.revoke().is_ok());
}

#[test]
fn memory_that_cannot_be_leased_is_given_back() {
    let domain = context().protection_domain().unwrap();
    let Some(window) = window(&domain, WindowType::Two) else {
        return;
    };
    let access = AccessFlags::REMOTE;
    let invalid = |error| assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    let plain = domain.allocate(64).unwrap();
    let Refused {
        value: (plain, window),
        error,
    } = plain.lease(window, access).expect_err("no windows");
    invalid(error);
    assert_eq!(plain.len(), 64);
    let (empty, rest) = memory(&domain, 64).split_at(0);
    let Refused {
        value: (_, window),
        error,
    } = empty.lease(window, access).expect_err("0 bytes");
    invalid(error);
    let local = AccessFlags::LOCAL_WRITE;
    let Refused {
        value: (rest, window),
        error,
    } = rest.lease(window, local).expect_err("no remote right");
    invalid(error);
    let other = domain.context().protection_domain().unwrap();
    let foreign = memory(&other, 64);
    let Refused {
        value: (_, window),
        error,
    } = foreign.lease(window, access).expect_err("another domain");
    invalid(error);
    assert!(rest.lease(window, access).is_ok());
}

#[test]
fn a_binding_and_the_message_with_its_key_fit_into_one_batch() {
    let pair = Pair::new();
    let Some(lease) = lease(&pair.domain, WindowType::Two, AccessFlags::REMOTE) else {
        return;
    };
    let mut receives = pair.left.receive_queue();
    receives.post(pair.domain.allocate(20).unwrap()).unwrap();
    let mut queue = pair.right.send_queue::<Buffer>();
    let mut batch = queue.batch();
    batch
        .push_inline(lease.bind().unwrap().unsignaled())
        .unwrap();
    let mut token = pair.domain.allocate(20).unwrap();
    token.copy_from_slice(&lease.remote().expect("it is known").to_bytes());
    batch.push(SendRequest::send(token)).unwrap();
    batch.post().unwrap();
    let sent = succeed(pair.right.send_completions());
    assert_eq!(queue.complete(&sent).count(), 1);
    assert_eq!(lease.state(), LeaseState::Bound);
    let (_, token) = common::receive(&pair.left, &mut receives);
    let token = RemoteMemory::from_bytes(token[..].try_into().unwrap());
    let status = write(&pair, token.slice(..64).unwrap(), 1);
    assert_eq!(status, WorkStatus::Success);

    // Dropping a batch posts nothing.
    let mut batch = queue.batch();
    batch.push_inline(lease.unbind().unwrap()).unwrap();
    assert_eq!(lease.state(), LeaseState::Ending);
    drop(batch);
    assert_eq!(lease.state(), LeaseState::Bound);
    let one = self::lease(&pair.domain, WindowType::One, AccessFlags::REMOTE).unwrap();
    let mut batch = queue.batch();
    let refused = batch.push_inline(one.bind().unwrap()).unwrap_err();
    assert!(matches!(refused.error, Error::InvalidArgument { .. }));
    drop(batch);
    assert_eq!(one.state(), LeaseState::Free);
}

#[test]
fn leases_go_through_every_kind_of_send_queue() {
    for kind in TYPES {
        let pair = Pair::new();
        let Some(lease) = lease(&pair.domain, kind, AccessFlags::REMOTE) else {
            continue;
        };
        let queue = pair.right.concurrent_send_queue::<()>();
        let done = |request: Result<SendRequest<()>>| {
            let reserved = eventually("a slot", || queue.reserve());
            queue.post_inline(reserved, request.unwrap()).unwrap();
            let done = succeed(pair.right.send_completions());
            assert!(queue.complete(&done).next().is_none(), "it has no memory");
        };
        done(lease.bind());
        assert_eq!(write(&pair, part(&lease), 1), WorkStatus::Success);
        done(lease.unbind());
        assert!(lease.finish().is_ok());
    }
}

#[test]
fn leases_go_through_a_scope() {
    for kind in TYPES {
        let pair = Pair::new();
        let Some(lease) = lease(&pair.domain, kind, AccessFlags::REMOTE) else {
            continue;
        };
        let time_limit = std::time::Duration::from_secs(60);
        let scope = pair.right.scope(time_limit, |scope| {
            let bound = scope.post_inline(lease.bind().unwrap()).unwrap();
            bound.wait().unwrap();
            assert_eq!(write(&pair, part(&lease), 1), WorkStatus::Success);
            drop(scope.post_inline(lease.unbind().unwrap()).unwrap());
        });
        scope.unwrap();
        let (buffer, _) = lease.finish().expect("free");
        assert_eq!(buffer[64..128], bytes(64, 1));
    }
}

#[test]
fn leases_go_through_the_extended_posting_functions() {
    let operations = SendOperations::SEND
        | SendOperations::WRITE
        | SendOperations::BIND_WINDOW
        | SendOperations::INVALIDATE;
    let pair = Pair::with(
        |builder| builder.operations(operations),
        &ConnectOptions::default(),
    );
    for kind in TYPES {
        let Some(lease) = bound(&pair, kind, AccessFlags::REMOTE) else {
            continue;
        };
        assert_eq!(write(&pair, part(&lease), 1), WorkStatus::Success);
        carry_out_bare(&pair.right, lease.unbind());
        let (buffer, _) = lease.finish().expect("free");
        assert_eq!(buffer[64..128], bytes(64, 1));
    }
}

#[test]
fn a_window_of_c_becomes_one_of_this_crate() {
    let pair = Pair::new();
    // SAFETY: the domain is valid, and no other code uses the window that is created here.
    let window = unsafe {
        let kind = ibverbs_sys::ibv_mw_type::IBV_MW_TYPE_2;
        let raw = ibverbs_sys::ibv_alloc_mw(pair.domain.as_raw(), kind);
        assert!(!raw.is_null());
        MemoryWindow::from_raw(&pair.domain, raw, WindowType::Two)
    };
    assert!(!window.as_raw().is_null());
    let lease = memory(&pair.domain, 4096)
        .lease(window, AccessFlags::REMOTE)
        .unwrap();
    assert!(!lease.as_raw().is_null());
    carry_out_bare(&pair.right, lease.bind());
    assert_eq!(write(&pair, part(&lease), 1), WorkStatus::Success);
}

/// Checks a request that was flushed and whose completion was not passed to the queue: the success
/// of a later request must not count as the success of that request.
#[test]
fn a_flushed_request_without_its_completion_ends_no_lease() {
    let pair = Pair::with(
        |builder| builder.transport(Transport::UnreliableConnected),
        &ConnectOptions::default(),
    );
    let Some(lease) = bound(&pair, WindowType::Two, AccessFlags::REMOTE) else {
        return;
    };
    let token = part(&lease);
    let mut queue = pair.right.send_queue::<()>();
    // No window has this key, so the request fails.
    queue
        .post_inline(SendRequest::invalidate(0xffff_ff00))
        .unwrap();
    let failed = completion(pair.right.send_completions());
    assert!(failed.result().is_err());
    let state = eventually("an end of RTS", || {
        let state = pair.right.state().unwrap();
        (state != QueuePairState::ReadyToSend).then_some(state)
    });
    if state != QueuePairState::SendQueueError {
        assert!(!is_softroce(), "{state}");
        return;
    }
    queue.post_inline(lease.unbind().unwrap()).unwrap();
    let flushed = completion(pair.right.send_completions());
    assert_eq!(flushed.status(), WorkStatus::Flushed);

    pair.right.recover().unwrap();
    queue.post_inline(SendRequest::send(())).unwrap();
    let done = succeed(pair.right.send_completions());
    assert_eq!(queue.complete(&done).count(), 0);
    assert_eq!(queue.in_flight(), 0);
    assert_eq!(lease.state(), LeaseState::Unknown);
    let lease = lease.finish().expect_err("peers reach the memory");
    let mut sends = pair.left.send_queue();
    let source = pattern(&pair.domain, 64, 1);
    sends.post(SendRequest::write(source, token)).unwrap();
    succeed(pair.left.send_completions());
    let mut content = [0; 64];
    eventually("the peer's bytes", || {
        lease.volatile().read_at(64, &mut content).unwrap();
        (content[..] == bytes(64, 1)).then_some(())
    });
    lease.revoke().unwrap();
}
