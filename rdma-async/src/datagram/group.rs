//! Multicast groups of datagram sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use rdma_core::address::{Destination, GroupMembership, multicast_gid};

use super::{DatagramAddress, DatagramPeer, DatagramSocket};
use crate::error::{Error, Result};

/// The membership of a [`DatagramSocket`] in a multicast group. Dropping the membership leaves the
/// group.
#[doc(alias = "ibv_detach_mcast")]
#[derive(Debug)]
#[must_use = "dropping a membership leaves the group"]
pub struct GroupMember {
    group: IpAddr,
    /// Membership of the queue pair, which must end before that of the host.
    _membership: GroupMembership,
    /// UDP socket that makes the host a member of the group, so that the network sends the packets
    /// of the group to the host.
    _host: UdpSocket,
}

impl GroupMember {
    /// Returns the IP address of the multicast group.
    pub fn group(&self) -> IpAddr {
        self.group
    }
}

impl DatagramSocket {
    /// Joins a multicast group of RoCE v2: the socket receives each datagram to the group. All
    /// members and senders need the same [Q_Key](crate::RdmaBuilder::queue_key).
    ///
    /// The host also joins the group, on the network interface of this socket's GID.
    ///
    /// ```
    /// use std::alloc::Layout;
    /// use std::net::Ipv4Addr;
    ///
    /// use rdma_async::RdmaDevice;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), rdma_async::Error> {
    /// let device = RdmaDevice::open_default()?;
    /// let group = Ipv4Addr::new(239, 77, 9, 1).into();
    /// let (member, sender) = (device.builder().datagrams()?, device.builder().datagrams()?);
    /// let membership = member.join(group)?;
    /// let message = device.alloc_local_mr(Layout::new::<[u8; 8]>())?;
    /// sender.send_to(&message, &sender.group(group)?).await?;
    /// member.receive_from().await?;
    /// # drop(membership);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if `group` is not a multicast address or the device cannot join the group.
    /// [`Error::Tcp`] if the host cannot join the group.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn join(&self, group: IpAddr) -> Result<GroupMember> {
        let membership = self.queue_pair.attach_to_group(multicast_gid(group)?, 0)?;
        let host = self
            .join_at_host(group)
            .map_err(|source| Error::tcp("joining the group", group, source))?;
        Ok(GroupMember {
            group,
            _membership: membership,
            _host: host,
        })
    }

    /// Returns the destination for datagrams to all members of a multicast group. The socket need
    /// not be a member of the group.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if `group` is not a multicast address or has no path.
    pub fn group(&self, group: IpAddr) -> Result<DatagramPeer> {
        self.peer(&DatagramAddress {
            gid: multicast_gid(group)?,
            lid: 0,
            queue_pair: Destination::EVERY_MEMBER,
            queue_key: self.queue_key,
        })
    }

    /// Makes the host a member of the multicast group, so that the network sends packets for the
    /// group to the host. The membership ends when the returned socket is dropped.
    fn join_at_host(&self, group: IpAddr) -> std::io::Result<UdpSocket> {
        match group {
            IpAddr::V4(group) => {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                let interface = self.queue_pair.address().gid.to_ipv4();
                let interface = interface.unwrap_or(Ipv4Addr::UNSPECIFIED);
                socket.join_multicast_v4(&group, &interface)?;
                Ok(socket)
            }
            IpAddr::V6(group) => {
                let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
                socket.join_multicast_v6(&group, self.interface())?;
                Ok(socket)
            }
        }
    }

    /// Returns the index of the network interface of this socket's GID, or 0 (any interface) if the
    /// interface is unknown. An IPv6 group is joined on this interface.
    fn interface(&self) -> u32 {
        let local = self.queue_pair.address();
        let context = self.device.context();
        let entry = context.gid(local.port, local.gid_index);
        entry.map_or(0, |entry| entry.interface)
    }
}
