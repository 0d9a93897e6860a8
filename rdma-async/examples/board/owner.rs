//! The owner of the board.

use std::alloc::Layout;
use std::time::Duration;

use rdma_async::{Announcer, LocalMrWriteAccess, Rdma, RdmaDevice, ReaderRight};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::task::JoinSet;

use crate::CAPACITY;

/// Time limit of connecting, long enough even if many readers connect to a busy machine.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Serves a board at `address`: publishes each line of standard input as the notice, until standard
/// input ends.
pub(crate) async fn serve(address: &str) -> anyhow::Result<()> {
    let device = RdmaDevice::open_default()?;
    let builder = device.builder().connect_timeout(CONNECT_TIMEOUT);
    let mut listener = builder.bind(address).await?;
    let mut board = device.publish(CAPACITY)?;
    println!("listening at {}", listener.local_address()?);
    let mut lines = BufReader::new(stdin()).lines();
    let mut readers = JoinSet::new();
    loop {
        tokio::select! {
            line = lines.next_line() => match line? {
                Some(notice) => drop(board.update(notice.as_bytes())?),
                None => break,
            },
            accepted = listener.accept() => match accepted {
                Ok(reader) => drop(readers.spawn(serve_reader(reader, board.admit()?, board.announcer()))),
                Err(error) => eprintln!("accepting: {error}"),
            },
            Some(_) = readers.join_next() => {}
        }
    }
    // The announcers announce the last notice and end, and then the connections are closed.
    board.end()?;
    while readers.join_next().await.is_some() {}
    Ok(())
}

/// Sends a reader the token of its access right, and then notifies the reader of each change of the
/// notice.
async fn serve_reader(reader: Rdma, right: ReaderRight, announcer: Announcer) {
    let told = async {
        let token = right.token().to_bytes();
        let mut message = reader.alloc_local_mr(Layout::for_value(&token))?;
        message.as_mut_slice().copy_from_slice(&token);
        reader.send(&message).await?;
        announcer.announce(&reader, 0).await
    };
    if let Err(error) = told.await {
        eprintln!("a reader: {error}");
    }
}
