//! [`DatagramSocket`]: one queue pair for datagrams to and from any number of peers and groups.

mod address;
mod group;
mod queues;

use std::fmt;
use std::sync::Arc;

use rdma_core::address::{AddressHandle, AddressVector, DatagramHeader, Destination};
use rdma_core::{DatagramOptions, QueuePair, Transport};

pub use self::address::DatagramAddress;
pub use self::group::GroupMember;
use self::queues::{Arrived, Queues};
use crate::builder::RdmaBuilder;
use crate::device::RdmaDevice;
use crate::error::{Error, Result};
use crate::memory::{LocalMr, LocalMrReadAccess, PieceLender, claim_read};

/// A socket for datagrams (unreliable datagram transport): one queue pair sends to any number of
/// peers and multicast groups, and receives from all of them.
///
/// A datagram has at most [`Self::max_len`] bytes and arrives completely or not at all. The network
/// may lose datagrams. At most [`RdmaBuilder::receive_depth`] datagrams wait for
/// [`Self::receive_from`]. The receiver's device drops further datagrams.
///
/// Every operation takes `&self`, so that any number of tasks can use the socket concurrently. The
/// socket has no background task: the tasks that wait for its operations poll its queues.
///
/// ```
/// use std::alloc::Layout;
///
/// use rdma_async::{LocalMrReadAccess, LocalMrWriteAccess, RdmaDevice};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), rdma_async::Error> {
/// let device = RdmaDevice::open_default()?;
/// let (left, right) = (device.builder().datagrams()?, device.builder().datagrams()?);
/// // The program passes the address to the peer, for example through TCP.
/// let to_right = left.peer(&right.address())?;
/// let mut message = device.alloc_local_mr(Layout::new::<[u8; 5]>())?;
/// message.as_mut_slice().copy_from_slice(b"hello");
/// left.send_to(&message, &to_right).await?;
/// let datagram = right.receive_from().await?;
/// assert_eq!(datagram.region.as_slice(), b"hello");
/// // The receiver answers.
/// right.send_to(&datagram.region, &right.peer(&datagram.source)?).await?;
/// left.receive_from().await?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "IBV_QPT_UD")]
pub struct DatagramSocket {
    queues: Queues,
    queue_pair: QueuePair,
    queue_key: u32,
    device: RdmaDevice,
}

impl fmt::Debug for DatagramSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramSocket")
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}

/// A received datagram, with the address of its sender.
#[derive(Debug)]
#[non_exhaustive]
pub struct Datagram {
    /// Bytes of the datagram.
    pub region: LocalMr,
    /// Address of the sender, but with the Q_Key of this socket: a datagram does not contain the
    /// Q_Key of its sender.
    pub source: DatagramAddress,
    /// Immediate data, if the sender has sent any.
    pub immediate: Option<u32>,
}

/// A destination of datagrams, created by [`DatagramSocket::peer`] or [`DatagramSocket::group`].
/// Clones are cheap.
#[doc(alias = "ibv_ah")]
#[derive(Debug, Clone)]
pub struct DatagramPeer {
    destination: Destination,
}

impl RdmaBuilder {
    /// Creates a socket for datagrams. Uses only these settings: the device, [`Self::port`],
    /// [`Self::gid_index`], [`Self::toward`], [`Self::send_depth`], [`Self::receive_depth`] and
    /// [`Self::queue_key`].
    ///
    /// The program must call this function on the runtime on which it will use the socket.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device cannot be used.
    pub fn datagrams(self) -> Result<DatagramSocket> {
        let template = self.template()?;
        let settings = &template.settings;
        let domain = template.device.protection_domain();
        let (sends, receives) = (settings.send_depth, u32::from(settings.receive_depth));
        let (completions, channel) = queues::completions(domain, sends + receives)?;
        let prepared = domain
            .queue_pair()
            .transport(Transport::Datagram)
            .send_completions(&completions)
            .send_requests(sends)
            .receive_requests(receives)
            .elements(1)
            .address(settings.address)
            .build()?;
        let len = DatagramHeader::LEN + prepared.address().mtu.bytes();
        let lender = Arc::new(PieceLender::new(domain.clone(), len));
        let receive_queue = queues::with_receives(prepared.receive_queue(), &lender, receives)?;
        let queue_pair = prepared.activate(&DatagramOptions::new(settings.queue_key))?;
        Ok(DatagramSocket {
            queues: Queues::new(
                completions,
                channel,
                queue_pair.send_queue(),
                receive_queue,
                lender,
            ),
            queue_pair,
            queue_key: settings.queue_key,
            device: template.device,
        })
    }
}

impl DatagramSocket {
    /// Returns the address to which peers send datagrams for this socket.
    pub fn address(&self) -> DatagramAddress {
        let local = self.queue_pair.address();
        DatagramAddress {
            gid: local.gid,
            lid: local.lid,
            queue_pair: self.queue_pair.number(),
            queue_key: self.queue_key,
        }
    }

    /// Returns the device of the socket, for example to allocate memory for messages.
    pub fn device(&self) -> &RdmaDevice {
        &self.device
    }

    /// Returns the queue pair of the socket, for example to query its state.
    pub fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Returns the maximum length of a datagram, in bytes: the MTU of the port.
    pub fn max_len(&self) -> usize {
        self.queue_pair.address().mtu.bytes()
    }

    /// Looks up the path to the socket with this address. The returned destination can be used for
    /// any number of datagrams.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if there is no route to the address.
    #[doc(alias = "ibv_create_ah")]
    pub fn peer(&self, address: &DatagramAddress) -> Result<DatagramPeer> {
        let vector = AddressVector::new(self.queue_pair.address(), address.gid, address.lid);
        let handle = AddressHandle::new(self.device.protection_domain(), &vector)?;
        Ok(DatagramPeer {
            destination: Destination {
                handle,
                queue_pair: address.queue_pair,
                qkey: address.queue_key,
            },
        })
    }

    /// Sends a datagram, and waits until the device has sent it. The datagram may be lost on its
    /// way to the peer.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for more bytes than [`Self::max_len`]. [`Error::Verbs`] if
    /// another operation, such as an RDMA read, is writing to the memory of `message`.
    /// [`Error::Work`] if the device cannot send the datagram. After this error all operations of
    /// the socket fail.
    #[doc(alias = "IBV_WR_SEND")]
    pub async fn send_to(
        &self,
        message: &impl LocalMrReadAccess,
        peer: &DatagramPeer,
    ) -> Result<()> {
        self.send(message, peer, None).await
    }

    /// Sends a datagram like [`Self::send_to`], with immediate data, which the peer receives as
    /// [`Datagram::immediate`].
    ///
    /// # Errors
    ///
    /// The errors of [`Self::send_to`].
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    pub async fn send_with_immediate_to(
        &self,
        message: &impl LocalMrReadAccess,
        peer: &DatagramPeer,
        immediate: u32,
    ) -> Result<()> {
        self.send(message, peer, Some(immediate)).await
    }

    /// Sends a datagram, with immediate data if `immediate` is set, and waits until the device has
    /// sent it. Fails if the datagram is longer than the MTU of the port.
    async fn send(
        &self,
        message: &impl LocalMrReadAccess,
        peer: &DatagramPeer,
        immediate: Option<u32>,
    ) -> Result<()> {
        let (len, max) = (message.length(), self.max_len());
        if len > max {
            let reason = format!("{len} bytes exceed the MTU of {max}");
            return Err(Error::invalid("datagram", reason));
        }
        let claim = claim_read(message)?;
        self.queues.send(claim, &peer.destination, immediate).await
    }

    /// Waits for the next datagram, and returns it. Cancel-safe: dropping the future loses no
    /// datagram.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if no memory can be registered for the next receive. [`Error::Work`] if an
    /// earlier operation of the device has failed.
    pub async fn receive_from(&self) -> Result<Datagram> {
        let Arrived {
            region,
            source,
            immediate,
        } = self.queues.receive().await?;
        Ok(Datagram {
            region,
            source: DatagramAddress {
                queue_key: self.queue_key,
                ..source
            },
            immediate,
        })
    }
}
