//! The private data of requests, acceptances and rejections of the connection manager.

use crate::builder::Template;
use crate::handshake::Terms;

/// Private data of a request or an acceptance: the terms of one end, and whether it authenticates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Private {
    pub(super) terms: Terms,
    pub(super) authenticates: bool,
}

const LEN: usize = Terms::ENCODED_LEN + 1;

impl Private {
    pub(super) fn of(place: &Template) -> Self {
        Self {
            terms: place.terms(),
            authenticates: place.settings.authenticator.is_some(),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.terms.encode().to_vec();
        bytes.push(u8::from(self.authenticates));
        bytes
    }

    /// Reads the private data of the peer, which must authenticate exactly if this end does.
    pub(super) fn decode(bytes: &[u8], own: Self) -> Result<Self, String> {
        let Some((terms, &[authenticates])) = bytes
            .get(..LEN)
            .map(|bytes| bytes.split_at(Terms::ENCODED_LEN))
        else {
            return Err("it does not speak this protocol".to_owned());
        };
        let terms = terms.try_into().expect("the length of terms");
        let terms = Terms::decode(terms)?;
        match (own.authenticates, authenticates != 0) {
            (true, false) => Err("it does not authenticate itself".to_owned()),
            (false, true) => {
                Err("it requires authentication (RdmaBuilder::authenticator)".to_owned())
            }
            (_, authenticates) => Ok(Self {
                terms,
                authenticates,
            }),
        }
    }
}

const REJECTION: [u8; 8] = *b"RDMAdeny";
/// Maximum number of bytes of a reason; a rejection has at most 148 bytes.
const REASON: usize = 128;

/// Returns the private data of a rejection.
pub(super) fn rejection(reason: &str) -> Vec<u8> {
    let reason = &reason.as_bytes()[..reason.len().min(REASON)];
    [&REJECTION[..], reason].concat()
}

/// Returns the reason in the private data of a rejection, which zeros follow, or `None` if the data
/// is of another program.
pub(super) fn reason_of(bytes: &[u8]) -> Option<String> {
    let reason = bytes.strip_prefix(&REJECTION)?;
    let end = reason.iter().position(|&byte| byte == 0);
    let text = String::from_utf8_lossy(&reason[..end.unwrap_or(reason.len())]);
    Some(text.escape_debug().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Depths;

    fn private(authenticates: bool) -> Private {
        Private {
            terms: Terms {
                depths: Depths {
                    data: 64,
                    control: 32,
                },
                payload: 4096,
            },
            authenticates,
        }
    }

    #[test]
    fn private_data_round_trips_with_the_zeros_behind_it() {
        for authenticates in [false, true] {
            let own = private(authenticates);
            let mut bytes = own.encode();
            assert!(bytes.len() <= 56);
            bytes.resize(56, 0);
            assert_eq!(Private::decode(&bytes, own), Ok(own));
            let other = private(!authenticates);
            assert!(Private::decode(&bytes, other).is_err());
            for len in 0..LEN {
                assert!(Private::decode(&bytes[..len], own).is_err());
            }
        }
        assert!(Private::decode(&[0; 56], private(false)).is_err());
    }

    #[test]
    fn rejections_have_their_reason() {
        let mut bytes = rejection("too \x1b[31mmany");
        bytes.resize(148, 0);
        assert_eq!(reason_of(&bytes).unwrap(), "too \\u{1b}[31mmany");
        assert_eq!(reason_of(&[0; 148]), None);
        assert!(rejection(&"x".repeat(500)).len() <= 148);
    }
}
