//! [`Session`]: the numbers of the calls of a client.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

use super::{NAME, Number};
use crate::metadata::Metadata;

/// Numbers of the calls of a client and its clones that are executed at most once.
#[derive(Debug)]
pub(crate) struct Session {
    id: u128,
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    next: u64,
    in_progress: BTreeSet<u64>,
}

impl Session {
    pub(crate) fn new() -> Self {
        let random = || u128::from(RandomState::new().hash_one(()));
        Self {
            id: random() << 64 | random(),
            calls: Mutex::default(),
        }
    }

    /// Begins a call, which is in progress until the returned value is dropped.
    pub(crate) fn begin(&self) -> Numbered<'_> {
        let mut calls = self.calls.lock();
        let call = calls.next;
        calls.next += 1;
        calls.in_progress.insert(call);
        Numbered {
            session: self,
            call,
            sent_to: None,
        }
    }
}

/// Call with a number.
#[derive(Debug)]
pub(crate) struct Numbered<'s> {
    session: &'s Session,
    call: u64,
    /// Incarnation of the server that the request may have reached.
    sent_to: Option<u64>,
}

impl Numbered<'_> {
    /// Returns whether a server of this incarnation may get the request: one that no other may
    /// have.
    pub(crate) fn suits(&self, incarnation: u64) -> bool {
        self.sent_to.is_none_or(|first| first == incarnation)
    }

    /// Returns the metadata of the request to a server of this incarnation; `None` if it is too
    /// long.
    pub(crate) fn metadata(&self, metadata: &Metadata, incarnation: u64) -> Option<Metadata> {
        let floor = self.session.calls.lock().in_progress.first().copied();
        let number = Number {
            session: self.session.id,
            call: self.call,
            floor: floor.unwrap_or(self.call),
            incarnation,
            is_repeated: self.sent_to.is_some(),
        };
        metadata.checked_with(NAME, &number.encode())
    }

    /// Records that a server of this incarnation may have the request.
    pub(crate) fn set_sent(&mut self, incarnation: u64) {
        self.sent_to = Some(incarnation);
    }

    /// Returns whether a server may have the request.
    pub(crate) fn is_sent(&self) -> bool {
        self.sent_to.is_some()
    }
}

impl Drop for Numbered<'_> {
    fn drop(&mut self) {
        self.session.calls.lock().in_progress.remove(&self.call);
    }
}
