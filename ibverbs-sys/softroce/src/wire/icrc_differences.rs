#![forbid(unsafe_code)]
//! The effect of the identification in an IPv4 header on the ICRC, for packets of recent lengths.
//!
//! A CRC is linear: the ICRCs of a packet with two identifications differ by a value that depends
//! only on the exclusive or of the identifications, and on the number of bytes that follow them.
//! For one length, the differences of the 16 single bits determine all others.

use super::icrc;

/// Cache that accelerates checks of ICRCs (invariant CRCs) over IPv4. Has an entry for each of up
/// to two packet lengths. An entry contains the change of the ICRC for each bit of the
/// identification field in the IP header. An entry is added when two packets in a row have the same
/// uncached length.
#[derive(Clone, Debug, Default)]
pub struct IcrcDifferences {
    known: [Option<LengthDifferences>; 2],
    /// Index of the entry that was added most recently.
    newest: usize,
    /// Last packet length that was not found in the cache. If the length occurs again, it is added
    /// to the cache.
    missed: usize,
}

/// Changes of the ICRC (invariant CRC) of packets with one length. Each change is caused by a
/// single bit of the identification field in the IPv4 header.
#[derive(Clone, Copy, Debug)]
struct LengthDifferences {
    /// Length of the packet in bytes from BTH to pad.
    transport: usize,
    /// For each bit of the identification, the difference of the ICRC if only this bit is set.
    of_bits: [u32; 16],
    /// Exclusive-or combinations of the differences in `of_bits`, each with a mask. The mask is a
    /// bit that is set in this combination only. With these combinations, a check whether another
    /// difference is a combination of `of_bits` is fast.
    reduced: [(u32, u32); 16],
}

impl IcrcDifferences {
    /// Returns the difference (exclusive or) between the ICRCs (invariant CRCs) of two IPv4
    /// packets. The packets differ only in the identification field of the IP header: the field is
    /// 0 in one packet, and `identification` in the other. `transport` is the number of bytes
    /// between the UDP header and the ICRC.
    pub fn difference(&mut self, identification: u16, transport: usize) -> u32 {
        match self.of(transport) {
            Some(differences) => differences.of(identification),
            None => icrc::of_identification(identification, transport),
        }
    }

    /// Returns whether a received and a calculated ICRC (invariant CRC) agree, or differ only
    /// because of the identification field in the IPv4 header, whose value a receiver does not
    /// know. `difference` is the exclusive or of the two ICRCs. `transport` is the number of bytes
    /// between the UDP header and the ICRC.
    pub fn is_explained(&mut self, difference: u32, transport: usize) -> bool {
        match self.of(transport) {
            Some(differences) => differences.contain(difference),
            None => icrc::is_identification(difference, transport),
        }
    }

    fn of(&mut self, transport: usize) -> Option<&LengthDifferences> {
        let is_same = |known: &Option<LengthDifferences>| {
            (known.as_ref()).is_some_and(|known| known.transport == transport)
        };
        let place = match self.known.iter().position(is_same) {
            Some(place) => place,
            // A length that occurs only once is not worth a table.
            None if self.missed != transport => {
                self.missed = transport;
                return None;
            }
            None => {
                self.newest ^= 1;
                self.known[self.newest] = Some(LengthDifferences::new(transport));
                self.newest
            }
        };
        self.known[place].as_ref()
    }
}

impl LengthDifferences {
    fn new(transport: usize) -> Self {
        let of_bits = icrc::of_identification_bits(transport);
        let mut reduced = [(0, 0); 16];
        for (count, &difference) in of_bits.iter().enumerate() {
            let mut rest = difference;
            for &(bit, combination) in &reduced[..count] {
                if rest & bit != 0 {
                    rest ^= combination;
                }
            }
            // No identification leaves the ICRC as it is, so `rest` is not 0.
            let own = 1 << rest.trailing_zeros();
            for (_, combination) in &mut reduced[..count] {
                if *combination & own != 0 {
                    *combination ^= rest;
                }
            }
            reduced[count] = (own, rest);
        }
        Self {
            transport,
            of_bits,
            reduced,
        }
    }

    fn of(&self, identification: u16) -> u32 {
        let mut left = identification;
        let mut difference = 0;
        while left != 0 {
            difference ^= self.of_bits[left.trailing_zeros() as usize];
            left &= left - 1;
        }
        difference
    }

    fn contain(&self, difference: u32) -> bool {
        let mut rest = difference;
        for &(bit, combination) in &self.reduced {
            if difference & bit != 0 {
                rest ^= combination;
            }
        }
        rest == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tables_agree_with_the_direct_calculation(
            packets in proptest::collection::vec(
                (any::<u16>(), any::<u32>(), prop_oneof![Just(1036_usize), Just(1052), 12..4200_usize]),
                1..40,
            ),
        ) {
            let mut tables = IcrcDifferences::default();
            for (identification, other, transport) in packets {
                for _ in 0..2 {
                    let difference = icrc::of_identification(identification, transport);
                    prop_assert_eq!(tables.difference(identification, transport), difference);
                    prop_assert!(tables.is_explained(difference, transport));
                    let expected = icrc::is_identification(other, transport);
                    prop_assert_eq!(tables.is_explained(other, transport), expected);
                    let damaged = difference ^ 1 << (other % 32);
                    let expected = icrc::is_identification(damaged, transport);
                    prop_assert_eq!(tables.is_explained(damaged, transport), expected);
                }
            }
        }
    }
}
