//! The private data in connect requests, acceptances and rejections of the connection manager.

use crate::builder::Template;
use crate::handshake::EndLimits;

/// Private data of a connect request or an acceptance: the data of one end that the connection
/// manager passes to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PrivateData {
    pub(super) limits: EndLimits,
    /// Set if the end has an authenticator, so that both ends must authenticate themselves.
    pub(super) authenticates: bool,
}

/// Length, in bytes, of the private data of a connect request or of its acceptance: the encoded
/// limits of the end, and one byte that states whether the end authenticates.
const LEN: usize = EndLimits::ENCODED_LEN + 1;

impl PrivateData {
    /// Returns the private data of this end for rdma_cm connect requests and acceptances. The data
    /// are the limits of the end, and whether the end authenticates, according to the settings in
    /// `template`.
    pub(super) fn of(template: &Template) -> Self {
        Self {
            limits: template.limits(),
            authenticates: template.settings.authenticator.is_some(),
        }
    }

    /// Returns the private data of an rdma_cm connect request or acceptance as bytes: the encoded
    /// limits of the end, followed by one byte that is 1 if the end authenticates.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.limits.encode().to_vec();
        bytes.push(u8::from(self.authenticates));
        bytes
    }

    /// Decodes `bytes`, the private data that the peer has sent by rdma_cm. Returns an error with
    /// the reason if the data or the peer's limits are not valid, or if only one of the two ends
    /// authenticates. `own` is the private data of this end, which states whether this end
    /// authenticates.
    pub(super) fn decode(bytes: &[u8], own: Self) -> Result<Self, String> {
        let Some((limits, &[authenticates])) = bytes
            .get(..LEN)
            .map(|bytes| bytes.split_at(EndLimits::ENCODED_LEN))
        else {
            return Err("it does not use this protocol".to_owned());
        };
        let limits = limits.try_into().expect("the length of limits");
        let limits = EndLimits::decode(limits)?;
        match (own.authenticates, authenticates != 0) {
            (true, false) => Err("it does not authenticate itself".to_owned()),
            (false, true) => {
                Err("it requires authentication (RdmaBuilder::authenticator)".to_owned())
            }
            (_, authenticates) => Ok(Self {
                limits,
                authenticates,
            }),
        }
    }
}

/// First bytes (magic number) of the private data of a rejection. These bytes distinguish the
/// rejections of this crate from the rejections of other programs.
const REJECTION: [u8; 8] = *b"RDMAdeny";
/// Maximum length, in bytes, of the reason in a rejection. A longer reason is cut. The private data
/// of a rejection has at most 148 bytes (REJ: IBTA volume 1, 12.6.7).
const MAX_REASON_LEN: usize = 128;

/// Returns the private data with which this end rejects a connect request, as bytes: the magic
/// number, followed by the reason. The error of the connecting end contains the reason.
pub(super) fn rejection(reason: &str) -> Vec<u8> {
    let reason = &reason.as_bytes()[..reason.len().min(MAX_REASON_LEN)];
    [&REJECTION[..], reason].concat()
}

/// Decodes the private data of a rejection, and returns the peer's reason. Ignores the zeros that
/// rdma_cm appends. Returns `None` if the data are not a rejection of this protocol.
pub(super) fn rejection_reason(bytes: &[u8]) -> Option<String> {
    let reason = bytes.strip_prefix(&REJECTION)?;
    let end = reason.iter().position(|&byte| byte == 0);
    let text = String::from_utf8_lossy(&reason[..end.unwrap_or(reason.len())]);
    Some(text.escape_debug().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Depths;

    fn private(authenticates: bool) -> PrivateData {
        PrivateData {
            limits: EndLimits {
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
    fn private_data_with_appended_zeros_round_trips() {
        for authenticates in [false, true] {
            let own = private(authenticates);
            let mut bytes = own.encode();
            assert!(bytes.len() <= 56);
            bytes.resize(56, 0);
            assert_eq!(PrivateData::decode(&bytes, own), Ok(own));
            let other = private(!authenticates);
            assert!(PrivateData::decode(&bytes, other).is_err());
            for len in 0..LEN {
                assert!(PrivateData::decode(&bytes[..len], own).is_err());
            }
        }
        assert!(PrivateData::decode(&[0; 56], private(false)).is_err());
    }

    #[test]
    fn rejections_contain_their_reason() {
        let mut bytes = rejection("too \x1b[31mmany");
        bytes.resize(148, 0);
        assert_eq!(rejection_reason(&bytes).unwrap(), "too \\u{1b}[31mmany");
        assert_eq!(rejection_reason(&[0; 148]), None);
        assert!(rejection(&"x".repeat(500)).len() <= 148);
    }
}
