//! Queue pairs to be.

use std::sync::Arc;

use super::connect::{to_init, to_ready};
use super::datagram::to_active;
use super::{
    ConcurrentReceiveQueue, ConnectOptions, DatagramOptions, Endpoint, QueuePair, ReceiveQueue,
    SendOperations, Transport,
};
use crate::completion::CompletionQueue;
use crate::device::{AddressChoice, LocalAddress};
use crate::error::{Error, Result};
use crate::ffi::{
    QueuePairHandle, QueuePairPlan, QueuePairSizes, SharedReceiveQueueHandle, XrcDomainHandle,
};
use crate::memory::AccessFlags;
use crate::protection_domain::ProtectionDomain;
use crate::receive::{SharedReceiveQueue, XrcDomain};

/// Settings of a queue pair to be, from [`ProtectionDomain::queue_pair`].
#[derive(Debug, Clone)]
#[must_use = "a builder makes nothing until `build`"]
pub struct QueuePairBuilder {
    domain: ProtectionDomain,
    kind: Transport,
    operations: Option<Option<SendOperations>>,
    signals_all: bool,
    shared_receive_queue: Option<Arc<SharedReceiveQueueHandle>>,
    xrc_domain: Option<Arc<XrcDomainHandle>>,
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
            kind: Transport::ReliableConnected,
            operations: None,
            signals_all: false,
            shared_receive_queue: None,
            xrc_domain: None,
            send_completions: None,
            receive_completions: None,
            sizes,
            address: AddressChoice::default(),
            access: AccessFlags::REMOTE,
            incoming_reads: 16,
            outgoing_reads: 16,
        }
    }

    /// Which service it gives. Default [`Transport::ReliableConnected`].
    #[doc(alias = "qp_type")]
    pub fn transport(mut self, kind: Transport) -> Self {
        self.kind = kind;
        self
    }

    /// Makes it fit for posting by the functions `ibv_wr_*`, with the operations that every queue
    /// pair of its [`transport`](Self::transport) has.
    #[doc(alias = "ibv_create_qp_ex")]
    #[doc(alias = "IBV_QP_INIT_ATTR_SEND_OPS_FLAGS")]
    pub fn extended_posting(mut self) -> Self {
        self.operations = Some(None);
        self
    }

    /// Like [`Self::extended_posting`], with these operations.
    #[doc(alias = "ibv_create_qp_ex")]
    #[doc(alias = "send_ops_flags")]
    pub fn operations(mut self, operations: SendOperations) -> Self {
        self.operations = Some(Some(operations));
        self
    }

    /// Signals every send request, whatever it says.
    #[doc(alias = "sq_sig_all")]
    pub fn signal_all(mut self) -> Self {
        self.signals_all = true;
        self
    }

    /// Takes its receives from a shared queue: it has no receives of its own then.
    #[doc(alias = "srq")]
    pub fn shared_receive_queue<T: Send + 'static>(
        mut self,
        queue: &SharedReceiveQueue<T>,
    ) -> Self {
        self.shared_receive_queue = Some(Arc::clone(queue.handle()));
        self
    }

    /// The XRC domain of an [`XrcTarget`](Transport::XrcTarget), to whose shared receive queues it
    /// delivers.
    #[doc(alias = "xrcd")]
    pub fn xrc_domain(mut self, domain: &XrcDomain) -> Self {
        self.xrc_domain = Some(Arc::clone(domain.handle()));
        self
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
        let address = self.domain.context().address(self.address)?;
        let place = address.clone();
        self.build_with(address, |handle, access| to_init(handle, &place, access))
    }

    pub(crate) fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    pub(crate) fn kind(&self) -> Transport {
        self.kind
    }

    /// Makes the queue pair for the port and GID of `address`; `init` takes it from RESET to INIT.
    pub(crate) fn build_with(
        self,
        address: LocalAddress,
        init: impl FnOnce(&QueuePairHandle, AccessFlags) -> Result<()>,
    ) -> Result<PreparedQueuePair> {
        let context = self.domain.context();
        let attributes = context.attributes()?;
        let kind = self.kind;
        let mut sizes = self.sizes;
        if !kind.has_send_queue() {
            (sizes.send_requests, sizes.send_elements, sizes.inline_data) = (0, 0, 0);
        }
        if !kind.has_receive_queue() || self.shared_receive_queue.is_some() {
            (sizes.receive_requests, sizes.receive_elements) = (0, 0);
        }
        let send_completions = match self.send_completions {
            Some(queue) => queue,
            None => {
                let shared = self.shared_receive_queue.as_ref();
                let receives = shared.map_or(sizes.receive_requests, |queue| queue.requests());
                let room = sizes.send_requests.saturating_add(receives);
                context.completion_queue(room.max(1)).build()?
            }
        };
        let receive_completions = self
            .receive_completions
            .unwrap_or_else(|| send_completions.clone());
        let operations = self
            .operations
            .map(|these| these.unwrap_or_else(|| SendOperations::of(kind)));
        let handle = QueuePairHandle::create(QueuePairPlan {
            domain: Arc::clone(self.domain.handle()),
            kind,
            sizes,
            send_completions: Arc::clone(send_completions.handle()),
            receive_completions: Arc::clone(receive_completions.handle()),
            shared_receive_queue: self.shared_receive_queue,
            xrc_domain: self.xrc_domain,
            operations,
            signals_all: self.signals_all,
            create_flags: 0,
            source_number: None,
            segmentation_header: None,
        })?;
        init(&handle, self.access)?;
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

/// A queue pair that is not connected or activated yet (INIT): receives can be posted to it, sends cannot.
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
    /// For queue pairs that are connected to one peer; datagram ones are [activated](Self::activate).
    /// The peer must do the same with this end's [`endpoint`](Self::endpoint). Nothing is sent: that
    /// the peer is there shows in the first request.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for options out of range or an endpoint that cannot be, and the
    /// verb's, for example without a route to the peer's GID.
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(self, remote: &Endpoint, options: &ConnectOptions) -> Result<QueuePair> {
        if !self.kind().is_connected() {
            let reason = format!("a {} queue pair has no peer: activate it", self.kind());
            return Err(Error::invalid("queue pair", reason));
        }
        to_ready(&self.handle, &self.address, &self.local, remote, options)?;
        Ok(self.in_operation(Some(*remote)))
    }

    /// Makes it send and receive, without a peer: INIT to RTR to RTS. For
    /// [`Transport::Datagram`] and [`Transport::RawPacket`], of which the latter has no queue key.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a queue pair that wants a peer, and the verb's.
    #[doc(alias = "ibv_modify_qp")]
    pub fn activate(self, options: &DatagramOptions) -> Result<QueuePair> {
        if !matches!(self.kind(), Transport::Datagram | Transport::RawPacket) {
            let reason = format!("a {} queue pair has a peer: connect it", self.kind());
            return Err(Error::invalid("queue pair", reason));
        }
        to_active(&self.handle, options)?;
        Ok(self.in_operation(None))
    }

    pub(crate) fn handle(&self) -> &QueuePairHandle {
        &self.handle
    }

    /// It with these ends, for whoever brought it up.
    pub(crate) fn in_operation_as(self, local: Endpoint, remote: Option<Endpoint>) -> QueuePair {
        Self { local, ..self }.in_operation(remote)
    }

    fn in_operation(self, remote: Option<Endpoint>) -> QueuePair {
        let Self {
            handle,
            send_completions,
            receive_completions,
            address,
            local,
        } = self;
        let ends = (local, remote);
        QueuePair::new(handle, send_completions, receive_completions, address, ends)
    }

    /// Which service it gives.
    #[doc(alias = "qp_type")]
    pub fn kind(&self) -> Transport {
        self.handle.kind()
    }

    /// The C object, valid for as long as this.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_qp {
        self.handle.as_raw()
    }
}
