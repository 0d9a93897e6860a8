//! [`History`]: the calls of a client that may have been executed although the server stores
//! neither their answers nor their numbers.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use super::CallNumber;

/// Maximum number of clients for which a server stores only a [`History`], without answers. Limits
/// the memory of the server to a few MiB. The record of a further client replaces the oldest
/// record.
const MAX_EVICTED: usize = 64 << 10;

/// Record of the calls of a client that a server has perhaps executed, but whose answers are not
/// stored. The server must not execute these calls again.
///
/// An *epoch* is a logical time: the number of records (of all clients) that the server has stored
/// so far. Epochs show whether a connection began before or after a record was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct History {
    /// Sequence number below which every call may have been executed.
    pub(super) floor: u64,
    /// Epoch before which all histories were stored that the server had forgotten when this history
    /// began; 0 if no history was forgotten. If a history of this client was forgotten, that
    /// history was stored before this epoch.
    epoch: u64,
}

impl History {
    /// Returns `true` if the call `number` has certainly not been executed. `epoch` is the logical
    /// time at which the connection of the request was accepted. The caller must ensure that
    /// neither the answer nor the number of the call is stored.
    ///
    /// If the server has deleted old records to save memory, a deleted record perhaps contained the
    /// call. In this case, returns `true` only for a first request (not repeated) on a connection
    /// that was accepted after the deleted records were stored.
    ///
    /// The result is right even if a repetition of the request, on another connection, was executed
    /// before the delayed first request arrived. The client repeats a request only after it has
    /// used the connection of the first request. Therefore the record of the repetition was stored
    /// after this connection was accepted. Such a record was not deleted, and is part of the
    /// present record.
    pub(super) fn excludes(&self, number: &CallNumber, epoch: u64) -> bool {
        let is_complete = self.epoch == 0;
        number.call >= self.floor && (is_complete || (!number.is_repeated && epoch >= self.epoch))
    }
}

/// Records of the clients whose stored answers were removed to make room for other clients. With
/// these records, the server refuses repeated requests of these clients instead of executing the
/// calls again.
#[derive(Debug, Default)]
pub(super) struct EvictedClients {
    /// Histories by client identifier, each with its key in `order`.
    histories: HashMap<u128, (u64, History)>,
    /// Client identifiers in the order in which their histories were stored.
    order: BTreeMap<u64, u128>,
    /// Key of the next entry in `order`: the number of histories that were stored so far.
    next: u64,
    /// Epoch before which all forgotten histories were stored.
    forgotten: u64,
}

impl EvictedClients {
    /// Returns the number of records that the server has stored so far, as a logical time. Each
    /// accepted connection stores the time at which it began, for [`History::excludes`].
    pub(super) fn epoch(&self) -> u64 {
        self.next
    }

    /// Returns the record of the calls that the server has perhaps executed for the client
    /// `session`. If there is no record, returns an empty record. The record of this client was
    /// then perhaps deleted, so the empty record contains the time before which deleted records
    /// were stored. The caller must ensure that no answers of the client are stored: the record is
    /// otherwise stored with the answers.
    pub(super) fn history(&self, session: u128) -> History {
        let unknown = History {
            floor: 0,
            epoch: self.forgotten,
        };
        self.histories
            .get(&session)
            .map_or(unknown, |(_, history)| *history)
    }

    /// Stores `history`, the record of the calls that the server has perhaps executed for the
    /// client `session`. Called when the client's answers are removed. If more than `MAX_EVICTED`
    /// records are then stored, deletes the oldest record.
    pub(super) fn insert(&mut self, session: u128, history: History) {
        self.remove(session);
        self.histories.insert(session, (self.next, history));
        self.order.insert(self.next, session);
        self.next += 1;
        if self.histories.len() > MAX_EVICTED
            && let Some((key, oldest)) = self.order.pop_first()
        {
            self.histories.remove(&oldest);
            self.forgotten = key + 1;
        }
    }

    /// Removes the record of the client `session` from this list. Called when the server begins to
    /// store answers of this client again, together with the record.
    pub(super) fn remove(&mut self, session: u128) {
        if let Some((key, _)) = self.histories.remove(&session) {
            self.order.remove(&key);
        }
    }
}

/// Identifier of the client at the other end of a server's connection, and the logical time (epoch)
/// at which the connection was accepted. Used for calls that are executed at most once.
#[derive(Debug)]
pub(crate) struct ConnectionClient {
    /// Identifier of the client, set by the first request of a call that is executed at most once.
    pub(super) session: OnceLock<u128>,
    /// Epoch at which the connection was accepted.
    pub(super) epoch: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(call: u64, is_repeated: bool) -> CallNumber {
        CallNumber {
            session: 0,
            call,
            floor: 0,
            instance_id: 0,
            is_repeated,
        }
    }

    #[test]
    fn the_history_of_an_evicted_client_is_stored_until_it_is_forgotten() {
        let mut evicted = EvictedClients::default();
        let of_first = History { floor: 7, epoch: 0 };
        evicted.insert(0, of_first);
        for session in 1..MAX_EVICTED as u128 {
            evicted.insert(session, History::default());
        }
        assert_eq!((evicted.history(0), evicted.forgotten), (of_first, 0));
        // A client that returns and is evicted again is not the first one any more.
        evicted.remove(0);
        evicted.insert(0, of_first);
        evicted.insert(u128::MAX, History::default());
        assert_eq!((evicted.history(0), evicted.forgotten), (of_first, 2));
        assert_eq!(evicted.history(1), History { floor: 0, epoch: 2 });
        assert_eq!(evicted.histories.len(), MAX_EVICTED);
        assert_eq!(evicted.order.len(), MAX_EVICTED);
    }

    #[test]
    fn a_new_client_is_served_on_a_connection_that_is_younger_than_the_forgotten_histories() {
        let mut evicted = EvictedClients::default();
        let store = |evicted: &mut EvictedClients, sessions: std::ops::Range<u128>| {
            sessions.for_each(|session| evicted.insert(session, History::default()));
        };
        let limit = MAX_EVICTED as u128;
        store(&mut evicted, 0..limit);
        let accepted = evicted.epoch();
        store(&mut evicted, limit..2 * limit);
        assert!(
            evicted
                .history(u128::MAX)
                .excludes(&number(0, false), accepted)
        );
        // The history of a client whose calls were executed after the connection was accepted.
        store(&mut evicted, 2 * limit..2 * limit + 1);
        assert!(
            !evicted
                .history(u128::MAX)
                .excludes(&number(0, false), accepted)
        );
    }

    #[test]
    fn a_history_excludes_only_calls_that_were_certainly_not_executed() {
        let complete = History { floor: 7, epoch: 0 };
        for is_repeated in [false, true] {
            assert!(!complete.excludes(&number(6, is_repeated), 0));
            assert!(complete.excludes(&number(7, is_repeated), 0));
        }
        // The earlier history was forgotten.
        let incomplete = History { floor: 7, epoch: 2 };
        assert!(!incomplete.excludes(&number(7, true), 2));
        assert!(!incomplete.excludes(&number(7, false), 1));
        assert!(incomplete.excludes(&number(7, false), 2));
        assert!(!incomplete.excludes(&number(6, false), 2));
    }
}
