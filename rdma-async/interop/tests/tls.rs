//! Checks TLS by tokio-rustls.

use std::io::ErrorKind;
use std::sync::Arc;

use rdma_async_interop::data::{self, Check};
use rdma_async_interop::{Transport, in_time, over_each_transport, pair};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

over_each_transport!(
    both_directions_transfer_large_data_concurrently,
    small_records_are_answered_one_at_a_time,
    a_close_notify_ends_the_stream_and_a_truncation_is_detected,
    a_client_refuses_an_unknown_certificate,
);

const NAME: &str = "server.example";

fn configurations(version: &'static SupportedProtocolVersion) -> (ClientConfig, ServerConfig) {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let client = ClientConfig::builder_with_protocol_versions(&[version])
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = ServerConfig::builder_with_protocol_versions(&[version])
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    (client, server)
}

async fn tls_pair<T: Transport>(
    version: &'static SupportedProtocolVersion,
) -> (client::TlsStream<T::Stream>, server::TlsStream<T::Stream>) {
    let (client_config, server_config) = configurations(version);
    let (client, server) = pair::<T>().await;
    let name = ServerName::try_from(NAME).unwrap();
    let connecting = TlsConnector::from(Arc::new(client_config)).connect(name, client);
    let accepting = TlsAcceptor::from(Arc::new(server_config)).accept(server);
    let both = async { tokio::join!(connecting, accepting) };
    let (client, server) = in_time("the handshake", both).await;
    (client.unwrap(), server.unwrap())
}

async fn write_all(mut writer: impl AsyncWrite + Unpin, len: usize, chunk: usize) {
    for chunk in data::chunks(len, chunk) {
        writer.write_all(&chunk).await.unwrap();
    }
    writer.shutdown().await.unwrap();
}

async fn read_all(mut reader: impl AsyncRead + Unpin, len: usize) {
    let mut check = Check::default();
    let mut part = vec![0; 100_000];
    loop {
        match in_time("data", reader.read(&mut part)).await.unwrap() {
            0 => break,
            len => check.take(&part[..len]),
        }
    }
    assert_eq!(check.len(), len);
}

async fn both_directions_transfer_large_data_concurrently<T: Transport>() {
    for version in [&TLS12, &TLS13] {
        let (client, server) = tls_pair::<T>(version).await;
        let (client_reads, client_writes) = split(client);
        let (server_reads, server_writes) = split(server);
        let (there, back) = (16 << 20, 12 << 20);
        tokio::try_join!(
            tokio::spawn(write_all(client_writes, there, 70_000)),
            tokio::spawn(write_all(server_writes, back, 1_000)),
            tokio::spawn(read_all(server_reads, there)),
            tokio::spawn(read_all(client_reads, back)),
        )
        .unwrap();
    }
}

async fn small_records_are_answered_one_at_a_time<T: Transport>() {
    let (mut client, mut server) = tls_pair::<T>(&TLS13).await;
    let served = tokio::spawn(async move {
        let mut byte = [0];
        while server.read(&mut byte).await.unwrap() == 1 {
            server.write_all(&[byte[0] ^ 0xff]).await.unwrap();
            server.flush().await.unwrap();
        }
    });
    for byte in 0..=255 {
        client.write_all(&[byte]).await.unwrap();
        client.flush().await.unwrap();
        let answer = in_time("an answer", client.read_u8()).await.unwrap();
        assert_eq!(answer, byte ^ 0xff);
    }
    client.shutdown().await.unwrap();
    in_time("the server's end", served).await.unwrap();
}

async fn a_close_notify_ends_the_stream_and_a_truncation_is_detected<T: Transport>() {
    for is_truncated in [false, true] {
        let (mut client, mut server) = tls_pair::<T>(&TLS13).await;
        client.write_all(b"last words").await.unwrap();
        client.flush().await.unwrap();
        if is_truncated {
            // Ends the stream below TLS, without a `close_notify` alert.
            let (mut stream, _session) = client.into_inner();
            stream.shutdown().await.unwrap();
        } else {
            client.shutdown().await.unwrap();
        }
        let mut found = Vec::new();
        let outcome = in_time("the end", server.read_to_end(&mut found)).await;
        assert_eq!(found, b"last words");
        let kind = outcome.map_err(|error| error.kind());
        if is_truncated {
            assert_eq!(kind, Err(ErrorKind::UnexpectedEof));
        } else {
            assert_eq!(kind, Ok(10));
        }
    }
}

async fn a_client_refuses_an_unknown_certificate<T: Transport>() {
    let (client_config, _) = configurations(&TLS13);
    let (_, server_config) = configurations(&TLS13);
    let (client, server) = pair::<T>().await;
    let name = ServerName::try_from(NAME).unwrap();
    let connecting = TlsConnector::from(Arc::new(client_config)).connect(name, client);
    let accepting = TlsAcceptor::from(Arc::new(server_config)).accept(server);
    let both = async { tokio::join!(connecting, accepting) };
    let (client, server) = in_time("the handshake", both).await;
    let refused = client.err().expect("an error");
    assert_eq!(refused.kind(), ErrorKind::InvalidData, "{refused}");
    // The server receives the alert of the client.
    let alert = server.err().expect("an error");
    assert_eq!(alert.kind(), ErrorKind::InvalidData, "{alert}");
}
