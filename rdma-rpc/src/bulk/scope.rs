//! Thread-local lists (*scopes*) of the bulks within a value that is being encoded or decoded.
//!
//! The bulks of a value are leased to the peer, or accessed, through the connection of the call,
//! but a codec has no parameter for the connection. Therefore each bulk adds itself to the scope of
//! the current thread. A scope exists while one value is encoded or decoded.

use std::cell::RefCell;

use super::token::Token;
use super::{Bulk, PeerBulk};

// Innermost scopes of this thread.
thread_local! {
    static ENCODING: RefCell<Option<EncodingScope>> = const { RefCell::new(None) };
    static DECODING: RefCell<Option<Vec<Bulk>>> = const { RefCell::new(None) };
}

/// Bulks of the value that this thread is encoding.
#[derive(Debug, Default)]
struct EncodingScope {
    /// Bulks that were already lent to the peer, with the tokens that represent the bulks in the
    /// encoded value.
    lent: Vec<(Bulk, Token)>,
    /// Bulks of the value that were not lent yet. The caller must lend them and encode the value
    /// again.
    missing: Vec<Bulk>,
}

/// Maximum number of bulks in a value, which limits the leases and permissions that a single
/// message can cause.
pub(super) const MAX_BULKS: usize = 1 << 10;

/// Error text for a bulk that is encoded or decoded outside of a call.
const OUTSIDE_OF_CALL: &str =
    "a bulk can be sent only in an argument or result of a method without streams";

/// Calls `encode`, which encodes a value. `lent` contains the bulks that were already lent, with
/// the tokens that represent them. Returns the result of `encode`, and the other bulks of the
/// value. If there are any, the encoded value is not usable: the caller must lend these bulks and
/// encode again.
pub(super) fn encode_in_scope<T>(
    lent: Vec<(Bulk, Token)>,
    encode: impl FnOnce() -> T,
) -> (T, Vec<Bulk>) {
    let scope = EncodingScope {
        lent,
        missing: Vec::new(),
    };
    let former = ENCODING.replace(Some(scope));
    let restored = RestoreEncoding(former);
    let encoded = encode();
    let missing = ENCODING.take().unwrap_or_default().missing;
    drop(restored);
    (encoded, missing)
}

/// Calls `encode`, which encodes a value that is not sent. Returns the result of `encode`, and
/// whether the value contains bulks.
pub(crate) fn detect_bulks<T>(encode: impl FnOnce() -> T) -> (T, bool) {
    let (encoded, bulks) = encode_in_scope(Vec::new(), encode);
    (encoded, !bulks.is_empty())
}

/// Guard that restores the scope of an outer value when it is dropped, also if an encoder panics.
struct RestoreEncoding(Option<EncodingScope>);

impl Drop for RestoreEncoding {
    fn drop(&mut self) {
        ENCODING.set(self.0.take());
    }
}

/// Returns whether the value that this thread is encoding contains bulks that were not lent yet, so
/// that the encoded value is not usable.
pub(crate) fn is_incomplete() -> bool {
    ENCODING.with_borrow(|scope| {
        let scope = scope.as_ref();
        scope.is_some_and(|scope| !scope.missing.is_empty())
    })
}

/// Returns the token of a bulk in the value that is being encoded. For a bulk that was not lent
/// yet, records the bulk and returns an empty token.
pub(super) fn token_of(bulk: &Bulk) -> Result<Token, &'static str> {
    ENCODING.with_borrow_mut(|scope| {
        let scope = scope.as_mut().ok_or(OUTSIDE_OF_CALL)?;
        let is_same = |other: &Bulk| other.is_same(bulk);
        if let Some((_, token)) = scope.lent.iter().find(|(other, _)| is_same(other)) {
            return Ok(*token);
        }
        if !scope.missing.iter().any(is_same) {
            scope.missing.push(bulk.clone());
        }
        Ok(Token::default())
    })
}

/// Calls `decode`, which decodes a value. Returns the result of `decode`, and clones of the bulks
/// in the value. The peer owns these bulks; their memory is not accessible yet.
pub(crate) fn decode_in_scope<T>(decode: impl FnOnce() -> T) -> (T, Vec<Bulk>) {
    let former = RestoreDecoding(DECODING.replace(Some(Vec::new())));
    let decoded = decode();
    let received = DECODING.take().unwrap_or_default();
    drop(former);
    (decoded, received)
}

/// Guard that restores the scope of an outer value when it is dropped, also if a decoder panics.
struct RestoreDecoding(Option<Vec<Bulk>>);

impl Drop for RestoreDecoding {
    fn drop(&mut self) {
        DECODING.set(self.0.take());
    }
}

/// Creates a bulk whose memory the peer owns from the token in the value that this thread is
/// decoding. A clone is kept for the caller of [`decode_in_scope`]. Fails outside of that function,
/// or after [`MAX_BULKS`] bulks of the same value.
pub(super) fn add_received(token: Token) -> Result<Bulk, &'static str> {
    DECODING.with_borrow_mut(|received| {
        let received = received.as_mut().ok_or(OUTSIDE_OF_CALL)?;
        let bulk = Bulk::of_peer(PeerBulk::new(token));
        if received.len() >= MAX_BULKS {
            return Err("a value can contain at most 1024 bulks");
        }
        received.push(bulk.clone());
        Ok(bulk)
    })
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn a_decoder_that_panics_ends_its_scope() {
        catch_unwind(|| decode_in_scope(|| panic!("asked to"))).unwrap_err();
        assert_eq!(add_received(Token::default()).err(), Some(OUTSIDE_OF_CALL));
    }

    #[test]
    fn the_bulks_of_a_value_are_limited() {
        let (last, bulks) = decode_in_scope(|| {
            for _ in 0..MAX_BULKS {
                add_received(Token::default()).unwrap();
            }
            add_received(Token::default()).err()
        });
        assert!(last.is_some() && bulks.len() == MAX_BULKS);
    }
}
