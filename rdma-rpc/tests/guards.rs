//! Tests of the authentication of connections, and of interceptors of calls at the client and the
//! server.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::frames::{message, request};
use common::raw::Raw;
use common::{client, connect, listen, over_every_transport, within};
use rdma_rpc::{
    Address, CallError, ClientBuilder, Context, Error, Metadata, Receiver, Server, ServerHandle,
};

over_every_transport! {
    the_credentials_determine_the_identity_of_a_client;
    a_client_without_credentials_is_denied;
    an_interceptor_denies_calls;
    an_interceptor_of_the_client_renews_metadata;
    functions_that_panic_deny_access;
}

#[rdma_rpc::service]
trait Vault {
    async fn owner(&self, cx: &Context) -> Result<String, String>;
    async fn open(&self, cx: &Context) -> Result<String, String>;
    async fn fill(&self, items: Receiver<u32>) -> Result<u32, String>;
    #[rpc(oneway)]
    async fn notify(&self);
}

#[derive(Default)]
struct Safe(AtomicUsize);

impl Vault for Safe {
    async fn owner(&self, cx: &Context) -> Result<String, String> {
        Ok(cx.identity().get_str("name").unwrap_or("nobody").to_owned())
    }

    async fn open(&self, cx: &Context) -> Result<String, String> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(cx.metadata().get_str("code").unwrap_or_default().to_owned())
    }

    async fn fill(&self, _: Receiver<u32>) -> Result<u32, String> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(0)
    }

    async fn notify(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

async fn serve(
    address: Address,
    settings: impl FnOnce(Server) -> Server,
) -> (ServerHandle, Arc<Safe>) {
    let safe = Arc::new(Safe::default());
    let server = settings(Server::new(VaultServer::shared(Arc::clone(&safe))));
    (listen(server, address).await, safe)
}

/// Sets an authentication function that accepts clients with the token of their name.
fn authenticated(server: Server) -> Server {
    server.authenticate(|_, credentials| {
        match (credentials.get_str("name"), credentials.get_str("token")) {
            (Some(name), Some(token)) if token == format!("token of {name}") => {
                Ok(Metadata::default().with("name", name))
            }
            _ => Err("the token is wrong".to_owned()),
        }
    })
}

fn credentials(name: &str, token: &str) -> ClientBuilder {
    client().credentials(Metadata::default().with("name", name).with("token", token))
}

fn denied<T: std::fmt::Debug>(outcome: Result<T, CallError<String>>) -> String {
    match outcome.unwrap_err() {
        CallError::Rpc(Error::Denied { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

async fn the_credentials_determine_the_identity_of_a_client(address: Address) {
    let (server, _) = serve(address, authenticated).await;
    for name in ["alice", "bob"] {
        let connecting = credentials(name, &format!("token of {name}")).connect(server.address());
        let client = VaultClient::new(within("connecting", connecting).await.unwrap());
        assert_eq!(within("a call", client.owner()).await.unwrap(), name);
    }
}

async fn a_client_without_credentials_is_denied(address: Address) {
    let (server, safe) = serve(address, authenticated).await;
    for builder in [client(), credentials("alice", "token of bob")] {
        let connecting = within("connecting", builder.clone().connect(server.address()));
        let error = connecting.await.unwrap_err();
        assert!(matches!(&error, Error::Denied { reason } if reason == "the token is wrong"));
        let connecting = within("connecting", builder.connect_any([server.address()]));
        let error = connecting.await.unwrap_err();
        assert!(matches!(error, Error::Denied { .. }), "{error}");
    }
    if server.address().to_string() != "memory" {
        // This peer does not wait for the settings of the server.
        let (scheme, place) = {
            let address = server.address().to_string();
            let (scheme, place) = address.split_once("://").unwrap();
            (scheme.to_owned(), place.to_owned())
        };
        let mut raw = match scheme.as_str() {
            "rdma" => Raw::Rdma(common::transport().connect(place).await.unwrap()),
            _ => Raw::Tcp(tokio::net::TcpStream::connect(place).await.unwrap()),
        };
        let calls = message(&[
            request("Vault.open", (0, 0), b""),
            request("Vault.notify", (u32::MAX, 0), b""),
            request("Vault.unknown", (1, 0), b""),
        ]);
        within("calls", raw.say(&calls)).await;
        let answers = within("the answers", raw.hear()).await.unwrap();
        assert_eq!(answers[2..4], [0, 2], "two frames: {answers:x?}");
        // An unknown method is refused with the same error, so that the client does not learn which
        // methods exist.
        let len = u32::from_be_bytes(*answers[8..].first_chunk().unwrap()) as usize;
        for answer in [&answers[4..], &answers[20 + len..]] {
            assert_eq!((answer[0], answer[3]), (3, 10), "{answers:x?}");
        }
    }
    assert_eq!(safe.0.load(Ordering::SeqCst), 0);
}

async fn an_interceptor_denies_calls(address: Address) {
    let guarded = |server: Server| {
        server
            .intercept(|call| match call.metadata.get_str("code") {
                Some("7734") => Ok(()),
                _ if call.method == "Vault.owner" => Ok(()),
                _ => Err(format!("{} needs the code", call.method)),
            })
            .intercept(|call| match call.peer.transport() {
                rdma_rpc::Transport::Memory if call.method == "Vault.nothing" => Err("no".into()),
                _ => Ok(()),
            })
    };
    let (server, safe) = serve(address, guarded).await;
    let client = VaultClient::new(connect(&server).await);
    assert_eq!(within("a call", client.owner()).await.unwrap(), "nobody");
    let reason = denied(within("a call", client.open()).await);
    assert_eq!(reason, "Vault.open needs the code");
    let (_items, filled) = within("a stream", client.fill()).await.unwrap();
    denied(within("the end", filled).await);
    client.notify().await.unwrap();
    let known = client.with_metadata(Metadata::default().with("code", "7734"));
    assert_eq!(within("a call", known.open()).await.unwrap(), "7734");
    assert_eq!(safe.0.load(Ordering::SeqCst), 1);
}

async fn an_interceptor_of_the_client_renews_metadata(address: Address) {
    let (server, safe) = serve(address, |server| server).await;
    let count = AtomicUsize::new(0);
    let builder = client().intercept(move |method, metadata| match method {
        "Vault.fill" | "Vault.notify" => Err(Error::Denied {
            reason: "not from here".to_owned(),
        }),
        _ => {
            let code = count.fetch_add(1, Ordering::Relaxed).to_string();
            Ok(metadata.with("code", code))
        }
    });
    let one = within("connecting", builder.clone().connect(server.address())).await;
    let several = within("connecting", builder.connect_any([server.address()])).await;
    let mut codes = (0..).map(|code: u32| code.to_string());
    for client in [one, several] {
        let client = VaultClient::new(client.unwrap());
        for expected in codes.by_ref().take(3) {
            assert_eq!(within("a call", client.open()).await.unwrap(), expected);
        }
        let stream = within("a stream", client.fill()).await;
        assert!(matches!(stream, Err(Error::Denied { .. })));
        let notified = within("a one-way call", client.notify()).await;
        assert!(matches!(notified, Err(Error::Denied { .. })));
    }
    assert_eq!(safe.0.load(Ordering::SeqCst), 6);
}

async fn functions_that_panic_deny_access(address: Address) {
    let panicking = |server: Server| server.intercept(|_| panic!("asked to"));
    let (server, safe) = serve(address, panicking).await;
    let client = VaultClient::new(connect(&server).await);
    assert_eq!(
        denied(within("a call", client.open()).await),
        "an interceptor panicked"
    );
    assert_eq!(safe.0.load(Ordering::SeqCst), 0);
}
