//! UDP sockets as RoCEv2 needs them, and their only unsafe code: batches of datagrams.

use std::alloc::{self, Layout};
use std::ffi::CStr;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use libc::{c_int, cmsghdr, iovec, mmsghdr, sockaddr_in, sockaddr_in6};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Datagrams that go or come in one system call at most.
pub(crate) const BATCH: usize = 32;

/// Room for a datagram: the largest MTU, every header, and a tunnel's.
pub(crate) const LARGEST: usize = 4096 + 256;

/// The hop limit of packets that do not say one.
const HOP_LIMIT: u32 = 64;

/// A UDP socket that is bound and not connected. Its IPv4 packets have identification 0 and are not
/// fragmented, which is what the ICRC of those who send by it assumes: Linux does so where path MTU
/// discovery is on and the socket is not connected.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: UdpSocket,
    local: SocketAddr,
}

/// A datagram to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram<'a> {
    /// Its payload.
    pub(crate) bytes: &'a [u8],
    /// Where to; of the socket's family.
    pub(crate) to: SocketAddr,
    /// TOS or traffic class.
    pub(crate) traffic_class: u8,
    /// TTL or hop limit; none: the system's default.
    pub(crate) hop_limit: Option<u8>,
}

/// A datagram that came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    /// Its payload.
    pub(crate) bytes: &'a [u8],
    /// Where from.
    pub(crate) from: SocketAddr,
    /// TOS or traffic class.
    pub(crate) traffic_class: u8,
    /// TTL or hop limit.
    pub(crate) hop_limit: u8,
    /// It was longer than there is room for.
    pub(crate) truncated: bool,
}

impl Socket {
    /// Binds to an address and port. Of the receive buffer's size it gets as much as the system gives.
    pub(crate) fn bind(address: SocketAddr, receive_buffer: usize) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
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
        let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
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
        Self::prepare(UdpSocket::from(socket), receive_buffer)
    }

    fn prepare(socket: UdpSocket, receive_buffer: usize) -> io::Result<Self> {
        let local = socket.local_addr()?;
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
        Ok(Self { socket, local })
    }

    /// What it is bound to.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// What the kernel lets wait in the socket, in its own way of counting.
    pub(crate) fn receive_buffer(&self) -> io::Result<usize> {
        Ok(sockopt::socket_recv_buffer_size(&self.socket)?)
    }

    /// Sends datagrams, not more than [`BATCH`], and never waits; how many of them went. An error is that of
    /// the first one.
    pub(crate) fn send(&self, datagrams: &[Datagram<'_>]) -> io::Result<usize> {
        match datagrams.len() {
            0 => Ok(0),
            1 => self.send_some::<1>(datagrams),
            2..=4 => self.send_some::<4>(datagrams),
            _ => self.send_some::<BATCH>(datagrams),
        }
    }

    /// Sends up to `N` of them.
    fn send_some<const N: usize>(&self, datagrams: &[Datagram<'_>]) -> io::Result<usize> {
        let count = datagrams.len().min(N);
        let mut names = [const { Name::NONE }; N];
        let mut vectors = [const { NO_VECTOR }; N];
        let mut controls = [const { [Control::NONE; 2] }; N];
        let mut headers = [const { NO_HEADER }; N];
        for (i, datagram) in datagrams.iter().take(N).enumerate() {
            let header = &mut headers[i].msg_hdr;
            header.msg_namelen = names[i].set(datagram.to);
            header.msg_name = (&raw mut names[i]).cast();
            vectors[i] = iovec {
                iov_base: datagram.bytes.as_ptr().cast_mut().cast(),
                iov_len: datagram.bytes.len(),
            };
            header.msg_iov = &raw mut vectors[i];
            header.msg_iovlen = 1;
            let set = Control::set(&mut controls[i], datagram);
            if set > 0 {
                header.msg_control = (&raw mut controls[i]).cast();
                header.msg_controllen = (set * size_of::<Control>()) as _;
            }
        }
        // SAFETY: the first `count` headers point at a name, a vector and control messages of these arrays, with their
        // lengths, and the vectors at the datagrams' bytes, which the kernel only reads; all live until after the call.
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

    /// Takes the datagrams that are there, not more than [`BATCH`], and never waits; how many there are
    /// in `ring` now.
    pub(crate) fn receive(&self, ring: &mut Ring) -> io::Result<usize> {
        ring.prepare();
        let storage = ring.storage.as_ptr();
        // SAFETY: the headers point at names, control messages and room for bytes in the same allocation, with their
        // lengths; the ring is borrowed mutably, so nobody else looks at it.
        let received = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                (&raw mut (*storage).headers).cast(),
                BATCH as _,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        match usize::try_from(received) {
            Ok(received) => {
                ring.filled = received;
                Ok(received)
            }
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                error => Err(error),
            },
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// From linux/udp.h.
const UDP_NO_CHECK6_RX: c_int = 102;

fn set_option(socket: &UdpSocket, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
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

const NO_VECTOR: iovec = iovec {
    iov_base: ptr::null_mut(),
    iov_len: 0,
};

// SAFETY: zero is a null pointer, a length or a flag in all of its fields.
const NO_HEADER: mmsghdr = unsafe { mem::zeroed() };

/// A socket address as C has it.
#[repr(C)]
#[derive(Clone, Copy)]
union Name {
    v4: sockaddr_in,
    v6: sockaddr_in6,
}

impl Name {
    // SAFETY: zero is a number in all of its fields.
    const NONE: Self = unsafe { mem::zeroed() };

    /// Sets it; how long it is.
    fn set(&mut self, address: SocketAddr) -> libc::socklen_t {
        match address {
            SocketAddr::V4(address) => {
                // SAFETY: zero is a number in all of its fields.
                let mut name: sockaddr_in = unsafe { mem::zeroed() };
                name.sin_family = libc::AF_INET as _;
                name.sin_port = address.port().to_be();
                name.sin_addr.s_addr = u32::from(*address.ip()).to_be();
                self.v4 = name;
                size_of::<sockaddr_in>() as _
            }
            SocketAddr::V6(address) => {
                // SAFETY: zero is a number in all of its fields.
                let mut name: sockaddr_in6 = unsafe { mem::zeroed() };
                name.sin6_family = libc::AF_INET6 as _;
                name.sin6_port = address.port().to_be();
                name.sin6_addr.s6_addr = address.ip().octets();
                name.sin6_scope_id = address.scope_id();
                self.v6 = name;
                size_of::<sockaddr_in6>() as _
            }
        }
    }

    fn address(&self) -> SocketAddr {
        // SAFETY: both begin with the family, and every byte was set when the name was made.
        let family = unsafe { self.v4.sin_family };
        if c_int::from(family) == libc::AF_INET6 {
            // SAFETY: the family says so; numbers have no invalid values.
            let name = unsafe { self.v6 };
            let address = Ipv6Addr::from(name.sin6_addr.s6_addr);
            SocketAddrV6::new(address, u16::from_be(name.sin6_port), 0, name.sin6_scope_id).into()
        } else {
            // SAFETY: numbers have no invalid values.
            let name = unsafe { self.v4 };
            let address = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            SocketAddrV4::new(address, u16::from_be(name.sin_port)).into()
        }
    }
}

/// A control message with an int or a byte.
#[repr(C)]
#[derive(Clone, Copy)]
struct Control {
    header: cmsghdr,
    value: [u8; size_of::<c_int>()],
}

// The layout is that of the macros of cmsg(3).
const _: () = {
    // SAFETY: they only calculate.
    unsafe {
        assert!(size_of::<Control>() == libc::CMSG_SPACE(size_of::<c_int>() as _) as usize);
        assert!(mem::offset_of!(Control, value) == libc::CMSG_LEN(0) as usize);
    }
};

impl Control {
    // SAFETY: zero is a number in all of its fields.
    const NONE: Self = unsafe { mem::zeroed() };

    fn new(level: c_int, kind: c_int, value: c_int) -> Self {
        let mut control = Self::NONE;
        // SAFETY: it only calculates.
        control.header.cmsg_len = unsafe { libc::CMSG_LEN(size_of::<c_int>() as _) } as _;
        control.header.cmsg_level = level;
        control.header.cmsg_type = kind;
        control.value = value.to_ne_bytes();
        control
    }

    /// Sets those that a datagram needs; how many.
    fn set(controls: &mut [Self; 2], datagram: &Datagram<'_>) -> usize {
        let (level, class, limit) = match datagram.to {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
        };
        let mut set = 0;
        if datagram.traffic_class != 0 {
            controls[set] = Self::new(level, class, datagram.traffic_class.into());
            set += 1;
        }
        if let Some(hop_limit) = datagram.hop_limit {
            controls[set] = Self::new(level, limit, hop_limit.into());
            set += 1;
        }
        set
    }
}

/// Datagrams that came together, and the room for them.
pub(crate) struct Ring {
    /// Owned, from the allocator. Reached by this pointer only, as the headers in it point into it.
    storage: NonNull<Storage>,
    /// How many headers the kernel has filled since they were prepared.
    filled: usize,
}

// SAFETY: the allocation belongs to the ring alone; what points into it is inside.
unsafe impl Send for Ring {}

#[repr(C)]
struct Storage {
    headers: [mmsghdr; BATCH],
    vectors: [iovec; BATCH],
    names: [Name; BATCH],
    controls: [[Control; 2]; BATCH],
    bytes: [[u8; LARGEST]; BATCH],
}

impl Ring {
    pub(crate) fn new() -> Self {
        let layout = Layout::new::<Storage>();
        // SAFETY: the layout has a size.
        let allocated = unsafe { alloc::alloc_zeroed(layout) }.cast::<Storage>();
        let Some(storage) = NonNull::new(allocated) else {
            alloc::handle_alloc_error(layout);
        };
        let pointer = storage.as_ptr();
        for i in 0..BATCH {
            // SAFETY: all is inside the allocation, which is zeroed: numbers and null pointers.
            unsafe {
                (*pointer).vectors[i] = iovec {
                    iov_base: (&raw mut (*pointer).bytes[i]).cast(),
                    iov_len: LARGEST,
                };
                let header = &mut (*pointer).headers[i].msg_hdr;
                header.msg_name = (&raw mut (*pointer).names[i]).cast();
                header.msg_iov = &raw mut (*pointer).vectors[i];
                header.msg_iovlen = 1;
                header.msg_control = (&raw mut (*pointer).controls[i]).cast();
            }
        }
        Self {
            storage,
            filled: BATCH,
        }
    }

    /// Sets again the lengths that the kernel changed.
    fn prepare(&mut self) {
        let storage = self.storage.as_ptr();
        for i in 0..self.filled {
            // SAFETY: `filled` is at most BATCH, and the ring is borrowed mutably.
            let header = unsafe { &mut (*storage).headers[i].msg_hdr };
            header.msg_namelen = size_of::<Name>() as _;
            header.msg_controllen = (2 * size_of::<Control>()) as _;
        }
        self.filled = 0;
    }

    /// The datagram at an index below what [`Socket::receive`] said.
    pub(crate) fn message(&self, index: usize) -> Message<'_> {
        assert!(index < self.filled);
        let storage = self.storage.as_ptr();
        // SAFETY: the index is inside, the kernel is not at it while the ring is borrowed, and what is borrowed here is
        // written only with the ring borrowed mutably.
        let (header, name, controls, bytes) = unsafe {
            (
                &(*storage).headers[index],
                &(*storage).names[index],
                &(*storage).controls[index],
                &(*storage).bytes[index],
            )
        };
        let (mut traffic_class, mut hop_limit) = (0, 0);
        let present = header.msg_hdr.msg_controllen / size_of::<Control>();
        for control in controls.iter().take(present) {
            let int = c_int::from_ne_bytes(control.value);
            match (control.header.cmsg_level, control.header.cmsg_type) {
                // This one is a byte.
                (libc::IPPROTO_IP, libc::IP_TOS) => traffic_class = control.value[0],
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    hop_limit = int as u8;
                }
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => traffic_class = int as u8,
                _ => {}
            }
        }
        Message {
            bytes: &bytes[..(header.msg_len as usize).min(LARGEST)],
            from: name.address(),
            traffic_class,
            hop_limit,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and holds nothing that needs to be dropped.
        unsafe { alloc::dealloc(self.storage.as_ptr().cast(), Layout::new::<Storage>()) };
    }
}

/// A network interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// Its name.
    pub(crate) name: String,
    /// Its number.
    pub(crate) index: u32,
}

impl Interface {
    /// The one that has an address. Of 127/8 only 127.0.0.1 is told, but all are of that one.
    pub(crate) fn of(address: IpAddr) -> Option<Self> {
        let wanted = match address {
            IpAddr::V4(address) if address.is_loopback() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            other => other,
        };
        let mut list = ptr::null_mut();
        // SAFETY: the list is written to the pointer.
        if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
            return None;
        }
        let mut found = None;
        let mut next = list;
        // SAFETY: entries and what they point at live until the list is freed; the last one points at none.
        while let Some(entry) = unsafe { next.as_ref() } {
            next = entry.ifa_next;
            if !entry.ifa_addr.is_null() {
                // SAFETY: the address is there and has the size of its family's.
                let interface_address = unsafe {
                    match c_int::from((*entry.ifa_addr).sa_family) {
                        libc::AF_INET => {
                            let v4 = entry.ifa_addr.cast::<sockaddr_in>().read_unaligned();
                            Some(Name { v4 }.address().ip())
                        }
                        libc::AF_INET6 => {
                            let v6 = entry.ifa_addr.cast::<sockaddr_in6>().read_unaligned();
                            Some(Name { v6 }.address().ip())
                        }
                        _ => None,
                    }
                };
                if interface_address == Some(wanted) {
                    // SAFETY: the name is a C string, and lives as long as the entry.
                    let (name, index) = unsafe {
                        (
                            CStr::from_ptr(entry.ifa_name),
                            libc::if_nametoindex(entry.ifa_name),
                        )
                    };
                    found = Some(Self {
                        name: name.to_string_lossy().into_owned(),
                        index,
                    });
                    break;
                }
            }
        }
        // SAFETY: the list came from getifaddrs, and nothing of it is used any more.
        unsafe { libc::freeifaddrs(list) };
        found
    }
}
