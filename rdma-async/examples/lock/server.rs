//! The server: the memory of the lock and of the counter.

use std::alloc::Layout;

use rdma_async::{LocalMrWriteAccess, RdmaDevice};
use rdma_core::AccessFlags;
use tokio::io::AsyncReadExt;

use crate::worker::CONNECT_TIMEOUT;

/// Offset of the counter within the memory, in bytes: after the word of the lock.
pub(crate) const COUNTER: usize = 8;

/// Provides the memory of the lock and of the counter to workers until standard input ends, and
/// then prints the counter.
pub(crate) async fn serve(address: &str) -> anyhow::Result<()> {
    let device = RdmaDevice::open_default()?;
    let builder = device.builder().connect_timeout(CONNECT_TIMEOUT);
    let mut listener = builder.bind(address).await?;
    let memory = device.protection_domain().allocate(COUNTER + 8)?;
    let memory = memory
        .expose(AccessFlags::REMOTE)
        .map_err(|refused| refused.error)?;
    println!("listening at {}", listener.local_address()?);
    let mut stdin = tokio::io::stdin();
    let mut workers = Vec::new();
    loop {
        let mut input = [0; 64];
        tokio::select! {
            read = stdin.read(&mut input) => if read? == 0 {
                println!("counter: {}", memory.load_u64(COUNTER)?);
                return Ok(());
            },
            accepted = listener.accept() => match accepted {
                Ok(worker) => {
                    let token = memory.remote().to_bytes();
                    let layout = Layout::array::<u8>(token.len())?;
                    let mut message = worker.alloc_local_mr(layout)?;
                    message.as_mut_slice().copy_from_slice(&token);
                    worker.post(&message).await?;
                    // The workers need only the server's memory, not its processor.
                    workers.push(worker);
                }
                Err(error) => eprintln!("accepting: {error}"),
            },
        }
    }
}
