//! The owner of the memory.

use std::alloc::Layout;
use std::time::Duration;

use rdma_async::{LocalMrReadAccess, Rdma, RdmaDevice};
use tokio::io::{AsyncReadExt, stdin};
use tokio::time::sleep;

use crate::SIZE;

/// Time limit of connecting, long enough even if many clients connect to a busy machine.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which the memory is observed after the end of the access, to detect a later write: many
/// times the duration of a write.
const OBSERVED: Duration = Duration::from_millis(50);

/// Listens at `address`, and lends memory to each client for at most `limit`, until standard input
/// ends.
pub(crate) async fn serve(address: &str, limit: Duration) -> anyhow::Result<()> {
    let device = RdmaDevice::open_default()?;
    let builder = device.builder().connect_timeout(CONNECT_TIMEOUT);
    let mut listener = builder.bind(address).await?;
    println!("listening at {}", listener.local_address()?);
    let mut stdin = stdin();
    loop {
        let mut input = [0; 64];
        tokio::select! {
            read = stdin.read(&mut input) => if read? == 0 {
                return Ok(());
            },
            accepted = listener.accept() => match accepted {
                Ok(client) => drop(tokio::spawn(async move {
                    match lend(&client, limit).await {
                        Ok(outcome) => println!("{outcome}"),
                        Err(error) => println!("not lent: {error}"),
                    }
                    // Until the client closes the connection.
                    client.ended().await;
                })),
                Err(error) => eprintln!("accepting: {error}"),
            },
        }
    }
}

/// Lends memory to a client for at most `limit`. Returns a text about the end of the loan: whether
/// the client returned the memory, and whether the memory changed afterwards.
async fn lend(client: &Rdma, limit: Duration) -> rdma_async::Result<String> {
    let layout = Layout::new::<[u8; SIZE]>();
    let region = client.alloc_local_mr(layout)?;
    let lent = client.reserve(region, limit, |grant| async move {
        grant.offer().await?;
        grant.returned().await;
        Ok::<_, rdma_async::Error>(())
    });
    let reserved = lent.await?;
    // The access has ended at the device, so the memory does not change any more.
    let bytes = reserved.region.as_slice();
    let before = bytes.to_vec();
    sleep(OBSERVED).await;
    let changed = if bytes == before {
        "unchanged"
    } else {
        "CHANGED"
    };
    Ok(match reserved.output {
        Some(outcome) => {
            outcome?;
            let is_full = bytes.iter().all(|byte| *byte == bytes[0]);
            format!("returned, {changed}, full: {is_full}, byte {}", bytes[0])
        }
        None => format!("the time is over, {changed}"),
    })
}
