//! The connection manager: connects queue pairs to peers by IP address.
//!
//! The two sides need no other way to exchange the parameters of their queue pairs: the connection
//! manager transfers the parameters over the RDMA network, with up to 56 bytes of private data of
//! the programs, and notifies each side when the other side disconnects.
//!
//! # Blocking interface
//!
//! [`Listener`] and [`Connector`] block for each step, with a time limit, and return a
//! [`Connection`]:
//!
//! ```no_run
//! use std::time::Duration;
//! use rdma_core::cm::{ConnectionParameters, Connector, Listener};
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
//! // At the other end:
//! let hello = ConnectionParameters::default().private_data(*b"hello");
//! let connection = Connector::new("10.0.0.1:7174".parse()?)
//!     .timeout(Duration::from_secs(5))
//!     .parameters(hello)
//!     .connect(|context| Ok(context.protection_domain()?.queue_pair()))?;
//! let queue = connection.queue_pair().send_queue::<rdma_core::Buffer>();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Event interface
//!
//! The blocking interface is built on [`EventChannel`], [`ConnectionId`] and [`ConnectionEvent`].
//! Of the methods of these types, only [`EventChannel::next`] blocks. The file descriptor of the
//! channel is non-blocking and becomes readable when an event is pending. The order of calls and
//! events:
//!
//! | connecting side | listening side |
//! |---|---|
//! | [`resolve_address`](ConnectionId::resolve_address), event [`AddressResolved`](ConnectionEventKind::AddressResolved) | [`bind`](ConnectionId::bind), [`listen`](ConnectionId::listen) |
//! | [`resolve_route`](ConnectionId::resolve_route), event [`RouteResolved`](ConnectionEventKind::RouteResolved) | |
//! | [`prepare`](ConnectionId::prepare), [`connect`](ConnectionId::connect) | event [`ConnectRequest`](ConnectionEventKind::ConnectRequest) |
//! | event [`ConnectResponse`](ConnectionEventKind::ConnectResponse) | [`prepare`](ConnectionRequest::prepare), [`accept`](ConnectionRequest::accept) |
//! | [`establish`](ConnectionId::establish) | event [`Established`](ConnectionEventKind::Established) |
//!
//! Every event is acknowledged when it is read, so dropping an identifier never waits. An event
//! contains copies of its data, and owns the new identifier of a connect request.
//!
//! # Devices
//!
//! The device of a connection is known once the address has been resolved or the connect request
//! has arrived. [`ConnectionId::context`] opens the device once for all connections. The queue pair
//! of the connection must belong to this device, but may use any context of the device.
//!
//! Only kernel devices have a connection manager. Without one, for example with softroce only,
//! [`EventChannel::new`] returns [`ConnectionError::NoManager`], for which
//! [`Error::is_unsupported`](crate::Error::is_unsupported) is true.
//!
//! # Threads
//!
//! All types are `Send` and `Sync`. librdmacm locks the data that its identifiers share, but
//! reading an event writes to the identifier of the event. This crate therefore uses a lock per
//! channel for all operations on the channel and its identifiers. No thread holds the lock while it
//! waits. After `fork` the child shares the channels' descriptors and must not use this module.

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
