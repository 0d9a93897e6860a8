//! Tests of TLS over TCP: certificates of servers and clients, long messages, and peers without
//! TLS.

mod common;

use std::sync::Arc;

use common::{client, within};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rdma_rpc::{Bulk, Client, Context, Error, Server, ServerHandle};
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

#[rdma_rpc::service]
trait Secret {
    async fn peer(&self, cx: &Context) -> Result<Option<Vec<u8>>, String>;
    async fn echo(&self, text: String) -> Result<String, String>;
    async fn sum(&self, bulk: Bulk) -> Result<u64, String>;
}

struct Kept;

impl Secret for Kept {
    async fn peer(&self, cx: &Context) -> Result<Option<Vec<u8>>, String> {
        Ok(cx.peer().certificate().map(<[u8]>::to_vec))
    }

    async fn echo(&self, text: String) -> Result<String, String> {
        Ok(text)
    }

    async fn sum(&self, bulk: Bulk) -> Result<u64, String> {
        let bytes = bulk.read(..).await.map_err(|error| error.to_string())?;
        Ok(bytes.iter().copied().map(u64::from).sum())
    }
}

/// Certificates of a server and a client that trust each other.
struct Certificates {
    server: CertifiedKey<rcgen::KeyPair>,
    client: CertifiedKey<rcgen::KeyPair>,
}

fn key(certified: &CertifiedKey<rcgen::KeyPair>) -> PrivateKeyDer<'static> {
    PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()).into()
}

fn roots(certified: &CertifiedKey<rcgen::KeyPair>) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(certified.cert.der().clone()).unwrap();
    roots
}

impl Certificates {
    fn new() -> Self {
        let of = |name: &str| generate_simple_self_signed([name.to_owned()]).unwrap();
        Self {
            server: of("127.0.0.1"),
            client: of("alice"),
        }
    }

    fn server(&self) -> Arc<ServerConfig> {
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots(&self.client)))
            .allow_unauthenticated()
            .build()
            .unwrap();
        let config = ServerConfig::builder()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![self.server.cert.der().clone()], key(&self.server));
        Arc::new(config.unwrap())
    }

    fn anonymous(&self) -> Arc<ClientConfig> {
        let config = ClientConfig::builder().with_root_certificates(roots(&self.server));
        Arc::new(config.with_no_client_auth())
    }

    fn alice(&self) -> Arc<ClientConfig> {
        let config = ClientConfig::builder().with_root_certificates(roots(&self.server));
        let certificate = vec![self.client.cert.der().clone()];
        Arc::new(
            config
                .with_client_auth_cert(certificate, key(&self.client))
                .unwrap(),
        )
    }
}

async fn serve(certificates: &Certificates) -> ServerHandle {
    let server = Server::new(SecretServer::new(Kept)).tls(certificates.server());
    within("listening", server.listen(common::tcp()))
        .await
        .unwrap()
}

async fn connect(server: &ServerHandle, config: Arc<ClientConfig>) -> SecretClient {
    let connecting = client().tls(config).connect(server.address());
    SecretClient::new(within("connecting", connecting).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_and_bulks_work_over_tls() {
    let certificates = Certificates::new();
    let server = serve(&certificates).await;
    let client = connect(&server, certificates.anonymous()).await;
    assert_eq!(within("a call", client.peer()).await.unwrap(), None);
    for len in [0, 10, 5000, 3 << 20] {
        let text = "x".repeat(len);
        let echoed = within("a call", client.echo(text.clone())).await.unwrap();
        assert!(echoed == text);
    }
    let calls = (0..200).map(|number| {
        let client = client.clone();
        tokio::spawn(async move { client.echo(format!("{number}")).await.unwrap() })
    });
    for (number, call) in calls.collect::<Vec<_>>().into_iter().enumerate() {
        let echoed = within("calls at the same time", call).await.unwrap();
        assert_eq!(echoed, format!("{number}"));
    }
    let sum = within("a bulk", client.sum(vec![1; 1 << 20].into())).await;
    assert_eq!(sum.unwrap(), 1 << 20);
    within("the end", server.shutdown()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_get_the_certificate_of_the_client() {
    let certificates = Certificates::new();
    let server = serve(&certificates).await;
    let client = connect(&server, certificates.alice()).await;
    let seen = within("a call", client.peer()).await.unwrap();
    assert_eq!(seen.unwrap(), certificates.client.cert.der().to_vec());
    let own = client.client().peer().unwrap();
    assert_eq!(own.certificate(), Some(&**certificates.server.cert.der()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_without_tls_and_unknown_certificates_are_refused() {
    let certificates = Certificates::new();
    let server = serve(&certificates).await;
    let plain = within("without TLS", Client::connect(server.address())).await;
    plain.expect_err("the server expects TLS");
    let stranger = Certificates::new();
    let distrusting = common::client().tls(stranger.anonymous());
    let refused = within("an unknown server", distrusting.connect(server.address())).await;
    let error = refused.unwrap_err();
    assert!(matches!(error, Error::Tcp { .. }), "{error}");
    // Other clients are served.
    let client = connect(&server, certificates.anonymous()).await;
    within("a call", client.peer()).await.unwrap();
}
