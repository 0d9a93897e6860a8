//! The hello: the first message of either end, with the parameters of the connection.

use rdma_core::Endpoint;

use crate::builder::MESSAGE_LENGTHS;
use crate::connection::Depths;

/// First bytes (magic number) of a hello, the first message of the handshake. An end refuses a peer
/// that sends other bytes, because the peer uses another protocol.
pub(crate) const MAGIC: [u8; 8] = *b"RDMAsync";
/// Version of the handshake and of the message format, sent in each hello. Ends with different
/// versions refuse each other.
pub(crate) const VERSION: u16 = 2;

/// Limits of one end that its peer must respect: the maximum numbers of data messages and of
/// control messages in flight (depths), and the maximum length of a message (payload). Numbers are
/// in network byte order.
///
/// ```text
/// byte 0..8    8..10     10..12       12..14          14..18
///      magic   version   data depth   control depth   longest payload
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndLimits {
    pub(crate) depths: Depths,
    pub(crate) payload: u32,
}

impl EndLimits {
    /// Length in bytes of the encoded [`EndLimits`], including the magic number and the version at
    /// their start.
    pub(crate) const ENCODED_LEN: usize = 18;

    /// Encodes the limits of an end: a magic number and the protocol version, followed by the
    /// limits.
    pub(crate) fn encode(&self) -> [u8; Self::ENCODED_LEN] {
        let mut bytes = [0; Self::ENCODED_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_be_bytes());
        bytes[10..12].copy_from_slice(&self.depths.data.to_be_bytes());
        bytes[12..14].copy_from_slice(&self.depths.control.to_be_bytes());
        bytes[14..18].copy_from_slice(&self.payload.to_be_bytes());
        bytes
    }

    /// Decodes the limits of the peer. Returns the reason for refusing the peer as an error. The
    /// peer is refused if it uses another protocol or version, or if its message length is outside
    /// of [`MESSAGE_LENGTHS`]. The peer is also refused if it accepts fewer than two data messages,
    /// or fewer than two control messages, in flight.
    pub(crate) fn decode(bytes: &[u8; Self::ENCODED_LEN]) -> Result<Self, String> {
        let short = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        if bytes[..8] != MAGIC {
            return Err("it does not use this protocol".to_owned());
        }
        if short(8) != VERSION {
            return Err(format!(
                "it uses version {}, and this end {VERSION}",
                short(8)
            ));
        }
        let depths = Depths {
            data: short(10),
            control: short(12),
        };
        if depths.data < 2 || depths.control < 2 {
            return Err("it accepts too few messages in flight".to_owned());
        }
        let payload = u32::from_be_bytes(bytes[14..18].try_into().expect("four bytes"));
        // A stream allocates memory of this length.
        if !MESSAGE_LENGTHS.contains(&(payload as usize)) {
            return Err(format!("it accepts messages of {payload} bytes"));
        }
        Ok(Self { depths, payload })
    }
}

/// First message of either end in the handshake: the limits of the end, followed by the endpoint of
/// its queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) limits: EndLimits,
    pub(crate) endpoint: Endpoint,
}

/// Length of an encoded [`Hello`] in bytes: the limits of the end, and the endpoint of its queue
/// pair.
pub(crate) const HELLO_LEN: usize = EndLimits::ENCODED_LEN + Endpoint::ENCODED_LEN;

impl Hello {
    /// Returns the hello (the first message of the handshake) as bytes: the encoded limits,
    /// followed by the encoded endpoint.
    pub(crate) fn encode(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[..EndLimits::ENCODED_LEN].copy_from_slice(&self.limits.encode());
        bytes[EndLimits::ENCODED_LEN..].copy_from_slice(&self.endpoint.to_bytes());
        bytes
    }

    /// Decodes the hello, the first message of the peer in the handshake. Returns the reason for
    /// refusing the peer if the hello is not valid.
    pub(crate) fn decode(bytes: &[u8; HELLO_LEN]) -> Result<Self, String> {
        let (limits, endpoint) = bytes.split_at(EndLimits::ENCODED_LEN);
        let limits = limits.try_into().expect("a hello begins with limits");
        let endpoint = endpoint
            .try_into()
            .expect("the rest of a hello is an endpoint");
        Ok(Self {
            limits: EndLimits::decode(limits)?,
            endpoint: Endpoint::from_bytes(endpoint).map_err(|error| error.to_string())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use rdma_core::{Gid, Mtu};

    use super::*;

    fn hello() -> Hello {
        Hello {
            limits: EndLimits {
                depths: Depths {
                    data: 64,
                    control: 32,
                },
                payload: 4096,
            },
            endpoint: Endpoint {
                queue_pair: 17,
                packet_sequence: 0xabcdef,
                gid: Gid([9; 16]),
                lid: 0,
                mtu: Mtu::Mtu1024,
                incoming_reads: 16,
                outgoing_reads: 16,
            },
        }
    }

    #[test]
    fn hellos_round_trip() {
        assert_eq!(Hello::decode(&hello().encode()), Ok(hello()));
    }

    #[test]
    fn invalid_hellos_are_refused_with_the_reason() {
        let spoiled = |at: usize, value: u8| {
            let mut bytes = hello().encode();
            bytes[at] = value;
            Hello::decode(&bytes).unwrap_err()
        };
        assert_eq!(spoiled(0, b'x'), "it does not use this protocol");
        assert_eq!(spoiled(9, 1), "it uses version 1, and this end 2");
        assert_eq!(spoiled(11, 0), "it accepts too few messages in flight");
        // Above the maximum, and below the minimum.
        assert_eq!(spoiled(14, 1), "it accepts messages of 16781312 bytes");
        assert_eq!(spoiled(16, 0), "it accepts messages of 0 bytes");
        assert!(spoiled(18 + 26, 0).contains("no such path MTU"));
    }
}
