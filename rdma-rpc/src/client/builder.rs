//! The builder of clients.

use std::sync::Arc;
use std::time::Duration;

use rdma_async::{Rdma, RdmaBuilder};
use tokio::time::timeout;

use super::{Calls, Client, Handle};
use crate::address::{Peer, ToAddress};
use crate::core::{Core, Side};
use crate::error::{Error, Result};
use crate::limits;
use crate::link::Link;
use crate::metadata::Metadata;
use crate::stream::{WINDOW_BYTES, WINDOW_ITEMS};
use crate::wire::Settings;

/// Settings for a new [`Client`]. The defaults suit most programs.
#[derive(Debug, Clone)]
#[must_use = "a builder makes nothing until it connects"]
pub struct ClientBuilder {
    transport: Option<RdmaBuilder>,
    deadline: Duration,
    concurrency: u16,
    message_limit: usize,
    bulk_limit: usize,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            transport: None,
            deadline: Duration::from_secs(10),
            concurrency: 256,
            message_limit: limits::MESSAGE,
            bulk_limit: limits::BULK,
        }
    }
}

impl ClientBuilder {
    /// Sets how to connect by RDMA: device, completion mode, queue depths. The message limit is this
    /// builder's. Default: rdma-async's defaults, but the peer can request no memory.
    pub fn transport(mut self, transport: RdmaBuilder) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Sets the time within which a unary call must have its answer; waiting and sending count. Default
    /// 10 s. Streaming calls have no deadline unless [`Client::with_deadline`] sets one.
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.deadline = limit;
        self
    }

    /// Sets the maximum number of concurrent calls; further calls wait. The server may allow fewer.
    /// Default 256, minimum 1.
    pub fn concurrency(mut self, calls: u16) -> Self {
        self.concurrency = calls.max(1);
        self
    }

    /// Sets the maximum length of a request or response in bytes, headers included. Default 16 MiB,
    /// minimum 8 KiB.
    pub fn message_limit(mut self, bytes: usize) -> Self {
        self.message_limit = limits::message(bytes);
        self
    }

    /// Sets the maximum length of a [`Bulk`](crate::Bulk) of a result in bytes. Default 1 GiB.
    pub fn bulk_limit(mut self, bytes: usize) -> Self {
        self.bulk_limit = bytes;
        self
    }

    /// Connects to the server at an address.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if the text is no address, [`Error::Transport`] or [`Error::Tcp`] if nothing
    /// listens at the address or the device cannot be used, and [`Error::Disconnected`] if the server
    /// does not answer in time.
    pub async fn connect(self, address: impl ToAddress) -> Result<Client> {
        let address = address.to_address()?;
        let transport = limits::transport(self.transport.clone(), self.message_limit);
        let connecting = timeout(limits::CONNECT, Link::connect(&address, transport));
        let (link, peer) = connecting.await.unwrap_or_else(|_| Err(late()))?;
        let client = self.start(link, peer);
        client.core().greeted().await?;
        Ok(client)
    }

    /// Creates a client that uses an existing RDMA connection. The client receives all messages of the
    /// connection from now on. Calls wait until the server has sent its settings; if it does not within
    /// 20 s, the connection ends.
    ///
    /// # Panics
    ///
    /// If called outside of a tokio runtime.
    #[must_use = "dropping the client ends the connection"]
    pub fn over(self, rdma: Rdma) -> Client {
        let (link, peer) = Link::over_rdma(rdma);
        self.start(link, peer)
    }

    fn start(self, link: Link, peer: Peer) -> Client {
        let own = Settings {
            message_limit: u32::try_from(self.message_limit).unwrap_or(u32::MAX),
            slots: 0,
            window_items: WINDOW_ITEMS,
            window_bytes: WINDOW_BYTES,
        };
        let side = Side::Client(Calls::new(self.concurrency.into()));
        Client {
            handle: Arc::new(Handle {
                core: Core::start(link, peer, own, self.bulk_limit, side),
            }),
            deadline: self.deadline,
            has_own_deadline: false,
            metadata: Metadata::default(),
        }
    }
}

fn late() -> Error {
    Error::disconnected(format!(
        "the server did not answer within {:?}",
        limits::CONNECT
    ))
}
