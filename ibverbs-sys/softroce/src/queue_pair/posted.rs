//! Execution of one-sided requests (RDMA reads, writes and atomics) while they are posted, directly
//! in the memory of another process of the host.
//!
//! A request is executed if it is one-sided, all requests before it are complete, and the
//! connection to the peer is known. The first request of a list for which this is not true, and all
//! after it, are queued.
//!
//! The requests of a list share costs that do not depend on their number: the locks of the queue
//! pair and of the completion queue, the read lock on the regions, a
//! [`CopySession`](crate::same_host::CopySession) (period of access to the peer's memory), and the
//! update of the sequence numbers.

use std::iter;

use smallvec::SmallVec;

use super::QueuePair;
use super::object::Inner;
use super::same_host::{BothMemories, DirectPost, LinkedPeer};
use crate::counters::Flow;
use crate::proto::{Completion, CompletionOpcode, CompletionStatus, SendRequest, State};
use crate::transfer::{self, Kind, MAX_COPY, OneSided, OneSidedError, Transfer, Volume};

/// A list of posted requests with a cursor. The requests are executed directly in the peer's
/// memory, one after the other.
pub(crate) trait PostedList<'a> {
    /// Returns the request at the cursor, without moving the cursor. Returns `None` at the end of
    /// the list. Also returns `None` if the request cannot be executed in the peer's memory, for
    /// example because the request is invalid or a send.
    fn peek(&self) -> Option<OneSided<'a>>;

    /// Moves the cursor to the next request, and returns this request. Returns `None` at the end of
    /// the list, or if the request cannot be executed in the peer's memory.
    fn advance(&mut self) -> Option<OneSided<'a>>;
}

/// A request that was executed and whose completion has not been reported yet.
struct ExecutedRequest {
    id: u64,
    opcode: CompletionOpcode,
    length: u32,
}

/// Maximum number of requests that are executed in one
/// [`CopySession`](crate::same_host::CopySession) (period of access to the peer's memory). A peer
/// that withdraws memory waits for the end of the session. The limit keeps this wait short.
const MAX_REQUESTS: usize = 64;

impl QueuePair {
    /// Executes one-sided requests of `list` (RDMA reads, writes and atomics) directly in the
    /// memory of the peer process, without packets. Returns the number of executed requests. Stops
    /// after `max_requests` or [`MAX_REQUESTS`] requests, or after a limited number of bytes. Also
    /// stops at a request that needs packets or must wait for earlier requests. `mine` is the
    /// locked state of this queue pair.
    pub(super) fn execute_posted<'a>(
        &self,
        mine: &mut Inner,
        list: &mut impl PostedList<'a>,
        max_requests: usize,
    ) -> usize {
        let Some(mut request) = list.peek() else {
            return 0;
        };
        let Some(DirectPost {
            transport,
            objects,
            host_state,
            linked_peer,
            tally,
        }) = self.direct_post(mine)
        else {
            return 0;
        };
        let (Some(generation), Some(domain)) = (linked_peer.generation, self.domain()) else {
            return 0;
        };
        if !self.is_connection() || !transport.is_idle() {
            return 0;
        }
        let attributes = transport.attributes();
        let signals_all = attributes.signal_all;
        let (mut done, mut packets, mut lost) = (0, 0, None);
        let mut volume = Volume::default();
        let mut ended = SmallVec::<[ExecutedRequest; MAX_REQUESTS]>::new();
        {
            let LinkedPeer {
                link,
                target,
                known,
                ..
            } = linked_peer;
            let regions = self.device().memory().regions(self.number());
            let Some(session) = link.begin_session(target, generation, known) else {
                return 0;
            };
            let mut across = BothMemories {
                domain,
                regions,
                session,
            };
            while done < max_requests.min(MAX_REQUESTS) && !across.session.is_over() {
                let length = request.data.length().filter(|&length| length <= MAX_COPY);
                let Some(length) = length else {
                    break;
                };
                let properties = transfer::RequestProperties::posted(Kind::OneSided, length, false);
                if host_state.transfer(&properties) != Transfer::OneSided {
                    break;
                }
                match request.execute(0..length, &mut across) {
                    Ok(()) => {}
                    Err(OneSidedError::NotExecuted) => break,
                    Err(OneSidedError::ResultLost) => {
                        done += 1;
                        lost = Some((request.id, request.action.completion_opcode()));
                        list.advance();
                        break;
                    }
                };
                done += 1;
                volume.add_part(length, true, 1);
                packets += transport.packets(length);
                if request.signaled || signals_all {
                    ended.push(ExecutedRequest {
                        id: request.id,
                        opcode: request.action.completion_opcode(),
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
        host_state.is_out_of_reach = false;
        transport.skip(packets);
        volume.messages = done as u64;
        tally.add(Flow::OneSided, &volume);
        if !ended.is_empty() || lost.is_some() {
            let mut host = self.environment(objects, host_state);
            host.complete_sends(ended.iter().map(ExecutedRequest::completion));
            if let Some((id, opcode)) = lost {
                let status = CompletionStatus::LocalProtection;
                host.complete_sends(iter::once(Completion::new(id, status, opcode)));
                transport.enter(State::Error, self.device().now(), &mut host);
            }
            self.fail_if_overrun(transport, &mut host);
            if transport.state() == State::Error {
                self.publish(mine);
            }
        }
        done
    }
}

impl ExecutedRequest {
    fn completion(&self) -> Completion {
        Completion {
            length: self.length,
            ..Completion::new(self.id, CompletionStatus::Success, self.opcode)
        }
    }
}

/// A list of requests that have already been converted to [`SendRequest`]s.
impl<'a> PostedList<'a> for &'a [SendRequest] {
    fn peek(&self) -> Option<OneSided<'a>> {
        let request = self.first()?;
        OneSided::of(request).filter(|_| Kind::of(request) == Kind::OneSided)
    }

    fn advance(&mut self) -> Option<OneSided<'a>> {
        *self = self.get(1..)?;
        self.peek()
    }
}
