//! A worker, which increments the counter under the lock.

use std::alloc::Layout;
use std::future::pending;
use std::time::Duration;

use rdma_async::{LocalMrReadAccess, LocalMrWriteAccess, RdmaBuilder, RemoteMr};
use rdma_core::RemoteMemory;

use crate::lease::Lock;
use crate::server::COUNTER;

/// Time limit of connecting, long enough for many workers on a busy machine.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Increments the counter `count` times, each time under the lock. With `hang`, takes the lock and
/// keeps it instead, like a worker that hangs.
pub(crate) async fn work(
    server: &str,
    id: u32,
    count: u32,
    lease: Duration,
    hang: bool,
) -> anyhow::Result<()> {
    anyhow::ensure!(id > 0, "the number of a worker must be at least 1");
    let builder = RdmaBuilder::default().connect_timeout(CONNECT_TIMEOUT);
    let rdma = builder.connect(server).await?;
    let message = rdma.receive().await?;
    let memory = RemoteMemory::from_bytes(message.as_slice().try_into()?);
    let word = memory.slice(..COUNTER)?;
    let mut counter = RemoteMr::from_token(memory.slice(COUNTER..)?);
    let mut lock = Lock::new(&rdma, RemoteMr::from_token(word), id, lease);
    let mut number = rdma.alloc_local_mr(Layout::new::<u64>())?;
    for _ in 0..count {
        let mut held = lock.take().await?;
        if hang {
            println!("holding");
            return pending().await;
        }
        rdma.read(&mut number, &counter).await?;
        let next = u64::from_ne_bytes(number.as_slice().try_into()?) + 1;
        number.as_mut_slice().copy_from_slice(&next.to_ne_bytes());
        // A longer task would renew the lease repeatedly.
        held.renew().await?;
        held.check()?;
        rdma.write(&number, &mut counter).await?;
        held.release().await?;
    }
    Ok(rdma.close().await?)
}
