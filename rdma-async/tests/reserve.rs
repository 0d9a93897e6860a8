//! Checks reservations: memory that the peer may access for a limited time.

mod common;

use std::cell::Cell;
use std::collections::HashSet;
use std::env;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::process::Command;
use std::task::Poll;
use std::time::Duration;

use common::{bytes, check, context, eventually, join, listen, pair, pair_with, pattern, run};
use futures_util::future::join_all;
use rdma_async::{Error, LocalMr, LocalMrReadAccess, Rdma, RemoteMr, Result};
use rdma_core::memory::WindowType;
use rdma_core::{RemoteMemory, WorkStatus};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

/// Asserts that the peer's device refused an access.
#[track_caller]
fn assert_refused<T: std::fmt::Debug>(outcome: Result<T>) {
    match outcome {
        Err(Error::Work(error)) => assert_eq!(error.status, WorkStatus::RemoteAccess),
        other => panic!("not refused: {other:?}"),
    }
}

/// Polls a reservation, which does not end by itself, until its future has stored the token of the
/// memory in `token`. Returns the token.
async fn granted<T>(
    mut owner: Pin<&mut impl Future<Output = T>>,
    token: &Cell<Option<RemoteMemory>>,
) -> RemoteMemory {
    poll_fn(|cx| {
        assert!(owner.as_mut().poll(cx).is_pending(), "it ended");
        token.get().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// Returns whether reservations grant access to one peer only: by memory windows, if the device
/// enforces the bounds and the queue pair of windows.
fn has_exclusive_grants() -> bool {
    let context = context();
    let bounds = context.enforces_window_bounds(WindowType::Two);
    bounds.unwrap_or(false) && context.enforces_window_owner().unwrap_or(false)
}

/// Writes repeatedly until a write fails, and returns the error.
async fn write_until_refused(client: &Rdma, mut remote: RemoteMr) -> Error {
    let local = pattern(client, 64, 9);
    loop {
        if let Err(error) = client.write(&local, &mut remote).await {
            return error;
        }
    }
}

#[test]
fn the_peer_writes_while_the_future_runs_and_the_region_is_returned() {
    run(async {
        let (client, server) = pair().await;
        let region = pattern(&server, 500, 1);
        let receiver = &server;
        let owner = server.reserve(region, LONG, |grant| async move {
            grant.offer().await.unwrap();
            receiver.receive().await.unwrap();
            grant
        });
        let borrower = async {
            let mut remote = client.receive_remote_mr().await.unwrap();
            client
                .write(&pattern(&client, 500, 2), &mut remote)
                .await
                .unwrap();
            client.send(&pattern(&client, 1, 0)).await.unwrap();
            remote
        };
        let (reserved, remote) = tokio::join!(owner, borrower);
        let reserved = reserved.unwrap();
        assert_eq!(reserved.region.as_slice(), bytes(500, 2));
        let grant = reserved.output.expect("the limit has not expired");
        assert!(matches!(grant.offer().await, Err(Error::LeaseEnded)));
        drop(remote);
        check(&client, &server).await;
    });
}

#[test]
fn a_late_writer_gets_a_remote_access_error_and_changes_nothing() {
    check_late_writer(true);
}

#[test]
fn a_late_writer_to_memory_with_its_own_registration_changes_nothing() {
    check_late_writer(false);
}

#[test]
fn a_grant_without_a_free_window_has_its_own_registration() {
    const NAME: &str = "a_grant_without_a_free_window_has_its_own_registration";
    if env::var_os("SOFTROCE_FAIL").is_none() {
        if common::context().name() == "softroce0" {
            // The test of the device allocates windows, too.
            for number in 1..=5 {
                let status = Command::new(env::current_exe().unwrap())
                    .args(["--exact", NAME, "--nocapture"])
                    .env("SOFTROCE_FAIL", format!("ibv_alloc_mw:{number}:ENOMEM"))
                    .status()
                    .expect("the test runs again");
                assert!(status.success(), "window {number} is missing: {status}");
            }
        }
        return;
    }
    run(async {
        let (client, server) = pair().await;
        let mut region = pattern(&server, 64, 1);
        for round in 0..3 {
            let reserved = server.reserve(region, LONG, async |grant| {
                let mut remote = RemoteMr::from_token(grant.token());
                let source = pattern(&client, 64, round);
                client.write(&source, &mut remote).await
            });
            let reserved = reserved.await.unwrap();
            reserved.output.unwrap().unwrap();
            region = reserved.region;
            assert_eq!(region.as_slice(), bytes(64, round));
        }
    });
}

fn check_late_writer(exclusive: bool) {
    run(async {
        let (client, server) = pair_with(|builder| builder.exclusive_grants(exclusive)).await;
        let region = pattern(&server, 64, 1);
        // Tests the device, which may take longer than the time limit.
        let is_exclusive = exclusive && has_exclusive_grants();
        let begun = Instant::now();
        let token = Cell::new(None);
        let owner = server.reserve(region, SHORT, |grant| {
            assert_eq!(grant.is_exclusive(), is_exclusive);
            token.set(Some(grant.token()));
            std::future::pending::<()>()
        });
        let mut owner = pin!(owner);
        let remote = RemoteMr::from_token(granted(owner.as_mut(), &token).await);
        let (reserved, error) = tokio::join!(owner, write_until_refused(&client, remote));
        let reserved = reserved.unwrap();
        assert!(reserved.output.is_none() && begun.elapsed() >= SHORT);
        assert_refused::<()>(Err(error));
        // The late writes have not changed the returned region.
        let now = reserved.region.as_slice().to_vec();
        sleep(SHORT).await;
        assert_eq!(reserved.region.as_slice(), now);
    });
}

#[test]
fn a_late_reader_gets_a_remote_access_error() {
    run(async {
        let (client, server) = pair().await;
        let region = pattern(&server, 64, 1);
        let reserved = server
            .reserve(region, LONG, |grant| async move { grant.token() })
            .await
            .unwrap();
        let remote = RemoteMr::from_token(reserved.output.unwrap());
        let mut local = pattern(&client, 64, 3);
        assert_refused(client.read(&mut local, &remote).await);
        assert_eq!(local.as_slice(), bytes(64, 3));
    });
}

#[test]
fn a_borrower_gets_an_error_after_the_end_and_the_connection_remains_open() {
    run(async {
        let (client, server) = pair().await;
        let region = pattern(&server, 64, 1);
        let owner = server.reserve(region, SHORT, |grant| async move {
            grant.offer().await.unwrap();
            std::future::pending::<()>().await;
        });
        let borrower = async {
            let mut remote = client.receive_remote_mr().await.unwrap();
            let begun = Instant::now();
            while !remote.has_ended() {
                assert!(begun.elapsed() < LONG, "the lease does not end");
                sleep(Duration::from_millis(1)).await;
            }
            let mut local = pattern(&client, 8, 3);
            let written = client.write(&local, &mut remote).await;
            assert!(matches!(written, Err(Error::LeaseEnded)), "{written:?}");
            let part = remote.get(0..8).unwrap();
            let read = client.read(&mut local, &part).await;
            assert!(matches!(read, Err(Error::LeaseEnded)), "{read:?}");
            let mut word = remote.get_mut(0..8).unwrap();
            let added = client.fetch_and_add(&mut word, 1).await;
            assert!(matches!(added, Err(Error::LeaseEnded)), "{added:?}");
            // The borrower may return the memory after the end of the lease.
            client.send_remote_mr(remote).await.unwrap();
        };
        let (reserved, ()) = tokio::join!(owner, borrower);
        assert_eq!(reserved.unwrap().region.as_slice(), bytes(64, 1));
        check(&client, &server).await;
    });
}

#[test]
fn a_borrower_gets_an_error_after_the_owner_has_ended_the_grant_early() {
    run(async {
        let (client, server) = pair().await;
        let (server_end, client_end) = (&server, &client);
        // The future of the reservation completes long before the limit, and drops its grant.
        let owner = server.reserve(pattern(&server, 64, 1), LONG, |grant| async move {
            grant.offer().await.unwrap();
            server_end.receive().await.unwrap();
        });
        let borrower = async {
            let mut remote = client_end.receive_remote_mr().await.unwrap();
            let local = pattern(client_end, 64, 2);
            client_end.write(&local, &mut remote).await.unwrap();
            client_end.send(&pattern(client_end, 1, 0)).await.unwrap();
            eventually(|| remote.has_ended().then_some(())).await;
            let late = client_end.write(&local, &mut remote).await;
            assert!(matches!(late, Err(Error::LeaseEnded)), "{late:?}");
        };
        let (reserved, ()) = tokio::join!(owner, borrower);
        let reserved = reserved.unwrap();
        assert!(reserved.output.is_some(), "the limit has not expired");
        assert_eq!(reserved.region.as_slice(), bytes(64, 2));
        check(&client, &server).await;
    });
}

#[test]
fn the_peer_writes_to_renewed_memory_after_the_original_limit() {
    run(async {
        let (client, server) = pair().await;
        let begun = Instant::now();
        let (server_end, client_end) = (&server, &client);
        // The first poll renews the lease, before the original limit is checked.
        let owner = server.reserve(pattern(&server, 64, 1), SHORT, |grant| async move {
            grant.renew(LONG);
            grant.offer().await.unwrap();
            server_end.receive().await.unwrap();
        });
        let borrower = async {
            let mut remote = client_end.receive_remote_mr().await.unwrap();
            tokio::time::sleep_until(begun + SHORT * 4).await;
            let local = pattern(client_end, 64, 2);
            client_end.write(&local, &mut remote).await.unwrap();
            assert!(!remote.has_ended());
            client_end.send(&pattern(client_end, 1, 0)).await.unwrap();
        };
        let (reserved, ()) = tokio::join!(owner, borrower);
        let reserved = reserved.unwrap();
        assert!(reserved.output.is_some(), "the new limit has not expired");
        assert_eq!(reserved.region.as_slice(), bytes(64, 2));
        check(&client, &server).await;
    });
}

#[test]
fn an_early_return_ends_the_wait() {
    run(async {
        let (client, server) = pair().await;
        for is_released in [false, true] {
            let region = pattern(&server, 64, 1);
            let owner = server.reserve(region, LONG, |grant| async move {
                grant.offer().await.unwrap();
                grant.returned().await;
            });
            let borrower = async {
                let remote = client.receive_remote_mr().await.unwrap();
                match is_released {
                    true => drop(remote),
                    false => client.send_remote_mr(remote).await.unwrap(),
                }
            };
            let (reserved, ()) = tokio::join!(owner, borrower);
            let reserved = reserved.unwrap();
            assert!(reserved.output.is_some());
            assert_eq!(reserved.region.as_slice(), bytes(64, 1));
        }
        check(&client, &server).await;
    });
}

#[test]
fn a_renewal_extends_the_time() {
    run(async {
        let (_client, server) = pair().await;
        let region = pattern(&server, 64, 1);
        let begun = Instant::now();
        let reserved = server
            .reserve(region, SHORT, |grant| async move {
                for _ in 0..4 {
                    sleep(SHORT / 2).await;
                    grant.renew(SHORT);
                }
                std::future::pending::<()>().await;
            })
            .await
            .unwrap();
        assert!(reserved.output.is_none() && begun.elapsed() >= SHORT * 3);
        // A shorter limit takes effect immediately.
        let shortened = server.reserve(reserved.region, LONG, |grant| async move {
            grant.renew(Duration::ZERO);
            std::future::pending::<()>().await;
        });
        let ended = timeout(LONG / 2, shortened).await;
        assert!(ended.expect("it has expired").unwrap().output.is_none());
    });
}

#[test]
fn dropping_the_reservation_ends_the_access() {
    run(async {
        let mut listener = listen(|builder| builder).await;
        let (client, server) = join(&mut listener, |builder| builder).await;
        let (other, other_server) = join(&mut listener, |builder| builder).await;
        let token = Cell::new(None);
        let owner = server.reserve(pattern(&server, 64, 1), LONG, |grant| {
            token.set(Some(grant.token()));
            std::future::pending::<()>()
        });
        let mut owner = Box::pin(owner);
        let mut remote = RemoteMr::from_token(granted(owner.as_mut(), &token).await);
        drop(owner);
        assert_refused(client.write(&pattern(&client, 8, 1), &mut remote).await);
        check(&other, &other_server).await;
    });
}

/// Writes a whole region of the peer repeatedly, by several concurrent requests, until an operation
/// fails. Returns the first error.
async fn transfer_until_refused(client: &Rdma, remote: RemoteMr, len: usize) -> Error {
    let remote = remote.share();
    let sources: Vec<_> = (0..4).map(|seed| pattern(client, len, seed)).collect();
    let transfer = async |source: &LocalMr| {
        let mut remote = remote.clone();
        loop {
            if let Err(error) = client.write(source, &mut remote).await {
                return error;
            }
        }
    };
    let mut errors = join_all(sources.iter().map(transfer)).await;
    errors.swap_remove(0)
}

/// Checks that memory whose lease ends during long writes does not change after its return.
#[test]
fn a_lease_that_ends_stops_a_transfer_at_the_device() {
    const LEN: usize = 64 << 10;
    run(async {
        let mut listener = listen(|builder| builder).await;
        let (other, other_server) = join(&mut listener, |builder| builder).await;
        for round in 0..3 {
            let (client, server) = join(&mut listener, |builder| builder).await;
            let region = pattern(&server, LEN, 0xee);
            let limit = SHORT * (round + 1);
            let owner = server.reserve(region, limit, |grant| async move {
                grant.offer().await.unwrap();
                std::future::pending::<()>().await;
            });
            let borrower = async {
                let remote = client.receive_remote_mr().await.unwrap();
                transfer_until_refused(&client, remote, LEN).await
            };
            let owner = async {
                let region = owner.await.unwrap().region;
                // From here on, this end reads the memory as a slice.
                let before = region.as_slice().to_vec();
                (region, before)
            };
            let ((region, before), error) = tokio::join!(owner, borrower);
            let refused = match &error {
                Error::Work(work) => work.status == WorkStatus::RemoteAccess,
                // The message about the end of the lease has arrived first.
                Error::LeaseEnded => true,
                _ => false,
            };
            assert!(refused, "{error}");
            assert!(region.as_slice() == before, "the memory has changed");
        }
        check(&other, &other_server).await;
    });
}

#[test]
fn an_owner_lost_during_a_transfer_is_an_error_of_the_borrower() {
    const LEN: usize = 64 << 10;
    run(async {
        let mut listener = listen(|builder| builder).await;
        let (other, other_server) = join(&mut listener, |builder| builder).await;
        let (client, server) = join(&mut listener, |builder| builder).await;
        let region = pattern(&server, LEN, 0xee);
        let owner = async {
            let (offered, transfer) = oneshot::channel();
            let reservation = server.reserve(region, LONG, |grant| async move {
                grant.offer().await.unwrap();
                offered.send(()).unwrap();
                std::future::pending::<()>().await;
            });
            let transfer = async {
                transfer.await.unwrap();
                sleep(SHORT).await;
            };
            // The reservation and the connection are dropped during the transfer.
            tokio::select! {
                _ = reservation => panic!("it does not end"),
                () = transfer => {}
            }
            drop(server);
        };
        let borrower = async {
            let remote = client.receive_remote_mr().await.unwrap();
            transfer_until_refused(&client, remote, LEN).await
        };
        let ((), error) = tokio::join!(owner, borrower);
        match &error {
            Error::Work(_) | Error::LeaseEnded | Error::Disconnected { .. } => {}
            other => panic!("{other}"),
        }
        check(&other, &other_server).await;
    });
}

/// Checks that only the connection of a reservation can use its token. Both connections belong to
/// one device, so memory that has a registration of its own is open to both.
#[test]
fn a_token_of_a_reservation_is_refused_on_another_connection() {
    run(async {
        let mut listener = listen(|builder| builder).await;
        let (client, server) = join(&mut listener, |builder| builder).await;
        let (other, other_server) = join(&mut listener, |builder| builder).await;
        let lent = server.lend(pattern(&server, 64, 1)).expect("it is lent");
        let mut remote = RemoteMr::from_token(lent.token());
        other
            .write(&pattern(&other, 64, 2), &mut remote)
            .await
            .unwrap();
        let region = lent.end().unwrap();

        let (client, other) = (&client, &other);
        let reserved = server.reserve(region, LONG, |grant| async move {
            assert_eq!(grant.is_exclusive(), has_exclusive_grants());
            let mut remote = RemoteMr::from_token(grant.token());
            let foreign = other.write(&pattern(other, 64, 3), &mut remote).await;
            match grant.is_exclusive() {
                true => assert_refused(foreign),
                false => foreign.unwrap(),
            }
            let part = RemoteMr::from_token(RemoteMemory {
                len: 32,
                ..grant.token()
            });
            let mut local = pattern(client, 32, 0);
            client.read(&mut local, &part).await.unwrap();
            (grant.is_exclusive(), local)
        });
        let reserved = reserved.await.unwrap();
        let (is_exclusive, read) = reserved.output.expect("the limit has not expired");
        let seed = if is_exclusive { 2 } else { 3 };
        assert_eq!(read.as_slice(), &bytes(64, seed)[..32]);
        assert_eq!(reserved.region.as_slice(), bytes(64, seed));
        if is_exclusive {
            other_server.ended().await;
        }
        check(client, &server).await;
    });
}

/// Checks more grants than a memory window has keys.
#[test]
fn grants_have_keys_of_their_own_and_work_any_number_of_times() {
    run(async {
        let (client, server) = pair().await;
        let mut region = pattern(&server, 64, 0);
        let mut keys = HashSet::new();
        for round in 0..600 {
            let client = &client;
            let reserved = server.reserve(region, LONG, |grant| async move {
                let mut remote = RemoteMr::from_token(grant.token());
                let source = pattern(client, 64, round as u8);
                client.write(&source, &mut remote).await.unwrap();
                grant
            });
            let reserved = reserved.await.unwrap();
            region = reserved.region;
            assert_eq!(region.as_slice(), bytes(64, round as u8));
            let grant = reserved.output.expect("the limit has not expired");
            let is_new = keys.insert(grant.token().rkey);
            if grant.is_exclusive() && round < 300 {
                assert!(is_new, "the key of grant {round} is an old one");
            }
        }
        check(&client, &server).await;
    });
}

#[test]
fn the_memory_returns_after_the_connection_has_failed() {
    run(async {
        let (client, server) = pair().await;
        let failing = &client;
        let region = pattern(&server, 64, 1);
        let token = Cell::new(None);
        let lent = server.reserve(pattern(&server, 64, 2), LONG, |grant| {
            token.set(Some(grant.token()));
            std::future::pending::<()>()
        });
        let mut lent = Box::pin(lent);
        granted(lent.as_mut(), &token).await;
        let owner = server.reserve(region, LONG, |grant| async move {
            let beyond = RemoteMemory {
                address: grant.token().address + 32,
                ..grant.token()
            };
            let mut remote = RemoteMr::from_token(beyond);
            assert_refused(failing.write(&pattern(failing, 64, 9), &mut remote).await);
        });
        let owner = async {
            let reserved = owner.await.unwrap();
            server.ended().await;
            reserved
        };
        let reserved = tokio::select! {
            _ = lent.as_mut() => panic!("it does not end"),
            reserved = owner => reserved,
        };
        assert_eq!(reserved.region.as_slice(), bytes(64, 1));
        assert_eq!(server.device().pool_statistics().in_use, 128);
        drop((lent, reserved));
        assert_eq!(server.device().pool_statistics().in_use, 0);
        let refused = server.reserve(pattern(&server, 8, 1), LONG, |_grant| async {});
        assert!(matches!(
            refused.await,
            Err(Error::Disconnected { .. } | Error::Work(_))
        ));
    });
}

/// Checks reservations that are dropped while the request that grants the access may be in flight
/// behind a long write.
#[test]
fn a_dropped_reservation_returns_its_memory_when_no_request_uses_it() {
    const LEN: usize = 1 << 20;
    run(async {
        let (client, server) = pair().await;
        let mut remote = server.request_remote_mr(common::layout(LEN)).await.unwrap();
        let source = pattern(&server, LEN, 5);
        let in_use = server.device().pool_statistics().in_use;
        for polls in 1..10 {
            let region = pattern(&server, 64, 1);
            let mut write = pin!(server.write(&source, &mut remote));
            let mut begun = false;
            poll_fn(|cx| {
                begun = write.as_mut().poll(cx).is_pending();
                Poll::Ready(())
            })
            .await;
            {
                let mut owner =
                    pin!(server.reserve(region, LONG, |_grant| { std::future::pending::<()>() }));
                for _ in 0..polls {
                    let polled = poll_fn(|cx| Poll::Ready(owner.as_mut().poll(cx))).await;
                    assert!(polled.is_pending());
                }
            }
            if begun {
                write.await.unwrap();
            }
        }
        let returned = async {
            while server.device().pool_statistics().in_use != in_use {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LONG, returned).await.expect("the memory returns");
        check(&client, &server).await;
    });
}

#[test]
fn memory_lent_read_only_cannot_be_written() {
    run(async {
        let (client, server) = pair().await;
        let lent = server.lend_read_only(pattern(&server, 64, 1));
        let lent = lent.expect("the device can register it");
        let mut remote = RemoteMr::from_token_bytes(&lent.token().to_bytes());
        let mut local = pattern(&client, 64, 2);
        client.read(&mut local, &remote).await.unwrap();
        assert_eq!(local.as_slice(), bytes(64, 1));
        assert_refused(client.write(&pattern(&client, 64, 9), &mut remote).await);
        assert_eq!(lent.end().unwrap().as_slice(), bytes(64, 1));
    });
}

#[test]
fn lent_memory_is_written_until_the_owner_ends_the_access() {
    run(async {
        let (client, server) = pair().await;
        let lent = server.lend(pattern(&server, 64, 1));
        let lent = lent.expect("the device can register it");
        let mut remote = RemoteMr::from_token(lent.token());
        let local = pattern(&client, 64, 2);
        client.write(&local, &mut remote).await.unwrap();
        let region = lent.end().unwrap();
        assert_eq!(region.as_slice(), bytes(64, 2));
        assert_refused(client.write(&pattern(&client, 64, 9), &mut remote).await);
        assert_eq!(region.as_slice(), bytes(64, 2));
        // The connection has ended. A further loan is refused, and the region is returned.
        server.ended().await;
        let (region, _) = server.lend(region).expect_err("the connection has ended");
        assert_eq!(region.as_slice(), bytes(64, 2));
    });
}
