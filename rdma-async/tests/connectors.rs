//! Checks the connectors that need no TCP connection, and the traits of all connectors.

mod common;
#[path = "../../rdma-core/tests/common/manager.rs"]
mod manager;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use common::{assert_disconnected, builder, bytes, check, context, listen, pattern, run};
use rdma_async::{
    Connector, Error, Listener, LocalMrReadAccess, PreparedRdma, Rdma, RdmaBuilder, RdmaDevice,
    SharedSecret,
};
use rdma_core::{ConnectOptions, Endpoint};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Creates a connection whose endpoints this program exchanges, and returns both ends.
fn exchanged(configure: impl Fn(RdmaBuilder) -> RdmaBuilder) -> (Rdma, Rdma) {
    let prepare = || configure(builder()).prepare().expect("an end");
    let (left, right) = (prepare(), prepare());
    let (to_right, to_left) = (left.hello(), right.hello());
    let left = left.connect(&to_left).expect("the left end");
    let right = right.connect(&to_right).expect("the right end");
    (left, right)
}

#[test]
fn connections_with_exchanged_endpoints_work() {
    run(async {
        let (left, right) = exchanged(|builder| builder);
        check(&left, &right).await;
        check(&right, &left).await;
        assert_eq!(left.peer_address(), right.local_address());
        let region = pattern(&left, 64, 3);
        left.send_local_mr(region).await.unwrap();
        let remote = right.receive_remote_mr().await.unwrap();
        right.send_remote_mr(remote).await.unwrap();
        left.receive_local_mr().await.unwrap();
    });
}

#[test]
fn a_dropped_end_delivers_its_messages_and_closes_the_connection() {
    run(async {
        let (left, right) = exchanged(|builder| builder);
        let message = pattern(&left, 100, 7);
        for _ in 0..10 {
            left.post(&message).await.unwrap();
        }
        drop(left);
        for _ in 0..10 {
            assert_eq!(right.receive().await.unwrap().as_slice(), bytes(100, 7));
        }
        let end = right.ended().await;
        assert!(end.to_string().contains("the peer closed it"), "{end}");
        assert_disconnected(right.receive().await);
        // Both ends are dropped at the same time.
        let (left, right) = exchanged(|builder| builder);
        drop((left, right));
    });
}

#[test]
fn a_dropped_runtime_delivers_the_messages_of_its_connection() {
    let (hello, other) = std::sync::mpsc::channel();
    let (answer, hellos) = std::sync::mpsc::channel::<Vec<u8>>();
    let left = std::thread::spawn(move || {
        common::one_thread().block_on(async {
            let prepared = builder().prepare().unwrap();
            hello.send(prepared.hello()).unwrap();
            let left = prepared.connect(&hellos.recv().unwrap()).unwrap();
            // The other end has connected before it answered.
            left.post(&pattern(&left, 100, 7)).await.unwrap();
            // The connection outlives the runtime.
            left
        })
    });
    run(async move {
        let prepared = builder().prepare().unwrap();
        let own = prepared.hello();
        let right = prepared.connect(&other.recv().unwrap()).unwrap();
        answer.send(own).unwrap();
        assert_eq!(right.receive().await.unwrap().as_slice(), bytes(100, 7));
        right.ended().await;
        drop(left.join().unwrap());
    });
}

#[test]
fn an_idle_end_detects_that_the_queue_pair_of_its_peer_was_destroyed() {
    run(async {
        let limit = Duration::from_secs(4);
        let prepared = builder().keep_alive(limit).prepare().unwrap();
        let (_domain, mute) = common::hostile::prepared();
        let theirs = common::hostile::hello(&mute.endpoint());
        let own = prepared.hello();
        let endpoint = own[common::hostile::HELLO_LEN - Endpoint::ENCODED_LEN..]
            .try_into()
            .unwrap();
        let remote = Endpoint::from_bytes(endpoint).unwrap();
        let mute = mute.connect(&remote, &ConnectOptions::default()).unwrap();
        let left = prepared.connect(&theirs).unwrap();
        drop(mute);
        common::assert_gone(&left.ended().await);
    });
}

#[test]
fn an_invalid_hello_is_refused() {
    run(async {
        let prepare = || builder().prepare().unwrap();
        let right = prepare().hello();
        let refused = |bytes: &[u8]| prepare().connect(bytes).unwrap_err();
        for len in [0, 1, right.len() - 1] {
            let error = refused(&right[..len]);
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        }
        for (at, value) in [(0, b'x'), (9, 99), (11, 0), (18, 0xff), (18 + 26, 77)] {
            let mut spoiled = right.clone();
            spoiled[at] = value;
            let error = refused(&spoiled);
            assert!(
                matches!(error, Error::InvalidArgument { .. }),
                "{at}: {error}"
            );
        }
    });
}

/// Exchange function of these tests, over two channels.
struct Channels {
    to: UnboundedSender<Vec<u8>>,
    from: Mutex<UnboundedReceiver<Vec<u8>>>,
}

impl Channels {
    fn pair() -> (Arc<Self>, Arc<Self>) {
        let (to_right, from_left) = unbounded_channel();
        let (to_left, from_right) = unbounded_channel();
        let end = |to, from| {
            let from = Mutex::new(from);
            Arc::new(Self { to, from })
        };
        (end(to_right, from_right), end(to_left, from_left))
    }

    async fn exchange(self: Arc<Self>, own: Vec<u8>) -> io::Result<Vec<u8>> {
        self.to.send(own).map_err(io::Error::other)?;
        let received = self.from.lock().await.recv().await;
        received.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// Connects twice, and checks the connections.
async fn connects(connector: &impl Connector, listener: &mut impl Listener) {
    for _ in 0..3 {
        let (client, server) = tokio::join!(connector.connect(), listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap());
        check(&client, &server).await;
        check(&server, &client).await;
        client.close().await.unwrap();
        server.ended().await;
    }
}

#[test]
fn every_connector_and_listener_implements_the_traits() {
    run(async {
        let mut listener = listen(|builder| builder).await;
        let connector = builder().connector(listener.local_address().unwrap());
        connects(&connector, &mut listener).await;

        let (left, right) = Channels::pair();
        let exchange = |end: &Arc<Channels>| {
            let end = Arc::clone(end);
            builder().exchange(move |own| Arc::clone(&end).exchange(own))
        };
        let (connector, mut listener) = (exchange(&left), exchange(&right));
        connects(&connector, &mut listener).await;
    });
}

#[test]
fn an_exchange_that_fails_or_hangs_is_an_error() {
    run(async {
        let broken = |_| async { Err(io::ErrorKind::BrokenPipe.into()) };
        let outcome = builder().exchange(broken).connect().await;
        assert!(matches!(outcome, Err(Error::Tcp { .. })), "{outcome:?}");
        let limit = Duration::from_millis(100);
        let silent = builder().connect_timeout(limit);
        let silent = silent.exchange(|_| std::future::pending::<io::Result<Vec<u8>>>());
        let outcome = silent.connect().await;
        assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
        // The peer sends its hello, but does not confirm that it is connected.
        let peer = builder().prepare().unwrap();
        let hello = peer.hello();
        let unready = builder().exchange(move |own| {
            let answer = if own.len() > 1 {
                hello.clone()
            } else {
                vec![9]
            };
            async { Ok(answer) }
        });
        let outcome = unready.connect().await;
        assert!(
            matches!(outcome, Err(Error::Handshake { .. })),
            "{outcome:?}"
        );
        drop::<PreparedRdma>(peer);
    });
}

/// Returns a listener of the connection manager and its address, or `None` if the device under test
/// has no connection manager.
fn manager_listener(builder: RdmaBuilder) -> Option<(rdma_async::CmListener, SocketAddr)> {
    let address: IpAddr = manager::address()?;
    let listener = builder.cm_bind(SocketAddr::new(address, 0)).unwrap();
    let address = listener.local_address().unwrap();
    Some((listener, address))
}

#[test]
fn the_connection_manager_connects() {
    run(async {
        let Some((mut listener, address)) = manager_listener(builder()) else {
            if context().device().is_emulated() {
                let there = "127.0.0.1:1".parse().unwrap();
                let outcome = builder().cm_bind(there);
                assert!(matches!(outcome, Err(Error::Verbs(_))), "{outcome:?}");
                let outcome = builder().cm_connector(there).connect().await;
                assert!(outcome.is_err());
            }
            return;
        };
        let connector = builder().cm_connector(address);
        connects(&connector, &mut listener).await;
        // Messages that were posted before the end arrive.
        let (client, server) = tokio::join!(connector.connect(), listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap());
        client.post(&pattern(&client, 100, 7)).await.unwrap();
        drop(client);
        assert_eq!(server.receive().await.unwrap().as_slice(), bytes(100, 7));
        let end = server.ended().await;
        assert!(end.to_string().contains("the peer closed it"), "{end}");
    });
}

#[test]
fn the_connection_manager_reports_the_reason_of_a_refusal() {
    run(async {
        let secret = |byte| SharedSecret::new([byte; 32]).unwrap();
        let Some((mut listener, address)) = manager_listener(builder().authenticator(secret(1)))
        else {
            return;
        };
        let outcome = async |builder: RdmaBuilder, listener: &mut rdma_async::CmListener| {
            let connector = builder.cm_connector(address);
            tokio::join!(connector.connect(), listener.accept())
        };
        let (client, server) = outcome(builder(), &mut listener).await;
        let error = client.unwrap_err().to_string();
        assert!(error.contains("authenticat"), "{error}");
        assert!(matches!(server, Err(Error::Handshake { .. })), "{server:?}");
        let (client, server) = outcome(builder().authenticator(secret(2)), &mut listener).await;
        assert!(matches!(client, Err(Error::Handshake { .. })), "{client:?}");
        assert!(matches!(server, Err(Error::Handshake { .. })), "{server:?}");
        let (client, server) = outcome(builder().authenticator(secret(1)), &mut listener).await;
        check(&client.unwrap(), &server.unwrap()).await;
        // No program listens at the next address.
        drop(listener);
        let outcome = builder().cm_connector(address).connect().await;
        assert!(
            matches!(outcome, Err(Error::Handshake { .. })),
            "{outcome:?}"
        );
    });
}

#[test]
fn connections_of_all_connectors_share_a_device() {
    run(async {
        let device = RdmaDevice::new(&context()).unwrap();
        let mut listener = device.builder().bind("127.0.0.1:0").await.unwrap();
        let connector = device
            .builder()
            .connector(listener.local_address().unwrap());
        let (client, server) = tokio::join!(connector.connect(), listener.accept());
        let left = device.builder().prepare().unwrap();
        let right = device.builder().prepare().unwrap();
        let (to_right, to_left) = (left.hello(), right.hello());
        let (left, right) = (
            left.connect(&to_left).unwrap(),
            right.connect(&to_right).unwrap(),
        );
        check(&client.unwrap(), &server.unwrap()).await;
        check(&left, &right).await;
    });
}
