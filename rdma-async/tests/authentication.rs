//! Checks that peers without a valid token get neither a connection nor memory.

mod common;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use common::hostile::{HELLO_LEN, hello, prepared};
use common::{builder, check, join, listen, run};
use rdma_async::{
    Authenticator, Connector, End, Error, Listener, RdmaBuilder, RdmaListener, SharedSecret,
    Transcript,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn secret(byte: u8) -> SharedSecret {
    SharedSecret::new([byte; 32]).unwrap()
}

fn guarded(builder: RdmaBuilder) -> RdmaBuilder {
    builder.authenticator(secret(1))
}

/// Waits until a handshake fails, and returns the text of the error.
async fn refusal(listener: &mut RdmaListener) -> String {
    match listener.accept().await {
        Err(error @ Error::Handshake { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ends_with_one_secret_connect_and_others_are_refused() {
    run(async {
        let mut listener = listen(guarded).await;
        let address = listener.local_address().unwrap();
        let (client, server) = join(&mut listener, guarded).await;
        check(&client, &server).await;

        let other = builder().authenticator(secret(2)).connect(address);
        let (outcome, reason) = tokio::join!(other, refusal(&mut listener));
        assert!(reason.contains("not computed with the secret"), "{reason}");
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("authentication failed"), "{error}");
        // The listener does not send the reason to the peer.
        assert!(!error.contains("secret"), "{error}");

        let (outcome, _) = tokio::join!(builder().connect(address), refusal(&mut listener));
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("requires authentication"), "{error}");

        // The server has no authenticator.
        let mut open = listen(|builder| builder).await;
        let connecting = guarded(builder()).connect(open.local_address().unwrap());
        let (outcome, _) = tokio::join!(connecting, refusal(&mut open));
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("does not authenticate"), "{error}");
        check(&server, &client).await;
    });
}

/// Authenticator that records its calls.
#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<(End, SocketAddr, Vec<u8>)>>);

#[derive(Debug, Clone)]
struct Recording(Arc<Recorder>);

impl Authenticator for Recording {
    fn token(&self, transcript: &Transcript) -> Vec<u8> {
        format!("token of {:?}", transcript.prover()).into()
    }

    fn check(&self, transcript: &Transcript, token: &[u8]) -> Result<(), String> {
        let seen = (transcript.prover(), transcript.peer(), token.to_vec());
        self.0.0.lock().unwrap().push(seen);
        match token {
            b"token of Connecting" | b"token of Accepting" => Ok(()),
            _ => Err("a wrong token".to_owned()),
        }
    }
}

#[test]
fn the_authenticator_gets_the_address_and_the_token_of_the_peer() {
    run(async {
        let recorder = Arc::new(Recorder::default());
        let recording = |builder: RdmaBuilder| builder.authenticator(Recording(recorder.clone()));
        let mut listener = listen(recording).await;
        let (client, server) = join(&mut listener, recording).await;
        let seen = recorder.0.lock().unwrap().clone();
        let expected = [
            (
                End::Connecting,
                client.local_address(),
                b"token of Connecting".to_vec(),
            ),
            (
                End::Accepting,
                server.local_address(),
                b"token of Accepting".to_vec(),
            ),
        ];
        assert_eq!(seen, expected);
    });
}

/// Forwards bytes between a client and a server, and returns the bytes of the client and of the
/// server.
async fn record(client: TcpStream, server: TcpStream) -> (Vec<u8>, Vec<u8>) {
    async fn pass(
        mut from: tokio::net::tcp::OwnedReadHalf,
        mut to: tokio::net::tcp::OwnedWriteHalf,
    ) -> Vec<u8> {
        let mut all = Vec::new();
        let mut room = [0; 256];
        while let Ok(len @ 1..) = from.read(&mut room).await {
            all.extend_from_slice(&room[..len]);
            if to.write_all(&room[..len]).await.is_err() {
                break;
            }
        }
        all
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(pass(from_client, to_server), pass(from_server, to_client))
}

#[test]
fn replayed_handshakes_are_refused() {
    run(async {
        let mut listener = listen(guarded).await;
        let address = listener.local_address().unwrap();
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = proxy.local_addr().unwrap();
        let recording = async {
            let (client, _) = proxy.accept().await.unwrap();
            let server = TcpStream::connect(address).await.unwrap();
            record(client, server).await
        };
        let connecting = async {
            let connecting = guarded(builder()).connect(there);
            let (client, server) = tokio::join!(connecting, listener.accept());
            drop((client.unwrap(), server.unwrap()));
        };
        let ((of_client, of_server), ()) = tokio::join!(recording, connecting);
        assert!(of_client.len() > 2 * 32 && of_server.len() > 2 * 32);

        let replay = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(&of_client).await.unwrap();
            let mut answer = Vec::new();
            drop(stream.read_to_end(&mut answer).await);
            answer
        };
        let (answer, reason) = tokio::join!(replay, refusal(&mut listener));
        assert!(reason.contains("not computed with the secret"), "{reason}");
        // The answer is a challenge, without an endpoint.
        assert!(answer.starts_with(b"RDMAauth") && !answer.windows(8).any(|at| at == b"RDMAsync"));

        // The recorded answer of the server does not match the nonce of the new client.
        let replay = async {
            let (mut stream, _) = proxy.accept().await.unwrap();
            stream.write_all(&of_server).await.unwrap();
            drop(stream.read_to_end(&mut Vec::new()).await);
        };
        let (outcome, ()) = tokio::join!(guarded(builder()).connect(there), replay);
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("authentication failed"), "{error}");
        let (client, server) = join(&mut listener, guarded).await;
        check(&client, &server).await;
    });
}

#[test]
fn wrong_tokens_are_refused_before_a_queue_pair_is_created() {
    run(async {
        let mut listener = listen(guarded).await;
        let address = listener.local_address().unwrap();
        let (_domain, own) = prepared();
        let right = hello(&own.endpoint());
        let nonce = [7; 32];
        let proof = |len: u16, token: &[u8]| [&nonce[..], &len.to_be_bytes(), token].concat();
        let proofs = [
            ("nothing", Vec::new()),
            ("half a nonce", nonce[..16].to_vec()),
            ("no token", proof(0, &[])),
            ("a wrong token", proof(32, &[9; 32])),
            ("a short token", proof(32, &[9; 31])),
            ("a long token", proof(1024, &[9; 1024])),
            ("a token without end", proof(u16::MAX, &[9; 2000])),
        ];
        for (what, bytes) in proofs {
            let talking = async {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(&right).await.unwrap();
                let mut challenge = [0; 40];
                stream.read_exact(&mut challenge).await.unwrap();
                assert_eq!(&challenge[..8], b"RDMAauth");
                drop(stream.write_all(&bytes).await);
                drop(stream.shutdown().await);
                let mut answer = Vec::new();
                drop(stream.read_to_end(&mut answer).await);
                answer
            };
            let (answer, reason) = tokio::join!(talking, refusal(&mut listener));
            // The answer must not be a hello, which would contain the endpoint of a queue pair.
            assert!(answer.len() < HELLO_LEN, "{what}: {answer:?}, {reason}");
        }
        let (client, server) = join(&mut listener, guarded).await;
        check(&client, &server).await;
    });
}

/// Asserts that an end refuses its peer with an error whose text contains `reason`.
#[track_caller]
fn assert_refused<T: std::fmt::Debug>(outcome: Result<T, Error>, reason: &str) {
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}

#[test]
fn ends_whose_endpoints_the_program_exchanges_authenticate_each_other() {
    run(async {
        let prepare = |byte| builder().authenticator(secret(byte)).prepare().unwrap();
        let (left, right) = (prepare(1), prepare(1));
        let (to_right, to_left) = (left.hello(), right.hello());
        let (of_left, of_right) = (
            left.proof(&to_left).unwrap(),
            right.proof(&to_right).unwrap(),
        );
        assert_ne!(of_left, of_right);
        let left = left.connect_authenticated(&to_left, &of_right).unwrap();
        let right = right.connect_authenticated(&to_right, &of_left).unwrap();
        check(&left, &right).await;

        // A recorded hello and proof are not valid for another end.
        let replayed = prepare(1).connect_authenticated(&to_left, &of_right);
        assert_refused(replayed, "not computed with the secret");
        // The peer has another secret.
        let (left, other) = (prepare(1), prepare(2));
        let proof = other.proof(&left.hello()).unwrap();
        let refused = left.connect_authenticated(&other.hello(), &proof);
        assert!(
            matches!(refused, Err(Error::Handshake { .. })),
            "{refused:?}"
        );
        // The peer sends back the hello, or the proof, of this end.
        let left = prepare(1);
        assert_refused(left.proof(&left.hello()), "sent back");
        let proof = left.proof(&to_left).unwrap();
        assert_refused(left.connect_authenticated(&to_left, &proof), "not computed");
        // The peer changes its hello after the proof was computed.
        let (left, right) = (prepare(1), prepare(1));
        let proof = right.proof(&left.hello()).unwrap();
        let mut changed = right.hello();
        changed[HELLO_LEN - 1] ^= 1;
        assert!(left.connect_authenticated(&changed, &proof).is_err());
        assert_refused(
            prepare(1).connect_authenticated(&to_left, &[0; 2000]),
            "2000 bytes",
        );
        // One end has no authenticator, or its program does not check the proof.
        let open = || builder().prepare().unwrap();
        assert_refused(open().connect(&to_left), "requires authentication");
        assert_refused(prepare(1).proof(&open().hello()), "does not authenticate");
        assert_refused(prepare(1).connect(&to_left), "connect_authenticated");
        assert_refused(open().proof(&open().hello()), "no authenticator");
    });
}

#[test]
fn an_exchange_authenticates_both_ends_and_gives_the_address_of_the_peer() {
    run(async {
        /// Passes the bytes of two ends to each other.
        async fn connect(
            left: RdmaBuilder,
            right: RdmaBuilder,
        ) -> [Result<rdma_async::Rdma, Error>; 2] {
            type Queue = (
                tokio::sync::mpsc::UnboundedSender<Vec<u8>>,
                tokio::sync::Mutex<tokio::sync::mpsc::UnboundedReceiver<Vec<u8>>>,
            );
            async fn pass(queue: &Queue, own: Vec<u8>) -> std::io::Result<Vec<u8>> {
                queue.0.send(own).map_err(std::io::Error::other)?;
                let received = queue.1.lock().await.recv().await;
                received.ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
            }
            let (to_right, of_left) = tokio::sync::mpsc::unbounded_channel();
            let (to_left, of_right) = tokio::sync::mpsc::unbounded_channel();
            let left_end: Queue = (to_right, of_right.into());
            let right_end: Queue = (to_left, of_left.into());
            let left = async move {
                let exchange = left.exchange(|own| pass(&left_end, own));
                Connector::connect(&exchange).await
            };
            let right = async move {
                let mut exchange = right.exchange(|own| pass(&right_end, own));
                Listener::accept(&mut exchange).await
            };
            let (left, right) = tokio::join!(left, right);
            [left, right]
        }
        let recorder = Arc::new(Recorder::default());
        let recording = || builder().authenticator(Recording(recorder.clone()));
        let [left, right] = connect(recording(), recording()).await;
        let (left, right) = (left.unwrap(), right.unwrap());
        check(&left, &right).await;
        let mut seen: Vec<_> = recorder.0.lock().unwrap().clone();
        seen.sort_by_key(|(prover, ..)| *prover == End::Accepting);
        let provers: Vec<_> = seen.iter().map(|(prover, ..)| *prover).collect();
        assert_eq!(provers, [End::Connecting, End::Accepting]);
        let addresses = [left.local_address(), right.local_address()];
        assert!(
            seen.iter().all(|(_, peer, _)| addresses.contains(peer)),
            "{seen:?}"
        );

        for outcome in connect(guarded(builder()), builder().authenticator(secret(2))).await {
            assert_refused(outcome, "authentication failed");
        }
    });
}
