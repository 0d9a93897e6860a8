//! The connection manager: finding peers by IP address, and connecting queue pairs to them.
//!
//! Two ends that know each other's IP address and port need no other way to exchange what their
//! queue pairs must know: the connection manager sends it over the RDMA network itself, with up to
//! 56 bytes of the programs' own, and tells either end when the other is gone.
//!
//! # In one call per step
//!
//! [`Listener`] and [`Connector`] wait for each step, for a bounded time, and give a [`Connection`]:
//!
//! ```no_run
//! use std::time::Duration;
//! use rdma_core::{ConnectionParameters, Connector, Listener};
//!
//! // At one end:
//! let listener = Listener::bind("10.0.0.1:7174".parse()?)?;
//! if let Some(incoming) = listener.next(Some(Duration::from_secs(60)))? {
//!     let domain = incoming.context()?.protection_domain()?;
//!     let prepared = incoming.prepare(domain.queue_pair())?;
//!     let mut receives = prepared.queue_pair().receive_queue();
//!     receives.post(domain.allocate(64)?)?;
//!     let connection = prepared.establish(&ConnectionParameters::default())?;
//! }
//!
//! // At the other:
//! let hello = ConnectionParameters::default().private_data(*b"hello");
//! let connection = Connector::new("10.0.0.1:7174".parse()?)
//!     .timeout(Duration::from_secs(5))
//!     .parameters(hello)
//!     .connect(|context| Ok(context.protection_domain()?.queue_pair()))?;
//! let queue = connection.queue_pair().send_queue::<rdma_core::Buffer>();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # By events
//!
//! Underneath are [`EventChannel`], [`ConnectionId`] and [`ConnectionEvent`]. Nothing there waits but
//! [`EventChannel::next`]; the channel's descriptor is non-blocking and becomes readable when an
//! event is there. What happens in which order:
//!
//! | connecting end | listening end |
//! |---|---|
//! | [`resolve_address`](ConnectionId::resolve_address), event [`AddressResolved`](ConnectionEventKind::AddressResolved) | [`bind`](ConnectionId::bind), [`listen`](ConnectionId::listen) |
//! | [`resolve_route`](ConnectionId::resolve_route), event [`RouteResolved`](ConnectionEventKind::RouteResolved) | |
//! | [`prepare`](ConnectionId::prepare), [`connect`](ConnectionId::connect) | event [`ConnectRequest`](ConnectionEventKind::ConnectRequest) |
//! | event [`ConnectResponse`](ConnectionEventKind::ConnectResponse) | [`prepare`](ConnectionRequest::prepare), [`accept`](ConnectionRequest::accept) |
//! | [`establish`](ConnectionId::establish) | event [`Established`](ConnectionEventKind::Established) |
//!
//! Every event is acknowledged when it is taken, so that dropping an identifier waits for nothing;
//! an event holds copies, and the new identifier of a request is its owner's.
//!
//! # Devices
//!
//! Which device a connection goes through shows when its address is resolved or its request is
//! there: [`ConnectionId::context`] opens that device, once for all connections. The queue pair must
//! be of that device, of this context of it or of any other.
//!
//! Only devices of the kernel have a connection manager. Without one, as with softroce alone,
//! [`EventChannel::new`] gives [`ConnectionError::NoManager`], for which
//! [`Error::is_unsupported`](crate::Error::is_unsupported) is true.
//!
//! # Threads
//!
//! Everything here is `Send` and `Sync`. librdmacm guards what its identifiers share, but taking an
//! event writes into the identifier that it is about, so this crate does everything with a channel
//! and the identifiers on it under a lock of the channel, which is never held while waiting.
//! After `fork` the child shares the channels' descriptors and must use none of this.

#![forbid(unsafe_code)]

mod address_info;
mod channel;
mod connection;
mod connector;
mod error;
mod event;
mod id;
mod listener;
mod option;
mod parameters;
mod port_space;
mod queue_pair;
mod reject;
mod request;
mod shared_context;

pub use address_info::{AddressInfo, AddressQuery};
pub use channel::EventChannel;
pub use connection::{Connection, PreparedConnection};
pub use connector::{Connector, ResolvedPeer};
pub use error::{ConnectionError, ConnectionStep, EventStatus};
pub use event::{
    ConnectionEvent, ConnectionEventKind, DatagramPeer, MulticastMember, PeerParameters,
};
pub use id::ConnectionId;
pub use listener::{Incoming, Listener, ListenerBuilder};
pub use option::ConnectionIdOption;
pub use parameters::ConnectionParameters;
pub use port_space::PortSpace;
pub use reject::RejectReason;
pub use request::ConnectionRequest;
