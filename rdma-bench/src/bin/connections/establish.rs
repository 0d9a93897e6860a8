//! Measures the time to establish a connection, by rdma-async and by TCP.

use std::alloc::Layout;
use std::time::{Duration, Instant};

use rdma_async::RdmaDevice;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::idle::runtime;
use crate::result::Samples;

/// Maximum number of connections that one measurement establishes. The connections stay open until
/// the measurement is over, because a closed connection still occupies its TCP port for a while.
const MAX_CONNECTIONS: usize = 1000;

/// Measures the time to establish a connection by rdma-async: from the connect call to the arrival
/// of the first message. Measures for about `time`, and returns the result as JSON.
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
            if samples.add(begun.elapsed(), 1) || kept.len() == MAX_CONNECTIONS {
                return Ok(samples.time());
            }
        }
    })
}

/// Measures the time to establish a TCP connection: from the connect call to the arrival of the
/// first byte. Measures for about `time`, and returns the result as JSON.
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
            if samples.add(begun.elapsed(), 1) || kept.len() == MAX_CONNECTIONS {
                return Ok(samples.time());
            }
        }
    })
}
