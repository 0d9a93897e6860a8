//! The bulks within a value that is being encoded or decoded on this thread.
//!
//! A codec encodes a whole value, without a parameter for the connection. A bulk therefore leaves
//! its mark in a thread-local scope, which lasts as long as the encoding or decoding of one value.

use std::cell::RefCell;

use super::token::Token;
use super::{Bulk, Peer};

thread_local! {
    static ENCODING: RefCell<Option<Encoding>> = const { RefCell::new(None) };
    static DECODING: RefCell<Option<Vec<Bulk>>> = const { RefCell::new(None) };
}

/// Scope of a value that is being encoded.
#[derive(Debug, Default)]
struct Encoding {
    /// Bulks that were lent to the peer, with the tokens that stand for them in the encoded value.
    lent: Vec<(Bulk, Token)>,
    /// Bulks of the value that were not lent yet.
    missing: Vec<Bulk>,
}

/// Maximum number of bulks of a value.
pub(super) const MAX_BULKS: usize = 1 << 10;

/// Error of a bulk that is encoded or decoded outside of a call.
const OUTSIDE: &str =
    "a bulk is sent only within an argument or result of a method without streams";

/// Encodes a value with `encode`, in which the bulks `lent` may occur. Returns the bulks that the
/// value has besides: if there are any, the value was not encoded.
pub(super) fn encoding<T>(lent: Vec<(Bulk, Token)>, encode: impl FnOnce() -> T) -> (T, Vec<Bulk>) {
    let scope = Encoding {
        lent,
        missing: Vec::new(),
    };
    let former = ENCODING.replace(Some(scope));
    let restored = Restored(former);
    let encoded = encode();
    let missing = ENCODING.take().unwrap_or_default().missing;
    drop(restored);
    (encoded, missing)
}

/// Scope that continues after this one, even if an encoder panics.
struct Restored(Option<Encoding>);

impl Drop for Restored {
    fn drop(&mut self) {
        ENCODING.set(self.0.take());
    }
}

/// Returns whether the value that is being encoded has bulks that were not lent yet.
pub(crate) fn is_incomplete() -> bool {
    ENCODING.with_borrow(|scope| {
        let scope = scope.as_ref();
        scope.is_some_and(|scope| !scope.missing.is_empty())
    })
}

/// Returns the token that stands for a bulk in the value that is being encoded.
pub(super) fn token(bulk: &Bulk) -> Result<Token, &'static str> {
    ENCODING.with_borrow_mut(|scope| {
        let scope = scope.as_mut().ok_or(OUTSIDE)?;
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

/// Decodes a value with `decode`. Returns the bulks of the peer that it has.
pub(crate) fn decoding<T>(decode: impl FnOnce() -> T) -> (T, Vec<Bulk>) {
    let former = Decoding(DECODING.replace(Some(Vec::new())));
    let decoded = decode();
    let received = DECODING.take().unwrap_or_default();
    drop(former);
    (decoded, received)
}

/// Scope that continues after this one, even if a decoder panics.
struct Decoding(Option<Vec<Bulk>>);

impl Drop for Decoding {
    fn drop(&mut self) {
        DECODING.set(self.0.take());
    }
}

/// Returns a bulk of the peer, which has just been decoded.
pub(super) fn received(token: Token) -> Result<Bulk, &'static str> {
    DECODING.with_borrow_mut(|received| {
        let received = received.as_mut().ok_or(OUTSIDE)?;
        let bulk = Bulk::of_peer(Peer::new(token));
        if received.len() >= MAX_BULKS {
            return Err("a value has at most 1024 bulks");
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
        catch_unwind(|| decoding(|| panic!("asked to"))).unwrap_err();
        assert_eq!(received(Token::default()).err(), Some(OUTSIDE));
    }

    #[test]
    fn the_bulks_of_a_value_are_limited() {
        let (last, bulks) = decoding(|| {
            for _ in 0..MAX_BULKS {
                received(Token::default()).unwrap();
            }
            received(Token::default()).err()
        });
        assert!(last.is_some() && bulks.len() == MAX_BULKS);
    }
}
