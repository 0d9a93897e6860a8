//! UDP sockets with the features that RoCEv2 needs, and all unsafe code for them. Datagrams are
//! sent and received in batches and in bursts.
//!
//! The cost of a UDP socket is mainly the processing of each message in the layers of the kernel,
//! and less the system call. So datagrams of one size to one destination are sent as one message, a
//! [`Burst`], which the kernel splits as late as possible (`UDP_SEGMENT`, Linux 4.18). Received
//! datagrams are merged (`UDP_GRO`, Linux 5.0). Between processes of one host, bursts are never
//! split.

mod control;
mod filter;
mod interface;
mod interface_monitor;
mod raw_socket_address;
mod ring;

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, iovec, mmsghdr, msghdr};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use control::{ControlMessage, ControlMessages, UDP_GRO, UDP_SEGMENT};
use raw_socket_address::RawSocketAddress;

use crate::descriptor::Descriptor;

pub(crate) use interface::{HostAddress, Interface};
pub(crate) use interface_monitor::InterfaceMonitor;
pub(crate) use ring::Ring;

/// Maximum number of messages that one system call sends. The limit bounds the space on the stack
/// for the messages' headers. A longer list is sent by several calls.
pub(crate) const BATCH: usize = 32;

/// Maximum number of datagrams in a burst: the limit of Linux before version 6.9, which doubled it.
/// The kernel rejects a burst with more datagrams.
pub(crate) const MAX_BURST_DATAGRAMS: usize = 64;

/// Maximum number of bytes in a burst. With IPv6 and UDP headers, such a burst has the maximum
/// length of an IP packet.
pub(crate) const MAX_BURST_BYTES: usize = 65_535 - 40 - 8;

/// Requested size in bytes of a socket's send buffer, in which packets wait for the network
/// interface. If the buffer is full, the sender has to try again, so a smaller buffer would cost
/// more system calls.
const SEND_BUFFER_SIZE: usize = 1 << 20;

/// Hop limit of packets for which the sender requests no hop limit: the usual default of Linux.
const DEFAULT_HOP_LIMIT: u32 = 64;

/// A bound, unconnected UDP socket. The IPv4 packets of the socket have identification 0 and are
/// not fragmented, as the ICRC of sent packets assumes. Linux sends such packets if path MTU
/// discovery is enabled and the socket is not connected.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: Descriptor,
    local: SocketAddr,
    /// Set while bursts can be sent: the kernel supports `UDP_SEGMENT`, and bursts were not
    /// disabled.
    sends_bursts: AtomicBool,
}

/// An open UDP socket that is bound to an address, so that no other socket can use the address.
/// [`open`](Self::open) turns this value into a [`Socket`], which sends and receives packets. Until
/// then, the receive buffer has the default size of the system.
#[derive(Debug)]
pub(crate) struct BoundAddress(Descriptor);

/// A burst: datagrams that are passed to the kernel as one message, which the kernel splits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burst<'a> {
    /// Payloads of the datagrams. A slice may contain several whole payloads. All together are at
    /// most [`MAX_BURST_DATAGRAMS`] payloads with at most [`MAX_BURST_BYTES`] bytes.
    pub(crate) payloads: &'a [IoSlice<'a>],
    /// Length of each datagram except the last datagram, which may be shorter. `None` for a single
    /// datagram that is not sent as a burst.
    pub(crate) segment: Option<u16>,
    /// Destination address, of the socket's family.
    pub(crate) to: SocketAddr,
    /// TOS or traffic class of the datagrams.
    pub(crate) traffic_class: u8,
    /// TTL or hop limit of the datagrams. `None` for the socket's default.
    pub(crate) hop_limit: Option<u8>,
}

/// A received message: a datagram, or several datagrams of one sender that the kernel has merged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    /// Payloads of the datagrams, one after the other.
    pub(crate) bytes: &'a [u8],
    /// Length of each payload except the last, which may be shorter. Not 0.
    pub(crate) segment: usize,
    /// Address of the sender.
    pub(crate) from: SocketAddr,
    /// TOS or traffic class of the datagrams.
    pub(crate) traffic_class: u8,
    /// TTL or hop limit of the datagrams.
    pub(crate) hop_limit: u8,
    /// Set if the message was longer than its buffer, so that it must be dropped.
    pub(crate) truncated: bool,
}

impl Burst<'_> {
    /// Returns the number of datagrams in the burst.
    pub(crate) fn datagrams(&self) -> usize {
        let size = self.segment.map_or(usize::MAX, usize::from).max(1);
        let payloads = self.payloads.iter();
        payloads
            .map(|payload| payload.len().div_ceil(size).max(1))
            .sum()
    }
}

impl<'a> Message<'a> {
    /// Returns the number of datagrams in this received message. The kernel can merge several
    /// datagrams of one size into a message.
    pub(crate) fn datagrams(&self) -> usize {
        self.bytes.len().div_ceil(self.segment).max(1)
    }

    /// Returns the payload of the datagram with the index `number`, or `None` if the message has
    /// fewer datagrams.
    pub(crate) fn datagram(&self, number: usize) -> Option<&'a [u8]> {
        let rest = self.bytes.get(number * self.segment..)?;
        // An empty datagram is the only one of its message.
        let there = number == 0 || !rest.is_empty();
        there.then(|| &rest[..rest.len().min(self.segment)])
    }
}

impl BoundAddress {
    /// Binds the UDP address `address`, so that no other socket can use it.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        Descriptor::open(|| UdpSocket::bind(address).map(Into::into)).map(Self)
    }

    /// Creates the UDP socket of this reserved address. `receive_buffer` is the requested size of
    /// the receive buffer in bytes, which the kernel may reduce. On an error, also returns the
    /// reserved address. The caller can then try again later, for example if the host has lost the
    /// address for a while.
    pub(crate) fn open(self, receive_buffer: usize) -> Result<Socket, (Self, io::Error)> {
        match Socket::configure(&self.0, receive_buffer) {
            Ok((local, sends_bursts)) => Ok(Socket::new(self.0, local, sends_bursts)),
            Err(error) => Err((self, error)),
        }
    }
}

impl Socket {
    /// Creates a UDP socket that receives the datagrams of the multicast group `group` on one
    /// network interface. `interface` is an address of this interface. Other processes may join the
    /// group, too. Each process gets every datagram. `receive_buffer` is the requested size of the
    /// receive buffer in bytes.
    pub(crate) fn join(
        group: SocketAddr,
        interface: IpAddr,
        receive_buffer: usize,
    ) -> io::Result<Self> {
        let family = if group.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::CLOEXEC;
        let open = || rustix::net::socket_with(family, SocketType::DGRAM, flags, None);
        let socket = Descriptor::open(open)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        // Otherwise the socket also gets the group's datagrams from interfaces on which other
        // sockets have joined the group.
        let _ = match group {
            SocketAddr::V4(_) => set_option(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0),
            SocketAddr::V6(_) => set_option(&socket, libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0),
        };
        match (group, interface) {
            (SocketAddr::V4(group), IpAddr::V4(interface)) => {
                rustix::net::bind(&socket, &group)?;
                sockopt::set_ip_add_membership(&socket, group.ip(), &interface)?;
            }
            (SocketAddr::V6(group), IpAddr::V6(_)) => {
                rustix::net::bind(&socket, &group)?;
                sockopt::set_ipv6_add_membership(&socket, group.ip(), group.scope_id())?;
            }
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
        let (local, sends_bursts) = Self::configure(&socket, receive_buffer)?;
        Ok(Self::new(socket, local, sends_bursts))
    }

    fn new(socket: Descriptor, local: SocketAddr, sends_bursts: bool) -> Self {
        Self {
            socket,
            local,
            sends_bursts: AtomicBool::new(sends_bursts),
        }
    }

    /// Sets the options of the bound UDP socket `socket`. Returns the local address of the socket,
    /// and `true` if the kernel can split a message into a burst of datagrams.
    fn configure(socket: &Descriptor, receive_buffer: usize) -> io::Result<(SocketAddr, bool)> {
        let local = SocketAddr::try_from(rustix::net::getsockname(socket)?)?;
        // Only a privileged process may exceed net.core.rmem_max.
        if sockopt::set_socket_recv_buffer_size_force(socket, receive_buffer).is_err() {
            sockopt::set_socket_recv_buffer_size(socket, receive_buffer)?;
        }
        // `PROBE` is like `DO`, but ignores ICMP messages about the path MTU.
        match local {
            SocketAddr::V4(local) => {
                sockopt::set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::PROBE)?;
                sockopt::set_ip_recvtos(socket, true)?;
                set_option(socket, libc::IPPROTO_IP, libc::IP_RECVTTL, 1)?;
                sockopt::set_ip_ttl(socket, DEFAULT_HOP_LIMIT)?;
                if !local.ip().is_multicast() {
                    sockopt::set_ip_multicast_if(socket, local.ip())?;
                    sockopt::set_ip_multicast_ttl(socket, DEFAULT_HOP_LIMIT)?;
                }
            }
            SocketAddr::V6(local) => {
                sockopt::set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::PROBE)?;
                sockopt::set_ipv6_recvtclass(socket, true)?;
                set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
                sockopt::set_ipv6_unicast_hops(socket, Some(DEFAULT_HOP_LIMIT as u8))?;
                // The kernel's driver sends without a UDP checksum, which IPv6 sockets otherwise
                // refuse.
                set_option(socket, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)?;
                if !local.ip().is_multicast() {
                    let interface = Interface::of(IpAddr::V6(*local.ip())).map_or(0, |i| i.index);
                    sockopt::set_ipv6_multicast_if(socket, interface)?;
                    sockopt::set_ipv6_multicast_hops(socket, DEFAULT_HOP_LIMIT)?;
                }
            }
        }
        // The system limits the size for unprivileged processes; a smaller buffer is acceptable.
        let _ = sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER_SIZE);
        // Size 0 sets no default size: each burst sets its own. The call shows whether the kernel
        // supports the option. A kernel without it would send a burst as one datagram.
        let sends_bursts = set_option(socket, libc::SOL_UDP, UDP_SEGMENT, 0).is_ok();
        Ok((local, sends_bursts))
    }

    /// Makes the kernel merge received datagrams. Returns `false` if the kernel does not support
    /// this.
    pub(crate) fn merge_received(&self) -> bool {
        set_option(&self.socket, libc::SOL_UDP, UDP_GRO, 1).is_ok()
    }

    /// Installs a packet filter in the kernel, if this is an IPv4 socket. The filter drops packets
    /// of programs on this host (127.0.0.0/8) that are not softroce devices. Softroce devices have
    /// ports from `base` on. The filter also drops packets of connections from devices of this host
    /// that are not in `peers`. If `peers` is longer than [`filter::MAX_PEERS`], packets of
    /// connections are not dropped.
    pub(crate) fn install_filter(&self, base: u16, peers: &[SocketAddrV4]) {
        if !self.local.is_ipv4() {
            return;
        }
        let listed = peers.len() <= filter::MAX_PEERS
            && filter::attach(&self.socket, base, Some(peers)).is_ok();
        if !listed && filter::attach(&self.socket, base, None).is_err() {
            // An earlier filter does not have all peers. The call fails if there is no filter,
            // which is harmless.
            let _ = filter::detach(&self.socket);
        }
    }

    /// Detaches the packet filter from the socket. The kernel then passes all packets, so the
    /// receiver must check each sender.
    #[cfg(test)]
    pub(crate) fn remove_filter(&self) {
        if self.local.is_ipv4() {
            filter::detach(&self.socket).unwrap();
        }
    }

    /// Returns whether the socket can send bursts (messages that the kernel splits into several
    /// datagrams).
    pub(crate) fn sends_bursts(&self) -> bool {
        self.sends_bursts.load(Ordering::Relaxed)
    }

    /// Disables bursts on this socket. From now on, each datagram is sent separately.
    pub(crate) fn disable_bursts(&self) {
        self.sends_bursts.store(false, Ordering::Relaxed);
    }

    /// Returns the address that the socket is bound to.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the size of the socket's receive buffer in bytes (`SO_RCVBUF`).
    pub(crate) fn receive_buffer(&self) -> io::Result<usize> {
        Ok(sockopt::socket_recv_buffer_size(&self.socket)?)
    }

    /// Sends at most [`BATCH`] messages without blocking. Each [`Burst`] is one message, which the
    /// kernel splits into datagrams. Returns the number of sent messages, or an error if the first
    /// cannot be sent.
    pub(crate) fn send(&self, bursts: &[Burst<'_>]) -> io::Result<usize> {
        match bursts {
            [] => Ok(0),
            [burst] => self.send_one(burst),
            [_, _] => self.send_some::<2>(bursts),
            _ => self.send_some::<BATCH>(bursts),
        }
    }

    /// Sends one [`Burst`] (message that the kernel splits into datagrams) with `sendmsg`, which is
    /// slightly cheaper than `sendmmsg`. Returns 1, the number of sent messages.
    fn send_one(&self, burst: &Burst<'_>) -> io::Result<usize> {
        let (mut name, mut controls) = (RawSocketAddress::NONE, [ControlMessage::NONE; 3]);
        let header = header(burst, &mut name, &mut controls);
        // SAFETY: the header points to a valid name and control messages, and to the burst's
        // slices, with their lengths. An `IoSlice` has the layout of an iovec. The kernel only
        // reads the slices and their bytes.
        let sent = unsafe {
            libc::sendmsg(
                self.socket.as_raw_fd(),
                &raw const header,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(1)
    }

    /// Sends the first `N` messages of `bursts` with one system call. Each [`Burst`] is one
    /// message, which the kernel splits into datagrams. Returns the number of sent messages, which
    /// is lower if the kernel cannot accept all of them.
    fn send_some<const N: usize>(&self, bursts: &[Burst<'_>]) -> io::Result<usize> {
        let count = bursts.len().min(N);
        let mut names = [const { RawSocketAddress::NONE }; N];
        let mut controls: [ControlMessages; N] = [const { [ControlMessage::NONE; 3] }; N];
        let mut headers = [const { NO_HEADER }; N];
        let places = headers.iter_mut().zip(&mut names).zip(&mut controls);
        for (burst, ((place, name), controls)) in bursts.iter().zip(places) {
            place.msg_hdr = header(burst, name, controls);
        }
        // SAFETY: the first `count` headers point to names and control messages in these arrays,
        // and to the bursts' slices, with their lengths. An `IoSlice` has the layout of an iovec.
        // The kernel only reads the slices and their bytes. All live until after the call.
        let sent = unsafe {
            libc::sendmmsg(
                self.socket.as_raw_fd(),
                headers.as_mut_ptr(),
                count as _,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Receives available messages into the buffers of `ring` without blocking, and returns their
    /// number. The maximum number is the number of buffers, or 1 if `is_single` is set.
    pub(crate) fn receive(&self, ring: &mut Ring, is_single: bool) -> io::Result<usize> {
        let (headers, count) = ring.prepare(is_single);
        let received = if count == 1 {
            self.receive_one(headers)
        } else {
            // SAFETY: `count` headers point to names, control messages and buffers in the ring's
            // allocation, with their lengths. The ring is borrowed mutably, so no references to
            // them exist.
            unsafe {
                libc::recvmmsg(
                    self.socket.as_raw_fd(),
                    headers,
                    count as _,
                    libc::MSG_DONTWAIT,
                    ptr::null_mut(),
                )
            }
        };
        match usize::try_from(received) {
            Ok(received) => {
                ring.fill(received);
                Ok(received)
            }
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                error => Err(error),
            },
        }
    }

    /// Receives one message into the first header of a ring with `recvmsg`, which is cheaper than
    /// `recvmmsg`. Returns the number of messages: 1, or -1 after an error.
    fn receive_one(&self, header: *mut mmsghdr) -> c_int {
        // SAFETY: `header` is the first header of a ring that the caller has borrowed mutably. The
        // header points to a name, control messages and a buffer in the ring's allocation, with
        // their lengths.
        unsafe {
            let socket = self.socket.as_raw_fd();
            let length = libc::recvmsg(socket, &raw mut (*header).msg_hdr, libc::MSG_DONTWAIT);
            match u32::try_from(length) {
                Ok(length) => {
                    (*header).msg_len = length;
                    1
                }
                Err(_) => -1,
            }
        }
    }
}

/// Returns the `msghdr` by which `sendmsg` sends `burst`. Stores the destination in `name` and the
/// control messages in `controls`. The result contains pointers to `burst`, `name` and `controls`,
/// so all three must exist until the message is sent.
fn header(
    burst: &Burst<'_>,
    name: &mut RawSocketAddress,
    controls: &mut ControlMessages,
) -> msghdr {
    let mut header = NO_HEADER.msg_hdr;
    header.msg_namelen = name.set(burst.to);
    header.msg_name = (&raw mut *name).cast();
    header.msg_iov = burst.payloads.as_ptr().cast_mut().cast::<iovec>();
    header.msg_iovlen = burst.payloads.len() as _;
    let set = ControlMessage::set(controls, burst);
    if set > 0 {
        header.msg_control = (&raw mut *controls).cast();
        header.msg_controllen = (set * size_of::<ControlMessage>()) as _;
    }
    header
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Socket option from linux/udp.h: the socket receives IPv6 packets even if they have no UDP
/// checksum.
const UDP_NO_CHECK6_RX: c_int = 102;

/// Socket option of linux/in6.h. With the value 0, the socket receives only datagrams of multicast
/// groups that the socket itself has joined. With the value 1, the socket receives datagrams of all
/// groups that any socket has joined.
const IPV6_MULTICAST_ALL: c_int = 29;

fn set_option(socket: &Descriptor, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the value of the option is an int that is valid for the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<c_int>() as _,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

// SAFETY: all fields are pointers or integers, for which zero is valid.
const NO_HEADER: mmsghdr = unsafe { std::mem::zeroed() };
