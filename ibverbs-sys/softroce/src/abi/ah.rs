//! The verbs on address handles, and the conversion of a received datagram's headers to its
//! sender's address.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr;

use ibverbs_sys::{
    ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_grh, ibv_pd, ibv_wc, ibv_wc_flags,
};
use libc::c_int;

use super::answer::{self, into_c_object, pointer, status};
use super::{fail, forward, guard, minus_one, number, open, pd, set_errno, verb};
use crate::context::{AddressHandle, InUse, ProtectionDomain, Refusal};
use crate::fault::Verb;
use crate::limits;
use crate::nic::Nic;
use crate::object_counts::{Counted, Kind, objects};
use crate::proto::Path;

/// The C object that `ibv_create_ah` returns: the public `ibv_ah`, followed by the address handle
/// of this device.
#[repr(C)]
struct AddressHandleObject {
    public: ibv_ah,
    address: AddressHandle,
    _domain: InUse<ProtectionDomain>,
    _counted: Counted,
}

/// Returns the [`AddressHandle`] that is stored in the C object `ah`.
///
/// # Safety
/// `ah` must belong to this device, and must not be destroyed while the reference is used.
pub(crate) unsafe fn handle<'a>(ah: *const ibv_ah) -> &'a AddressHandle {
    // SAFETY: the caller guarantees an object of this device, and each such object is the first
    // field of an `AddressHandleObject`.
    unsafe { &(*ah.cast::<AddressHandleObject>()).address }
}

/// Creates an address handle (`ibv_create_ah(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: the C API requires the caller to pass a valid protection domain.
    unsafe { forward!((*pd).context, ibv_create_ah(pd, attr)) };
    verb(Verb::CreateAh, fail, || {
        pointer(|| {
            // SAFETY: the domain belongs to this device, as `forward!` has checked. The C API
            // requires valid attributes.
            let (context, domain, attr) = unsafe { ((*pd).context, pd::domain(pd), &*attr) };
            // SAFETY: the context belongs to this device, as `forward!` has checked.
            let path = path(unsafe { open::nic(context) }, attr)?;
            if objects(Kind::AddressHandle) >= limits::MAX_AH as u64 {
                return Err(Refusal::Exhausted);
            }
            Ok(into_c_object(AddressHandleObject {
                public: ibv_ah {
                    context,
                    pd,
                    handle: answer::handle(),
                },
                address: AddressHandle::new(domain, path),
                _domain: InUse::new(domain)?,
                _counted: Counted::new(Kind::AddressHandle),
            }))
        })
    })
}

/// Destroys an address handle (`ibv_destroy_ah(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the C API requires the caller to pass a valid address handle.
    unsafe { forward!((*ah).context, ibv_destroy_ah(ah)) };
    verb(Verb::DestroyAh, number, || {
        // SAFETY: the handle belongs to this device, and was created by `into_c_object`. The C API
        // forbids its use after this call.
        drop(unsafe { Box::from_raw(ah.cast::<AddressHandleObject>()) });
        status(|| Ok(()))
    })
}

/// Stores the attributes of an address handle for replies to the sender of a received datagram
/// (`ibv_init_ah_from_wc(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    ah_attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the C API requires the caller to pass an open context.
    unsafe {
        forward!(context, ibv_init_ah_from_wc(context, port_num, wc, grh, ah_attr) else -1);
    }
    guard(-1, || {
        // SAFETY: the context belongs to this device. The C API requires a valid completion, the
        // GRH of its datagram, and a pointer to attributes that is valid for writes. Zeroes are
        // valid attributes.
        unsafe {
            ptr::write_bytes(ah_attr, 0, 1);
            match sender_of(
                open::nic(context),
                port_num,
                &*wc,
                grh.cast(),
                &mut *ah_attr,
            ) {
                Ok(()) => 0,
                Err(errno) => minus_one(errno),
            }
        }
    })
}

/// Creates an address handle to the sender of a received datagram (`ibv_create_ah_from_wc(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    // SAFETY: the C API requires a valid protection domain, and the arguments that the two
    // functions require.
    unsafe {
        forward!((*pd).context, ibv_create_ah_from_wc(pd, wc, grh, port_num));
        let mut attr = std::mem::zeroed();
        if ibv_init_ah_from_wc((*pd).context, port_num, wc, grh, &raw mut attr) != 0 {
            return ptr::null_mut();
        }
        ibv_create_ah(pd, &raw mut attr)
    }
}

/// Stores the Ethernet address and the VLAN of the destination of an address handle
/// (`ibv_resolve_eth_l2_from_gid`). Stores six zero bytes, the address of Linux's loopback
/// interface, and no VLAN, because this device is not on an Ethernet.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    eth_mac: *mut u8,
    vid: *mut u16,
) -> c_int {
    const MAC_LENGTH: usize = 6;
    const NO_VLAN: u16 = 0xffff;
    // SAFETY: the C API requires the caller to pass an open context.
    unsafe {
        forward!(
            context,
            ibv_resolve_eth_l2_from_gid(context, attr, eth_mac, vid)
        );
    }
    guard(-libc::EIO, || {
        // SAFETY: the context belongs to this device. The C API requires valid attributes, and room
        // for the results.
        unsafe {
            if let Err(refusal) = path(open::nic(context), &*attr) {
                set_errno(refusal.errno());
                return -refusal.errno();
            }
            ptr::write_bytes(eth_mac, 0, MAC_LENGTH);
            if !vid.is_null() {
                vid.write(NO_VLAN);
            }
        }
        0
    })
}

/// Returns the path from a GID of `nic` to the destination in `attr`, the attributes of an address
/// handle. Fails if the attributes are invalid.
fn path(nic: &Nic, attr: &ibv_ah_attr) -> Result<Path, Refusal> {
    // IBTA annex A17.4.4: RoCE addresses are GIDs, so a GRH is required.
    if attr.is_global == 0 || attr.port_num != limits::PORTS {
        return Err(Refusal::Invalid);
    }
    let route = &attr.grh;
    let source = nic.gid(route.sgid_index.into()).ok_or(Refusal::Invalid)?;
    let destination = address_of(&route.dgid);
    if destination.is_unspecified() || is_ipv4(&source) != is_ipv4(&destination) {
        return Err(Refusal::Invalid);
    }
    Ok(Path {
        source: route.sgid_index,
        destination,
        traffic_class: route.traffic_class,
        hop_limit: route.hop_limit,
        flow_label: route.flow_label & 0xf_ffff,
    })
}

fn address_of(gid: &ibv_gid) -> Ipv6Addr {
    // SAFETY: all variants of the union are 16 bytes of plain data.
    unsafe { gid.raw }.into()
}

/// Returns whether the GID `gid` represents an IPv4 address. Such a GID is IPv4-mapped, or has the
/// form of IPv4 multicast groups.
fn is_ipv4(gid: &Ipv6Addr) -> bool {
    gid.to_ipv4_mapped().is_some() || gid.segments()[..6] == [0xff0e, 0, 0, 0, 0, 0xffff]
}

/// Sets `attr` to the address of the sender of a received datagram, for a reply. `wc` is the
/// completion of the datagram, and `port` is the port that received the datagram. `header` points
/// to the 40 bytes before the datagram in its receive buffer.
///
/// # Safety
/// If the completion has the flag `IBV_WC_GRH`, `header` must be valid for reads.
unsafe fn sender_of(
    nic: &Nic,
    port: u8,
    wc: &ibv_wc,
    header: *const [u8; 40],
    attr: &mut ibv_ah_attr,
) -> Result<(), c_int> {
    attr.dlid = wc.slid;
    // RoCE has no service levels: the completion has the kind of the network header there.
    attr.sl = 0;
    attr.src_path_bits = wc.dlid_path_bits;
    attr.port_num = port;
    if wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 == 0 {
        return Ok(());
    }
    if port != limits::PORTS {
        return Err(libc::EINVAL);
    }
    // SAFETY: the completion has the flag `IBV_WC_GRH`, so the caller guarantees a valid pointer.
    let route = IpHeader::parse(unsafe { &*header }).ok_or(libc::EPROTONOSUPPORT)?;
    let is_group = route.to.is_multicast()
        || route
            .to
            .to_ipv4_mapped()
            .is_some_and(|address| address.is_multicast());
    let local = nic
        .gids()
        .find_map(|(index, gid)| (gid == route.to && !is_group).then_some(index));
    let local = local.ok_or(libc::EINVAL)?;
    attr.is_global = 1;
    attr.grh.dgid = ibv_gid {
        raw: route.from.octets(),
    };
    attr.grh.sgid_index = local;
    attr.grh.hop_limit = route.hop_limit;
    attr.grh.traffic_class = route.traffic_class;
    attr.grh.flow_label = route.flow_label;
    Ok(())
}

/// Fields of the IP header that precedes a received datagram in its receive buffer (IBTA annex
/// A17.4.5.1). The sender's address is derived from these fields.
#[derive(Debug, PartialEq, Eq)]
struct IpHeader {
    from: Ipv6Addr,
    to: Ipv6Addr,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
}

impl IpHeader {
    /// Parses the IP header in the 40 bytes before a received datagram. An IPv4 header is in the
    /// last 20 bytes. The first 20 bytes are then undefined, and may look like an IPv6 header, so
    /// the IPv4 checksum decides. Returns `None` if there is no valid header.
    fn parse(header: &[u8; 40]) -> Option<Self> {
        const UDP: u8 = 17;
        const IPV4_OF_NO_OPTIONS: u8 = 0x45;
        let ipv4 = &header[20..];
        let may_be_ipv6 = header[0] >> 4 == 6;
        if ipv4[0] == IPV4_OF_NO_OPTIONS && (!may_be_ipv6 || checksum(ipv4) == 0) {
            let address = |at: usize| {
                Ipv4Addr::new(ipv4[at], ipv4[at + 1], ipv4[at + 2], ipv4[at + 3]).to_ipv6_mapped()
            };
            return Some(Self {
                from: address(12),
                to: address(16),
                traffic_class: ipv4[1],
                hop_limit: ipv4[8],
                flow_label: 0,
            });
        }
        if !may_be_ipv6 || header[6] != UDP {
            return None;
        }
        let first = u32::from_be_bytes(*header.first_chunk()?);
        let address = |bytes: &[u8]| Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?));
        Some(Self {
            from: address(&header[8..24])?,
            to: address(&header[24..40])?,
            traffic_class: (first >> 20) as u8,
            hop_limit: header[7],
            flow_label: first & 0xf_ffff,
        })
    }
}

/// Returns the Internet checksum (RFC 1071) of an IPv4 header, which includes its checksum field.
/// The result is 0 if the header is intact.
fn checksum(header: &[u8]) -> u16 {
    let mut sum: u32 = header
        .chunks_exact(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4() -> [u8; 40] {
        let mut header = [0; 40];
        header[20..].copy_from_slice(&[
            0x45, 0x28, 0, 60, 0, 0, 0x40, 0, 63, 17, 0, 0, 127, 1, 2, 3, 127, 4, 5, 6,
        ]);
        let sum = checksum(&header[20..]);
        header[30..32].copy_from_slice(&sum.to_be_bytes());
        header
    }

    fn ipv6() -> [u8; 40] {
        let mut header = [0; 40];
        header[..8].copy_from_slice(&[0x62, 0x81, 0x23, 0x45, 0, 20, 17, 64]);
        header[8] = 0xfd;
        header[23] = 1;
        header[24] = 0xfd;
        header[39] = 2;
        header
    }

    #[test]
    fn the_reply_address_of_an_ipv4_datagram_is_its_source() {
        let expected = IpHeader {
            from: Ipv4Addr::new(127, 1, 2, 3).to_ipv6_mapped(),
            to: Ipv4Addr::new(127, 4, 5, 6).to_ipv6_mapped(),
            traffic_class: 0x28,
            hop_limit: 63,
            flow_label: 0,
        };
        assert_eq!(IpHeader::parse(&ipv4()).as_ref(), Some(&expected));
        let mut odd = ipv4();
        odd[0] = 0x60;
        assert_eq!(IpHeader::parse(&odd), Some(expected), "the checksum tells");
        odd[28] ^= 1;
        assert_eq!(
            IpHeader::parse(&odd),
            None,
            "neither: what may be IPv6 is not UDP"
        );
    }

    #[test]
    fn the_reply_address_of_an_ipv6_datagram_is_its_source() {
        let expected = IpHeader {
            from: "fd00::1".parse().unwrap(),
            to: "fd00::2".parse().unwrap(),
            traffic_class: 0x28,
            hop_limit: 64,
            flow_label: 0x1_2345,
        };
        assert_eq!(IpHeader::parse(&ipv6()), Some(expected));
        let mut other = ipv6();
        other[6] = 0x1b;
        assert_eq!(IpHeader::parse(&other), None, "RoCE version 1");
        assert_eq!(IpHeader::parse(&[0; 40]), None);
    }

    #[test]
    fn address_families_are_recognized() {
        assert!(is_ipv4(&"::ffff:1.2.3.4".parse().unwrap()));
        assert!(is_ipv4(&"ff0e::ffff:224.0.0.1".parse().unwrap()));
        assert!(!is_ipv4(&"fd00::1".parse().unwrap()));
        assert!(!is_ipv4(&"ff0e::1".parse().unwrap()));
    }
}
