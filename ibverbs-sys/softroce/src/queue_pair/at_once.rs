//! Reads, writes and atomics in the memory of another process that are carried out while they are posted, without a
//! queue.
//!
//! This is possible if all requests before them are done and the connection to the peer is known, and for as much of a
//! list as needs nothing of the peer's process. A request that cannot go this way is queued, with all requests behind
//! it.
//!
//! A list pays once for all its requests: for the locks of the queue pair and of the completion queue, the reading of
//! the regions, a [`Visit`] to the peer, and the sequence numbers.

use std::iter;

use smallvec::SmallVec;

use super::QueuePair;
use super::object::Inner;
use super::shared::{Near, Partner, STRIDE};
use crate::context::DomainId;
use crate::memory::{Piece, Regions};
use crate::proto::{
    Completion, CompletionStatus, Counter, Payload, Remote, Segment, SendOperation, SendRequest,
    State, Work,
};
use crate::same_host::{Access, Atomic, Visit};

/// A request that needs nobody at the other side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneSided<'a> {
    pub(crate) id: u64,
    pub(crate) action: Action,
    pub(crate) remote: Remote,
    pub(crate) data: Data<'a>,
    pub(crate) signaled: bool,
}

/// Operation of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Write,
    Read,
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// The bytes here of what is posted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'a> {
    Gathered(&'a [Segment]),
    Inline(&'a [u8]),
}

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

/// Reason why a request was not carried out at once.
enum Undone {
    /// The request was not done, or only in part, and can be done again.
    Left,
    /// The request was done and cannot be done again, but its result could not be stored.
    Lost,
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
        let fetches = attributes.max_initiated > 0;
        let (mut done, mut packets, mut lost) = (0, 0, None);
        let mut ended = SmallVec::<[Ended; MOST]>::new();
        {
            let Partner {
                link,
                target,
                known,
                ..
            } = partner;
            let regions = self.device().memory().regions(self.number());
            let Some(mut visit) = link.visit(target, generation, known) else {
                return 0;
            };
            while done < most.min(MOST) && !visit.is_over() {
                if let Some(next) = list.next_keys() {
                    regions.expect(next.local);
                    visit.expect(next.remote);
                }
                let length = match execute(&request, domain, fetches, &regions, &mut visit) {
                    Ok(length) => length,
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

/// Carries out all of a request. Returns the number of bytes.
#[inline]
fn execute(
    request: &OneSided<'_>,
    domain: DomainId,
    fetches: bool,
    regions: &Regions<'_>,
    visit: &mut Visit<'_>,
) -> Result<u32, Undone> {
    let remote = request.remote;
    let atomic = match request.action {
        Action::Write => {
            let put = with_pieces(request.data, domain, false, regions, |pieces| {
                visit.access(remote, Access::Put(pieces))
            });
            return put.ok_or(Undone::Left);
        }
        _ if !fetches => return Err(Undone::Left),
        Action::Read => {
            let got = with_pieces(request.data, domain, true, regions, |pieces| {
                visit.access(remote, Access::Get(pieces))
            });
            return got.ok_or(Undone::Left);
        }
        Action::CompareSwap { compare, swap } => Atomic::CompareSwap { compare, swap },
        Action::FetchAdd { add } => Atomic::FetchAdd { add },
    };
    let Data::Gathered([segment]) = request.data else {
        return Err(Undone::Left);
    };
    if segment.length != 8 {
        return Err(Undone::Left);
    }
    // The key of the result's memory is checked first: after the operation, the result can be lost only if that memory
    // is missing.
    let piece = regions.piece(domain, segment, true).ok_or(Undone::Left)?;
    let before = visit.atomic(remote, atomic).ok_or(Undone::Left)?;
    piece.store(before).ok_or(Undone::Lost)?;
    Ok(8)
}

/// Does something with the bytes here, if they are there as they have to be, and not too many; how many they are.
#[inline]
fn with_pieces(
    data: Data<'_>,
    domain: DomainId,
    write: bool,
    regions: &Regions<'_>,
    act: impl FnOnce(&[Piece<'_>]) -> Option<()>,
) -> Option<u32> {
    match data {
        Data::Gathered([only]) if only.length > 0 && only.length <= STRIDE => {
            let piece = regions.piece(domain, only, write)?;
            act(&[piece])?;
            Some(only.length)
        }
        Data::Inline(bytes) if !write => {
            act(&[Piece::of(bytes)])?;
            u32::try_from(bytes.len()).ok()
        }
        Data::Gathered(list) if list.len() > 1 => {
            let mut total = 0_u32;
            let mut pieces = SmallVec::<[Piece<'_>; 4]>::new();
            for segment in list.iter().filter(|segment| segment.length > 0) {
                total = total.checked_add(segment.length)?;
                pieces.push(regions.piece(domain, segment, write)?);
            }
            if total > STRIDE {
                return None;
            }
            act(&pieces)?;
            Some(total)
        }
        _ => None,
    }
}

impl Action {
    fn work(self) -> Work {
        match self {
            Self::Write => Work::Write,
            Self::Read => Work::Read,
            Self::CompareSwap { .. } => Work::CompareSwap,
            Self::FetchAdd { .. } => Work::FetchAdd,
        }
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
        let request = self.first()?;
        let (action, remote) = match request.operation {
            SendOperation::Write {
                remote,
                immediate: None,
            } => (Action::Write, remote),
            SendOperation::Read { remote } => (Action::Read, remote),
            SendOperation::CompareSwap {
                remote,
                compare,
                swap,
            } => (Action::CompareSwap { compare, swap }, remote),
            SendOperation::FetchAdd { remote, add } => (Action::FetchAdd { add }, remote),
            _ => return None,
        };
        let data = match &request.payload {
            Payload::Gathered(list) => Data::Gathered(list),
            Payload::Inline(bytes) => Data::Inline(bytes),
        };
        Some(OneSided {
            id: request.id,
            action,
            remote,
            data,
            signaled: request.signaled,
        })
    }

    fn advance(&mut self) -> Option<OneSided<'a>> {
        *self = self.get(1..)?;
        self.peek()
    }
}
