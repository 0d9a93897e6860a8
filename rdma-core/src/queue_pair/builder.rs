//! Queue pairs to be.

use std::sync::Arc;

use ibverbs_sys::ibv_qp_type;

use super::connect::{to_init, to_ready};
use super::{ConcurrentReceiveQueue, ConnectOptions, Endpoint, QueuePair, ReceiveQueue};
use crate::completion::CompletionQueue;
use crate::device::{AddressChoice, LocalAddress};
use crate::error::{Error, Result};
use crate::ffi::{QueuePairHandle, QueuePairSizes};
use crate::memory::AccessFlags;
use crate::protection_domain::ProtectionDomain;

/// Settings of a queue pair to be, from [`ProtectionDomain::queue_pair`].
#[derive(Debug, Clone)]
#[must_use = "a builder makes nothing until `build`"]
pub struct QueuePairBuilder {
    domain: ProtectionDomain,
    send_completions: Option<CompletionQueue>,
    receive_completions: Option<CompletionQueue>,
    sizes: QueuePairSizes,
    address: AddressChoice,
    access: AccessFlags,
    incoming_reads: u8,
    outgoing_reads: u8,
}

impl QueuePairBuilder {
    pub(crate) fn new(domain: ProtectionDomain) -> Self {
        let sizes = QueuePairSizes {
            send_requests: 128,
            receive_requests: 128,
            send_elements: 4,
            receive_elements: 4,
            inline_data: 0,
        };
        Self {
            domain,
            send_completions: None,
            receive_completions: None,
            sizes,
            address: AddressChoice::default(),
            access: AccessFlags::REMOTE,
            incoming_reads: 16,
            outgoing_reads: 16,
        }
    }

    /// Where sends, reads, writes and atomics complete. Without it the queue pair makes its own.
    #[doc(alias = "send_cq")]
    pub fn send_completions(mut self, queue: &CompletionQueue) -> Self {
        self.send_completions = Some(queue.clone());
        self
    }

    /// Where receives complete. Without it, where sends do.
    #[doc(alias = "recv_cq")]
    pub fn receive_completions(mut self, queue: &CompletionQueue) -> Self {
        self.receive_completions = Some(queue.clone());
        self
    }

    /// How many send requests can be outstanding. Default 128.
    #[doc(alias = "max_send_wr")]
    pub fn send_requests(mut self, count: u32) -> Self {
        self.sizes.send_requests = count;
        self
    }

    /// How many receive requests can be outstanding. Default 128.
    #[doc(alias = "max_recv_wr")]
    pub fn receive_requests(mut self, count: u32) -> Self {
        self.sizes.receive_requests = count;
        self
    }

    /// How many pieces of memory a request can have, sending and receiving. Default 4.
    #[doc(alias = "max_send_sge")]
    #[doc(alias = "max_recv_sge")]
    pub fn elements(mut self, count: u32) -> Self {
        self.sizes.send_elements = count;
        self.sizes.receive_elements = count;
        self
    }

    /// How many bytes can be sent [inline](super::SendRequest::inline). Default 0.
    #[doc(alias = "max_inline_data")]
    pub fn inline_data(mut self, bytes: u32) -> Self {
        self.sizes.inline_data = bytes;
        self
    }

    /// Which port and GID to use. Default: chosen, see [`Context::address`](crate::Context::address).
    pub fn address(mut self, choice: AddressChoice) -> Self {
        self.address = choice;
        self
    }

    /// What the peer may do through this queue pair, where the memory grants it too. Default all.
    #[doc(alias = "qp_access_flags")]
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.access = access;
        self
    }

    /// How many RDMA reads and atomics of the peer to take at once, at most. Default 16, or what
    /// the device can.
    #[doc(alias = "max_dest_rd_atomic")]
    pub fn incoming_reads(mut self, count: u8) -> Self {
        self.incoming_reads = count;
        self
    }

    /// How many RDMA reads and atomics to have outstanding, at most. Default 16, or what the device
    /// and the peer can.
    #[doc(alias = "max_rd_atomic")]
    pub fn outgoing_reads(mut self, count: u8) -> Self {
        self.outgoing_reads = count;
        self
    }

    /// Makes the queue pair, in state INIT: it can be posted receives and told to the peer.
    ///
    /// # Errors
    ///
    /// What [`Context::address`](crate::Context::address) says of port and GID,
    /// [`Error::InvalidArgument`] for a completion queue of another device, and the verbs'.
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn build(self) -> Result<PreparedQueuePair> {
        let context = self.domain.context();
        let address = context.address(self.address)?;
        let attributes = context.attributes()?;
        let send_completions = match self.send_completions {
            Some(queue) => queue,
            None => {
                let room = self
                    .sizes
                    .send_requests
                    .saturating_add(self.sizes.receive_requests);
                context.completion_queue(room.max(1)).build()?
            }
        };
        let receive_completions = self
            .receive_completions
            .unwrap_or_else(|| send_completions.clone());
        for queue in [&send_completions, &receive_completions] {
            if !Arc::ptr_eq(queue.handle().context(), context.handle()) {
                let reason = "the completion queue is of another context";
                return Err(Error::invalid("queue pair", reason));
            }
        }
        let handle = QueuePairHandle::create(
            Arc::clone(self.domain.handle()),
            Arc::clone(send_completions.handle()),
            Arc::clone(receive_completions.handle()),
            ibv_qp_type::IBV_QPT_RC,
            self.sizes,
        )?;
        to_init(&handle, &address, self.access)?;
        let local = Endpoint {
            queue_pair: handle.number(),
            packet_sequence: Endpoint::random_packet_sequence(),
            gid: address.gid,
            lid: address.lid,
            mtu: address.mtu,
            incoming_reads: self.incoming_reads.min(attributes.max_incoming_reads()),
            outgoing_reads: self.outgoing_reads.min(attributes.max_outgoing_reads()),
        };
        Ok(PreparedQueuePair {
            handle: Arc::new(handle),
            send_completions,
            receive_completions,
            address,
            local,
        })
    }
}

/// A queue pair that is not connected yet (INIT): receives can be posted to it, sends cannot.
///
/// ```
/// # fn example(prepared: rdma_core::PreparedQueuePair) {
/// let queue = prepared.receive_queue::<rdma_core::Buffer>();
/// # }
/// ```
///
/// ```compile_fail,E0599
/// # fn example(prepared: rdma_core::PreparedQueuePair) {
/// let queue = prepared.send_queue::<rdma_core::Buffer>();
/// # }
/// ```
#[derive(Debug)]
pub struct PreparedQueuePair {
    handle: Arc<QueuePairHandle>,
    send_completions: CompletionQueue,
    receive_completions: CompletionQueue,
    address: LocalAddress,
    local: Endpoint,
}

impl PreparedQueuePair {
    /// What the peer must know.
    pub fn endpoint(&self) -> Endpoint {
        self.local
    }

    /// Its port and GID.
    pub fn address(&self) -> &LocalAddress {
        &self.address
    }

    /// A queue to post receives to, so that they are there before the peer sends.
    pub fn receive_queue<T: Send + 'static>(&self) -> ReceiveQueue<T> {
        ReceiveQueue::new(Arc::clone(&self.handle))
    }

    /// Like [`Self::receive_queue`], for any number of threads.
    pub fn concurrent_receive_queue<T: Send + 'static>(&self) -> ConcurrentReceiveQueue<T> {
        ConcurrentReceiveQueue::new(Arc::clone(&self.handle))
    }

    /// Connects it to the peer's queue pair: INIT to RTR to RTS.
    ///
    /// The peer must do the same with this end's [`endpoint`](Self::endpoint). Nothing is sent: that
    /// the peer is there shows in the first request.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for options out of range or an endpoint that cannot be, and the
    /// verb's, for example without a route to the peer's GID.
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(self, remote: &Endpoint, options: &ConnectOptions) -> Result<QueuePair> {
        to_ready(&self.handle, &self.address, &self.local, remote, options)?;
        let Self {
            handle,
            send_completions,
            receive_completions,
            address,
            local,
        } = self;
        let ends = (local, *remote);
        Ok(QueuePair::new(
            handle,
            send_completions,
            receive_completions,
            address,
            ends,
        ))
    }

    /// The C object, valid for as long as this.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_qp {
        self.handle.as_raw()
    }
}
