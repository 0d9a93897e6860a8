//! Questions to the peer that wait for their answers.

use std::collections::HashMap;

use parking_lot::Mutex;
use rdma_core::LentMemory;
use tokio::sync::oneshot;

use super::frame::Refusal;
use crate::error::{Error, Result};
use crate::memory::RemoteMr;

/// What the peer answered.
#[derive(Debug)]
pub(super) enum Reply {
    /// Whoever drops it releases it.
    Granted(RemoteMr),
    Refused(Refusal),
    Read(bool),
}

/// Who waits for which answer.
#[derive(Debug, Default)]
pub(super) struct Replies {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    entries: HashMap<u64, Entry>,
    failure: Option<Error>,
}

#[derive(Debug)]
struct Entry {
    asker: oneshot::Sender<Result<Reply>>,
    /// Memory that the peer uses until it answers, whether the asker still waits or not.
    lent: Option<LentMemory>,
}

/// A question's id and its answer to come.
#[derive(Debug)]
pub(super) struct Question<'a> {
    pub(super) id: u64,
    answer: oneshot::Receiver<Result<Reply>>,
    replies: &'a Replies,
}

impl Replies {
    /// Prepares a question, which the peer may need `lent` to answer.
    pub(super) fn ask(&self, lent: Option<LentMemory>) -> Question<'_> {
        let (asker, answer) = oneshot::channel();
        let mut table = self.table.lock();
        table.last += 1;
        let id = table.last;
        match &table.failure {
            Some(error) => drop(asker.send(Err(error.clone()))),
            None => drop(table.entries.insert(id, Entry { asker, lent })),
        }
        Question {
            id,
            answer,
            replies: self,
        }
    }

    /// Hands an answer to who waits for it; gives it back if nobody does any more.
    pub(super) fn answer(&self, id: u64, reply: Reply) -> Result<(), Reply> {
        let entry = self.table.lock().entries.remove(&id);
        let Some(Entry { asker, lent }) = entry else {
            return Err(reply);
        };
        // The grant ends before the asker has its memory again.
        drop(lent);
        asker.send(Ok(reply)).map_err(|unsent| match unsent {
            Ok(reply) => reply,
            Err(_) => unreachable!("what was sent is an answer"),
        })
    }

    /// Returns whether the peer uses memory for an answer.
    pub(super) fn has_lent(&self) -> bool {
        let table = self.table.lock();
        table.entries.values().any(|entry| entry.lent.is_some())
    }

    /// Tells everyone who waits, and who will, that no answer comes.
    pub(super) fn fail(&self, error: &Error) {
        let entries = {
            let mut table = self.table.lock();
            table.failure = Some(error.clone());
            std::mem::take(&mut table.entries)
        };
        for Entry { asker, lent } in entries.into_values() {
            drop(lent);
            drop(asker.send(Err(error.clone())));
        }
    }
}

impl Question<'_> {
    /// Waits for the answer; `None` if none can come.
    pub(super) async fn answer(&mut self) -> Option<Result<Reply>> {
        (&mut self.answer).await.ok()
    }

    /// Has the question forgotten when the guard is dropped, unless it was sent.
    pub(super) fn withdraw_unless_sent(&self) -> Unsent<'_> {
        Unsent {
            replies: self.replies,
            id: self.id,
            is_sent: false,
        }
    }
}

/// A question that is being sent.
#[derive(Debug)]
pub(super) struct Unsent<'a> {
    replies: &'a Replies,
    id: u64,
    pub(super) is_sent: bool,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        if !self.is_sent {
            self.replies.table.lock().entries.remove(&self.id);
        }
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        let mut table = self.replies.table.lock();
        // While the peer uses memory for the answer, the entry keeps it.
        if table
            .entries
            .get(&self.id)
            .is_some_and(|entry| entry.lent.is_none())
        {
            table.entries.remove(&self.id);
        }
    }
}
