//! Invariant CRC (ICRC) at the end of every packet (IBTA 7.8.1). Annex A17 defines the covered IP
//! and UDP fields.
//!
//! The ICRC is the CRC-32 of Ethernet over eight bytes of ones (in place of an InfiniBand local
//! route header), the IP header, the UDP header, and the packet from BTH to pad. Fields that a
//! router may change count as ones: IPv4's TOS, TTL and checksum, IPv6's traffic class, flow label
//! and hop limit, the UDP checksum, and the BTH's congestion bits with the reserved bits beside
//! them. The ICRC is sent with the low byte first.
//!
//! All other IPv4 fields are covered, including the identification, which a UDP socket does not
//! report. [`explained_by_identification`] checks an ICRC without knowledge of the identification.

use crc32fast::Hasher;

/// Initial CRC value for the calculation of every ICRC (invariant CRC): the CRC of eight `0xff`
/// bytes. In an InfiniBand packet, these bytes stand for the local route header. A RoCE packet has
/// no such header.
const SEED: u32 = 0x2144_df1c;

/// Length in bytes of the base transport header (BTH). The ICRC (invariant CRC) is computed from a
/// copy of the BTH, in which the bits that the ICRC does not cover are set to 1. Only the BTH is
/// copied: the length of the remaining bytes is then often a multiple of 16, for which the CRC is
/// fastest.
const MASKED_BYTES: usize = 12;

/// Intermediate value of the ICRC (invariant CRC), computed from the IP and UDP headers of a
/// packet. [`finish`](Self::finish) adds the rest of the packet. All packets with the same path and
/// length have the same intermediate value, so a caller can use one value for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialIcrc(u32);

impl PartialIcrc {
    /// Begins the calculation of the ICRC (invariant CRC) of a packet over IPv4, with its IP header
    /// `header` and its UDP header `udp`. [`Self::finish`] adds the rest of the packet.
    pub fn ipv4(header: &[u8; 20], udp: &[u8; 8]) -> Self {
        let mut covered = [0; 20 + 8];
        covered[..20].copy_from_slice(header);
        covered[1] = 0xff; // TOS
        covered[8] = 0xff; // TTL
        covered[10..12].fill(0xff); // checksum
        Self::with(&mut covered, udp)
    }

    /// Begins the calculation of the ICRC (invariant CRC) of a packet over IPv6, with its IP header
    /// `header` and its UDP header `udp`. [`Self::finish`] adds the rest of the packet.
    pub fn ipv6(header: &[u8; 40], udp: &[u8; 8]) -> Self {
        let mut covered = [0; 40 + 8];
        covered[..40].copy_from_slice(header);
        covered[0] |= 0x0f; // traffic class
        covered[1..4].fill(0xff); // traffic class and flow label
        covered[7] = 0xff; // hop limit
        Self::with(&mut covered, udp)
    }

    fn with(covered: &mut [u8], udp: &[u8; 8]) -> Self {
        if let Some(end) = covered.last_chunk_mut::<8>() {
            *end = *udp;
            end[6..].fill(0xff); // checksum
        }
        let mut hasher = Hasher::new_with_initial(SEED);
        hasher.update(covered);
        Self(hasher.finalize())
    }

    /// Returns the ICRC (invariant CRC) of the packet whose IP and UDP headers are already included
    /// in this value. `transport` contains the bytes between the UDP header and the ICRC.
    pub fn finish(self, transport: &[u8]) -> u32 {
        let mut hasher = Hasher::new_with_initial(self.0);
        if let Some((head, tail)) = transport.split_first_chunk::<MASKED_BYTES>() {
            hasher.update(&masked(*head));
            hasher.update(tail);
        } else {
            // A packet that is shorter than a BTH is invalid, but its ICRC is defined, too.
            let mut head = [0; MASKED_BYTES];
            head[..transport.len()].copy_from_slice(transport);
            hasher.update(&masked(head)[..transport.len()]);
        }
        hasher.finalize()
    }
}

/// Returns the base transport header (BTH) in the form that the ICRC (invariant CRC) covers: the
/// congestion bits and the reserved bits beside them are set to 1, because routers may change them.
fn masked(mut head: [u8; MASKED_BYTES]) -> [u8; MASKED_BYTES] {
    head[4] = 0xff;
    head
}

/// Returns the invariant CRC (ICRC) of a packet over IPv4 with the IP header `header` and the UDP
/// header `udp`. `transport` contains the bytes between the UDP header and the ICRC.
pub fn ipv4(header: &[u8; 20], udp: &[u8; 8], transport: &[u8]) -> u32 {
    PartialIcrc::ipv4(header, udp).finish(transport)
}

/// Returns the invariant CRC (ICRC) of a packet over IPv6 with the IP header `header` and the UDP
/// header `udp`. `transport` contains the bytes between the UDP header and the ICRC.
pub fn ipv6(header: &[u8; 40], udp: &[u8; 8], transport: &[u8]) -> u32 {
    PartialIcrc::ipv6(header, udp).finish(transport)
}

/// Splits a datagram into the packet, from the BTH to the pad, and the packet's ICRC (invariant
/// CRC) in the last four bytes. Returns `None` if the datagram is shorter than an ICRC.
pub fn split(datagram: &[u8]) -> Option<(&[u8], u32)> {
    let (transport, icrc) = datagram.split_last_chunk()?;
    Some((transport, u32::from_le_bytes(*icrc)))
}

/// Returns whether `received` is the invariant CRC (ICRC) of an IPv4 packet for at least one value
/// of the identification field in the IP header. The ICRC covers this field, but a UDP socket does
/// not report its value. The check is incomplete: 2^16 of 2^32 wrong values pass.
pub fn explained_by_identification(
    header: &[u8; 20],
    udp: &[u8; 8],
    transport: &[u8],
    received: u32,
) -> bool {
    identification(header, udp, transport, received).is_some()
}

/// Returns whether a received and a calculated ICRC (invariant CRC) agree, or differ only because
/// of the identification field in the IPv4 header. `difference` is the exclusive or of the two
/// ICRCs. Only 2^16 of the 2^32 possible differences can come from this field. These differences
/// depend on `transport`, the number of bytes between the UDP header and the ICRC.
pub fn is_identification(difference: u32, transport: usize) -> bool {
    unshift(difference, bytes_after_identification(transport)) & 0xffff == 0
}

/// Returns the difference (exclusive or) between the ICRCs (invariant CRCs) of two IPv4 packets.
/// The packets differ only in the identification field of the IP header: the field is 0 in one
/// packet, and `identification` in the other. `transport` is the number of bytes between the UDP
/// header and the ICRC.
pub fn of_identification(identification: u16, transport: usize) -> u32 {
    // A CRC is linear: the two bytes are shifted by everything that follows them.
    let [high, low] = identification.to_be_bytes();
    let bytes = u32::from(u16::from_le_bytes([high, low])) << 16;
    shift(bytes, bytes_after_identification(transport))
}

/// Returns 16 values, one for each bit of the identification field in the IPv4 header, beginning
/// with the lowest bit. If only this bit of a packet changes, its ICRC (invariant CRC) changes by
/// an exclusive or with the value. `transport` is the number of bytes between the UDP header and
/// the ICRC.
pub fn of_identification_bits(transport: usize) -> [u32; 16] {
    // The value 1 in the order of bits of a CRC.
    let factor = shift(1 << 31, bytes_after_identification(transport));
    std::array::from_fn(|bit| {
        let bytes = u32::from((1_u16 << bit).swap_bytes()) << 16;
        multiply(bytes, factor)
    })
}

/// Returns the number of bytes that follow the identification field of the IPv4 header in the
/// calculation of the ICRC (invariant CRC). These bytes are the rest of the IP header, the UDP
/// header, and `transport` further bytes of the packet. Four zero bytes follow, because a CRC is
/// the remainder of the message with 32 zero bits appended.
fn bytes_after_identification(transport: usize) -> usize {
    (20 - 6) + 8 + transport + 4
}

/// Finds the value of the identification field in the IPv4 header for which the packet's ICRC
/// (invariant CRC) is `received`. Returns `None` if no value gives this ICRC. Ignores the
/// identification in `header`.
///
/// A CRC is linear: a change of two bytes changes the CRC by these two bytes times a power of x,
/// modulo the CRC polynomial. The power depends only on the number of bytes that follow. So the
/// difference of the CRCs divided by the power gives the two bytes. If the quotient has more than
/// 16 bits, other bytes differ, too.
fn identification(
    header: &[u8; 20],
    udp: &[u8; 8],
    transport: &[u8],
    received: u32,
) -> Option<u16> {
    let difference = ipv4(header, udp, transport) ^ received;
    let bytes = unshift(difference, bytes_after_identification(transport.len()));
    if bytes & 0xffff != 0 {
        return None;
    }
    let changed = ((bytes >> 16) as u16).to_le_bytes();
    Some(u16::from_be_bytes([
        header[4] ^ changed[0],
        header[5] ^ changed[1],
    ]))
}

/// The CRC polynomial in reflected bit order: bit 31 is x^0, and bit 0 is x^31. The term x^32 is
/// omitted.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// Table for [`unshift`], which removes the effect of zero bytes at the end of a message from its
/// CRC. Multiplication by the element `i` removes 2^i zero bytes: the element is x^-(8 * 2^i),
/// modulo the CRC polynomial.
const UNSHIFTS: [u32; 32] = {
    let mut powers = [0; 32];
    let mut power = 1 << 31;
    let mut bit = 0;
    while bit < 8 {
        power = divide_by_x(power);
        bit += 1;
    }
    let mut i = 0;
    while i < 32 {
        powers[i] = power;
        power = multiply(power, power);
        i += 1;
    }
    powers
};

/// Table for [`shift`], which adds the effect of zero bytes at the end of a message to its CRC.
/// Multiplication by the element `i` adds 2^i zero bytes: the element is x^(8 * 2^i), modulo the
/// CRC polynomial.
const SHIFTS: [u32; 32] = {
    let mut powers = [0; 32];
    // x^8
    let mut power = 1 << 23;
    let mut i = 0;
    while i < 32 {
        powers[i] = power;
        power = multiply(power, power);
        i += 1;
    }
    powers
};

/// Returns the difference (exclusive or) of the CRC-32 values of two messages after `bytes` zero
/// bytes are appended to both messages. `value` is the difference before. The result is `value`
/// times x^(8 * bytes), modulo the CRC polynomial.
fn shift(value: u32, bytes: usize) -> u32 {
    by_powers(&SHIFTS, value, bytes)
}

/// Returns `value` divided by x^(8 * bytes), modulo the CRC polynomial: the inverse of [`shift`].
fn unshift(value: u32, bytes: usize) -> u32 {
    by_powers(&UNSHIFTS, value, bytes)
}

fn by_powers(powers: &[u32; 32], mut value: u32, bytes: usize) -> u32 {
    for (i, &power) in powers.iter().enumerate() {
        if bytes >> i & 1 != 0 {
            value = multiply(value, power);
        }
    }
    value
}

/// Returns the product of `a` and `b` modulo the CRC polynomial.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 1 << 31;
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = multiply_by_x(b);
        bit >>= 1;
    }
    product
}

const fn multiply_by_x(value: u32) -> u32 {
    if value & 1 != 0 {
        value >> 1 ^ POLYNOMIAL
    } else {
        value >> 1
    }
}

/// Returns `value` divided by x, modulo the CRC polynomial. Undoes `multiply_by_x`, which subtracts
/// the polynomial exactly if the top bit of its result is set.
const fn divide_by_x(value: u32) -> u32 {
    if value & 1 << 31 != 0 {
        (value ^ POLYNOMIAL) << 1 | 1
    } else {
        value << 1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Computes the ICRC over the bytes `covered` as the specification describes it, bit by bit.
    fn bitwise(covered: impl IntoIterator<Item = u8>) -> u32 {
        let mut register = !0_u32;
        for byte in [0xff; 8].into_iter().chain(covered) {
            for bit in 0..8 {
                let feedback = (register & 1) ^ u32::from(byte >> bit & 1);
                register >>= 1;
                if feedback != 0 {
                    register ^= 0xedb8_8320;
                }
            }
        }
        !register
    }

    fn masked(bytes: &[u8], masks: &[(usize, u8)]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for &(index, mask) in masks {
            if let Some(byte) = bytes.get_mut(index) {
                *byte |= mask;
            }
        }
        bytes
    }

    const IPV4_MASKS: [(usize, u8); 7] = [
        (1, 0xff),
        (8, 0xff),
        (10, 0xff),
        (11, 0xff),
        (26, 0xff),
        (27, 0xff),
        (32, 0xff),
    ];
    const IPV6_MASKS: [(usize, u8); 8] = [
        (0, 0x0f),
        (1, 0xff),
        (2, 0xff),
        (3, 0xff),
        (7, 0xff),
        (46, 0xff),
        (47, 0xff),
        (52, 0xff),
    ];

    fn hex(digits: &str) -> Vec<u8> {
        let digits: Vec<u8> = digits.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    /// Splits a packet that begins with an IP header of `IP` bytes. Returns its IP header, its UDP
    /// header, the bytes between the UDP header and the ICRC, and the ICRC. Panics if the packet is
    /// too short.
    fn cut<const IP: usize>(packet: &[u8]) -> ([u8; IP], [u8; 8], &[u8], u32) {
        let (transport, icrc) = split(&packet[IP + 8..]).unwrap();
        (
            packet[..IP].try_into().unwrap(),
            packet[IP..IP + 8].try_into().unwrap(),
            transport,
            icrc,
        )
    }

    /// A recorded packet with a known ICRC, for the tests: a congestion notification that a
    /// ConnectX-4 Lx sent. The BECN bit of the packet is set, and its IP header has the
    /// identification 0x718c.
    const CONNECT_X: &str = "45c2003c 718c4000 40119161 0a001101 0a001201 000012b7 00280000
        8100ffff 40000118 00000000 00000000 00000000 00000000 00000000 82fd002a";

    /// Recorded packet with a correct ICRC (invariant CRC): a send over an unreliable connection,
    /// with two pad bytes and a UDP checksum. The tests expect the identification 0x0478 of its IP
    /// header.
    const UC_SEND: &str = "45010040 04784000 4011b4d5 c0a80007 c0a80007 c00012b7 002caca2
        2460ffff 000000d3 00cf1710 4630818b e28935d9 0e9a9550 5401be88 5e500000 78f353f3";

    /// Packet over IPv6, the last packet of a send. The ICRC (invariant CRC) of the packet was
    /// calculated with scapy, and is the expected value in the test.
    const IPV6_SEND: &str = "62b12345 00201121 fd000000 00000000 00000000 00000001
        fd000000 00000000 00000000 00000002 c82212b7 00200000
        0240ffff 00000011 80123456 736f6674 726f6365 173dcb2d";

    #[test]
    fn recorded_packets_have_the_calculated_icrc() {
        for packet in [CONNECT_X, UC_SEND] {
            let packet = hex(packet);
            let (ip, udp, transport, icrc) = cut(&packet);
            assert_eq!(ipv4(&ip, &udp, transport), icrc);
        }
        let packet = hex(IPV6_SEND);
        let (ip, udp, transport, icrc) = cut(&packet);
        assert_eq!(ipv6(&ip, &udp, transport), icrc);
    }

    #[test]
    fn an_unknown_identification_is_found() {
        for (packet, expected) in [(CONNECT_X, 0x718c), (UC_SEND, 0x0478)] {
            let packet = hex(packet);
            let (mut ip, udp, transport, icrc) = cut::<20>(&packet);
            assert_eq!(identification(&ip, &udp, transport, icrc), Some(expected));
            ip[4..6].fill(0);
            assert_eq!(identification(&ip, &udp, transport, icrc), Some(expected));
            assert!(explained_by_identification(&ip, &udp, transport, icrc));
            // A wrong bit in the ICRC must still be detected.
            for bit in 0..32 {
                assert!(!explained_by_identification(
                    &ip,
                    &udp,
                    transport,
                    icrc ^ 1 << bit
                ));
            }
        }
    }

    #[test]
    fn a_packet_too_short_for_an_icrc_is_refused() {
        assert_eq!(split(&[1, 2, 3]), None);
        assert_eq!(split(&[1, 2, 3, 4]), Some((&[][..], 0x0403_0201)));
    }

    fn array<const N: usize>() -> impl Strategy<Value = [u8; N]> {
        proptest::collection::vec(any::<u8>(), N).prop_map(|bytes| bytes.try_into().unwrap())
    }

    fn transport() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), 0..200)
    }

    proptest! {
        #[test]
        fn the_icrc_agrees_with_a_bitwise_calculation(
            v4 in array::<20>(), v6 in array::<40>(), udp in array::<8>(), transport in transport(),
        ) {
            let packet = [&v4[..], &udp, &transport].concat();
            prop_assert_eq!(ipv4(&v4, &udp, &transport), bitwise(masked(&packet, &IPV4_MASKS)));
            let packet = [&v6[..], &udp, &transport].concat();
            prop_assert_eq!(ipv6(&v6, &udp, &transport), bitwise(masked(&packet, &IPV6_MASKS)));
        }

        #[test]
        fn a_flipped_bit_changes_the_icrc_unless_masked(
            v4 in array::<20>(), v6 in array::<40>(), udp in array::<8>(),
            transport in proptest::collection::vec(any::<u8>(), 12..200), place in any::<prop::sample::Index>(), bit in 0..8_u8,
        ) {
            let flip = |packet: &mut Vec<u8>, masks: &[(usize, u8)]| {
                let index = place.index(packet.len());
                packet[index] ^= 1 << bit;
                !masks.iter().any(|&(masked, mask)| masked == index && mask & 1 << bit != 0)
            };
            let mut packet = [&v4[..], &udp, &transport].concat();
            let counts = flip(&mut packet, &IPV4_MASKS);
            let changed = ipv4(packet[..20].try_into()?, packet[20..28].try_into()?, &packet[28..]);
            prop_assert_eq!(changed != ipv4(&v4, &udp, &transport), counts);
            let mut packet = [&v6[..], &udp, &transport].concat();
            let counts = flip(&mut packet, &IPV6_MASKS);
            let changed = ipv6(packet[..40].try_into()?, packet[40..48].try_into()?, &packet[48..]);
            prop_assert_eq!(changed != ipv6(&v6, &udp, &transport), counts);
        }

        #[test]
        fn every_identification_is_found(
            mut v4 in array::<20>(), udp in array::<8>(), transport in transport(), id in any::<u16>(),
        ) {
            let assumed = v4;
            v4[4..6].copy_from_slice(&id.to_be_bytes());
            let icrc = ipv4(&v4, &udp, &transport);
            prop_assert_eq!(identification(&assumed, &udp, &transport, icrc), Some(id));
            let difference = ipv4(&assumed, &udp, &transport) ^ icrc;
            prop_assert!(is_identification(difference, transport.len()));
            v4[4..6].fill(0);
            let of_none = ipv4(&v4, &udp, &transport);
            prop_assert_eq!(of_none ^ of_identification(id, transport.len()), icrc);
        }

        #[test]
        fn an_icrc_that_no_identification_gives_is_refused(
            mut v4 in array::<20>(), udp in array::<8>(), transport in transport(), id in any::<u16>(), other in 1..=u16::MAX,
        ) {
            let assumed = v4;
            // Two changes in four bytes never have the same effect on the ICRC.
            v4[4..6].copy_from_slice(&id.to_be_bytes());
            let fragment = u16::from_be_bytes([v4[6], v4[7]]) ^ other;
            v4[6..8].copy_from_slice(&fragment.to_be_bytes());
            let icrc = ipv4(&v4, &udp, &transport);
            prop_assert!(!explained_by_identification(&assumed, &udp, &transport, icrc));
        }
    }
}
