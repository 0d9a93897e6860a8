//! The builder of clients.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use rdma_async::{Rdma, RdmaBuilder};
use tokio::net::ToSocketAddrs;

use super::calls::Calls;
use super::receiver::receive;
use super::{Client, Connection, Handle};
use crate::error::Result;
use crate::limits;

/// Settings for a new [`Client`]. The defaults suit most programs.
#[derive(Debug, Clone)]
#[must_use = "a builder makes nothing until it connects"]
pub struct ClientBuilder {
    transport: Option<RdmaBuilder>,
    deadline: Duration,
    concurrency: u16,
    message_limit: usize,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            transport: None,
            deadline: Duration::from_secs(10),
            concurrency: 1024,
            message_limit: limits::MESSAGE,
        }
    }
}

impl ClientBuilder {
    /// Sets how to connect: device, completion mode, queue depths. Set the
    /// [`message_limit`](RdmaBuilder::message_limit) of `transport` too. Default: rdma-async's
    /// defaults, with this builder's message limit; the peer can request no memory.
    pub fn transport(mut self, transport: RdmaBuilder) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Sets the time within which a call must have its answer; sending counts. Default 10 s.
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.deadline = limit;
        self
    }

    /// Sets the maximum number of concurrent calls; further calls wait. Default 1024, minimum 1.
    pub fn concurrency(mut self, calls: u16) -> Self {
        self.concurrency = calls.max(1);
        self
    }

    /// Sets the maximum length of a request or response in bytes, header included. Default 16 MiB.
    pub fn message_limit(mut self, bytes: usize) -> Self {
        self.message_limit = bytes.max(limits::LEAST_MESSAGE);
        self
    }

    /// Connects to the server that listens at a TCP address.
    ///
    /// # Errors
    ///
    /// [`Error::Transport`](crate::Error::Transport) if nothing listens at the address, if the peer
    /// does not answer as an RDMA peer, or if the device cannot be used.
    pub async fn connect(self, address: impl ToSocketAddrs) -> Result<Client> {
        let transport = self
            .transport
            .clone()
            .unwrap_or_else(|| limits::transport(self.message_limit));
        Ok(self.over(transport.connect(address).await?))
    }

    /// Creates a client that uses an existing connection. The client receives all messages of the
    /// connection from now on.
    ///
    /// # Panics
    ///
    /// If called outside of a tokio runtime.
    #[must_use = "dropping the client ends the connection"]
    pub fn over(self, rdma: Rdma) -> Client {
        let connection = Arc::new(Connection {
            rdma,
            calls: Calls::new(self.concurrency),
            message_limit: self.message_limit,
        });
        let receiver = tokio::spawn(receive(Arc::clone(&connection))).abort_handle();
        Client {
            handle: Arc::new(Handle {
                connection,
                receiver,
            }),
            deadline: self.deadline,
            codec: PhantomData,
        }
    }
}
