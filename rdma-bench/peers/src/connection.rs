//! The two TCP connections between client and server: the connection that is measured, and a
//! control connection. When the client closes the control connection, the server exits.

use std::net::Ipv4Addr;

use anyhow::Context;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

/// Opens the control connection. As long as it is open, the server serves the measured connection.
pub(crate) async fn control(target: (&str, u16)) -> anyhow::Result<TcpStream> {
    TcpStream::connect(target).await.context("connecting")
}

/// Opens the TCP connection whose calls are measured, with Nagle's algorithm disabled.
pub(crate) async fn open(target: (&str, u16)) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(target).await.context("connecting")?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Accepts the control connection and the measured connection of a client, at `port` on all
/// addresses of this host. The function `serve` serves the measured connection, until the client
/// closes the control connection.
pub(crate) async fn serve<F>(port: u16, serve: impl FnOnce(TcpStream) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        .await
        .context("listening")?;
    let (mut control, _) = listener.accept().await?;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    let ended = async {
        // The client sends nothing on the control connection; an error counts as its end.
        let _ = control.read_u8().await;
    };
    tokio::select! {
        served = serve(stream) => served,
        () = ended => Ok(()),
    }
}
