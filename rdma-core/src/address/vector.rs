//! The way to a port of the network.

use super::StaticRate;
use crate::completion::WorkCompletion;
use crate::context::Context;
use crate::device::{Gid, LinkLayer, LocalAddress};
use crate::error::{Error, Result};
use crate::ffi;
use crate::queue_pair::Endpoint;

/// The way from a port of this machine to another port, or to a group of them.
///
/// ```
/// # use rdma_core::{AddressChoice, AddressVector, Context, Gid};
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
    /// The port of this machine to send from.
    #[doc(alias = "port_num")]
    pub port: u8,
    /// The destination's GID; `None` sends without a global route header, by LID alone, which is for
    /// InfiniBand only.
    #[doc(alias = "dgid")]
    pub gid: Option<Gid>,
    /// The place of the source's GID in the port's table. Without meaning where `gid` is `None`.
    #[doc(alias = "sgid_index")]
    pub gid_index: u32,
    /// The flow label, 20 bits. Without meaning where `gid` is `None`.
    pub flow_label: u32,
    /// How many routers a packet may pass. Without meaning where `gid` is `None`.
    pub hop_limit: u8,
    /// The traffic class; on RoCE v2 the IP header's byte of DSCP and ECN. Without meaning where
    /// `gid` is `None`.
    pub traffic_class: u8,
    /// The destination's LID; 0 on Ethernet.
    #[doc(alias = "dlid")]
    pub lid: u16,
    /// The service level, 0 to 15.
    #[doc(alias = "sl")]
    pub service_level: u8,
    /// The low bits of the source's LID, where the port has several.
    #[doc(alias = "src_path_bits")]
    pub source_path_bits: u8,
    /// How fast packets are sent, at the most.
    pub static_rate: StaticRate,
}

impl AddressVector {
    /// How many routers a packet may pass unless the program says otherwise.
    pub const DEFAULT_HOP_LIMIT: u8 = 64;

    /// From the port and the GID of `from` to a GID or, on InfiniBand where one of them is zero, to a
    /// LID.
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

    /// From the port and the GID of `from` to the peer's.
    pub fn to_endpoint(from: &LocalAddress, peer: &Endpoint) -> Self {
        Self::new(from, peer.gid, peer.lid)
    }

    /// The way back to where a datagram came from.
    ///
    /// `grh` is the beginning of the receive's memory: its first 40 bytes are not of the message but
    /// the global route header, or an IPv4 header in their last 20 (RoCE v2 annex, A17.4.5.1).
    /// `port` is the one that received it.
    ///
    /// There is none from a datagram to a group, since no GID of this port is in it: make a
    /// [`Self::new`] to the [source](super::DatagramHeader::source) of its header then.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for less than 40 bytes, and the verb's, for example when the
    /// datagram's destination is no GID of the port.
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

    /// Checks what the types leave open.
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
