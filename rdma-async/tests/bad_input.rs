//! Checks that wrong settings, absent peers and faulty peers cause errors in bounded time.

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::faulty_handshake::{faulty_handshakes, send_faulty};
use common::{builder, check, join, listen, run};
use rdma_async::{Error, RdmaBuilder, RdmaListener};
use rdma_core::{Endpoint, Error as VerbsError};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Checks that the first call that uses a wrong device, port or GID index fails.
#[test]
fn errors_name_the_wrong_setting() {
    run(async {
        let outcome = builder().device("no_such_device").bind("127.0.0.1:0").await;
        let Err(Error::Verbs(VerbsError::UnknownDevice { name, available })) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(name, "no_such_device");
        assert!(!available.is_empty());
        let outcome = builder()
            .device("no_such_device")
            .connect("127.0.0.1:1")
            .await;
        assert!(matches!(
            outcome,
            Err(Error::Verbs(VerbsError::UnknownDevice { .. }))
        ));
        for port in [0, 99] {
            let outcome = builder().port(port).listen("127.0.0.1:0").await;
            let named = matches!(outcome, Err(Error::Verbs(VerbsError::UnknownPort { .. })));
            assert!(named, "{outcome:?}");
        }
        for index in [200, 5000, u32::MAX] {
            let outcome = builder().gid_index(index).connect("127.0.0.1:1").await;
            let named = matches!(
                outcome,
                Err(Error::Verbs(VerbsError::UnknownGidIndex { .. }))
            );
            assert!(named, "{outcome:?}");
        }
    });
}

#[test]
fn an_invalid_or_used_address_is_an_error() {
    run(async {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        let outcome = builder().bind(address).await;
        assert!(matches!(outcome, Err(Error::Tcp { .. })), "{outcome:?}");
        let outcome = builder().connect("no address").await;
        assert!(matches!(outcome, Err(Error::Tcp { .. })), "{outcome:?}");
    });
}

/// Returns a TCP port without a listener, and a socket that reserves the port.
fn held_port() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    // Allows a test to listen at this port.
    socket.set_reuseaddr(true).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

#[test]
fn connecting_without_a_listener_is_an_error() {
    run(async {
        let (_held, address) = held_port();
        let outcome = builder().connect(address).await;
        let Err(error @ Error::Tcp { .. }) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    });
}

#[test]
fn connecting_to_a_silent_peer_times_out() {
    run(async {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let limit = Duration::from_millis(300);
        let builder = builder().connect_timeout(limit);
        let outcome = builder.connect(silent.local_addr().unwrap()).await;
        let expected = matches!(outcome, Err(Error::Timeout { limit: over, .. }) if over == limit);
        assert!(expected, "{outcome:?}");
    });
}

fn with_short_timeout(builder: RdmaBuilder) -> RdmaBuilder {
    builder.connect_timeout(Duration::from_secs(20))
}

/// Waits until a handshake fails, and returns the text of the error.
async fn refusal(listener: &mut RdmaListener) -> String {
    match listener.accept().await {
        Err(error @ Error::Handshake { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_listener_refuses_faulty_peers_and_accepts_correct_peers() {
    run(async {
        let mut listener = listen(with_short_timeout).await;
        let address = listener.local_address().unwrap();
        for faulty in faulty_handshakes() {
            let sending = async {
                let mut stream = TcpStream::connect(address).await.unwrap();
                send_faulty(&mut stream, &faulty).await;
            };
            let ((), reason) = tokio::join!(sending, refusal(&mut listener));
            assert!(reason.contains("127.0.0.1"), "{}: {reason}", faulty.name);
        }
        let (client, server) = join(&mut listener, with_short_timeout).await;
        check(&client, &server).await;
    });
}

#[test]
fn a_client_refuses_faulty_servers() {
    run(async {
        for faulty in faulty_handshakes() {
            let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address: SocketAddr = server.local_addr().unwrap();
            let sending = async {
                let (mut stream, _) = server.accept().await.unwrap();
                send_faulty(&mut stream, &faulty).await;
            };
            let connecting = with_short_timeout(builder()).connect(address);
            let ((), outcome) = tokio::join!(sending, connecting);
            let refused = matches!(outcome, Err(Error::Handshake { .. }));
            assert!(refused, "{}: {outcome:?}", faulty.name);
        }
    });
}

#[test]
fn silent_peers_do_not_block_other_peers() {
    run(async {
        let mut listener = listen(with_short_timeout).await;
        let address = listener.local_address().unwrap();
        let mut silent = Vec::new();
        for at in 0..20 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(&b"RDMAsync"[..at % 9]).await.unwrap();
            silent.push(stream);
        }
        let (client, server) = join(&mut listener, with_short_timeout).await;
        check(&client, &server).await;
        drop(silent);
        for _ in 0..20 {
            refusal(&mut listener).await;
        }
        check(&server, &client).await;
    });
}

#[test]
fn the_handshake_of_a_slow_peer_times_out() {
    run(async {
        let limit = Duration::from_millis(300);
        let mut listener = listen(|builder| builder.connect_timeout(limit)).await;
        let address = listener.local_address().unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let reason = refusal(&mut listener).await;
        assert!(reason.contains("longer than"), "{reason}");
        drop(stream);
    });
}

#[test]
fn listening_for_one_peer_ignores_faulty_peers() {
    run(async {
        let (_held, address) = held_port();
        let server = tokio::spawn(with_short_timeout(builder()).listen(address));
        let sending = faulty_handshakes().into_iter().map(|faulty| async move {
            let mut stream = loop {
                if let Ok(stream) = TcpStream::connect(address).await {
                    break stream;
                }
                tokio::task::yield_now().await;
            };
            send_faulty(&mut stream, &faulty).await;
        });
        futures_util::future::join_all(sending).await;
        let client = with_short_timeout(builder())
            .connect(address)
            .await
            .unwrap();
        let server = server.await.unwrap().unwrap();
        check(&client, &server).await;
    });
}

#[test]
fn bytes_after_the_handshake_end_the_connection() {
    run(async {
        let mut listener = listen(with_short_timeout).await;
        let address = listener.local_address().unwrap();
        let hostile = common::hostile::Hostile::connect(address);
        let (mut hostile, server) = tokio::join!(hostile, listener.accept());
        let server = server.unwrap();
        hostile.stream.write_all(b"more").await.unwrap();
        let end = server.ended().await.to_string();
        assert!(end.contains("after the handshake"), "{end}");
        let endpoint: Endpoint = hostile.queue_pair.local();
        assert_ne!(endpoint.queue_pair, 0);
    });
}
