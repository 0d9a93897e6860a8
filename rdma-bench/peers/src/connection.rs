//! The two TCP connections between client and server: one that is measured, and one whose end ends the
//! server.

use anyhow::Context;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

/// Opens the connection whose end tells the server that the measurement is over.
pub(crate) async fn control(target: (&str, u16)) -> anyhow::Result<TcpStream> {
    TcpStream::connect(target).await.context("connecting")
}

/// Opens the connection that is measured.
pub(crate) async fn open(target: (&str, u16)) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(target).await.context("connecting")?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Accepts the connections of a client, and serves the measured one by `serve` until the client has
/// ended.
pub(crate) async fn serve<F>(port: u16, serve: impl FnOnce(TcpStream) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let listener = TcpListener::bind(("127.0.0.1", port))
        .await
        .context("listening")?;
    let (mut control, _) = listener.accept().await?;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    let ended = async {
        // The client sends nothing; an error of the connection counts as its end.
        let _ = control.read_u8().await;
    };
    tokio::select! {
        served = serve(stream) => served,
        () = ended => Ok(()),
    }
}
