//! Queue pairs whose attributes come from the connection manager.

use ibverbs_sys::{ibv_qp_attr_mask as mask, ibv_qp_state as state};

use super::parameters::negotiated;
use super::{ConnectionId, ConnectionParameters, PeerParameters};
use crate::address::{AddressVector, Destination};
use crate::context::Context;
use crate::device::{AddressChoice, Gid, GidType, LinkLayer, LocalAddress, Mtu};
use crate::error::{Error, Result};
use crate::protection_domain::ProtectionDomain;
use crate::queue_pair::{
    DatagramOptions, Endpoint, PreparedQueuePair, QueuePair, QueuePairBuilder, Transport,
};

/// Bits of the attribute mask that verbs do not define, but that old kernels set for internal use.
/// [`establish`] clears these bits on InfiniBand before it modifies the queue pair, as librdmacm
/// does.
const KERNEL_BITS: mask = mask(0x00e0_0000);

/// Creates a queue pair with the settings of `builder`, and moves the queue pair from RESET to
/// INIT. Returns an error if `builder` is not for the device of the identifier.
pub(super) fn prepare(id: &ConnectionId, builder: QueuePairBuilder) -> Result<PreparedQueuePair> {
    let Some(device) = id.device_name() else {
        let reason = "it has no device yet: resolve an address, or bind it to one";
        return Err(Error::invalid("connection identifier", reason));
    };
    let context = builder.domain().context().clone();
    if context.name() != device {
        let reason = format!(
            "it is of device {}, and the connection goes through {device}",
            context.name()
        );
        return Err(Error::invalid("queue pair", reason));
    }
    let datagram = id.handle().is_datagram();
    let builder = if datagram {
        builder.transport(Transport::Datagram)
    } else {
        builder
    };
    check_kind(id, builder.kind())?;
    let address = address(id, &context)?;
    builder.build_with(address, |handle, access| {
        let (mut attributes, what) = id.handle().queue_pair_attributes(state::IBV_QPS_INIT)?;
        // Replaces the access rights that the connection manager chose: they exclude RDMA reads
        // unless both sides have already agreed on a number of reads. The limit of incoming reads
        // that the connection manager chose would also exclude them.
        attributes.qp_access_flags = access.bits();
        handle.modify_raw(&attributes, what)
    })
}

/// Returns an error if a queue pair with the transport `kind` cannot be used with this identifier.
pub(super) fn check_kind(id: &ConnectionId, kind: Transport) -> Result<()> {
    let wanted = if id.handle().is_datagram() {
        Transport::Datagram
    } else {
        Transport::ReliableConnected
    };
    if kind == wanted {
        return Ok(());
    }
    let reason = format!("it is {kind}, and the connection identifier is for {wanted}");
    Err(Error::invalid("queue pair", reason))
}

/// Returns the local port and GID that the connection identifier uses.
fn address(id: &ConnectionId, context: &Context) -> Result<LocalAddress> {
    let port = id.port().unwrap_or(1);
    let gid = Gid(id.handle().local_gid());
    let gids = context.gids()?;
    let same = || {
        gids.iter()
            .filter(|entry| entry.port == port && entry.gid == gid)
    };
    // The GID table contains the same GID once for each version of RoCE.
    let best = same()
        .find(|entry| entry.kind == GidType::RoceV2)
        .or_else(|| same().next());
    context.address(AddressChoice {
        port: Some(port),
        gid_index: best.map(|entry| entry.index),
        ..AddressChoice::default()
    })
}

/// Connects the prepared queue pair to the queue pair of `peer`, and returns the connected queue
/// pair. Moves the queue pair from INIT to RTR (ready to receive), and then to RTS (ready to send).
pub(super) fn establish(
    id: &ConnectionId,
    prepared: PreparedQueuePair,
    peer: &PeerParameters,
    parameters: &ConnectionParameters,
) -> Result<QueuePair> {
    check_kind(id, prepared.kind())?;
    let mut local = negotiated(prepared.endpoint(), peer);
    let infiniband = prepared.address().link_layer == LinkLayer::InfiniBand;
    let (mut attributes, mut what) = id.handle().queue_pair_attributes(state::IBV_QPS_RTR)?;
    if infiniband {
        what = mask(what.0 & !KERNEL_BITS.0);
    }
    attributes.max_dest_rd_atomic = local.incoming_reads;
    attributes.min_rnr_timer = parameters.rnr_timer();
    let vector = AddressVector::from_raw(&attributes.ah_attr);
    let path_mtu = attributes.path_mtu;
    let path_mtu = Mtu::ALL.into_iter().find(|mtu| mtu.to_raw() == path_mtu);
    let remote = Endpoint {
        queue_pair: attributes.dest_qp_num,
        packet_sequence: attributes.rq_psn,
        gid: vector.gid.unwrap_or_default(),
        lid: vector.lid,
        mtu: path_mtu.unwrap_or(local.mtu),
        incoming_reads: peer.outgoing_reads,
        outgoing_reads: peer.incoming_reads,
    };
    let handle = prepared.handle();
    handle.modify_raw(&attributes, what)?;

    let (mut attributes, what) = id.handle().queue_pair_attributes(state::IBV_QPS_RTS)?;
    attributes.max_rd_atomic = local.outgoing_reads;
    local.packet_sequence = attributes.sq_psn;
    handle.modify_raw(&attributes, what)?;
    Ok(prepared.into_rts(local, Some(remote)))
}

/// Moves a datagram queue pair from INIT to RTR (ready to receive), and then to RTS (ready to
/// send). The queue pair gets the queue key of the identifier's port space.
pub(super) fn activate(id: &ConnectionId, prepared: PreparedQueuePair) -> Result<QueuePair> {
    let (attributes, _) = id.handle().queue_pair_attributes(state::IBV_QPS_INIT)?;
    prepared.activate(&DatagramOptions::new(attributes.qkey))
}

/// Returns an endpoint with the queue pair number `queue_pair`, for a peer whose other parameters
/// are not known. All other fields have placeholder values.
pub(super) fn placeholder_endpoint(queue_pair: u32) -> Endpoint {
    Endpoint {
        queue_pair,
        packet_sequence: 0,
        gid: Gid::default(),
        lid: 0,
        mtu: Mtu::Mtu256,
        incoming_reads: 0,
        outgoing_reads: 0,
    }
}

impl PeerParameters {
    /// Returns the destination for datagrams to this peer, or `None` if the peer is not a datagram
    /// peer. `domain` is the protection domain of the queue pairs that send the datagrams.
    ///
    /// # Errors
    ///
    /// The error of `ibv_create_ah`.
    #[doc(alias = "ibv_create_ah")]
    pub fn destination(&self, domain: &ProtectionDomain) -> Result<Option<Destination>> {
        let Some(peer) = self.datagram else {
            return Ok(None);
        };
        Ok(Some(Destination {
            handle: crate::address::AddressHandle::new(domain, &peer.address)?,
            queue_pair: self.queue_pair,
            qkey: peer.qkey,
        }))
    }
}

impl super::MulticastMember {
    /// Returns the destination for datagrams to this multicast group. `domain` is the protection
    /// domain of the queue pairs that send the datagrams.
    ///
    /// # Errors
    ///
    /// The error of `ibv_create_ah`.
    #[doc(alias = "ibv_create_ah")]
    pub fn destination(&self, domain: &ProtectionDomain) -> Result<Destination> {
        Ok(Destination {
            handle: crate::address::AddressHandle::new(domain, &self.address)?,
            queue_pair: self.queue_pair,
            qkey: self.qkey,
        })
    }
}
