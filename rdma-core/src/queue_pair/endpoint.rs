//! Endpoints: the addresses and parameters that two queue pairs exchange in order to connect.

use crate::device::{Gid, Mtu};
use crate::error::{Error, Result};
use crate::ffi;

/// The parameters of a queue pair that the peer needs in order to connect to the queue pair. The
/// two programs exchange their endpoints, for example over TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Endpoint {
    /// The number of the queue pair, 24 bits.
    pub queue_pair: u32,
    /// The first packet sequence number that the queue pair sends, 24 bits.
    pub packet_sequence: u32,
    /// The GID of the port that the queue pair uses.
    pub gid: Gid,
    /// The LID of the port that the queue pair uses; 0 on Ethernet.
    pub lid: u16,
    /// Active MTU of the port, the upper limit of the path MTU.
    pub mtu: Mtu,
    /// Maximum number of RDMA reads and atomics that this queue pair executes for the peer at the
    /// same time.
    pub incoming_reads: u8,
    /// Maximum number of outstanding RDMA reads and atomics of this queue pair.
    pub outgoing_reads: u8,
}

/// The largest 24-bit number. Queue pair numbers and packet sequence numbers must not be larger.
pub(super) const LOW_24: u32 = 0x00ff_ffff;

/// The name that error messages use for an invalid endpoint.
const ENDPOINT_NAME: &str = "endpoint of the peer";

impl Endpoint {
    /// Length in bytes of the array that [`Self::to_bytes`] returns.
    pub const ENCODED_LEN: usize = 29;

    /// Encodes the endpoint as bytes, which the program sends to the peer. Numbers are in network
    /// byte order.
    pub fn to_bytes(&self) -> [u8; Self::ENCODED_LEN] {
        let mut bytes = [0; Self::ENCODED_LEN];
        bytes[0..4].copy_from_slice(&self.queue_pair.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.packet_sequence.to_be_bytes());
        bytes[8..24].copy_from_slice(&self.gid.0);
        bytes[24..26].copy_from_slice(&self.lid.to_be_bytes());
        bytes[26] = self.mtu as u8;
        bytes[27] = self.incoming_reads;
        bytes[28] = self.outgoing_reads;
        bytes
    }

    /// Decodes an endpoint that [`Self::to_bytes`] has encoded.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for bytes that do not encode an endpoint.
    pub fn from_bytes(bytes: &[u8; Self::ENCODED_LEN]) -> Result<Self> {
        let number =
            |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let mtu = Mtu::ALL
            .into_iter()
            .find(|&mtu| mtu as u8 == bytes[26])
            .ok_or_else(|| Error::invalid(ENDPOINT_NAME, "there is no such path MTU"))?;
        let endpoint = Self {
            queue_pair: number(0),
            packet_sequence: number(4),
            gid: Gid(bytes[8..24].try_into().expect("sixteen bytes")),
            lid: u16::from_be_bytes(bytes[24..26].try_into().expect("two bytes")),
            mtu,
            incoming_reads: bytes[27],
            outgoing_reads: bytes[28],
        };
        endpoint.checked()?;
        Ok(endpoint)
    }

    /// Returns an error if the queue pair number or the packet sequence number has more than 24
    /// bits. An endpoint from an untrusted source may contain such a number.
    pub(super) fn checked(&self) -> Result<()> {
        if self.queue_pair > LOW_24 || self.packet_sequence > LOW_24 {
            let reason = "queue pair and packet sequence numbers have 24 bits";
            return Err(Error::invalid(ENDPOINT_NAME, reason));
        }
        Ok(())
    }

    /// Returns a random 24-bit number for the first packet that a queue pair sends. A random number
    /// makes it unlikely that a late packet of an earlier connection is accepted. A process that
    /// cannot observe the packets of a connection must guess the number to forge a packet.
    pub(crate) fn random_packet_sequence() -> u32 {
        ffi::random_word() & LOW_24
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint {
            queue_pair: 0x12_3456,
            packet_sequence: 0xff_ffff,
            gid: Gid([7; 16]),
            lid: 513,
            mtu: Mtu::Mtu4096,
            incoming_reads: 16,
            outgoing_reads: 128,
        }
    }

    #[test]
    fn bytes_round_trip() {
        assert_eq!(Endpoint::from_bytes(&endpoint().to_bytes()), Ok(endpoint()));
    }

    /// Checks that the packet sequence numbers look random. The probability that random numbers
    /// fail the test is below 2^-60.
    #[test]
    fn first_sequence_numbers_cannot_be_foreseen() {
        let drawn: Vec<u32> = (0..4096)
            .map(|_| Endpoint::random_packet_sequence())
            .collect();
        assert!(drawn.iter().all(|&number| number <= LOW_24));
        let pairs = drawn.iter().zip(&drawn[1..]);
        let adjacent = pairs.filter(|(one, next)| one.abs_diff(**next) < 2);
        assert!(adjacent.count() < 8);
        for bit in 0..24 {
            let set = drawn.iter().filter(|&number| number >> bit & 1 == 1);
            // About half of the numbers must have the bit set. The bounds are nine standard
            // deviations from the half.
            assert!((1760..=2336).contains(&set.count()), "bit {bit}");
        }
    }

    #[test]
    fn hostile_bytes_are_refused() {
        let mut bytes = endpoint().to_bytes();
        bytes[26] = 6;
        assert!(Endpoint::from_bytes(&bytes).is_err());
        let mut bytes = endpoint().to_bytes();
        bytes[0] = 1;
        assert!(Endpoint::from_bytes(&bytes).is_err());
    }

    #[test]
    #[cfg(feature = "serde")]
    fn serde_round_trips() {
        let text = serde_json::to_string(&endpoint()).unwrap();
        assert_eq!(serde_json::from_str::<Endpoint>(&text).unwrap(), endpoint());
    }
}
