//! Thread-local lists (*scopes*) of the bulks within a value that is being encoded or decoded.
//!
//! The bulks of a value are leased to the peer, or accessed, through the connection of the call,
//! but a codec has no parameter for the connection. Therefore each bulk adds itself to the scope of
//! the current thread. A scope exists while one value is encoded or decoded.

use std::cell::{Cell, RefCell};
use std::thread::LocalKey;

use super::token::Token;
use super::{Bulk, PeerBulk};

// Scopes of this thread.
thread_local! {
    static ENCODING: Scope<EncodedBulks> = const { Scope::new(EncodedBulks::NONE) };
    static DECODING: Scope<Vec<Bulk>> = const { Scope::new(Vec::new()) };
}

/// A thread's list of the [`Bulk`]s (lent memory) in the value that the thread is encoding or
/// decoding. The list is open only during the encoding or decoding. Most values contain no bulk, so
/// opening and closing an empty list only sets a flag.
struct Scope<T> {
    is_open: Cell<bool>,
    /// Set if `bulks` may contain bulks, so that an empty list need not be examined.
    is_used: Cell<bool>,
    /// Bulks of the value of the open scope. Empty while no scope is open.
    bulks: RefCell<T>,
}

impl<T: Default> Scope<T> {
    const fn new(none: T) -> Self {
        Self {
            is_open: Cell::new(false),
            is_used: Cell::new(false),
            bulks: RefCell::new(none),
        }
    }

    /// Calls `change` with the list of [`Bulk`]s of the value that this thread is encoding or
    /// decoding. Returns the result of `change`, or `None` if the thread is not encoding or
    /// decoding a value.
    fn update<R>(&self, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.is_open.get().then(|| {
            self.is_used.set(true);
            change(&mut self.bulks.borrow_mut())
        })
    }

    /// Returns the list of [`Bulk`]s, and leaves an empty list.
    #[cold]
    fn take(&self) -> T {
        self.is_used.set(false);
        self.bulks.take()
    }

    /// Closes this scope. If the scope was opened within another scope, restores the list `outer`
    /// of that scope. Otherwise, leaves an empty list.
    #[cold]
    fn restore(&self, outer: Option<Box<T>>) {
        self.is_open.set(outer.is_some());
        self.is_used.set(outer.is_some());
        let closed = self.bulks.replace(*outer.unwrap_or_default());
        drop(closed);
    }
}

/// Guard that exists while a thread encodes or decodes one value and lists its [`Bulk`]s in a
/// [`Scope`]. Dropping the guard closes the list, even if a codec panics. If the value is encoded
/// inside of another value, the drop restores the list of the outer value.
struct OpenScope<T: Default + 'static> {
    scope: &'static LocalKey<Scope<T>>,
    outer: Option<Box<T>>,
}

impl<T: Default> OpenScope<T> {
    /// Begins a list of the [`Bulk`]s in the value that this thread is about to encode or decode.
    /// `scope` is the thread's storage for the list: one storage for encoding, and another for
    /// decoding.
    #[inline]
    fn new(scope: &'static LocalKey<Scope<T>>) -> Self {
        let outer = scope.with(|scope| {
            let has_outer = scope.is_open.replace(true);
            has_outer.then(|| Box::new(scope.take()))
        });
        Self { scope, outer }
    }

    /// Returns the list of the [`Bulk`]s of the value that this thread is encoding or decoding, and
    /// empties the list in the scope. Returns `None` if no bulk was added to the list.
    #[inline]
    fn take(&self) -> Option<T> {
        self.scope
            .with(|scope| scope.is_used.get().then(|| scope.take()))
    }
}

impl<T: Default> Drop for OpenScope<T> {
    #[inline]
    fn drop(&mut self) {
        self.scope.with(|scope| {
            if self.outer.is_some() || scope.is_used.get() {
                scope.restore(self.outer.take());
            } else {
                scope.is_open.set(false);
            }
        });
    }
}

/// The [`Bulk`]s (memory to lend to the peer) that a thread has found in the value that it is
/// encoding.
#[derive(Debug)]
struct EncodedBulks {
    /// Bulks that were already lent to the peer, with the tokens that represent the bulks in the
    /// encoded value.
    lent: Vec<(Bulk, Token)>,
    /// Bulks of the value that were not lent yet. The caller must lend them and encode the value
    /// again.
    missing: Vec<Bulk>,
}

impl EncodedBulks {
    const NONE: Self = Self {
        lent: Vec::new(),
        missing: Vec::new(),
    };
}

impl Default for EncodedBulks {
    fn default() -> Self {
        Self::NONE
    }
}

/// Maximum number of [`Bulk`]s (parts of lent memory) in one request or result. Limits the number
/// of memory regions that both ends must track for one message.
pub(super) const MAX_BULKS: usize = 1 << 10;

/// Error text for a value that contains a [`Bulk`] (lent memory), but is not an argument or result
/// of a method without streams. The items of streams, and the arguments of one-way and streaming
/// methods, cannot contain bulks.
const OUTSIDE_OF_CALL: &str =
    "a bulk can be sent only in an argument or result of a method without streams";

/// Encodes a value with `encode`, and finds the [`Bulk`]s in the value. `lent` lists the bulks
/// whose memory the peer can already access, each with the token that is encoded for it.
///
/// Returns the result of `encode`, and the bulks that are not in `lent`. If there are such bulks,
/// the encoded value is incomplete: the caller must lend their memory and encode the value again.
pub(super) fn encode_in_scope<T>(
    lent: Vec<(Bulk, Token)>,
    encode: impl FnOnce() -> T,
) -> (T, Vec<Bulk>) {
    let scope = OpenScope::new(&ENCODING);
    if !lent.is_empty() {
        ENCODING.with(|scope| scope.update(|bulks| bulks.lent = lent));
    }
    let encoded = encode();
    let missing = scope.take().map(|bulks| bulks.missing);
    (encoded, missing.unwrap_or_default())
}

/// Calls `encode`, which encodes a value, to find out whether the value contains a [`Bulk`].
/// Returns the result of `encode`, and `true` if there is a bulk. The encoded bytes are then
/// incomplete and must not be used.
pub(crate) fn detect_bulks<T>(encode: impl FnOnce() -> T) -> (T, bool) {
    let (encoded, bulks) = encode_in_scope(Vec::new(), encode);
    (encoded, !bulks.is_empty())
}

/// Returns whether the value that this thread is encoding contains a [`Bulk`] whose memory was not
/// lent to the peer yet. The encoded value is then not usable.
pub(crate) fn is_incomplete() -> bool {
    ENCODING.with(|scope| scope.is_used.get() && !scope.bulks.borrow().missing.is_empty())
}

/// Returns the token (access permission) that represents `bulk` in the value that this thread is
/// encoding. If the memory is not lent to the peer yet, records `bulk` as missing and returns an
/// empty token. The caller of [`encode_in_scope`] then lends the memory, and encodes the value
/// again to insert the real token. Fails outside of [`encode_in_scope`].
pub(super) fn token_of(bulk: &Bulk) -> Result<Token, &'static str> {
    let token = |bulks: &mut EncodedBulks| {
        let is_same = |other: &Bulk| other.is_same(bulk);
        if let Some((_, token)) = bulks.lent.iter().find(|(other, _)| is_same(other)) {
            return *token;
        }
        if !bulks.missing.iter().any(is_same) {
            bulks.missing.push(bulk.clone());
        }
        Token::default()
    };
    let found = ENCODING.with(|scope| scope.update(token));
    found.ok_or(OUTSIDE_OF_CALL)
}

/// Decodes a value with `decode`. Returns the result of `decode`, and clones of the [`Bulk`]s in
/// the value. The bulks refer to memory of the peer. Before this end can access the memory, the
/// caller must create permissions.
pub(crate) fn decode_in_scope<T>(decode: impl FnOnce() -> T) -> (T, Vec<Bulk>) {
    let scope = OpenScope::new(&DECODING);
    let decoded = decode();
    (decoded, scope.take().unwrap_or_default())
}

/// Creates the [`Bulk`] for a token (the encoded form of a bulk) in the value that this thread is
/// decoding, and adds it to the list of the value's bulks. The bulk refers to memory of the peer.
/// Fails outside of [`decode_in_scope`], or if the value already contains [`MAX_BULKS`] bulks.
pub(super) fn add_received(token: Token) -> Result<Bulk, &'static str> {
    let add = |received: &mut Vec<Bulk>| {
        let bulk = Bulk::of_peer(PeerBulk::new(token));
        if received.len() >= MAX_BULKS {
            return Err("a value can contain at most 1024 bulks");
        }
        received.push(bulk.clone());
        Ok(bulk)
    };
    let added = DECODING.with(|scope| scope.update(add));
    added.ok_or(OUTSIDE_OF_CALL)?
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
