//! UDP sockets as RoCEv2 needs them, and their only unsafe code: batches of datagrams, and datagrams that pass through
//! the system as one.
//!
//! The cost of a UDP socket is the way of each message through the layers of the system, much more than the call. So
//! datagrams of one size to one destination go as one message, a [`Burst`], which the system takes apart as late as
//! possible (`UDP_SEGMENT`, Linux 4.18). Datagrams that arrive are put together again (`UDP_GRO`, Linux 5.0). Between
//! processes of one host nothing is ever taken apart.

mod control;
mod filter;
mod interface;
mod name;
mod ring;

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, iovec, mmsghdr, msghdr};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use control::{Control, Controls, UDP_GRO, UDP_SEGMENT};
use name::Name;

use crate::descriptor::Descriptor;

pub(crate) use interface::Interface;
pub(crate) use ring::Ring;

/// Messages that go in one system call at most.
pub(crate) const BATCH: usize = 32;

/// Datagrams in a burst at most: Linux's limit until 6.9, which doubled it.
pub(crate) const SEGMENTS: usize = 64;

/// Bytes of a burst at most: with headers of IPv6 and UDP as much as an IP packet may have.
pub(crate) const LONGEST: usize = 65_535 - 40 - 8;

/// Requested size of the send buffer, where packets wait for a network interface.
const SEND_BUFFER: usize = 1 << 20;

/// The hop limit of packets that do not say one.
const HOP_LIMIT: u32 = 64;

/// A UDP socket that is bound and not connected. Its IPv4 packets have identification 0 and are not
/// fragmented, which is what the ICRC of those who send by it assumes: Linux does so where path MTU
/// discovery is on and the socket is not connected.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: Descriptor,
    local: SocketAddr,
    /// The system takes bursts apart.
    segments: AtomicBool,
}

/// Datagrams to be sent that pass the system as one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burst<'a> {
    /// Their payloads, in pieces that each are one or several whole ones: one, or up to [`SEGMENTS`] and [`LONGEST`] together.
    pub(crate) payloads: &'a [IoSlice<'a>],
    /// The size of each of them but the last one, which may be shorter; none: it is one, and goes as it is.
    pub(crate) segment: Option<u16>,
    /// Where to; of the socket's family.
    pub(crate) to: SocketAddr,
    /// TOS or traffic class.
    pub(crate) traffic_class: u8,
    /// TTL or hop limit; none: the system's default.
    pub(crate) hop_limit: Option<u8>,
}

/// A datagram that came, or several of one sender that came as one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    /// All payloads.
    pub(crate) bytes: &'a [u8],
    /// The size of each payload but the last one, which may be shorter; not 0.
    pub(crate) segment: usize,
    /// Where from.
    pub(crate) from: SocketAddr,
    /// TOS or traffic class.
    pub(crate) traffic_class: u8,
    /// TTL or hop limit.
    pub(crate) hop_limit: u8,
    /// Set if the message was longer than the room for it.
    pub(crate) truncated: bool,
}

impl Burst<'_> {
    /// Returns the number of datagrams.
    pub(crate) fn datagrams(&self) -> usize {
        let size = self.segment.map_or(usize::MAX, usize::from).max(1);
        let payloads = self.payloads.iter();
        payloads
            .map(|payload| payload.len().div_ceil(size).max(1))
            .sum()
    }
}

impl<'a> Message<'a> {
    /// Returns the number of datagrams.
    pub(crate) fn datagrams(&self) -> usize {
        self.bytes.len().div_ceil(self.segment).max(1)
    }

    /// Returns the payload of a datagram; `None` if there are not that many.
    pub(crate) fn datagram(&self, number: usize) -> Option<&'a [u8]> {
        let rest = self.bytes.get(number * self.segment..)?;
        // An empty one is the only one.
        let there = number == 0 || !rest.is_empty();
        there.then(|| &rest[..rest.len().min(self.segment)])
    }
}

impl Socket {
    /// Binds to an address and port. Of the receive buffer's size it gets as much as the system gives.
    pub(crate) fn bind(address: SocketAddr, receive_buffer: usize) -> io::Result<Self> {
        let socket = Descriptor::open(|| UdpSocket::bind(address).map(Into::into))?;
        Self::prepare(socket, receive_buffer)
    }

    /// Binds to a multicast group, which other processes may do too: each gets every datagram.
    /// `interface` is an address of the network interface.
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
        Self::prepare(socket, receive_buffer)
    }

    fn prepare(socket: Descriptor, receive_buffer: usize) -> io::Result<Self> {
        let local = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
        // Only privileged processes may have more than net.core.rmem_max.
        if sockopt::set_socket_recv_buffer_size_force(&socket, receive_buffer).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, receive_buffer)?;
        }
        // PROBE is DO without trust in what ICMP says about a path.
        match local {
            SocketAddr::V4(local) => {
                sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
                sockopt::set_ip_recvtos(&socket, true)?;
                set_option(&socket, libc::IPPROTO_IP, libc::IP_RECVTTL, 1)?;
                sockopt::set_ip_ttl(&socket, HOP_LIMIT)?;
                if !local.ip().is_multicast() {
                    sockopt::set_ip_multicast_if(&socket, local.ip())?;
                    sockopt::set_ip_multicast_ttl(&socket, HOP_LIMIT)?;
                }
            }
            SocketAddr::V6(local) => {
                sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?;
                sockopt::set_ipv6_recvtclass(&socket, true)?;
                set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
                sockopt::set_ipv6_unicast_hops(&socket, Some(HOP_LIMIT as u8))?;
                // The kernel's driver sends without a UDP checksum, which IPv6 refuses else.
                set_option(&socket, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)?;
                if !local.ip().is_multicast() {
                    let interface = Interface::of(IpAddr::V6(*local.ip())).map_or(0, |i| i.index);
                    sockopt::set_ipv6_multicast_if(&socket, interface)?;
                    sockopt::set_ipv6_multicast_hops(&socket, HOP_LIMIT)?;
                }
            }
        }
        // A limit holds for those without privileges; less is right too.
        let _ = sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER);
        // No size: bursts say theirs. A system that does not know the option would send one as one datagram.
        let segments = set_option(&socket, libc::SOL_UDP, UDP_SEGMENT, 0).is_ok();
        Ok(Self {
            socket,
            local,
            segments: AtomicBool::new(segments),
        })
    }

    /// Lets datagrams come as one that were sent as one or came right after each other, if the system can.
    pub(crate) fn coalesce(&self) -> bool {
        set_option(&self.socket, libc::SOL_UDP, UDP_GRO, 1).is_ok()
    }

    /// Makes the kernel drop packets of programs of this host that are no devices, and packets for connections that are
    /// not from `peers`. The receiver checks the packets that remain, and packets over IPv6. `base` is the port of the
    /// first slot.
    pub(crate) fn refuse_strangers(&self, base: u16, peers: &[SocketAddrV4]) {
        if !self.local.is_ipv4() {
            return;
        }
        let listed = peers.len() <= filter::MAX_PEERS
            && filter::attach(&self.socket, base, Some(peers)).is_ok();
        if !listed && filter::attach(&self.socket, base, None).is_err() {
            // An earlier filter does not know all peers. The call fails if there is no filter, which is no fault.
            let _ = filter::detach(&self.socket);
        }
    }

    /// Makes the kernel pass all packets.
    #[cfg(test)]
    pub(crate) fn pass_strangers(&self) {
        if self.local.is_ipv4() {
            filter::detach(&self.socket).unwrap();
        }
    }

    /// Returns whether bursts of more than one datagram, and segment sizes at all, may be sent.
    pub(crate) fn segments(&self) -> bool {
        self.segments.load(Ordering::Relaxed)
    }

    /// Stops sending bursts of more than one datagram, and segment sizes.
    pub(crate) fn stop_segments(&self) {
        self.segments.store(false, Ordering::Relaxed);
    }

    /// Returns the address that the socket is bound to.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the size of the socket's receive buffer, in the kernel's way of counting.
    pub(crate) fn receive_buffer(&self) -> io::Result<usize> {
        Ok(sockopt::socket_recv_buffer_size(&self.socket)?)
    }

    /// Sends bursts, not more than [`BATCH`], and never waits; how many of them went. An error is that of the first one.
    pub(crate) fn send(&self, bursts: &[Burst<'_>]) -> io::Result<usize> {
        match bursts {
            [] => Ok(0),
            [burst] => self.send_one(burst),
            [_, _] => self.send_some::<2>(bursts),
            _ => self.send_some::<BATCH>(bursts),
        }
    }

    /// Sends one, which takes the system somewhat less than a list of one.
    fn send_one(&self, burst: &Burst<'_>) -> io::Result<usize> {
        let (mut name, mut controls) = (Name::NONE, [Control::NONE; 3]);
        let header = header(burst, &mut name, &mut controls);
        // SAFETY: the header points at a name and control messages that are there, and at the burst's slices, which are laid
        // out as an iovec is and which, with their bytes, the kernel only reads; each with its length.
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

    /// Sends up to `N` of them.
    fn send_some<const N: usize>(&self, bursts: &[Burst<'_>]) -> io::Result<usize> {
        let count = bursts.len().min(N);
        let mut names = [const { Name::NONE }; N];
        let mut controls: [Controls; N] = [const { [Control::NONE; 3] }; N];
        let mut headers = [const { NO_HEADER }; N];
        let places = headers.iter_mut().zip(&mut names).zip(&mut controls);
        for (burst, ((place, name), controls)) in bursts.iter().zip(places) {
            place.msg_hdr = header(burst, name, controls);
        }
        // SAFETY: the first `count` headers point at a name and control messages of these arrays, and at the bursts' slices,
        // which are laid out as an iovec is and which, with their bytes, the kernel only reads; each with its length, and all
        // live until after the call.
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

    /// Takes the messages that are there, not more than the ring has room for, and never waits; how many
    /// there are in it now.
    pub(crate) fn receive(&self, ring: &mut Ring) -> io::Result<usize> {
        let (headers, count) = ring.prepare();
        let received = if count == 1 {
            self.receive_one(headers)
        } else {
            // SAFETY: so many headers point at names, control messages and room for bytes in the ring's allocation, with
            // their lengths; the ring is borrowed mutably, so nobody else looks at it.
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

    /// Takes one message to a ring's first header, by the call for one; 1, or -1.
    fn receive_one(&self, header: *mut mmsghdr) -> c_int {
        // SAFETY: as in `receive`, which this is a part of, for the first one.
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

/// Returns the header of a burst, which points at the burst and at the contents of `name` and `controls`.
fn header(burst: &Burst<'_>, name: &mut Name, controls: &mut Controls) -> msghdr {
    let mut header = NO_HEADER.msg_hdr;
    header.msg_namelen = name.set(burst.to);
    header.msg_name = (&raw mut *name).cast();
    header.msg_iov = burst.payloads.as_ptr().cast_mut().cast::<iovec>();
    header.msg_iovlen = burst.payloads.len() as _;
    let set = Control::set(controls, burst);
    if set > 0 {
        header.msg_control = (&raw mut *controls).cast();
        header.msg_controllen = (set * size_of::<Control>()) as _;
    }
    header
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// From linux/udp.h.
const UDP_NO_CHECK6_RX: c_int = 102;

fn set_option(socket: &Descriptor, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the option's value is an int, which the kernel reads.
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

// SAFETY: zero is a null pointer, a length or a flag in all of its fields.
const NO_HEADER: mmsghdr = unsafe { std::mem::zeroed() };
