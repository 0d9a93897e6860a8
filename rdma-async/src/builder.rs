//! [`RdmaBuilder`]: the settings of connections and listeners, and their creation.

use std::net::IpAddr;
use std::ops::RangeInclusive;
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
    /// Tasks sleep until the device reports a completion by an event. Uses the least processor
    /// time, but the wakeup by an event adds to the latency.
    Event,
    /// A task polls for completions for a limited time, and then sleeps until the device reports a
    /// completion by an event. The latency is nearly that of polling, and a slow peer does not keep
    /// a processor busy.
    Adaptive {
        /// Time without a completion after which the task stops polling and sleeps.
        spin: Duration,
    },
    /// A task polls for completions each time the executor runs it, and never sleeps. The latency
    /// is the lowest, but a processor is always busy.
    Busy,
}

/// Default maximum length, in bytes, of a message that is sent in one piece. Long enough for a page
/// of 4096 bytes and a header of the program's own protocol.
const MESSAGE_LENGTH: usize = 4096 + 256;

/// Bounds of the setting [`RdmaBuilder::message_length`], in bytes. The setting is the maximum
/// length of a message that the peer sends in one piece.
pub(crate) const MESSAGE_LENGTHS: RangeInclusive<usize> = 64..=1 << 24;

/// Minimum of the setting [`RdmaBuilder::keep_alive`]: the time after which an idle connection
/// detects that the peer's host is unreachable.
const MIN_KEEP_ALIVE: Duration = Duration::from_secs(4);

/// Maximum of the setting [`RdmaBuilder::keep_alive`], about 18 hours. The first TCP keep-alive
/// probe is sent after half of this time, and Linux accepts at most 32,767 seconds.
const MAX_KEEP_ALIVE: Duration = Duration::from_secs(2 * 32_767);

/// Maximum of the setting [`RdmaBuilder::response_timeout`], about 34 years. Without a maximum,
/// adding the timeout to the current time could overflow.
const MAX_TIMEOUT: Duration = Duration::from_secs(1 << 30);

/// Settings of the connections that a builder creates. Each field has a method of [`RdmaBuilder`],
/// which sets and describes the field.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) completion: CompletionMode,
    pub(crate) send_depth: u32,
    pub(crate) receive_depth: u16,
    pub(crate) payload: usize,
    pub(crate) message_limit: usize,
    pub(crate) granted: GrantLimits,
    pub(crate) stream_buffer: usize,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) remote_access: AccessFlags,
    pub(crate) exclusive_grants: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) keep_alive: Duration,
    pub(crate) half_open_limit: usize,
    pub(crate) queue_key: u32,
    pub(crate) authenticator: Option<Arc<dyn Authenticator>>,
    pub(crate) options: ConnectOptions,
    pub(crate) address: AddressChoice,
}

/// Limits of the memory that this end lends at the request of peers ([`Rdma::request_remote_mr`]):
/// the number of bytes, the number of regions, and the time for which a peer holds a region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GrantLimits {
    /// Maximum number of bytes on one connection.
    pub(crate) bytes: usize,
    /// Maximum number of regions on one connection.
    pub(crate) regions: usize,
    /// Maximum number of bytes for one host, over all connections of the device.
    pub(crate) peer_bytes: usize,
    /// Maximum time for which a peer holds one region, or `None` for no limit.
    pub(crate) time: Option<Duration>,
}

/// Limits of reading ahead. This end reads long messages, and long pieces of a stream, from the
/// peer's memory before the program receives them. The limits are the maximum number of messages,
/// and of bytes, that are read ahead at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadAhead {
    /// Maximum number of messages that are read ahead at a time. Bounds the number of their
    /// requests in the send queue.
    pub(crate) messages: u16,
    /// Maximum number of bytes that are read ahead at a time. Bounds the memory that is in use
    /// while the program is slow.
    pub(crate) bytes: usize,
}

/// Number of receives of a connection that are reserved for control messages of the peer, such as
/// requests for memory. A few dozen suffice: the connection handles control messages itself,
/// without waiting for the program.
const CONTROL_DEPTH: u16 = 32;

impl Settings {
    /// Returns the receive depths of this end: the maximum numbers of data and of control messages
    /// that the peer may send before this end returns credits (permissions to send).
    pub(crate) fn depths(&self) -> Depths {
        Depths {
            data: self.receive_depth,
            control: CONTROL_DEPTH,
        }
    }

    /// Returns the settings that must be equal for connections to share a shard. A shard consists
    /// of one completion queue, one receive queue and the task that polls them.
    pub(crate) fn profile(&self) -> Profile {
        Profile {
            completion: self.completion,
            receive_len: (HEADER_LEN + self.payload).max(MAX_FRAME_LEN),
        }
    }
}

/// Builder of connections and listeners: collects the settings, and then connects
/// ([`Self::connect`]) or listens ([`Self::bind`]). The default settings suit most programs.
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
                payload: MESSAGE_LENGTH,
                message_limit: 1 << 30,
                granted: GrantLimits {
                    bytes: 256 << 20,
                    regions: 1 << 14,
                    peer_bytes: 1 << 30,
                    time: None,
                },
                stream_buffer: 1 << 20,
                read_ahead: ReadAhead {
                    messages: 16,
                    bytes: 4 << 20,
                },
                remote_access: AccessFlags::REMOTE,
                exclusive_grants: true,
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
    /// Sets the name of the device, which is opened for this connection or listener only. The
    /// default is the device that the environment variable `RDMA_DEVICE` names, or else the first
    /// device with a usable port.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = DeviceChoice::Named(name.into());
        self
    }

    /// Selects a device that is already open. The new connections share memory and a completion
    /// queue with the other connections of the device. [`RdmaDevice::builder`] calls this function.
    pub fn on(mut self, device: &RdmaDevice) -> Self {
        self.device = DeviceChoice::Open(device.clone());
        self
    }

    /// Sets the number of the device port that the connections use. The default is a usable port,
    /// see [`rdma_core::Context::address`].
    pub fn port(mut self, number: u8) -> Self {
        self.settings.address.port = Some(number);
        self
    }

    /// Sets the index, in the GID table of the port, of the address that this end uses. The default
    /// is the GID that matches the local address of the TCP connection, see
    /// [`rdma_core::AddressChoice::source`].
    pub fn gid_index(mut self, index: u32) -> Self {
        self.settings.address.gid_index = Some(index);
        self
    }

    /// Selects the GID (address of the port) by the route to `peer`: the GID of the local IP
    /// address from which the system sends packets to `peer`. Needed only for [`Self::prepare`],
    /// [`Self::exchange`] and [`Self::datagrams`]. A connection that is established over TCP uses
    /// the local address of the TCP connection.
    pub fn toward(mut self, peer: IpAddr) -> Self {
        self.settings.address = self.settings.address.toward(peer);
        self
    }

    /// Sets the timeouts, retry counts and path parameters with which the queue pair is connected.
    /// The [MTU](ConnectOptions::mtu) is an upper bound: the connection uses the smallest of the
    /// MTUs that the two ends set and the MTUs of the two ports. If RDMA takes the route of the TCP
    /// connection, the MTU of the route is also an upper bound.
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

    /// Sets the maximum number of operations of a connection that are in flight at the same time.
    /// Further operations wait. The default is 64, the bounds are 8 and 16384.
    pub fn send_depth(mut self, operations: u32) -> Self {
        self.settings.send_depth = operations.clamp(8, 1 << 14);
        self
    }

    /// Sets the maximum number of arrived messages that wait until the program receives them. At
    /// the maximum, the peer's sends wait. The default is 64, the bounds are 2 and 8192.
    pub fn receive_depth(mut self, messages: u16) -> Self {
        self.settings.receive_depth = messages.clamp(2, 1 << 13);
        self
    }

    /// Sets the maximum length, in bytes, of a message that the peer sends in one piece. The
    /// default is 4352, enough for a page of 4096 bytes and a header of the program's own protocol.
    /// The bounds are 64 bytes and 16 MiB. Every receive has memory for this length, so a longer
    /// message length uses more memory.
    ///
    /// This end reads a longer message from the sender's memory by RDMA, when the program receives
    /// the message. While the program receives an earlier long message, this end can already read
    /// the message ahead ([`Self::read_ahead`]).
    #[doc(alias = "max_message_length")]
    pub fn message_length(mut self, bytes: usize) -> Self {
        self.settings.payload = bytes.clamp(*MESSAGE_LENGTHS.start(), *MESSAGE_LENGTHS.end());
        self
    }

    /// Sets the maximum length, in bytes, of any received message. [`Rdma::receive`] fails for a
    /// longer message. The default is 1 GiB.
    pub fn message_limit(mut self, bytes: usize) -> Self {
        self.settings.message_limit = bytes;
        self
    }

    /// Sets the maximum memory, in bytes, that the peer may request and hold on one connection. A
    /// region counts as its size in bytes, or as its alignment if that is larger. The default is
    /// 256 MiB.
    pub fn remote_memory_limit(mut self, bytes: usize) -> Self {
        self.settings.granted.bytes = bytes;
        self
    }

    /// Sets the maximum number of regions that the peer may request and hold on one connection. The
    /// number is limited because each region uses resources of the device, besides its bytes. A
    /// region whose [time](Self::remote_memory_time) has expired counts until the peer drops the
    /// region. The default is 16384.
    pub fn remote_region_limit(mut self, regions: usize) -> Self {
        self.settings.granted.regions = regions;
        self
    }

    /// Sets the maximum memory, in bytes, that all peers on one host may request and hold, over all
    /// connections of the device. A region counts as its size in bytes, or as its alignment if that
    /// is larger. A host is identified by its IP address. The default is 1 GiB.
    pub fn peer_memory_limit(mut self, bytes: usize) -> Self {
        self.settings.granted.peer_bytes = bytes;
        self
    }

    /// Sets the maximum time for which the peer may hold a region of this end's memory that the
    /// peer has requested. The default is no limit.
    ///
    /// After this time, the device refuses the peer's access, and this end frees the memory. The
    /// peer's operations on the region fail with [`Error::LeaseEnded`](crate::Error::LeaseEnded).
    pub fn remote_memory_time(mut self, limit: Duration) -> Self {
        self.settings.granted.time = Some(limit);
        self
    }

    /// Sets the buffer size of an [`RdmaStream`](crate::RdmaStream), in bytes. A writer waits while
    /// this many written bytes are in transit. Short writes are in transit until they are sent, and
    /// long writes until the peer has read them. Long writes go to slots in the peer's memory, and
    /// each used slot counts as 64 KiB. The default is 1 MiB, the minimum 64 KiB.
    pub fn stream_buffer(mut self, bytes: usize) -> Self {
        self.settings.stream_buffer = bytes.max(64 << 10);
        self
    }

    /// Sets the maximum number of messages, and their maximum total length in bytes, that are read
    /// ahead. While the program receives a long message (longer than [`Self::message_length`]), the
    /// connection already reads further messages from the peer's memory. The same applies to long
    /// pieces of an [`RdmaStream`](crate::RdmaStream). The defaults are 16 messages and 4 MiB. With
    /// 0, no message is read ahead: this needs less memory, but each long message takes a round
    /// trip.
    pub fn read_ahead(mut self, messages: u16, bytes: usize) -> Self {
        self.settings.read_ahead = ReadAhead { messages, bytes };
        self
    }

    /// Sets the access rights that a peer gets to any memory that this end lends. The default is
    /// all rights: read, write and atomics.
    #[doc(alias = "max_rmr_access")]
    pub fn remote_access(mut self, access: AccessFlags) -> Self {
        self.settings.remote_access = access;
        self
    }

    /// Sets whether [`Rdma::reserve`](crate::Rdma::reserve) uses memory windows, so that only the
    /// peer of the connection can access the memory ([`Grant::is_exclusive`]). The default is
    /// `true`.
    ///
    /// Without windows, the device registers the memory for each reservation, which takes less time
    /// on softroce. Every peer of the [device](crate::RdmaDevice) that gets the token then has
    /// access.
    ///
    /// [`Grant::is_exclusive`]: crate::Grant::is_exclusive
    pub fn exclusive_grants(mut self, exclusive: bool) -> Self {
        self.settings.exclusive_grants = exclusive;
        self
    }

    /// Sets the time limit of establishing a connection, including the handshake. The default is 10
    /// s.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.settings.connect_timeout = limit;
        self
    }

    /// Sets the time limit for the peer's answer to a request for memory, and for [`Rdma::close`].
    /// The default is 10 s.
    pub fn response_timeout(mut self, limit: Duration) -> Self {
        self.settings.response_timeout = limit.min(MAX_TIMEOUT);
        self
    }

    /// Sets the approximate time after which an idle connection detects that the peer's host is
    /// unreachable. The default is 20 s, the minimum 4 s, the maximum 18 hours (65,534 s, the
    /// system's limit). The end of the peer's program is detected immediately.
    ///
    /// TCP keep-alive probes begin after half of this time. The probes are at least one second
    /// apart, so a time below 8 s can be exceeded by up to 2 s.
    pub fn keep_alive(mut self, limit: Duration) -> Self {
        self.settings.keep_alive = limit.clamp(MIN_KEEP_ALIVE, MAX_KEEP_ALIVE);
        self
    }

    /// Sets the maximum number of handshakes that a listener performs concurrently. The default is
    /// 256, the minimum 1.
    ///
    /// At the maximum, if another peer waits, the listener ends a handshake. The listener chooses
    /// the oldest handshake whose peer has not yet sent a valid first message (and a valid token,
    /// if authentication is required), after its first 100 ms. If there is no such handshake, the
    /// listener chooses the oldest handshake, after its first 500 ms. Over TCP, the peer of an
    /// ended handshake gets the reason.
    pub fn half_open_limit(mut self, handshakes: usize) -> Self {
        self.settings.half_open_limit = handshakes.max(1);
        self
    }

    /// Sets the Q_Key of [datagram sockets](Self::datagrams), which each datagram to the socket
    /// must contain. The default is `0x11111111`. A key with the highest bit set is privileged
    /// (IBTA volume 1, 10.2.5).
    pub fn queue_key(mut self, key: u32) -> Self {
        self.settings.queue_key = key;
        self
    }

    /// Sets the method by which the two ends of a connection authenticate each other. Both ends
    /// must set a method. By default every peer may connect.
    pub fn authenticator(mut self, authenticator: impl Authenticator) -> Self {
        self.settings.authenticator = Some(Arc::new(authenticator));
        self
    }

    /// Connects to the peer that listens at a TCP address, and returns the connection.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device cannot be used. [`Error::Tcp`] if the TCP connection fails.
    /// [`Error::Handshake`] if the handshake with the peer fails. [`Error::Timeout`] after
    /// [`Self::connect_timeout`]. [`Error::InvalidArgument`] if the host name has no address.
    pub async fn connect(self, address: impl ToSocketAddrs) -> Result<Rdma> {
        let limit = self.settings.connect_timeout;
        let what = "connecting";
        timeout(limit, self.connect_unbounded(address))
            .await
            .unwrap_or(Err(Error::Timeout { what, limit }))
    }

    /// Connects like [`Self::connect`], but without a time limit. Tries the addresses of a host
    /// name in order.
    async fn connect_unbounded(self, address: impl ToSocketAddrs) -> Result<Rdma> {
        let template = self.template()?;
        let mut failure = None;
        let addresses = lookup_host(address)
            .await
            .map_err(|source| Error::tcp("looking up", "the peer", source))?;
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => return handshake::connect(template, stream, address).await,
                Err(source) => failure = Some(Error::tcp("connecting to", address, source)),
            }
        }
        Err(failure.unwrap_or_else(|| Error::invalid("address", "the host name has no address")))
    }

    /// Listens at a TCP address until one peer has connected, and returns the connection. A failed
    /// handshake is logged and ignored.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device cannot be used. [`Error::Tcp`] if the system cannot listen or
    /// accept.
    pub async fn listen(self, address: impl ToSocketAddrs) -> Result<Rdma> {
        let mut listener = self.bind(address).await?;
        loop {
            match listener.accept().await {
                Ok(connection) => return Ok(connection),
                Err(error @ Error::Handshake { .. }) => tracing::warn!(%error, "peer ignored"),
                Err(error) => return Err(error),
            }
        }
    }

    /// Creates a listener at a TCP address for any number of peers, whose connections share the
    /// device.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device cannot be used. [`Error::Tcp`] if the system cannot listen at
    /// the address.
    pub async fn bind(self, address: impl ToSocketAddrs) -> Result<RdmaListener> {
        RdmaListener::bind(self.template()?, address).await
    }

    /// Returns the maximum number of handshakes that a listener performs at the same time.
    pub(crate) fn max_half_open(&self) -> usize {
        self.settings.half_open_limit
    }

    /// Returns the [`Template`] (device and settings) for a connection on the device with the name
    /// `name`. The caller has determined this name from the route to the peer. Uses the open device
    /// of this builder, or else a device in the list `open`. If neither is available, opens the
    /// device and adds it to `open`. Fails if this builder was set to a device with another name.
    pub(crate) fn template_on(&self, name: &str, open: &mut Vec<RdmaDevice>) -> Result<Template> {
        let is_named = |device: &&RdmaDevice| device.context().name() == name;
        let wanted = match &self.device {
            DeviceChoice::Open(device) => Some(device.context().name().to_owned()),
            DeviceChoice::Named(wanted) => Some(wanted.clone()),
            DeviceChoice::Default => None,
        };
        if let Some(wanted) = wanted.filter(|wanted| wanted != name) {
            let reason = format!("the route to the peer uses {name}, the builder sets {wanted}");
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

    /// Returns the time limit for establishing one connection.
    pub(crate) fn connect_limit(&self) -> Duration {
        self.settings.connect_timeout
    }

    /// Converts this builder to a [`Template`], the device and the settings from which connections
    /// are created. Opens the device, except if the builder has an open device ([`Self::on`]). Also
    /// checks the port and the GID index.
    pub(crate) fn template(self) -> Result<Template> {
        let device = match &self.device {
            DeviceChoice::Open(device) => device.clone(),
            DeviceChoice::Named(name) => RdmaDevice::open(name)?,
            DeviceChoice::Default => RdmaDevice::open_default()?,
        };
        // A wrong port or GID index must fail here, before a peer connects.
        device.context().address(self.settings.address)?;
        Ok(Template {
            device,
            settings: self.settings,
        })
    }
}

/// Choice of the device for the connections of a builder: the default device, a device that is
/// opened by its name, or an open device.
#[derive(Debug, Clone)]
enum DeviceChoice {
    Default,
    Named(String),
    Open(RdmaDevice),
}

/// Open device and the settings of an [`RdmaBuilder`], from which connections are created. A
/// listener clones this value for each connection.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    pub(crate) device: RdmaDevice,
    pub(crate) settings: Settings,
}

impl Template {
    /// Returns the limits of this end, such as the maximum length of a message. The limits are sent
    /// to the peer in the handshake, and the peer must respect them.
    pub(crate) fn limits(&self) -> EndLimits {
        EndLimits {
            depths: self.settings.depths(),
            payload: u32::try_from(self.settings.payload).unwrap_or(u32::MAX),
        }
    }
}
