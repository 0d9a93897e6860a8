//! Checks for leaks: after a hundred rounds of correct and faulty connections, no resource is left.

mod common;

use std::time::Duration;

use common::held::{held, settle};
use common::hostile::{Hostile, frame, kind};
use common::talk::{Talk, say, talks};
use common::{
    builder, check, join, layout, listen, pattern, poll_and_drop, run_within, two_threads,
};
use rdma_async::{Rdma, RdmaBuilder, RdmaListener, RemoteMr};
use tokio::net::{TcpListener, TcpStream};

const ROUNDS: usize = 100;

fn small(builder: RdmaBuilder) -> RdmaBuilder {
    builder.send_depth(8).receive_depth(4)
}

async fn good(listener: &mut RdmaListener) {
    let (client, server) = join(listener, small).await;
    check(&client, &server).await;
    server.send_local_mr(pattern(&server, 64, 1)).await.unwrap();
    let lent = client.receive_remote_mr().await.unwrap();
    client.send_remote_mr(lent).await.unwrap();
    server.receive_local_mr().await.unwrap();
}

/// Connects to an address without a server.
async fn alone(round: usize) {
    let builder = small(builder());
    let outcome = match round % 4 {
        0 => {
            builder
                .device("no_such_device")
                .connect("127.0.0.1:1")
                .await
        }
        1 => builder.port(99).connect("127.0.0.1:1").await,
        2 => builder.gid_index(5000).connect("127.0.0.1:1").await,
        _ => builder.connect("127.0.0.1:1").await,
    };
    assert!(outcome.is_err());
}

async fn wrong_client(listener: &mut RdmaListener, talk: &Talk) {
    let address = listener.local_address().unwrap();
    let talking = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        say(&mut stream, talk).await;
    };
    let ((), outcome) = tokio::join!(talking, listener.accept());
    assert!(outcome.is_err(), "{}", talk.what);
}

async fn wrong_server(talk: &Talk) {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let talking = async {
        let (mut stream, _) = server.accept().await.unwrap();
        say(&mut stream, talk).await;
    };
    let connecting = small(builder()).connect(address);
    let ((), outcome) = tokio::join!(talking, connecting);
    assert!(outcome.is_err(), "{}", talk.what);
}

/// Accesses memory outside of the granted range, or with a revoked key.
async fn wrong_access(listener: &mut RdmaListener, round: usize) {
    let (client, server) = join(listener, small).await;
    let remote = client.request_remote_mr(layout(64)).await.unwrap();
    let mut memory = remote.token();
    if round.is_multiple_of(2) {
        memory.address += 64;
    } else {
        client.send_remote_mr(remote).await.unwrap();
        server.receive_local_mr().await.unwrap();
    }
    let mut wrong = RemoteMr::from_token(memory);
    let source = pattern(&client, 64, 1);
    assert!(client.write(&source, &mut wrong).await.is_err());
}

fn give_up_everything(client: &Rdma, server: &Rdma) {
    poll_and_drop(client.request_remote_mr(layout(64)));
    poll_and_drop(client.send(&pattern(client, 100_000, 1)));
    poll_and_drop(client.send_local_mr(pattern(client, 64, 1)));
    poll_and_drop(server.send(&pattern(server, 64, 1)));
    poll_and_drop(server.receive());
    poll_and_drop(server.receive_remote_mr());
}

/// Drops the client while operations of every kind are pending.
async fn leaving(listener: &mut RdmaListener) {
    let (client, server) = join(listener, small).await;
    let remote = client.request_remote_mr(layout(64)).await.unwrap();
    give_up_everything(&client, &server);
    let (outcome, ()) = tokio::join!(server.receive_write_immediate(), async {
        tokio::task::yield_now().await;
        drop((remote, client));
    });
    assert!(outcome.is_err());
}

async fn broken(listener: &mut RdmaListener) {
    let address = listener.local_address().unwrap();
    let (hostile, server) = tokio::join!(Hostile::connect(address), listener.accept());
    let (mut hostile, server) = (hostile, server.unwrap());
    let request = [64_u64.to_be_bytes(), 8_u64.to_be_bytes()].concat();
    hostile.send(&frame(kind::REQUEST, (0, 0), 1, &request));
    hostile.send(&frame(kind::RETURN, (0, 0), 12345, &[]));
    server.ended().await;
}

#[test]
fn nothing_is_left_after_a_hundred_rounds_of_each() {
    run_within(Duration::from_secs(540), two_threads(), async {
        // Creates resources that are created once and kept.
        good(&mut listen(small).await).await;
        drop(talks());
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut before = held();

        let mut listener = listen(small).await;
        for _ in 0..ROUNDS {
            good(&mut listener).await;
        }
        drop(listener);
        settle(&mut before, "good connections").await;

        for round in 0..4 * ROUNDS {
            alone(round).await;
        }
        settle(&mut before, "clients without a server").await;

        // Each kind of interrupted handshake, and each kind of garbage in turn.
        let (leave, garbage): (Vec<_>, Vec<_>) = talks().into_iter().partition(|talk| talk.leaves);
        let mut wrong: Vec<_> = leave.iter().cycle().take(leave.len() * ROUNDS).collect();
        wrong.extend(garbage.iter().cycle().take(ROUNDS));
        let mut listener = listen(small).await;
        for talk in &wrong {
            wrong_client(&mut listener, talk).await;
        }
        drop(listener);
        settle(&mut before, "clients that are none").await;
        for talk in &wrong {
            wrong_server(talk).await;
        }
        settle(&mut before, "servers that are none").await;

        let mut listener = listen(small).await;
        for round in 0..2 * ROUNDS {
            wrong_access(&mut listener, round).await;
        }
        drop(listener);
        settle(&mut before, "access that is not granted").await;

        let mut listener = listen(small).await;
        for _ in 0..ROUNDS {
            leaving(&mut listener).await;
        }
        drop(listener);
        settle(&mut before, "peers that left").await;

        let mut listener = listen(small).await;
        for _ in 0..ROUNDS {
            broken(&mut listener).await;
        }
        drop(listener);
        settle(&mut before, "peers that broke the rules").await;
    });
}
