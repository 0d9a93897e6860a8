use std::rc::Rc;
use std::time::Duration;

use crate::proto::{
    CompletionOpcode, CompletionStatus, GatherList, Payload, Remote, Segment, SendOperation,
};

use super::buffer::Buffer;
use super::content;
use super::drafts::expect;
use super::generate::Draft;
use super::requester::{Content, Effect};
use super::scenario::{Scenario, Token};
use super::schedule::Ending;

/// Memory key that is never valid, as a local key or as a remote key.
const NO_KEY: u32 = 0xdead_be00;

/// Interval at which a simulated requester checks whether its earlier requests have completed. Used
/// before a request that tests missing or unusable receives. Earlier requests need receives, too,
/// so the requester must wait for their completion.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

impl Scenario<'_> {
    /// Posts the request of the simulated requester with the index `r` that the test makes fail.
    /// Does nothing if the test makes no request of this requester fail. The caller must first post
    /// all other requests of the requester. For a failure of receives, does not post until the
    /// earlier requests have completed, and schedules another call instead.
    pub(super) fn post_failing_request(&mut self, r: usize) {
        let requester = &mut self.requesters[r];
        let connection = requester.connection;
        let ending = self.schedule.connections[connection].ending;
        let Some(ending) = ending.filter(|_| requester.side == 0 && !requester.spoiled) else {
            return;
        };
        let is_about_receives = matches!(
            ending,
            Ending::TooLong | Ending::BadReceive | Ending::NoReceive
        );
        if is_about_receives && !requester.posted.is_empty() {
            requester.resting = true;
            self.world
                .wake_after(CHECK_INTERVAL, Token::Post(r).number());
            return;
        }
        requester.spoiled = true;
        self.broken[connection] = true;
        let id = self.next_id();
        let draft = self.draft_ending(r, id, ending);
        self.post(r, id, draft);
    }

    fn draft_ending(&mut self, r: usize, id: u64, ending: Ending) -> Draft {
        use CompletionStatus as S;
        match ending {
            Ending::UnknownKey => {
                let address = self.requesters[r].target.base;
                let remote = Remote {
                    address: address.next_multiple_of(8),
                    key: NO_KEY,
                };
                self.draft_remote(r, id, remote, &[S::RemoteAccess])
            }
            Ending::OutOfBounds => {
                let target = &self.requesters[r].target;
                let remote = Remote {
                    address: target.base + target.len() as u64 - 4,
                    key: target.key,
                };
                self.draft_plain(r, id, remote, &[S::RemoteAccess])
            }
            Ending::Misaligned => {
                let target = &self.requesters[r].target;
                let remote = Remote {
                    address: target.base + 4,
                    key: target.key,
                };
                self.draft_fetch_add(r, remote, &[S::RemoteInvalidRequest])
            }
            Ending::TooLong => {
                let room = self.requesters[r].random.range(0, 5000) as usize;
                self.replace_receives(r, |scenario, pool| {
                    let id = scenario.next_id();
                    scenario.pools[pool].post(&mut scenario.world, id, room);
                });
                let length = room + self.requesters[r].random.range(1, 5000) as usize;
                let mut draft = self.draft_message(r, id, length, &[S::RemoteInvalidRequest]);
                expect_fault(&mut draft, id, &[S::LocalLength]);
                draft
            }
            Ending::BadReceive => {
                self.replace_receives(r, |scenario, pool| {
                    let id = scenario.next_id();
                    scenario.pools[pool].post_bad(&mut scenario.world, id);
                });
                let mut draft = self.draft_message(r, id, 1, &[S::RemoteOperation]);
                expect_fault(&mut draft, id, &[S::LocalProtection]);
                draft
            }
            Ending::BadInvalidate => {
                let statuses = &[S::RemoteAccess, S::RemoteInvalidRequest, S::RemoteOperation];
                let mut draft = self.draft_message(r, id, 10, statuses);
                draft.operation = SendOperation::Send {
                    immediate: None,
                    invalidate: Some(NO_KEY),
                };
                expect_fault(
                    &mut draft,
                    id,
                    &[
                        S::RemoteAccess,
                        S::RemoteInvalidRequest,
                        S::RemoteOperation,
                        S::LocalProtection,
                    ],
                );
                draft
            }
            Ending::BadGather => self.draft_bad_gather(r),
            Ending::BadScatter => {
                let target = &self.requesters[r].target;
                let remote = Remote {
                    address: target.base,
                    key: target.key,
                };
                let operation = SendOperation::Read { remote };
                let fault = Effect::Fault(&[S::LocalProtection]);
                let mut draft = Draft::new(CompletionOpcode::Read, operation, fault);
                draft.length = 64;
                draft.payload = Payload::Gathered(GatherList::from_slice(&[nowhere(64)]));
                draft
            }
            Ending::Cut => {
                let (_, peer) = self.path_of(r);
                let own = self.world.queue_pair(self.requesters[r].place).number();
                self.world.network().cut(peer);
                self.world.network().cut(own);
                let connection = self.requesters[r].connection;
                self.cut.insert(connection, self.world.now());
                self.draft_message(r, id, 100, &[S::RetryExceeded])
            }
            Ending::NoReceive => {
                self.replace_receives(r, |_, _| ());
                self.draft_message(r, id, 100, &[S::RnrRetryExceeded])
            }
        }
    }

    /// Discards the receives that the peer of the simulated requester with the index `r` has
    /// posted. Then calls `post` with the index of the peer's receive pool, so that `post` can post
    /// other receives, for example a receive that is too short.
    fn replace_receives(&mut self, r: usize, post: impl FnOnce(&mut Self, usize)) {
        let Some(partner) = self.requesters[r].partner else {
            return;
        };
        if let Some(pool) = self.roles[&self.requesters[partner].place].pool {
            self.pools[pool].stop(&mut self.world);
            post(self, pool);
        }
    }

    fn draft_message(
        &mut self,
        r: usize,
        id: u64,
        length: usize,
        statuses: &'static [CompletionStatus],
    ) -> Draft {
        let operation = SendOperation::Send {
            immediate: None,
            invalidate: None,
        };
        let mut draft = Draft::new(CompletionOpcode::Send, operation, Effect::Fault(statuses));
        self.with_bytes(r, &mut draft, id, length);
        draft
    }

    fn with_bytes(&mut self, r: usize, draft: &mut Draft, id: u64, length: usize) {
        let requester = &mut self.requesters[r];
        let memory = self.world.memory(requester.place.node);
        let message = content::message(id, length);
        let buffer = Buffer::containing(memory, &mut requester.random, &message);
        draft.length = length;
        draft.payload = Payload::Gathered(buffer.segments().clone());
        draft.buffer = Some(Rc::new(buffer));
    }

    /// Creates a request of the simulated requester with the index `r` that accesses the peer's
    /// memory at `remote`, and that must fail with one of `statuses`. `id` is the ID of the
    /// request.
    fn draft_remote(
        &mut self,
        r: usize,
        id: u64,
        remote: Remote,
        statuses: &'static [CompletionStatus],
    ) -> Draft {
        match self.requesters[r].random.percent(30) {
            true => self.draft_fetch_add(r, remote, statuses),
            false => self.draft_plain(r, id, remote, statuses),
        }
    }

    /// Creates a request of the simulated requester with the index `r` that must fail with one of
    /// `statuses`: a write or a read, chosen at random. The request has the ID `id`, and accesses
    /// at least five bytes of the peer's memory at `remote`.
    fn draft_plain(
        &mut self,
        r: usize,
        id: u64,
        remote: Remote,
        statuses: &'static [CompletionStatus],
    ) -> Draft {
        let random = &mut self.requesters[r].random;
        let length = random.range(5, 10_000) as usize;
        let fault = Effect::Fault(statuses);
        if random.percent(50) {
            let mut draft = Draft::new(
                CompletionOpcode::Read,
                SendOperation::Read { remote },
                fault,
            );
            self.set_response_memory(r, &mut draft, length);
            return draft;
        }
        let operation = SendOperation::Write {
            remote,
            immediate: None,
        };
        let mut draft = Draft::new(CompletionOpcode::Write, operation, fault);
        self.with_bytes(r, &mut draft, id, length);
        draft
    }

    fn draft_fetch_add(
        &mut self,
        r: usize,
        remote: Remote,
        statuses: &'static [CompletionStatus],
    ) -> Draft {
        let operation = SendOperation::FetchAdd { remote, add: 1 };
        let mut draft = Draft::new(
            CompletionOpcode::FetchAdd,
            operation,
            Effect::Fault(statuses),
        );
        self.set_response_memory(r, &mut draft, 8);
        draft
    }

    /// Prepares a send of the simulated requester with the index `r` that must fail with a local
    /// protection error. The last ten bytes of its message are in memory without a valid key.
    fn draft_bad_gather(&mut self, r: usize) -> Draft {
        let operation = SendOperation::Send {
            immediate: None,
            invalidate: None,
        };
        let fault = Effect::Fault(&[CompletionStatus::LocalProtection]);
        let mut draft = Draft::new(CompletionOpcode::Send, operation, fault);
        // The message is so short that it fits into the receive of the peer.
        let largest = self.schedule.connections[self.requesters[r].connection].largest;
        let good = u64::from(largest).min(6000) - 10;
        let good = self.requesters[r].random.range(0, good) as usize;
        self.set_response_memory(r, &mut draft, good);
        if let Payload::Gathered(list) = &mut draft.payload {
            list.push(nowhere(10));
        }
        draft.length += 10;
        draft
    }
}

fn nowhere(length: u32) -> Segment {
    Segment {
        address: 64,
        length,
        key: NO_KEY,
    }
}

fn expect_fault(draft: &mut Draft, id: u64, statuses: &'static [CompletionStatus]) {
    let mut expected = expect(id, Content::Numbered, true, draft.length, None);
    expected.fault = statuses;
    draft.expected = Some(expected);
}
