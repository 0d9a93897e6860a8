//! The borrower of the memory.

use rdma_async::{Error, LocalMr, LocalMrWriteAccess, Rdma, RdmaBuilder, RemoteMr};
use rdma_core::WorkStatus;

use crate::SIZE;
use crate::owner::CONNECT_TIMEOUT;

/// Connects to the server, and returns the connection and the borrowed memory.
async fn borrow(server: &str) -> anyhow::Result<(Rdma, RemoteMr)> {
    let builder = RdmaBuilder::default().connect_timeout(CONNECT_TIMEOUT);
    let rdma = builder.connect(server).await?;
    let memory = rdma.receive_remote_mr().await?;
    Ok((rdma, memory))
}

/// Returns registered memory of [`SIZE`] bytes that is filled with `byte`, as the source of a
/// write.
fn filled(rdma: &Rdma, byte: u8) -> anyhow::Result<LocalMr> {
    let mut region = rdma.alloc_local_mr_stale(std::alloc::Layout::new::<[u8; SIZE]>())?;
    region.as_mut_slice().fill(byte);
    Ok(region)
}

/// Borrows memory from the server, fills it with `byte`, and returns it.
pub(crate) async fn fill(server: &str, byte: u8) -> anyhow::Result<()> {
    let (rdma, mut memory) = borrow(server).await?;
    rdma.write(&filled(&rdma, byte)?, &mut memory).await?;
    rdma.send_remote_mr(memory).await?;
    Ok(rdma.close().await?)
}

/// Borrows memory from the server, and writes to it without a pause until a write fails. Prints the
/// reason. With `ignore_end`, writes even after the server has announced the end of the loan.
pub(crate) async fn keep(server: &str, ignore_end: bool) -> anyhow::Result<()> {
    let (rdma, mut borrowed) = borrow(server).await?;
    let sources = [filled(&rdma, 1)?, filled(&rdma, 2)?];
    // For memory from a token, this process is not notified of the end of the loan.
    let mut by_token = RemoteMr::from_token(borrowed.token());
    let memory = match ignore_end {
        true => &mut by_token,
        false => &mut borrowed,
    };
    println!("writing");
    for source in sources.iter().cycle() {
        match rdma.write(source, memory).await {
            Ok(()) => {}
            Err(Error::LeaseEnded) => {
                println!("the loan has ended");
                break;
            }
            Err(Error::Work(error)) if error.status == WorkStatus::RemoteAccess => {
                println!("the device of the server refuses the access");
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
