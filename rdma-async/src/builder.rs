//! [`RdmaBuilder`]: the settings of a connection or listener, and the calls that create one from them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rdma_core::{AccessFlags, AddressChoice, ConnectOptions, DatagramOptions};
use tokio::net::{TcpStream, ToSocketAddrs, lookup_host};
use tokio::time::timeout;

use crate::authentication::Authenticator;
use crate::connection::{Depths, HEADER_LEN, MAX_FRAME_LEN};
use crate::device::RdmaDevice;
use crate::error::{Error, Result};
use crate::handshake::{self, EndLimits};
use crate::listener::RdmaListener;
use crate::rdma::Rdma;
use crate::shard::Profile;

/// Method by which waiting futures are notified of completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompletionMode {
    /// Tasks sleep until the device announces a completion: least processor time.
    Event,
    /// A task polls for a limited time, then sleeps until an announcement: nearly the latency of
    /// polling, without occupying a processor while the peer is slow.
    Adaptive {
        /// Time without a completion after which the task stops polling and sleeps.
        spin: Duration,
    },
    /// A task polls all the time, in every turn of the executor: least latency, but it occupies a
    /// processor.
    Busy,
}

/// Settings of every connection that a builder creates.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) completion: CompletionMode,
    pub(crate) send_depth: u32,
    pub(crate) receive_depth: u16,
    pub(crate) payload: usize,
    pub(crate) message_limit: usize,
    pub(crate) granted: GrantLimits,
    pub(crate) stream_buffer: usize,
    pub(crate) remote_access: AccessFlags,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) keep_alive: Duration,
    pub(crate) half_open_limit: usize,
    pub(crate) queue_key: u32,
    pub(crate) authenticator: Option<Arc<dyn Authenticator>>,
    pub(crate) options: ConnectOptions,
    pub(crate) address: AddressChoice,
}

/// Limits of the memory that peers hold because they requested it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GrantLimits {
    /// Maximum numbers of bytes and regions on one connection.
    pub(crate) bytes: usize,
    pub(crate) regions: usize,
    /// Maximum number of bytes of one host, on all connections of the device.
    pub(crate) peer_bytes: usize,
    /// Maximum time of one region.
    pub(crate) time: Option<Duration>,
}

/// Number of receives for control messages, which the connection itself handles.
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

/// Creates connections and listeners with the chosen settings. The defaults suit most programs.
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
                granted: GrantLimits {
                    bytes: 256 << 20,
                    regions: 1 << 14,
                    peer_bytes: usize::MAX,
                    time: None,
                },
                stream_buffer: 1 << 20,
                remote_access: AccessFlags::REMOTE,
                connect_timeout: Duration::from_secs(10),
                response_timeout: Duration::from_secs(10),
                keep_alive: Duration::from_secs(20),
                half_open_limit: 256,
                queue_key: DatagramOptions::DEFAULT_QKEY,
                authenticator: None,
                options: ConnectOptions::default(),
                address: AddressChoice::default(),
            },
        }
    }
}

impl RdmaBuilder {
    /// Sets the name of the device, which is opened for this connection or listener alone. The
    /// default is the device that `RDMA_DEVICE` names, or else the first with a usable port.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = DeviceChoice::Named(name.into());
        self
    }

    /// Sets the device to one that is already open. The new connections share its memory and
    /// completion queue with its other connections. [`RdmaDevice::builder`] calls this.
    pub fn on(mut self, device: &RdmaDevice) -> Self {
        self.device = DeviceChoice::Open(device.clone());
        self
    }

    /// Sets the number of the device's port. By default a usable port is chosen, see
    /// [`rdma_core::Context::address`].
    pub fn port(mut self, number: u8) -> Self {
        self.settings.address.port = Some(number);
        self
    }

    /// Sets the index of the port's GID. By default each connection uses the GID that fits the
    /// local address of its TCP connection, see [`rdma_core::AddressChoice::source`].
    pub fn gid_index(mut self, index: u32) -> Self {
        self.settings.address.gid_index = Some(index);
        self
    }

    /// Sets the GID to that of the local address from which the system sends packets to `peer`, for
    /// connections whose endpoints the program exchanges itself ([`Self::prepare`]).
    pub fn toward(mut self, peer: IpAddr) -> Self {
        self.settings.address = self.settings.address.toward(peer);
        self
    }

    /// Sets the timeouts, retry counts and path of the queue pair.
    pub fn options(mut self, options: ConnectOptions) -> Self {
        self.settings.options = options;
        self
    }

    /// Sets the method by which waiting futures are notified of completions. The default is
    /// [`CompletionMode::Adaptive`], which polls for 20 us and then sleeps.
    pub fn completion(mut self, mode: CompletionMode) -> Self {
        self.settings.completion = mode;
        self
    }

    /// Sets the maximum number of outstanding operations; further operations wait. The default is
    /// 64, the bounds are 8 and 16384.
    pub fn send_depth(mut self, operations: u32) -> Self {
        self.settings.send_depth = operations.clamp(8, 1 << 14);
        self
    }

    /// Sets the maximum number of messages that have arrived and were not yet received. At the
    /// maximum, the peer's sends wait. The default is 64, the bounds are 2 and 8192.
    pub fn receive_depth(mut self, messages: u16) -> Self {
        self.settings.receive_depth = messages.clamp(2, 1 << 13);
        self
    }

    /// Sets the maximum length, in bytes, of a message that the peer sends in one piece. A longer
    /// message is read from the sender's memory when the application receives it or a message
    /// shortly before it: up to 16 messages and 4 MiB of each connection are read ahead. The
    /// default is 4096, the bounds are 64 bytes and 16 MiB.
    #[doc(alias = "max_message_length")]
    pub fn message_length(mut self, bytes: usize) -> Self {
        self.settings.payload = bytes.clamp(64, 1 << 24);
        self
    }

    /// Sets the maximum length, in bytes, of any received message. The default is 1 GiB.
    pub fn message_limit(mut self, bytes: usize) -> Self {
        self.settings.message_limit = bytes;
        self
    }

    /// Sets the maximum total, in bytes, of memory that the peer holds on one connection because it
    /// requested it. Each region counts with its size or its alignment, whichever is larger. The
    /// default is 256 MiB.
    pub fn remote_memory_limit(mut self, bytes: usize) -> Self {
        self.settings.granted.bytes = bytes;
        self
    }

    /// Sets the maximum number of regions that the peer holds on one connection because it
    /// requested them. Each needs resources of the device in addition to its bytes. A region whose
    /// [time](Self::remote_memory_time) is over counts until the peer has dropped it. The default
    /// is 16384.
    pub fn remote_region_limit(mut self, regions: usize) -> Self {
        self.settings.granted.regions = regions;
        self
    }

    /// Sets the maximum total, in bytes, of memory that the peers of one host hold on all
    /// connections of the device because they requested it, counted like
    /// [`Self::remote_memory_limit`]. A host is identified by its IP address. The default is no
    /// limit but that of each connection.
    pub fn peer_memory_limit(mut self, bytes: usize) -> Self {
        self.settings.granted.peer_bytes = bytes;
        self
    }

    /// Sets the maximum time for which the peer holds a region that it requested. Then the access
    /// ends at the device, and the memory is freed; the peer's operations on it fail with
    /// [`Error::LeaseEnded`](crate::Error::LeaseEnded). The default is no limit.
    pub fn remote_memory_time(mut self, limit: Duration) -> Self {
        self.settings.granted.time = Some(limit);
        self
    }

    /// Sets the number of bytes of an [`RdmaStream`](crate::RdmaStream), written and not taken by
    /// the peer, from which writers wait. The default is 1 MiB, the minimum 64 KiB.
    pub fn stream_buffer(mut self, bytes: usize) -> Self {
        self.settings.stream_buffer = bytes.max(64 << 10);
        self
    }

    /// Sets the access rights of the peer to memory that it is lent. The default is read, write and
    /// atomics.
    #[doc(alias = "max_rmr_access")]
    pub fn remote_access(mut self, access: AccessFlags) -> Self {
        self.settings.remote_access = access;
        self
    }

    /// Sets the time limit of connecting, including the handshake. The default is 10 s.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.settings.connect_timeout = limit;
        self
    }

    /// Sets the time limit for the peer's answer to a request for memory, which is also the time
    /// limit of [`Rdma::close`]. The default is 10 s.
    pub fn response_timeout(mut self, limit: Duration) -> Self {
        self.settings.response_timeout = limit;
        self
    }

    /// Sets the approximate time after which an idle connection detects that the peer's host, or
    /// the link to it, is gone. The default is 20 s, the minimum 4 s. The end of the peer's program
    /// is detected immediately.
    ///
    /// TCP keep-alive probes begin after half of this time and are at least one second apart, so
    /// a time below 8 s can be exceeded by up to 2 s.
    pub fn keep_alive(mut self, limit: Duration) -> Self {
        self.settings.keep_alive = limit.max(Duration::from_secs(4));
        self
    }

    /// Sets the maximum number of handshakes that a listener performs concurrently. At the maximum,
    /// if another peer waits, the oldest one ends once it is older than 100 ms: first among the
    /// peers that have not yet sent a valid hello and, if one is required, a valid proof. The
    /// handshake of any other peer gets 500 ms. The default is 256, the minimum 1.
    pub fn half_open_limit(mut self, handshakes: usize) -> Self {
        self.settings.half_open_limit = handshakes.max(1);
        self
    }

    /// Sets the Q_Key of [datagram sockets](Self::datagrams), which a datagram to the socket must
    /// contain. The default is `0x11111111`. A key with the highest bit set is privileged (IBTA
    /// volume 1, 10.2.5).
    pub fn queue_key(mut self, key: u32) -> Self {
        self.settings.queue_key = key;
        self
    }

    /// Sets the method by which the two ends of each connection prove to each other that they may
    /// connect. Both ends need it. By default every peer may connect.
    pub fn authenticator(mut self, authenticator: impl Authenticator) -> Self {
        self.settings.authenticator = Some(Arc::new(authenticator));
        self
    }

    /// Connects to the peer that listens at a TCP address.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device cannot be used, [`Error::Tcp`] if the TCP connection fails,
    /// [`Error::Handshake`] if the handshake with the peer fails, [`Error::Timeout`] after
    /// [`Self::connect_timeout`], and [`Error::InvalidArgument`] if the address resolves to
    /// nothing.
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

    /// Waits at a TCP address until one peer has connected. A peer whose handshake fails is logged
    /// and ignored.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device cannot be used, [`Error::Tcp`] if listening or accepting
    /// fails.
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

    /// Listens at a TCP address for any number of peers, whose connections share the device.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device cannot be used, [`Error::Tcp`] if the address cannot be
    /// listened at.
    pub async fn bind(self, address: impl ToSocketAddrs) -> Result<RdmaListener> {
        RdmaListener::bind(self.place()?, address).await
    }

    pub(crate) fn half_open(&self) -> usize {
        self.settings.half_open_limit
    }

    /// Returns the settings with the device of this name, which is one of `open` or is added to
    /// them.
    pub(crate) fn place_on(&self, name: &str, open: &mut Vec<RdmaDevice>) -> Result<Template> {
        let is_named = |device: &&RdmaDevice| device.context().name() == name;
        let wanted = match &self.device {
            DeviceChoice::Open(device) => Some(device.context().name().to_owned()),
            DeviceChoice::Named(wanted) => Some(wanted.clone()),
            DeviceChoice::Default => None,
        };
        if let Some(wanted) = wanted.filter(|wanted| wanted != name) {
            let reason = format!("the peer is reached by {name}, and the builder is for {wanted}");
            return Err(Error::invalid("device", reason));
        }
        let device = match (&self.device, open.iter().find(is_named)) {
            (DeviceChoice::Open(device), _) | (_, Some(device)) => device.clone(),
            (_, None) => {
                let device = RdmaDevice::open(name)?;
                open.push(device.clone());
                device
            }
        };
        Ok(Template {
            device,
            settings: self.settings.clone(),
        })
    }

    pub(crate) fn connect_limit(&self) -> Duration {
        self.settings.connect_timeout
    }

    /// Opens the device unless it is already open, and checks the port and GID index.
    pub(crate) fn place(self) -> Result<Template> {
        let device = match &self.device {
            DeviceChoice::Open(device) => device.clone(),
            DeviceChoice::Named(name) => RdmaDevice::open(name)?,
            DeviceChoice::Default => RdmaDevice::open_default()?,
        };
        // Checked before a peer connects, so that a wrong port or GID index fails this call.
        device.context().address(self.settings.address)?;
        Ok(Template {
            device,
            settings: self.settings,
        })
    }
}

/// Device that a builder uses.
#[derive(Debug, Clone)]
enum DeviceChoice {
    Default,
    Named(String),
    Open(RdmaDevice),
}

/// Open device and settings that all connections of one builder share.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    pub(crate) device: RdmaDevice,
    pub(crate) settings: Settings,
}

impl Template {
    /// Returns the limits of this end that the peer must respect.
    pub(crate) fn limits(&self) -> EndLimits {
        EndLimits {
            depths: self.settings.depths(),
            payload: u32::try_from(self.settings.payload).unwrap_or(u32::MAX),
        }
    }
}
