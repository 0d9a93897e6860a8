//! Safe, synchronous RDMA.
//!
//! Every verbs object is an owned value that holds references to the objects from which it was
//! created (its parents). A parent is therefore destroyed after its children, and the types need no
//! lifetime parameters:
//!
//! ```text
//! Device -> Context -> ProtectionDomain -> Buffer, ExposedMemory, MemoryWindow
//!              |              |
//!              |              +----------> PreparedQueuePair -> QueuePair -> SendQueue, ReceiveQueue
//!              |              +----------> SharedReceiveQueue, AddressHandle
//!              +-> CompletionChannel, CompletionQueue, XrcDomain
//! ```
//!
//! The root of the crate contains the types that a first program needs. A module contains these and
//! all other types of its subject: [`device`], [`memory`], [`completion`], [`queue_pair`],
//! [`receive`], [`address`], [`cm`].
//!
//! # What it does
//!
//! - A parent object creates its children. An object is destroyed when its last handle is dropped.
//!   The program may drop the handles in any order.
//! - Posting a request moves its memory into the queue, and the completion gives the memory back.
//!   Safe code therefore can neither access memory that the device is writing nor free it. See
//!   [`memory`] for the rules.
//! - The crate chooses the port and the GID, and logs the reason, unless the program chooses them:
//!   see [`Context::address`].
//! - An error names the verb, the object, the `errno` and, where known, the remedy.
//! - In general an operation needs no allocation, no hashing and no lock of this crate. Two cases
//!   are exceptions: one thread polls a completion that another thread waits for (for example in a
//!   scope or a drain), and a thread creates its first [batch](queue_pair::SendBatch).
//! - Objects are [`Send`], and are `Sync` where the verbs on them are thread-safe.
//!
//! # Three ways to post
//!
//! | way | memory of a request | cost of this crate |
//! |---|---|---|
//! | [`SendQueue`], [`ReceiveQueue`] and their concurrent variants | moved into the queue; the completion gives it back | one slot per request |
//! | [`QueuePair::scope`] | borrowed until the scope ends | one slot per request, and a wait at the end of the scope |
//! | [`QueuePair::post_send_raw`] and the other raw methods, `unsafe` | given by raw pointers | none |
//!
//! All three ways support batches, and both posting interfaces of verbs (`ibv_post_send` and
//! `ibv_wr_*`). The table of capabilities in the project's book lists every feature of verbs, with
//! the test that covers it.
//!
//! # What it does not do
//!
//! This crate depends on no async runtime and spawns no thread. A method blocks only if its
//! documentation says so, for example [`CompletionChannel::wait`], [`AsyncEvents::wait`] and the
//! blocking interface of [`cm`].
//!
//! # Example
//!
//! Two queue pairs of one process, of which the first writes eight bytes to memory of the second:
//!
//! ```
//! use rdma_core::{AccessFlags, ConnectOptions, Context, SendRequest, WorkCompletion};
//!
//! let context = Context::open_default()?;
//! let domain = context.protection_domain()?;
//! let (left, right) = (domain.queue_pair().build()?, domain.queue_pair().build()?);
//! let (to_right, to_left) = (right.endpoint(), left.endpoint());
//! let options = ConnectOptions::default();
//! let (left, _right) = (left.connect(&to_right, &options)?, right.connect(&to_left, &options)?);
//!
//! let target = domain.allocate(8)?.expose(AccessFlags::REMOTE_WRITE)?;
//! let mut source = domain.allocate(8)?;
//! source.copy_from_slice(b"verbatim");
//!
//! let mut queue = left.send_queue();
//! queue.post(SendRequest::write(source, target.remote())).map_err(|refused| refused.error)?;
//! let mut room = [WorkCompletion::default()];
//! let source = loop {
//!     if let [completion] = left.send_completions().poll(&mut room)? {
//!         completion.result()?;
//!         break queue.complete(completion).next();
//!     }
//! };
//! let target = target.revoke()?;
//! assert_eq!(source.as_deref(), Some(&*target));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Trust
//!
//! The safe interface is sound whatever a peer does: memory that peers can write is never exposed
//! as a Rust slice, and a device never writes to memory that is exposed as a slice. The crate
//! relies on the device and its driver to keep the guarantees of verbs. Above all, a device must
//! not access memory after its deregistration or after the destruction of its queue pair.
//! [`memory`] lists these guarantees, the properties that depend on a correct peer, the limits
//! under relaxed ordering, and the effects of `fork`.
//!
//! # Environment
//!
//! | variable | meaning |
//! |---|---|
//! | `RDMA_DEVICE` | the device, and optionally the port, that [`Context::open_default`] opens: see [`DeviceSelector`](device::DeviceSelector) |
//! | `RDMA_GID_INDEX` | the GID index to use if the program chooses none: a number, or `auto` |

#![deny(unsafe_code)]

pub mod address;
pub mod cm;
pub mod completion;
mod context;
pub mod device;
mod error;
mod event;
#[allow(
    unsafe_code,
    reason = "the one place that calls verbs and owns what devices touch"
)]
mod ffi;
pub mod memory;
mod protection_domain;
pub mod queue_pair;
pub mod receive;
mod refused;

pub use completion::{
    CompletionChannel, CompletionQueue, WorkCompletion, WorkError, WorkOpcode, WorkStatus,
};
pub use context::Context;
pub use device::{AddressChoice, Device, Gid, Mtu, devices};
pub use error::{Errno, Error, Result};
pub use event::{AsyncEvent, AsyncEventObject, AsyncEvents};
pub use memory::{AccessFlags, Buffer, ExposedMemory, FrozenBuffer, RemoteMemory};
pub use protection_domain::{ProtectionDomain, ThreadDomain};
pub use queue_pair::{
    ConnectOptions, DatagramOptions, Endpoint, PostError, PreparedQueuePair, QueuePair,
    QueuePairBuilder, QueuePairMap, QueuePairState, ReceiveQueue, Scope, SendQueue, SendRequest,
    Transport,
};
pub use receive::SharedReceiveQueue;
pub use refused::Refused;
