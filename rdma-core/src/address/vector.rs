//! Address vectors: the path to a port of the network.

use super::StaticRate;
use crate::completion::WorkCompletion;
use crate::context::Context;
use crate::device::{Gid, LinkLayer, LocalAddress};
use crate::error::{Error, Result};
use crate::ffi;
use crate::queue_pair::Endpoint;

/// The path that packets take from a local port to another port, or to a multicast group.
///
/// ```
/// # use rdma_core::{AddressChoice, Context, Gid};
/// # use rdma_core::address::AddressVector;
/// # let context = Context::open("softroce0")?;
/// let here = context.address(AddressChoice::default())?;
/// let there = Gid::from(std::net::IpAddr::from([127, 0, 0, 1]));
/// let vector = AddressVector { traffic_class: 0x20, ..AddressVector::new(&here, there, 0) };
/// # Ok::<(), rdma_core::Error>(())
/// ```
#[doc(alias = "ibv_ah_attr")]
#[doc(alias = "ibv_global_route")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressVector {
    /// The local port to send from.
    #[doc(alias = "port_num")]
    pub port: u8,
    /// The destination GID. `None` omits the global route header and uses the LID only, which works
    /// on InfiniBand only.
    #[doc(alias = "dgid")]
    pub gid: Option<Gid>,
    /// The index of the source GID in the port's GID table. Ignored if `gid` is `None`.
    #[doc(alias = "sgid_index")]
    pub gid_index: u32,
    /// The flow label, 20 bits. Ignored if `gid` is `None`.
    pub flow_label: u32,
    /// The hop limit of packets. Ignored if `gid` is `None`.
    pub hop_limit: u8,
    /// The traffic class. On RoCE v2, the traffic class is the DSCP and ECN byte of the IP header.
    /// Ignored if `gid` is `None`.
    pub traffic_class: u8,
    /// The destination LID, or 0 on Ethernet.
    #[doc(alias = "dlid")]
    pub lid: u16,
    /// The service level of packets, 0 to 15: a class of traffic. The network can, for example,
    /// give each class a priority.
    #[doc(alias = "sl")]
    pub service_level: u8,
    /// The low bits of the LID from which packets are sent, if the port has several LIDs.
    #[doc(alias = "src_path_bits")]
    pub source_path_bits: u8,
    /// The maximum rate of packets.
    pub static_rate: StaticRate,
}

impl AddressVector {
    /// The default hop limit of packets.
    pub const DEFAULT_HOP_LIMIT: u8 = 64;

    /// Creates a path from the port and the GID of `from` to the GID `gid`. On InfiniBand, if one
    /// of the two GIDs is zero, the path uses only the LID `lid`.
    pub fn new(from: &LocalAddress, gid: Gid, lid: u16) -> Self {
        let both = !from.gid.is_zero() && !gid.is_zero();
        let global = from.link_layer == LinkLayer::Ethernet || both;
        Self {
            port: from.port,
            gid: global.then_some(gid),
            gid_index: from.gid_index,
            flow_label: 0,
            hop_limit: Self::DEFAULT_HOP_LIMIT,
            traffic_class: 0,
            lid,
            service_level: 0,
            source_path_bits: 0,
            static_rate: StaticRate::PORT,
        }
    }

    /// Creates a path from the port and the GID of `from` to the port of `peer`, a remote queue
    /// pair.
    pub fn to_endpoint(from: &LocalAddress, peer: &Endpoint) -> Self {
        Self::new(from, peer.gid, peer.lid)
    }

    /// Creates a path for replies to a received datagram.
    ///
    /// `grh` is the beginning of the memory of the receive. The first 40 bytes are not a part of
    /// the message. These 40 bytes contain the global route header, or an IPv4 header in the last
    /// 20 bytes (RoCE v2 annex, A17.4.5.1). `port` is the number of the port that received the
    /// datagram.
    ///
    /// The method fails for a datagram to a multicast group, because the datagram contains no GID
    /// of this port. In that case use [`Self::new`] with the
    /// [source](super::DatagramHeader::source) of the header.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for fewer than 40 bytes, and the error of `ibv_init_ah_from_wc`,
    /// for example because the datagram's destination is not a GID of the port.
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn from_completion(
        context: &Context,
        completion: &WorkCompletion,
        grh: &[u8],
        port: u8,
    ) -> Result<Self> {
        let Some(header) = grh.first_chunk() else {
            let reason = format!("{} bytes are less than the 40 of a header", grh.len());
            return Err(Error::invalid("beginning of a datagram", reason));
        };
        ffi::vector_of_completion(context.handle(), completion, header, port)
    }

    /// Returns an error if a field is out of the range that the protocol allows. Checks only fields
    /// whose types allow such values.
    pub(crate) fn checked(&self) -> Result<()> {
        let limits = [
            ("service level", u32::from(self.service_level), 15),
            ("flow label", self.flow_label, 0xf_ffff),
            ("GID index", self.gid_index, u8::MAX.into()),
        ];
        match limits.into_iter().find(|(_, value, limit)| value > limit) {
            Some((what, value, limit)) => {
                Err(Error::invalid(what, format!("{value} is above {limit}")))
            }
            None => Ok(()),
        }
    }
}
