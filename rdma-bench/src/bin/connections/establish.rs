//! Measures the time to establish a connection, by rdma-async and by TCP.

use std::alloc::Layout;
use std::time::{Duration, Instant};

use rdma_async::RdmaDevice;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::idle::runtime;
use crate::result::Samples;

/// Maximum number of connections that a measurement establishes. All stay open until the measurement is
/// over, because closed connections would still occupy TCP ports.
const KEPT: usize = 1000;

/// Measures the time from connecting by rdma-async until the first message of the connection has
/// arrived.
pub(crate) fn rdma(time: Duration) -> anyhow::Result<Value> {
    runtime()?.block_on(async {
        let (near, far) = (RdmaDevice::open_default()?, RdmaDevice::open_default()?);
        let mut listener = far.builder().bind("127.0.0.1:0").await?;
        let address = listener.local_address()?;
        let message = near.alloc_local_mr(Layout::new::<u8>())?;
        let mut samples = Samples::new(time);
        let mut kept = Vec::new();
        loop {
            let begun = Instant::now();
            let client = async {
                let client = near.builder().connect(address).await?;
                client.send(&message).await?;
                Ok(client)
            };
            let server = async {
                let server = listener.accept().await?;
                server.receive().await?;
                Ok::<_, rdma_async::Error>(server)
            };
            kept.push(tokio::try_join!(client, server)?);
            if samples.add(begun.elapsed(), 1) || kept.len() == KEPT {
                return Ok(samples.time());
            }
        }
    })
}

/// Measures the time from connecting by TCP until the first byte of the connection has arrived.
pub(crate) fn tcp(time: Duration) -> anyhow::Result<Value> {
    runtime()?.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut samples = Samples::new(time);
        let mut kept = Vec::new();
        loop {
            let begun = Instant::now();
            let client = async {
                let mut client = TcpStream::connect(address).await?;
                client.write_all(&[1]).await?;
                Ok(client)
            };
            let server = async {
                let (mut server, _) = listener.accept().await?;
                server.read_u8().await?;
                Ok::<_, std::io::Error>(server)
            };
            kept.push(tokio::try_join!(client, server)?);
            if samples.add(begun.elapsed(), 1) || kept.len() == KEPT {
                return Ok(samples.time());
            }
        }
    })
}
