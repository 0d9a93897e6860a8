//! Calls that are executed at most once, even if their client sends them again after a reconnect.
//!
//! The client numbers such calls. The server keeps the answers of a window of numbers, and its
//! incarnation: a random number that it tells its clients. A request names the incarnation that it
//! was first sent to, and another one refuses it.

mod session;
mod windows;

pub(crate) use self::session::Session;
pub(crate) use self::windows::Windows;
pub use self::windows::once;
use crate::metadata::Metadata;

/// Name of the metadata of such a request, and, in the settings of a server, of its incarnation.
const NAME: &str = "rdma-rpc-once";

/// Length in bytes of the metadata that a request has besides the caller's.
pub(crate) const LEN: usize = 1 + NAME.len() + 2 + Number::LEN;

/// Number of a call, as its request carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number {
    /// Random number of the client.
    session: u128,
    /// Number of the call of the client.
    call: u64,
    /// Lowest number of a call whose answer the client may still request.
    floor: u64,
    /// Incarnation of the server that the call was first sent to.
    incarnation: u64,
    /// Set if the call may have arrived before.
    is_repeated: bool,
}

impl Number {
    const LEN: usize = 16 + 8 + 8 + 8 + 1;

    fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&self.session.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.call.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.floor.to_be_bytes());
        bytes[32..40].copy_from_slice(&self.incarnation.to_be_bytes());
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
            incarnation: word(32),
            is_repeated: bytes[40] != 0,
        })
    }

    fn of(metadata: &Metadata) -> Option<Self> {
        Self::decode(metadata.get(NAME)?)
    }
}

/// Returns the metadata in the settings of a server of this incarnation.
pub(crate) fn hello(incarnation: u64) -> Metadata {
    Metadata::default().with(NAME, incarnation.to_be_bytes())
}

/// Returns the incarnation in the settings of a server.
pub(crate) fn incarnation(hello: &Metadata) -> Option<u64> {
    let bytes = hello.get(NAME)?.try_into().ok()?;
    Some(u64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        let number = Number {
            session: 1 << 100 | 7,
            call: 2,
            floor: 3,
            incarnation: 4 << 40,
            is_repeated: true,
        };
        assert_eq!(Number::decode(&number.encode()), Some(number));
        assert_eq!(Number::decode(&number.encode()[1..]), None);
        let metadata = Metadata::default().with(NAME, number.encode());
        assert_eq!(metadata.encoded().len(), LEN);
        assert_eq!(incarnation(&hello(77)), Some(77));
    }
}
