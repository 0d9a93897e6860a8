//! Reads, writes and atomics in the memory of another process that are carried out while they are posted, without a
//! queue.
//!
//! This is possible if all requests before them are done and the connection to the peer is known, and for as much of a
//! list as needs nothing of the peer's process. A request that cannot go this way is queued, with all requests behind
//! it.
//!
//! A list pays once for all its requests: for the locks of the queue pair and of the completion queue, the reading of
//! the regions, a [`Visit`](crate::same_host::Visit) to the peer, and the sequence numbers.

use std::iter;

use smallvec::SmallVec;

use super::QueuePair;
use super::object::Inner;
use super::one_sided::{Executor, OneSided, STRIDE, Undone};
use super::shared::{Near, Partner};
use crate::proto::{Completion, CompletionStatus, Counter, SendRequest, State, Work};

/// Keys of a request that reads or writes, of which the local one is 0 if the request has no segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    pub(crate) local: u32,
    pub(crate) remote: u32,
}

/// Requests that are posted together, in order.
pub(crate) trait List<'a> {
    /// Returns the next request, if it may be posted and can be carried out at once.
    fn peek(&self) -> Option<OneSided<'a>>;

    /// Returns the keys of the request after the current one, if they are known at no cost.
    fn next_keys(&self) -> Option<Keys> {
        None
    }

    /// Ends the current request. Returns the next one, as [`peek`](Self::peek) does.
    fn advance(&mut self) -> Option<OneSided<'a>>;
}

/// A request that is carried out and whose completion is still to be reported.
struct Ended {
    id: u64,
    work: Work,
    length: u32,
}

/// Requests that are done at a visit.
const MOST: usize = 64;

impl QueuePair {
    /// Does requests at once, at most `most`, until one is not for this or it was enough for a time; how many.
    pub(super) fn do_at_once<'a>(
        &self,
        mine: &mut Inner,
        list: &mut impl List<'a>,
        most: usize,
    ) -> usize {
        let Some(mut request) = list.peek() else {
            return 0;
        };
        let Some(Near {
            transport,
            attached,
            notes,
            partner,
            tally,
        }) = self.near(mine)
        else {
            return 0;
        };
        let (Some(generation), Some(domain)) = (partner.generation, self.domain()) else {
            return 0;
        };
        if !self.is_connection() || !transport.is_idle() {
            return 0;
        }
        let attributes = transport.attributes();
        let signals_all = attributes.signal_all;
        let (mut done, mut packets, mut lost) = (0, 0, None);
        let mut ended = SmallVec::<[Ended; MOST]>::new();
        {
            let Partner {
                link,
                target,
                known,
                ..
            } = partner;
            let executor = Executor {
                domain,
                regions: self.device().memory().regions(self.number()),
            };
            let Some(mut visit) = link.visit(target, generation, known) else {
                return 0;
            };
            while done < most.min(MOST) && !visit.is_over() {
                if let Some(next) = list.next_keys() {
                    executor.regions.expect(next.local);
                    visit.expect(next.remote);
                }
                let length = request.data.length().filter(|&length| length <= STRIDE);
                let Some(length) = length else {
                    break;
                };
                match executor.execute(&request, 0..length, &mut visit) {
                    Ok(()) => {}
                    Err(Undone::Left) => break,
                    Err(Undone::Lost) => {
                        done += 1;
                        lost = Some((request.id, request.action.work()));
                        list.advance();
                        break;
                    }
                };
                done += 1;
                packets += transport.packets(length);
                if request.signaled || signals_all {
                    ended.push(Ended {
                        id: request.id,
                        work: request.action.work(),
                        length,
                    });
                }
                match list.advance() {
                    Some(next) => request = next,
                    None => break,
                }
            }
        }
        if done == 0 {
            return 0;
        }
        transport.skip(packets);
        tally.count(Counter::SharedMessages, done as u64);
        if !ended.is_empty() || lost.is_some() {
            let mut host = self.surroundings(attached, notes);
            host.complete_sends(ended.iter().map(Ended::completion));
            if let Some((id, work)) = lost {
                let status = CompletionStatus::LocalProtection;
                host.complete_sends(iter::once(Completion::new(id, status, work)));
                transport.enter(State::Error, self.device().now(), &mut host);
            }
            self.fail_if_overrun(transport, &mut host);
            if transport.state() == State::Error {
                self.tell(mine);
            }
        }
        done
    }
}

impl Ended {
    fn completion(&self) -> Completion {
        Completion {
            length: self.length,
            ..Completion::new(self.id, CompletionStatus::Success, self.work)
        }
    }
}

/// Requests that were made already.
impl<'a> List<'a> for &'a [SendRequest] {
    fn peek(&self) -> Option<OneSided<'a>> {
        OneSided::of(self.first()?)
    }

    fn advance(&mut self) -> Option<OneSided<'a>> {
        *self = self.get(1..)?;
        self.peek()
    }
}
