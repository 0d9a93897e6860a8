//! Checks that a hundred rounds of correct and faulty connections leak no resource.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::faulty_handshake::{FaultyHandshake, faulty_handshakes, send_faulty};
use common::held::{held, settle};
use common::hostile::{Hostile, frame, kind};
use common::{
    builder, bytes, check, join, layout, listen, pattern, poll_and_drop, run_within, two_threads,
};
use rdma_async::{LocalMrReadAccess, Rdma, RdmaBuilder, RdmaListener, RegistrationCache, RemoteMr};
use tokio::net::{TcpListener, TcpStream};

const ROUNDS: usize = 100;

fn small(builder: RdmaBuilder) -> RdmaBuilder {
    builder.send_depth(8).receive_depth(4)
}

async fn use_correctly(listener: &mut RdmaListener) {
    let (client, server) = join(listener, small).await;
    check(&client, &server).await;
    server.send_local_mr(pattern(&server, 64, 1)).await.unwrap();
    let lent = client.receive_remote_mr().await.unwrap();
    client.send_remote_mr(lent).await.unwrap();
    server.receive_local_mr().await.unwrap();
    use_memory_of_the_program(&client, &server).await;
}

/// Sends memory of the program while a cache evicts it.
async fn use_memory_of_the_program(client: &Rdma, server: &Rdma) {
    let cache = RegistrationCache::new(client.device(), 10_000);
    for seed in 0..3 {
        let owner: Arc<[u8]> = Arc::from(bytes(10_000, seed));
        let region = cache.register(&owner).unwrap();
        let (sent, received) = tokio::join!(client.send(&region), server.receive());
        sent.unwrap();
        assert_eq!(received.unwrap().as_slice(), &owner[..]);
        cache.register(&owner).unwrap();
    }
    assert_eq!(cache.statistics().evictions, 2);
}

/// Connects to an address without a server.
async fn connect_without_server(round: usize) {
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

async fn faulty_client(listener: &mut RdmaListener, faulty: &FaultyHandshake) {
    let address = listener.local_address().unwrap();
    let sending = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        send_faulty(&mut stream, faulty).await;
    };
    let ((), outcome) = tokio::join!(sending, listener.accept());
    assert!(outcome.is_err(), "{}", faulty.name);
}

async fn faulty_server(faulty: &FaultyHandshake) {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let sending = async {
        let (mut stream, _) = server.accept().await.unwrap();
        send_faulty(&mut stream, faulty).await;
    };
    let connecting = small(builder()).connect(address);
    let ((), outcome) = tokio::join!(sending, connecting);
    assert!(outcome.is_err(), "{}", faulty.name);
}

/// Accesses memory outside of the granted range or with a revoked key.
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

fn drop_pending_operations(client: &Rdma, server: &Rdma) {
    poll_and_drop(client.request_remote_mr(layout(64)));
    poll_and_drop(client.send(&pattern(client, 100_000, 1)));
    poll_and_drop(client.send_local_mr(pattern(client, 64, 1)));
    poll_and_drop(server.send(&pattern(server, 64, 1)));
    poll_and_drop(server.receive());
    poll_and_drop(server.receive_remote_mr());
}

/// Drops the client while operations of every kind are pending.
async fn drop_client_with_operations(listener: &mut RdmaListener) {
    let (client, server) = join(listener, small).await;
    let remote = client.request_remote_mr(layout(64)).await.unwrap();
    drop_pending_operations(&client, &server);
    let (outcome, ()) = tokio::join!(server.receive_write_immediate(), async {
        tokio::task::yield_now().await;
        drop((remote, client));
    });
    assert!(outcome.is_err());
}

async fn violate_protocol(listener: &mut RdmaListener) {
    let address = listener.local_address().unwrap();
    let (hostile, server) = tokio::join!(Hostile::connect(address), listener.accept());
    let (mut hostile, server) = (hostile, server.unwrap());
    let request = [64_u64.to_be_bytes(), 8_u64.to_be_bytes()].concat();
    hostile.send(&frame(kind::REQUEST, (0, 0), 1, &request));
    hostile.send(&frame(kind::RETURN, (0, 0), 12345, &[]));
    server.ended().await;
}

#[test]
fn a_hundred_rounds_of_connections_leak_no_resource() {
    run_within(Duration::from_secs(540), two_threads(), async {
        // Creates the resources that are created only once in a process.
        use_correctly(&mut listen(small).await).await;
        drop(faulty_handshakes());
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut before = held();

        let mut listener = listen(small).await;
        for _ in 0..ROUNDS {
            use_correctly(&mut listener).await;
        }
        drop(listener);
        settle(&mut before, "correct connections").await;

        for round in 0..4 * ROUNDS {
            connect_without_server(round).await;
        }
        settle(&mut before, "clients without a server").await;

        // Repeats each interrupted handshake, and the other faulty handshakes in turn.
        let (short, invalid): (Vec<_>, Vec<_>) = faulty_handshakes()
            .into_iter()
            .partition(|faulty| faulty.shuts_down);
        let mut faulty: Vec<_> = short.iter().cycle().take(short.len() * ROUNDS).collect();
        faulty.extend(invalid.iter().cycle().take(ROUNDS));
        let mut listener = listen(small).await;
        for faulty in &faulty {
            faulty_client(&mut listener, faulty).await;
        }
        drop(listener);
        settle(&mut before, "faulty clients").await;
        for faulty in &faulty {
            faulty_server(faulty).await;
        }
        settle(&mut before, "faulty servers").await;

        let mut listener = listen(small).await;
        for round in 0..2 * ROUNDS {
            wrong_access(&mut listener, round).await;
        }
        drop(listener);
        settle(&mut before, "forbidden access").await;

        let mut listener = listen(small).await;
        for _ in 0..ROUNDS {
            drop_client_with_operations(&mut listener).await;
        }
        drop(listener);
        settle(&mut before, "dropped clients").await;

        let mut listener = listen(small).await;
        for _ in 0..ROUNDS {
            violate_protocol(&mut listener).await;
        }
        drop(listener);
        settle(&mut before, "protocol violations").await;
    });
}
