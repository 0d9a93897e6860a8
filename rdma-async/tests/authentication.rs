//! Checks that peers without a valid token get neither a connection nor memory.

mod common;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use common::hostile::{HELLO_LEN, hello, prepared};
use common::{builder, check, join, listen, run};
use rdma_async::{Authenticator, End, Error, RdmaBuilder, RdmaListener, SharedSecret, Transcript};
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
