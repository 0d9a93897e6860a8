//! Membership of datagram queue pairs in multicast groups.

use std::net::IpAddr;
use std::sync::Arc;

use crate::device::Gid;
use crate::error::{Error, Result};
use crate::ffi::AttachedQueuePair;
use crate::queue_pair::{QueuePair, Transport};

/// The membership of a datagram queue pair in a multicast group: the queue pair receives a copy of
/// each datagram to the group. Dropping this value ends the membership.
///
/// The value keeps the queue pair alive. A program can create several values for one queue pair and
/// one group. The membership ends when the last of these values is dropped.
///
/// `GroupMembership` is `Send` and `Sync`: drivers lock their groups, and this crate locks its
/// count of memberships.
///
/// The network must also deliver the group's packets to this machine. On InfiniBand the port must
/// join the group at the subnet manager. On Ethernet the system must join the group's IP address. A
/// softroce device joins the address itself. For the kernel's Soft-RoCE and for network cards, the
/// program must join with a UDP socket, as in the example, or with the connection manager.
///
/// ```no_run
/// # fn example(queue_pair: rdma_core::QueuePair) -> Result<(), Box<dyn std::error::Error>> {
/// use std::net::{Ipv4Addr, UdpSocket};
///
/// let group = Ipv4Addr::new(239, 1, 2, 3);
/// let membership = queue_pair.attach_to_group(rdma_core::address::multicast_gid(group.into())?, 0)?;
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

/// Returns the GID of an IP multicast group on RoCE v2: the IPv6 address, or the IPv4 address
/// mapped to IPv6 (`::ffff:a.b.c.d`).
///
/// # Errors
///
/// [`Error::InvalidArgument`] if the address is not a multicast address.
pub fn multicast_gid(group: IpAddr) -> Result<Gid> {
    if group.is_multicast() {
        return Ok(group.into());
    }
    let reason = format!("{group} is the address of no group");
    Err(Error::invalid("multicast group", reason))
}

impl QueuePair {
    /// Makes the queue pair a member of a multicast group. `gid` is the GID of the group. `lid` is
    /// the LID of the group on InfiniBand, and 0 on Ethernet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the queue pair is not a datagram queue pair, and the error of
    /// `ibv_attach_mcast`, for example because `gid` is not a multicast GID.
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
    /// Returns the GID of the multicast group.
    pub fn gid(&self) -> Gid {
        self.attached.gid()
    }

    /// Returns the LID of the multicast group; 0 on Ethernet.
    pub fn lid(&self) -> u16 {
        self.attached.lid()
    }

    /// Ends the membership of the queue pair in the group, and returns an error on failure.
    /// Dropping the value also ends the membership, but only logs an error.
    ///
    /// # Errors
    ///
    /// The error of `ibv_detach_mcast`.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn leave(mut self) -> Result<()> {
        self.attached.detach()
    }
}
