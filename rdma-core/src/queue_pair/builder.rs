//! The builder of queue pairs.

use std::sync::Arc;

use ibverbs_sys::ibv_device_cap_flags;

use super::parts::Parts;
use super::{
    Endpoint, ManualQueuePair, PreparedQueuePair, QueuePairCreateFlags, SendOperations, Transport,
};
use crate::completion::CompletionQueue;
use crate::device::{AddressChoice, DeviceAttributes, LocalAddress};
use crate::error::{Error, Result};
use crate::ffi::{
    CompletionQueueHandle, QueuePairHandle, QueuePairPlan, QueuePairSizes,
    SharedReceiveQueueHandle, XrcDomainHandle,
};
use crate::memory::AccessFlags;
use crate::protection_domain::ProtectionDomain;
use crate::receive::{SharedReceiveQueue, XrcDomain};

/// A builder that collects the settings of a new queue pair and then creates the queue pair.
/// Returned by [`ProtectionDomain::queue_pair`].
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
    pkey_index: u16,
    incoming_reads: u8,
    outgoing_reads: u8,
    create_flags: QueuePairCreateFlags,
    source_number: Option<u32>,
    segmentation_header: Option<u16>,
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
            pkey_index: 0,
            incoming_reads: 16,
            outgoing_reads: 16,
            create_flags: QueuePairCreateFlags::empty(),
            source_number: None,
            segmentation_header: None,
        }
    }

    /// Sets the transport type. The default is [`Transport::ReliableConnected`].
    #[doc(alias = "qp_type")]
    pub fn transport(mut self, kind: Transport) -> Self {
        self.kind = kind;
        self
    }

    /// Makes the queue pair post requests by the functions `ibv_wr_*` (extended posting). The queue
    /// pair can post all operations that the specification defines for its
    /// [`transport`](Self::transport).
    #[doc(alias = "ibv_create_qp_ex")]
    #[doc(alias = "IBV_QP_INIT_ATTR_SEND_OPS_FLAGS")]
    pub fn extended_posting(mut self) -> Self {
        self.operations = Some(None);
        self
    }

    /// Makes the queue pair post requests by the functions `ibv_wr_*` (extended posting). The queue
    /// pair can post only the operations in `operations`.
    #[doc(alias = "ibv_create_qp_ex")]
    #[doc(alias = "send_ops_flags")]
    pub fn operations(mut self, operations: SendOperations) -> Self {
        self.operations = Some(Some(operations));
        self
    }

    /// Makes every send request produce a completion, including requests that the program made
    /// [unsignaled](super::SendRequest::unsignaled).
    #[doc(alias = "sq_sig_all")]
    pub fn signal_all(mut self) -> Self {
        self.signals_all = true;
        self
    }

    /// Makes the queue pair take its receives from the shared receive queue `queue`. The queue pair
    /// then has no receive queue of its own.
    #[doc(alias = "srq")]
    pub fn shared_receive_queue<T: Send + 'static>(
        mut self,
        queue: &SharedReceiveQueue<T>,
    ) -> Self {
        self.shared_receive_queue = Some(Arc::clone(queue.handle()));
        self
    }

    /// Sets the XRC domain of a queue pair of type [`XrcTarget`](Transport::XrcTarget). An XRC
    /// domain is a group of shared receive queues, to which the queue pair delivers messages.
    #[doc(alias = "xrcd")]
    pub fn xrc_domain(mut self, domain: &XrcDomain) -> Self {
        self.xrc_domain = Some(Arc::clone(domain.handle()));
        self
    }

    /// Sets the completion queue for send requests. By default, [`Self::build`] creates a
    /// completion queue that only this queue pair uses.
    #[doc(alias = "send_cq")]
    pub fn send_completions(mut self, queue: &CompletionQueue) -> Self {
        self.send_completions = Some(queue.clone());
        self
    }

    /// Sets the completion queue for receives. The default is the completion queue for send
    /// requests.
    #[doc(alias = "recv_cq")]
    pub fn receive_completions(mut self, queue: &CompletionQueue) -> Self {
        self.receive_completions = Some(queue.clone());
        self
    }

    /// Sets the maximum number of outstanding send requests. The default is 128.
    #[doc(alias = "max_send_wr")]
    pub fn send_requests(mut self, count: u32) -> Self {
        self.sizes.send_requests = count;
        self
    }

    /// Sets the maximum number of outstanding receive requests. The default is 128.
    #[doc(alias = "max_recv_wr")]
    pub fn receive_requests(mut self, count: u32) -> Self {
        self.sizes.receive_requests = count;
        self
    }

    /// Sets the maximum number of scatter/gather elements of a send or receive request. The default
    /// is 4.
    #[doc(alias = "max_send_sge")]
    #[doc(alias = "max_recv_sge")]
    pub fn elements(mut self, count: u32) -> Self {
        self.sizes.send_elements = count;
        self.sizes.receive_elements = count;
        self
    }

    /// Sets the maximum number of scatter/gather elements of a send request. The default is 4.
    #[doc(alias = "max_send_sge")]
    pub fn send_elements(mut self, count: u32) -> Self {
        self.sizes.send_elements = count;
        self
    }

    /// Sets the maximum number of scatter/gather elements of a receive request. The default is 4.
    #[doc(alias = "max_recv_sge")]
    pub fn receive_elements(mut self, count: u32) -> Self {
        self.sizes.receive_elements = count;
        self
    }

    /// Sets the maximum length in bytes of the [inline](super::SendRequest::inline) data of a
    /// request. Posting a request copies the inline data. The default is 0: no inline data.
    #[doc(alias = "max_inline_data")]
    pub fn inline_data(mut self, bytes: u32) -> Self {
        self.sizes.inline_data = bytes;
        self
    }

    /// Sets the local port and the GID that the queue pair uses. By default the crate chooses both:
    /// see [`Context::address`](crate::Context::address).
    pub fn address(mut self, choice: AddressChoice) -> Self {
        self.address = choice;
        self
    }

    /// Sets the remote access rights: the operations that the peer may perform through this queue
    /// pair. The memory must also be registered with these rights. The default is all remote
    /// rights.
    #[doc(alias = "qp_access_flags")]
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.access = access;
        self
    }

    /// Sets the maximum number of RDMA reads and atomics that this queue pair executes for the peer
    /// at the same time. The default is 16. The limit of the device applies if it is lower.
    #[doc(alias = "max_dest_rd_atomic")]
    pub fn incoming_reads(mut self, count: u8) -> Self {
        self.incoming_reads = count;
        self
    }

    /// Sets the maximum number of outstanding RDMA reads and atomics of this queue pair. The
    /// default is 16. The limits of the device and of the peer apply if they are lower.
    #[doc(alias = "max_rd_atomic")]
    pub fn outgoing_reads(mut self, count: u8) -> Self {
        self.outgoing_reads = count;
        self
    }

    /// Sets the index of the partition key in the port's P_Key table. The default is 0.
    pub fn pkey_index(mut self, index: u16) -> Self {
        self.pkey_index = index;
        self
    }

    /// Sets the creation flags of the queue pair, for example to remove the VLAN tag from received
    /// frames. Few devices support creation flags.
    #[doc(alias = "IBV_QP_INIT_ATTR_CREATE_FLAGS")]
    pub fn create_flags(mut self, flags: QueuePairCreateFlags) -> Self {
        self.create_flags = flags;
        self
    }

    /// Sets the source queue pair number in packets that the queue pair sends. Few devices support
    /// this setting.
    #[doc(alias = "source_qpn")]
    #[doc(alias = "IBV_QP_CREATE_SOURCE_QPN")]
    pub fn source_number(mut self, number: u32) -> Self {
        self.source_number = Some(number);
        self
    }

    /// Sets the maximum length in bytes of the packet headers of a segmented send. A segmented send
    /// (TSO) is a send that the device divides into packets. Few devices support segmented sends.
    #[doc(alias = "max_tso_header")]
    #[doc(alias = "IBV_QP_INIT_ATTR_MAX_TSO_HEADER")]
    pub fn segmentation_header(mut self, bytes: u16) -> Self {
        self.segmentation_header = Some(bytes);
        self
    }

    /// Creates the queue pair and moves it to the state INIT. The program can then post receives,
    /// and send the endpoint of the queue pair to the peer.
    ///
    /// # Errors
    ///
    /// The errors of [`Context::address`](crate::Context::address) for the choice of port and GID,
    /// [`Error::InvalidArgument`] for a completion queue of another device, and the errors of the
    /// verbs that this method calls.
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn build(self) -> Result<PreparedQueuePair> {
        let manual = self.create()?;
        manual.to_init()?;
        manual.prepared()
    }

    /// Creates the queue pair in the state RESET. The program then performs each state transition
    /// itself.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::build`].
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create(self) -> Result<ManualQueuePair> {
        let address = self.domain.context().address(self.address)?;
        self.create_at(address)
    }

    pub(crate) fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    pub(crate) fn kind(&self) -> Transport {
        self.kind
    }

    /// Creates the queue pair for the local port and the GID in `address`. Then calls `init`, which
    /// moves the queue pair from RESET to INIT.
    pub(crate) fn build_with(
        self,
        address: LocalAddress,
        init: impl FnOnce(&QueuePairHandle, AccessFlags) -> Result<()>,
    ) -> Result<PreparedQueuePair> {
        let access = self.access;
        let prepared = PreparedQueuePair::new(self.create_at(address)?.into_parts());
        init(prepared.handle(), access)?;
        Ok(prepared)
    }

    /// Creates the queue pair in the state RESET, for the local port and the GID in `address`.
    pub(crate) fn create_at(self, address: LocalAddress) -> Result<ManualQueuePair> {
        let attributes = self.domain.context().attributes()?;
        let parts = self.parts(address, &attributes, |plan| {
            plan.checked_against(&attributes)?;
            QueuePairHandle::create(plan)
        })?;
        Ok(ManualQueuePair::new(parts))
    }

    /// Converts an existing queue pair to a `ManualQueuePair`. Other code or another process has
    /// created the queue pair, for example a vendor's extension. `make` gets the objects and
    /// settings of this builder, takes ownership of the queue pair, and returns a handle that keeps
    /// these objects alive.
    pub(crate) fn adopt(
        self,
        make: impl FnOnce(QueuePairPlan) -> Result<QueuePairHandle>,
    ) -> Result<ManualQueuePair> {
        let context = self.domain.context();
        let (address, attributes) = (context.address(self.address)?, context.attributes()?);
        let parts = self.parts(address, &attributes, make)?;
        Ok(ManualQueuePair::new(parts))
    }

    /// Returns whether the program has set a completion queue for send requests.
    pub(crate) fn has_completions(&self) -> bool {
        self.send_completions.is_some()
    }

    /// Returns the completion queues that the program has set in this builder: none, one or two.
    pub(crate) fn completions(&self) -> impl Iterator<Item = Arc<CompletionQueueHandle>> {
        [&self.send_completions, &self.receive_completions]
            .into_iter()
            .flatten()
            .map(|queue| Arc::clone(queue.handle()))
    }

    /// Creates a queue pair by calling `make`, and returns the handle of the queue pair together
    /// with its settings.
    fn parts(
        self,
        address: LocalAddress,
        attributes: &DeviceAttributes,
        make: impl FnOnce(QueuePairPlan) -> Result<QueuePairHandle>,
    ) -> Result<Parts> {
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
                // Room for two more completions is needed for the marker requests that
                // `QueuePair::drain` posts.
                let room = room.saturating_add(2);
                let context = self.domain.context();
                context.completion_queue(room).build()?
            }
        };
        let receive_completions = self
            .receive_completions
            .unwrap_or_else(|| send_completions.clone());
        let operations = self
            .operations
            .map(|these| these.unwrap_or_else(|| SendOperations::of(kind)));
        if let Some(operations) = operations {
            operations.check_capabilities(self.domain.context())?;
        }
        let handle = make(QueuePairPlan {
            domain: Arc::clone(self.domain.handle()),
            kind,
            sizes,
            send_completions: Arc::clone(send_completions.handle()),
            receive_completions: Arc::clone(receive_completions.handle()),
            shared_receive_queue: self.shared_receive_queue,
            xrc_domain: self.xrc_domain,
            operations,
            signals_all: self.signals_all,
            create_flags: self.create_flags.bits(),
            source_number: self.source_number,
            segmentation_header: self.segmentation_header,
        })?;
        let local = Endpoint {
            queue_pair: handle.number(),
            packet_sequence: Endpoint::random_packet_sequence(),
            gid: address.gid,
            lid: address.lid,
            mtu: address.mtu,
            incoming_reads: self.incoming_reads.min(attributes.max_incoming_reads()),
            outgoing_reads: self.outgoing_reads.min(attributes.max_outgoing_reads()),
        };
        Ok(Parts {
            handle: Arc::new(handle),
            send_completions,
            receive_completions,
            address,
            access: self.access,
            pkey_index: self.pkey_index,
            local,
            remote: None,
        })
    }
}

impl QueuePairPlan {
    /// Returns an error if the device does not support XRC and the transport is XRC. Also returns
    /// an error for settings with which no device can create a queue pair, such as an XRC target
    /// without an XRC domain.
    fn checked_against(&self, device: &DeviceAttributes) -> Result<()> {
        let flags = device.as_raw().device_cap_flags;
        let xrc = matches!(self.kind, Transport::XrcInitiator | Transport::XrcTarget);
        if xrc && flags & ibv_device_cap_flags::IBV_DEVICE_XRC.0 == 0 {
            return Err(Error::Unsupported {
                what: self.kind.described(),
                device: self.domain.context().name().to_owned(),
            });
        }
        let reason = match self.kind {
            Transport::Driver | Transport::Unknown(_) => {
                "a vendor's kind is made by the vendor's extension"
            }
            Transport::XrcTarget if self.xrc_domain.is_none() => {
                "an XRC target needs an XRC domain"
            }
            Transport::XrcInitiator | Transport::XrcTarget
                if self.shared_receive_queue.is_some() =>
            {
                "an XRC queue pair has no shared receive queue: its peer's requests name one"
            }
            _ => return Ok(()),
        };
        Err(Error::invalid("queue pair", reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_a_vendor_and_a_target_without_a_domain_are_refused() {
        let domain = crate::Context::open("softroce0")
            .unwrap()
            .protection_domain()
            .unwrap();
        for kind in [
            Transport::Driver,
            Transport::Unknown(77),
            Transport::XrcTarget,
        ] {
            let refused = domain.queue_pair().transport(kind).create().unwrap_err();
            assert!(
                matches!(refused, Error::InvalidArgument { .. }),
                "{refused}"
            );
        }
    }
}
