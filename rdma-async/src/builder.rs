//! Settings of connections to be.

use std::time::Duration;

use rdma_core::{AccessFlags, AddressChoice, ConnectOptions};
use tokio::net::{TcpStream, ToSocketAddrs, lookup_host};
use tokio::time::timeout;

use crate::connection::{Depths, HEADER_LEN, MAX_FRAME_LEN};
use crate::device::RdmaDevice;
use crate::error::{Error, Result};
use crate::handshake;
use crate::listener::RdmaListener;
use crate::rdma::Rdma;
use crate::shard::Profile;

/// How tasks learn of completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompletionMode {
    /// They sleep until the device announces them: the least processor time.
    Event,
    /// They look for so long, then sleep: nearly the latency of looking, without burning a processor
    /// for a peer that takes its time.
    Adaptive {
        /// How long a task looks before it sleeps.
        spin: Duration,
    },
    /// They look all the time, a turn of the executor each: the least latency, a processor for it.
    Busy,
}

/// Settings that every connection of a builder has.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) completion: CompletionMode,
    pub(crate) send_depth: u32,
    pub(crate) receive_depth: u16,
    pub(crate) payload: usize,
    pub(crate) message_limit: usize,
    pub(crate) remote_memory_limit: usize,
    pub(crate) remote_access: AccessFlags,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) keep_alive: Duration,
    pub(crate) options: ConnectOptions,
    pub(crate) address: AddressChoice,
}

/// How many receives are for the connection's own messages.
const CONTROL_DEPTH: u16 = 32;

impl Settings {
    pub(crate) fn depths(&self) -> Depths {
        Depths {
            data: self.receive_depth,
            control: CONTROL_DEPTH,
        }
    }

    /// Returns the settings that decide which connections share a shard.
    pub(crate) fn profile(&self) -> Profile {
        Profile {
            completion: self.completion,
            receive_len: (HEADER_LEN + self.payload).max(MAX_FRAME_LEN),
        }
    }
}

/// Settings of connections to be; the defaults suit most.
///
/// ```no_run
/// # async fn example() -> Result<(), rdma_async::Error> {
/// use rdma_async::RdmaBuilder;
///
/// let server = RdmaBuilder::default().listen("127.0.0.1:7471");
/// let client = RdmaBuilder::default().connect("127.0.0.1:7471");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder makes nothing until it connects or listens"]
pub struct RdmaBuilder {
    device: DeviceChoice,
    settings: Settings,
}

impl Default for RdmaBuilder {
    fn default() -> Self {
        Self {
            device: DeviceChoice::Default,
            settings: Settings {
                completion: CompletionMode::Adaptive {
                    spin: Duration::from_micros(20),
                },
                send_depth: 64,
                receive_depth: 64,
                payload: 4096,
                message_limit: 1 << 30,
                remote_memory_limit: 256 << 20,
                remote_access: AccessFlags::REMOTE,
                connect_timeout: Duration::from_secs(10),
                response_timeout: Duration::from_secs(10),
                keep_alive: Duration::from_secs(20),
                options: ConnectOptions::default(),
                address: AddressChoice::default(),
            },
        }
    }
}

impl RdmaBuilder {
    /// Opens the device of this name, for this connection or listener alone. Default: the device that
    /// `RDMA_DEVICE` selects, or the first with a usable port.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = DeviceChoice::Named(name.into());
        self
    }

    /// Uses a device that is open, and shares its memory and completion queue with its other
    /// connections. [`RdmaDevice::builder`] does this.
    pub fn on(mut self, device: &RdmaDevice) -> Self {
        self.device = DeviceChoice::Open(device.clone());
        self
    }

    /// The device's port. Default: chosen.
    pub fn port(mut self, number: u8) -> Self {
        self.settings.address.port = Some(number);
        self
    }

    /// The index of the port's GID. Default: chosen, see [`rdma_core::Context::address`].
    pub fn gid_index(mut self, index: u32) -> Self {
        self.settings.address.gid_index = Some(index);
        self
    }

    /// Paces, patience and path of the queue pair.
    pub fn options(mut self, options: ConnectOptions) -> Self {
        self.settings.options = options;
        self
    }

    /// How tasks learn of completions. Default: they look for 20 us, then sleep.
    pub fn completion(mut self, mode: CompletionMode) -> Self {
        self.settings.completion = mode;
        self
    }

    /// How many operations can be outstanding; more wait their turn. Default 64, at least 8.
    pub fn send_depth(mut self, operations: u32) -> Self {
        self.settings.send_depth = operations.clamp(8, 1 << 14);
        self
    }

    /// How many messages of the peer can wait to be received; then its sends wait. Default 64, at
    /// least 2.
    pub fn receive_depth(mut self, messages: u16) -> Self {
        self.settings.receive_depth = messages.clamp(2, 1 << 13);
        self
    }

    /// The longest message, in bytes, that arrives in one piece, without the peer asking for it; a
    /// longer one is read from the sender's memory. Default 4096, at least 64.
    #[doc(alias = "max_message_length")]
    pub fn message_length(mut self, bytes: usize) -> Self {
        self.settings.payload = bytes.clamp(64, 1 << 24);
        self
    }

    /// The longest message, in bytes, that is received at all. Default 1 GiB.
    pub fn message_limit(mut self, bytes: usize) -> Self {
        self.settings.message_limit = bytes;
        self
    }

    /// How many bytes the peer can have in all by requesting memory, in at most 16384 regions; of a
    /// region whose alignment is above its size, that counts. Default 256 MiB.
    pub fn remote_memory_limit(mut self, bytes: usize) -> Self {
        self.settings.remote_memory_limit = bytes;
        self
    }

    /// What the peer may do with memory that it is lent. Default: read, write and atomics.
    #[doc(alias = "max_rmr_access")]
    pub fn remote_access(mut self, access: AccessFlags) -> Self {
        self.settings.remote_access = access;
        self
    }

    /// How long connecting may take, from the first packet to the last. Default 10 s.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.settings.connect_timeout = limit;
        self
    }

    /// How long the peer may take to answer a request for memory. Default 10 s.
    pub fn response_timeout(mut self, limit: Duration) -> Self {
        self.settings.response_timeout = limit;
        self
    }

    /// How long it may take, about, until an idle connection notices that the peer's host or the link to it
    /// is gone. Default 20 s, at least 4 s. A peer whose program ends is noticed at once.
    ///
    /// The TCP connection is tested after half of this time, with TCP's keep-alive.
    pub fn keep_alive(mut self, limit: Duration) -> Self {
        self.settings.keep_alive = limit.max(Duration::from_secs(4));
        self
    }

    /// Connects to whoever listens at a TCP address.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device cannot be used, [`Error::Tcp`] if nobody listens,
    /// [`Error::Handshake`] if who does is no such peer, [`Error::Timeout`].
    pub async fn connect(self, address: impl ToSocketAddrs) -> Result<Rdma> {
        let limit = self.settings.connect_timeout;
        let what = "connecting";
        timeout(limit, self.connect_unbounded(address))
            .await
            .unwrap_or(Err(Error::Timeout { what, limit }))
    }

    async fn connect_unbounded(self, address: impl ToSocketAddrs) -> Result<Rdma> {
        let place = self.place()?;
        let mut failure = None;
        let addresses = lookup_host(address)
            .await
            .map_err(|source| Error::tcp("looking up", "the peer", source))?;
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => return handshake::connect(place, stream, address).await,
                Err(source) => failure = Some(Error::tcp("connecting to", address, source)),
            }
        }
        Err(failure.unwrap_or_else(|| Error::invalid("address", "it stands for none")))
    }

    /// Waits at a TCP address for one peer to connect. Whoever fails to is logged and passed over.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device cannot be used, [`Error::Tcp`] if the address cannot.
    pub async fn listen(self, address: impl ToSocketAddrs) -> Result<Rdma> {
        let mut listener = self.bind(address).await?;
        loop {
            match listener.accept().await {
                Ok(connection) => return Ok(connection),
                Err(error @ Error::Handshake { .. }) => tracing::warn!(%error, "passed over"),
                Err(error) => return Err(error),
            }
        }
    }

    /// Listens at a TCP address for any number of peers, who share the device and its memory.
    ///
    /// # Errors
    ///
    /// As [`Self::listen`].
    pub async fn bind(self, address: impl ToSocketAddrs) -> Result<RdmaListener> {
        RdmaListener::bind(self.place()?, address).await
    }

    /// Opens the device, if it is not open.
    fn place(self) -> Result<Place> {
        let device = match &self.device {
            DeviceChoice::Open(device) => device.clone(),
            DeviceChoice::Named(name) => RdmaDevice::open(name)?,
            DeviceChoice::Default => RdmaDevice::open_default()?,
        };
        // Before anybody connects, so that a wrong port or GID index is an error of the builder's.
        device.context().address(self.settings.address)?;
        Ok(Place {
            device,
            settings: self.settings,
        })
    }
}

/// The device of a builder.
#[derive(Debug, Clone)]
enum DeviceChoice {
    Default,
    Named(String),
    Open(RdmaDevice),
}

/// Device and settings that the connections of one builder have in common.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) device: RdmaDevice,
    pub(crate) settings: Settings,
}
