//! Calls that a server executes at most once, even if the client sends them again after a
//! reconnect.
//!
//! The client assigns a number to each of these calls, and the server stores their answers. A
//! server process has an *instance ID*: a random number that the server sends to its clients. A
//! request names the instance ID to which it was first sent, and a server with another instance ID
//! refuses the request.

mod answer_cache;
mod history;
mod session;

pub use self::answer_cache::execute_once;
pub(crate) use self::answer_cache::{AnswerCache, Refusal};
pub(crate) use self::history::ConnectionClient;
pub(crate) use self::session::Session;
use crate::metadata::Metadata;

/// Name of the metadata value for calls that are executed at most once. In a request, the value is
/// the [`CallNumber`] of the call. In a server's settings, the value is a random number that
/// identifies the server process.
const NAME: &str = "rdma-rpc-once";

/// Length in bytes of the metadata (name and [`CallNumber`]) that the client adds to the request of
/// a call that is executed at most once. If a program's metadata is too long, the error contains
/// the total length with these bytes.
pub(crate) const LEN: usize = 1 + NAME.len() + 2 + CallNumber::LEN;

/// Number of a call, which its request contains as metadata. The server recognizes a repeated
/// request by the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallNumber {
    /// Random identifier of the client.
    session: u128,
    /// Sequence number of the call at the client.
    call: u64,
    /// Lowest sequence number of a call in progress. The server may drop the answers of all earlier
    /// calls.
    floor: u64,
    /// Instance ID of the server to which the call was first sent.
    instance_id: u64,
    /// Set if an earlier request with this number may have arrived.
    is_repeated: bool,
}

impl CallNumber {
    /// Length of an encoded call number in bytes: `session`, `call`, `floor`, `instance_id` and
    /// `is_repeated`.
    const LEN: usize = 16 + 8 + 8 + 8 + 1;

    fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&self.session.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.call.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.floor.to_be_bytes());
        bytes[32..40].copy_from_slice(&self.instance_id.to_be_bytes());
        bytes[40] = self.is_repeated.into();
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let word = |at: usize| {
            let word = bytes[at..].first_chunk::<8>();
            word.map_or(0, |word| u64::from_be_bytes(*word))
        };
        Some(Self {
            session: u128::from(word(0)) << 64 | u128::from(word(8)),
            call: word(16),
            floor: word(24),
            instance_id: word(32),
            is_repeated: bytes[40] != 0,
        })
    }

    /// Returns the call number in the metadata of a request; `None` if there is no valid number.
    fn of(metadata: &Metadata) -> Option<Self> {
        Self::decode(metadata.get(NAME)?)
    }
}

/// Returns the metadata that a server sends with its settings: its instance ID.
pub(crate) fn server_metadata(instance_id: u64) -> Metadata {
    Metadata::default().with(NAME, instance_id.to_be_bytes())
}

/// Returns the random number that identifies the server process, from the metadata of the server's
/// settings. Returns `None` if there is no valid number.
pub(crate) fn instance_id(server_metadata: &Metadata) -> Option<u64> {
    let bytes = server_metadata.get(NAME)?.try_into().ok()?;
    Some(u64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_numbers_round_trip() {
        let number = CallNumber {
            session: 1 << 100 | 7,
            call: 2,
            floor: 3,
            instance_id: 4 << 40,
            is_repeated: true,
        };
        assert_eq!(CallNumber::decode(&number.encode()), Some(number));
        assert_eq!(CallNumber::decode(&number.encode()[1..]), None);
        let metadata = Metadata::default().with(NAME, number.encode());
        assert_eq!(metadata.encoded().len(), LEN);
        assert_eq!(instance_id(&server_metadata(77)), Some(77));
    }
}
