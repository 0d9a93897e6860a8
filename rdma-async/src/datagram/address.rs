//! [`DatagramAddress`]: the address of a datagram socket.

use std::fmt;
use std::str::FromStr;

use rdma_core::Gid;

use crate::error::{Error, Result};

/// The address of a [`DatagramSocket`](crate::DatagramSocket), which a program passes to the
/// socket's peers.
///
/// `Display` and `FromStr` use the IP address of the GID, the LID, the number of the queue pair and
/// the Q_Key, for example `::ffff:10.0.0.1/0/18/0x11111111`.
///
/// ```
/// use rdma_async::DatagramAddress;
///
/// let address: DatagramAddress = "::ffff:10.0.0.1/0/18/0x11111111".parse()?;
/// assert_eq!(address.queue_pair, 18);
/// assert_eq!(DatagramAddress::from_bytes(&address.to_bytes()), address);
/// # Ok::<(), rdma_async::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DatagramAddress {
    /// The GID of the port, which contains the IP address on RoCE v2.
    pub gid: Gid,
    /// The LID of the port; 0 on Ethernet.
    pub lid: u16,
    /// The number of the queue pair, 24 bits.
    pub queue_pair: u32,
    /// The Q_Key of the queue pair, which each datagram to the socket must contain.
    pub queue_key: u32,
}

impl DatagramAddress {
    /// Length, in bytes, of the encoding that [`Self::to_bytes`] returns.
    pub const ENCODED_LEN: usize = 26;

    /// Returns the address as bytes: GID, LID, number of the queue pair and Q_Key, in network byte
    /// order.
    pub fn to_bytes(&self) -> [u8; Self::ENCODED_LEN] {
        let mut bytes = [0; Self::ENCODED_LEN];
        bytes[..16].copy_from_slice(&self.gid.0);
        bytes[16..18].copy_from_slice(&self.lid.to_be_bytes());
        bytes[18..22].copy_from_slice(&self.queue_pair.to_be_bytes());
        bytes[22..].copy_from_slice(&self.queue_key.to_be_bytes());
        bytes
    }

    /// Creates the address from the bytes that [`Self::to_bytes`] returned.
    pub fn from_bytes(bytes: &[u8; Self::ENCODED_LEN]) -> Self {
        let word = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        Self {
            gid: Gid(bytes[..16].try_into().expect("sixteen bytes")),
            lid: u16::from_be_bytes([bytes[16], bytes[17]]),
            queue_pair: u32::from_be_bytes(word(18)),
            queue_key: u32::from_be_bytes(word(22)),
        }
    }
}

impl fmt::Display for DatagramAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            gid,
            lid,
            queue_pair,
            queue_key,
        } = self;
        write!(f, "{}/{lid}/{queue_pair}/{queue_key:#x}", gid.to_ipv6())
    }
}

impl FromStr for DatagramAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let mut parts = text.split('/');
            let mut next = || parts.next();
            let address: std::net::Ipv6Addr = next()?.parse().ok()?;
            let lid = next()?.parse().ok()?;
            let queue_pair = next()?.parse().ok()?;
            let key = next()?.strip_prefix("0x")?;
            let queue_key = u32::from_str_radix(key, 16).ok()?;
            next().is_none().then_some(Self {
                gid: Gid(address.octets()),
                lid,
                queue_pair,
                queue_key,
            })
        };
        parse().ok_or_else(|| {
            let reason = format!("{text:?} is not IPV6/LID/QUEUE-PAIR/0xKEY");
            Error::invalid("address of a datagram socket", reason)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_and_invalid_text_is_refused() {
        let address = DatagramAddress {
            gid: Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]),
            lid: 17,
            queue_pair: 0xabcdef,
            queue_key: 0x8000_0001,
        };
        assert_eq!(
            address.to_string().parse::<DatagramAddress>().unwrap(),
            address
        );
        assert_eq!(DatagramAddress::from_bytes(&address.to_bytes()), address);
        for text in [
            "",
            "::1",
            "::1/0/1",
            "::1/0/1/17",
            "::1/0/1/0xg",
            "::1/0/1/0x1/2",
            "x/0/1/0x1",
        ] {
            assert!(text.parse::<DatagramAddress>().is_err(), "{text:?}");
        }
    }
}
