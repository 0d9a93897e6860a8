//! Requests to the peer that wait for an answer: for memory, or for the read of a long message.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rdma_core::memory::LentMemory;
use tokio::sync::oneshot;

use super::frame::Refusal;
use crate::error::{Error, Result};
use crate::memory::RemoteMr;

/// Answer of the peer.
#[derive(Debug)]
pub(super) enum Reply {
    /// Memory that the peer lends; dropping the region releases it.
    Granted(RemoteMr),
    Refused(Refusal),
    Read(bool),
}

/// Table of the questions that wait for an answer.
#[derive(Debug, Default)]
pub(super) struct Replies {
    table: Mutex<Table>,
    /// Number of bytes that the peer uses for unanswered questions.
    lent: AtomicUsize,
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
    /// Memory that the peer uses until it answers, even if the asker no longer waits.
    lent: Option<LentMemory>,
}

/// Id of a question, and the receiver of its answer.
#[derive(Debug)]
pub(super) struct Question<'a> {
    pub(super) id: u64,
    answer: oneshot::Receiver<Result<Reply>>,
    replies: &'a Replies,
}

impl Replies {
    /// Registers a question and returns it. `lent` is the memory that the peer uses until it
    /// answers.
    pub(super) fn ask(&self, lent: Option<LentMemory>) -> Question<'_> {
        let (asker, answer) = oneshot::channel();
        let mut table = self.table.lock();
        table.last += 1;
        let id = table.last;
        match &table.failure {
            Some(error) => drop(asker.send(Err(error.clone()))),
            None => {
                let bytes = lent.as_ref().map_or(0, |lent| lent.len());
                self.lent.fetch_add(bytes, Ordering::Relaxed);
                table.entries.insert(id, Entry { asker, lent });
            }
        }
        Question {
            id,
            answer,
            replies: self,
        }
    }

    /// Passes an answer to the future that waits for it. Returns the answer if no future waits.
    pub(super) fn answer(&self, id: u64, reply: Reply) -> Result<(), Reply> {
        let entry = self.table.lock().entries.remove(&id);
        let Some(Entry { asker, lent }) = entry else {
            return Err(reply);
        };
        // The peer's access ends before the asker gets its memory back.
        self.end_loan(lent);
        asker.send(Ok(reply)).map_err(|unsent| match unsent {
            Ok(reply) => reply,
            Err(_) => unreachable!("what was sent is an answer"),
        })
    }

    /// Returns the number of bytes that the peer uses for unanswered questions.
    pub(super) fn lent_bytes(&self) -> usize {
        self.lent.load(Ordering::Relaxed)
    }

    fn end_loan(&self, lent: Option<LentMemory>) {
        if let Some(lent) = lent {
            self.lent.fetch_sub(lent.len(), Ordering::Relaxed);
        }
    }

    /// Ends all questions, and every later question, with this error.
    pub(super) fn fail(&self, error: &Error) {
        let entries = {
            let mut table = self.table.lock();
            table.failure = Some(error.clone());
            std::mem::take(&mut table.entries)
        };
        for Entry { asker, lent } in entries.into_values() {
            self.end_loan(lent);
            drop(asker.send(Err(error.clone())));
        }
    }
}

impl Question<'_> {
    /// Waits for the answer. Returns `None` if the question was removed without an answer.
    pub(super) async fn answer(&mut self) -> Option<Result<Reply>> {
        (&mut self.answer).await.ok()
    }

    /// Returns a guard that removes the question when it is dropped, unless `is_sent` was set.
    pub(super) fn withdraw_unless_sent(&self) -> Unsent<'_> {
        Unsent {
            replies: self.replies,
            id: self.id,
            is_sent: false,
        }
    }
}

/// Guard that removes a question unless it was sent.
#[derive(Debug)]
pub(super) struct Unsent<'a> {
    replies: &'a Replies,
    id: u64,
    pub(super) is_sent: bool,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        if !self.is_sent {
            let removed = self.replies.table.lock().entries.remove(&self.id);
            self.replies.end_loan(removed.and_then(|entry| entry.lent));
        }
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        let mut table = self.replies.table.lock();
        // While the peer uses memory of the question, the entry keeps that memory.
        if table
            .entries
            .get(&self.id)
            .is_some_and(|entry| entry.lent.is_none())
        {
            table.entries.remove(&self.id);
        }
    }
}
