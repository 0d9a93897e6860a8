//! Messages of a fixed length on a connection of tokio.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Semaphore;

use crate::connection;
use crate::load::{Load, Measured};

/// Length of the server's receive buffer in bytes. The server echoes a longer message in several
/// parts.
const MAX_LENGTH: usize = 1 << 20;

pub(super) async fn serve(port: u16) -> anyhow::Result<()> {
    connection::serve(port, async |mut stream| {
        let mut bytes = vec![0; MAX_LENGTH];
        loop {
            match stream.read(&mut bytes).await? {
                0 => return Ok(()),
                length => stream.write_all(&bytes[..length]).await?,
            }
        }
    })
    .await
}

/// Connects to the server `target` and measures round trips, each of a message over TCP and its
/// echo.
pub(super) async fn measure(load: &Load, target: (&str, u16)) -> anyhow::Result<Measured> {
    let mut stream = connection::open(target).await?;
    let mut bytes = vec![0; load.size];
    load.one_by_one(async || {
        stream.write_all(&bytes).await?;
        stream.read_exact(&mut bytes).await?;
        Ok(())
    })
    .await
}

/// Connects to the server `target`, and measures the rate of messages and their echoes, with up to
/// `load.depth` messages in flight. One future writes the messages while another future reads the
/// echoes.
pub(super) async fn rate(load: &Load, target: (&str, u16)) -> anyhow::Result<Measured> {
    let (mut reader, mut writer) = connection::open(target).await?.into_split();
    let room = Semaphore::new(0);
    let size = load.size;
    let writing = write(&mut writer, &room, size);
    let reading = async {
        let mut bytes = vec![0; size];
        room.add_permits(load.depth);
        load.items(async || {
            let length = reader.read_exact(&mut bytes).await?;
            room.add_permits(1);
            Ok(length)
        })
        .await
    };
    let measured = tokio::select! {
        written = writing => written,
        measured = reading => measured,
    }?;
    // Echoes in flight are read before the connection is closed. Otherwise the system resets the
    // connection, and the server reports that as a failure.
    writer.shutdown().await?;
    tokio::io::copy(&mut reader, &mut tokio::io::sink()).await?;
    Ok(measured)
}

/// Writes messages of `size` bytes, each as soon as `room` has a permit. The permits limit the
/// number of messages in flight. Returns only errors.
async fn write(
    writer: &mut OwnedWriteHalf,
    room: &Semaphore,
    size: usize,
) -> anyhow::Result<Measured> {
    let bytes = vec![0; size];
    loop {
        room.acquire().await?.forget();
        writer.write_all(&bytes).await?;
    }
}
