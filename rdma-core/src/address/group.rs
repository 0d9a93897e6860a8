//! Multicast groups.

use std::net::IpAddr;
use std::sync::Arc;

use crate::device::Gid;
use crate::error::{Error, Result};
use crate::ffi::AttachedQueuePair;
use crate::queue_pair::{QueuePair, Transport};

/// A datagram queue pair's membership of a multicast group: it gets a copy of each datagram that is
/// sent to the group. Dropping it ends the membership.
///
/// It keeps the queue pair alive. Of several memberships of one queue pair in one group, the last
/// to be dropped ends it.
///
/// It is `Send` and `Sync`: drivers lock their groups, and this crate its count of memberships.
///
/// The network must deliver to this machine, too. InfiniBand's subnet manager wants the port to
/// join. On Ethernet the system must have joined the group's IP address, which softroce does by
/// itself; for the kernel's Soft-RoCE and for cards a UDP socket does that, as in the example, and so
/// does a join by the connection manager.
///
/// ```no_run
/// # fn example(queue_pair: rdma_core::QueuePair) -> Result<(), Box<dyn std::error::Error>> {
/// use std::net::{Ipv4Addr, UdpSocket};
///
/// let group = Ipv4Addr::new(239, 1, 2, 3);
/// let membership = queue_pair.attach_to_group(rdma_core::multicast_gid(group.into())?, 0)?;
/// let interface = queue_pair.address().gid.to_ipv4().ok_or("no IPv4 address")?;
/// UdpSocket::bind("0.0.0.0:0")?.join_multicast_v4(&group, &interface)?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_detach_mcast")]
#[derive(Debug)]
#[must_use = "dropping a membership ends it"]
pub struct GroupMembership {
    attached: AttachedQueuePair,
}

/// The GID of an IP multicast group on RoCE v2: the address, or its IPv6-mapped form.
///
/// # Errors
///
/// [`Error::InvalidArgument`] for an address of no group.
pub fn multicast_gid(group: IpAddr) -> Result<Gid> {
    if group.is_multicast() {
        return Ok(group.into());
    }
    let reason = format!("{group} is the address of no group");
    Err(Error::invalid("multicast group", reason))
}

impl QueuePair {
    /// Makes it a member of a multicast group, by the group's GID, and its LID on InfiniBand.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a queue pair that is not of datagrams, and the verb's, for
    /// example for a GID of no group.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_to_group(&self, gid: Gid, lid: u16) -> Result<GroupMembership> {
        if self.kind() != Transport::Datagram {
            let reason = format!("a queue pair of kind {} cannot be a member", self.kind());
            return Err(Error::invalid("multicast group", reason));
        }
        let attached = AttachedQueuePair::attach(Arc::clone(self.handle()), gid, lid)?;
        Ok(GroupMembership { attached })
    }
}

impl GroupMembership {
    /// The group's GID.
    pub fn gid(&self) -> Gid {
        self.attached.gid()
    }

    /// The group's LID; 0 on Ethernet.
    pub fn lid(&self) -> u16 {
        self.attached.lid()
    }

    /// Ends the membership, and tells when that fails, which a drop can only log.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn leave(mut self) -> Result<()> {
        self.attached.detach()
    }
}
