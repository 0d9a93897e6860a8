//! [`Session`]: the numbers of a client's calls that are executed at most once.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

use super::{CallNumber, NAME};
use crate::metadata::Metadata;

/// Source of the sequence numbers for calls that a server executes at most once. A client shares
/// the source with its clones.
#[derive(Debug)]
pub(crate) struct Session {
    /// Random identifier of the client.
    id: u128,
    numbers: Mutex<Numbers>,
}

#[derive(Debug, Default)]
/// Sequence numbers of a client's calls that are executed at most once: the number of the next
/// call, and the numbers of the calls in progress.
struct Numbers {
    next: u64,
    in_progress: BTreeSet<u64>,
}

impl Session {
    pub(crate) fn new() -> Self {
        let random = || u128::from(RandomState::new().hash_one(()));
        Self {
            id: random() << 64 | random(),
            numbers: Mutex::default(),
        }
    }

    /// Assigns the next sequence number to a new call. The call is in progress until the returned
    /// value is dropped.
    pub(crate) fn begin(&self) -> NumberedCall<'_> {
        let mut numbers = self.numbers.lock();
        let call = numbers.next;
        numbers.next += 1;
        numbers.in_progress.insert(call);
        NumberedCall {
            session: self,
            call,
            sent_to: None,
        }
    }
}

/// A call in progress of a method with `#[rpc(once)]`, with its sequence number. Dropping this
/// value marks the call as ended. When this call and all earlier calls have ended, later requests
/// inform the server that the answer of this call need not be stored any longer.
#[derive(Debug)]
pub(crate) struct NumberedCall<'s> {
    session: &'s Session,
    call: u64,
    /// Instance ID of the server that may have received the request; `None` before the first
    /// attempt.
    sent_to: Option<u64>,
}

impl NumberedCall<'_> {
    /// Returns whether the client may send the request to the server process with this instance ID.
    /// Returns `false` if another server process has perhaps received the request, because the call
    /// could then be executed twice.
    pub(crate) fn may_be_sent_to(&self, instance_id: u64) -> bool {
        self.sent_to.is_none_or(|first| first == instance_id)
    }

    /// Returns a copy of `metadata` with the number of this call, by which the server recognizes a
    /// repeated request. `instance_id` identifies the server process to which the call is sent, and
    /// is stored in the number. Returns `None` if the metadata would be too long.
    pub(crate) fn metadata(&self, metadata: &Metadata, instance_id: u64) -> Option<Metadata> {
        let floor = self.session.numbers.lock().in_progress.first().copied();
        let number = CallNumber {
            session: self.session.id,
            call: self.call,
            floor: floor.unwrap_or(self.call),
            instance_id,
            is_repeated: self.sent_to.is_some(),
        };
        metadata.try_with(NAME, &number.encode())
    }

    /// Records that the server process with this instance ID has perhaps received the request.
    /// Afterwards, the client repeats the call only at this process.
    pub(crate) fn set_sent(&mut self, instance_id: u64) {
        self.sent_to = Some(instance_id);
    }

    /// Returns whether a server has perhaps received the request of this call. The client must then
    /// send the request only to this server again, because another server could execute the call a
    /// second time.
    pub(crate) fn is_sent(&self) -> bool {
        self.sent_to.is_some()
    }
}

impl Drop for NumberedCall<'_> {
    fn drop(&mut self) {
        self.session.numbers.lock().in_progress.remove(&self.call);
    }
}
