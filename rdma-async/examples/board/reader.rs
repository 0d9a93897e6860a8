//! A reader of the board.

use std::time::Duration;

use rdma_async::{Error, LocalMrReadAccess, PublishedReader, RdmaBuilder};
use rdma_core::RemoteMemory;

use crate::owner::CONNECT_TIMEOUT;

/// Connects to the owner of a board, and prints the notices until the board ends. With `pause`,
/// reads the board repeatedly with this pause, instead of waiting for notifications.
pub(crate) async fn read(owner: &str, pause: Option<Duration>) -> anyhow::Result<()> {
    let builder = RdmaBuilder::default().connect_timeout(CONNECT_TIMEOUT);
    let rdma = builder.connect(owner).await?;
    let message = rdma.receive().await?;
    let token = RemoteMemory::from_bytes(message.as_slice().try_into()?);
    let mut reader = PublishedReader::new(&rdma, token)?;
    println!("reading");
    loop {
        let notice = match pause {
            Some(pause) => reader.changed(pause).await,
            None => reader.announced().await,
        };
        match notice {
            // Nothing was published yet.
            Ok([]) => {}
            Ok(notice) => println!("{}", String::from_utf8_lossy(notice)),
            Err(Error::Disconnected { .. } | Error::Work(_)) => {
                println!("the board has ended");
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
}
