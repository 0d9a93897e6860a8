//! The frames that a client receives.

use std::sync::Arc;

use super::calls::{Answer, Calls, Phase, Slot};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::metadata::Metadata;
use crate::once;
use crate::payload::{Body, Message};
use crate::status::Status;
use crate::stream::Outlet;
use crate::wire::{CallId, Head, Reader, Violation};

impl Calls {
    /// Handles a received message, which may hold any bytes.
    pub(crate) fn handle(&self, core: &Arc<Core>, mut message: Message<'_>) -> Result<()> {
        let mut reader = Reader::begin(message.bytes())?;
        loop {
            let is_last = reader.is_last();
            let Some(head) = reader.next(message.bytes())? else {
                return Ok(());
            };
            if is_last {
                // Checks that nothing follows, before the memory of the message is given away.
                reader.next(message.bytes())?;
            }
            match head {
                Head::Response {
                    id,
                    codec,
                    is_error,
                    items,
                    body,
                } => {
                    let body = Body::take(&mut message, body, is_last);
                    self.respond(id, items, body, Answer::Response { codec, is_error })?;
                }
                Head::Status { id, status, body } => {
                    let body = message.bytes().get(body).unwrap_or_default();
                    let status = Status::from_parts(status, body).ok_or(Violation::Fields)?;
                    self.refuse(id, status)?;
                }
                Head::Items {
                    id,
                    codec,
                    first,
                    count,
                    body,
                } => {
                    if let Some(inlet) = self.streams(id, |slot| slot.streams.inlet.clone())? {
                        let body = Body::take(&mut message, body, is_last);
                        inlet.push(first, codec, count, body, core.message_limit())?;
                    }
                }
                Head::Window { id, items, bytes } => {
                    if let Some(outlet) = self.streams(id, |slot| slot.streams.outlet.clone())? {
                        outlet.grant(crate::stream::Window { items, bytes })?;
                    }
                }
                Head::Settings { settings, metadata } => {
                    let metadata = message.bytes().get(metadata).unwrap_or_default();
                    let metadata = Metadata::decode(metadata).ok_or(Violation::Fields)?;
                    if let Some(incarnation) = once::incarnation(&metadata) {
                        core.set_incarnation(incarnation);
                    }
                    core.set_others(settings)?;
                    self.open(settings.slots);
                }
                Head::Goodbye { status: 0, .. } => self.close(),
                Head::Goodbye { status: 2, .. } => self.refuse_all(),
                Head::Goodbye { status, body } => {
                    let body = message.bytes().get(body).unwrap_or_default();
                    let reason = String::from_utf8_lossy(body.get(..512).unwrap_or(body));
                    if status == 3 {
                        let reason = reason.into_owned();
                        return Err(Error::Denied { reason });
                    }
                    let reason = format!("the peer ended it: {reason}");
                    return Err(Error::disconnected(reason));
                }
                Head::Bulk(head) => core.bulks.handle(core, head, &mut message, is_last)?,
                Head::Request { .. } | Head::End { .. } | Head::Cancel { .. } => {
                    return Err(Violation::Direction.into());
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    fn slot(&self, id: CallId) -> Result<&parking_lot::Mutex<Slot>, Violation> {
        self.slots.get(id.index as usize).ok_or(Violation::Index)
    }

    /// Delivers a response. A response to a call that does not wait for one any more is ignored.
    fn respond(
        &self,
        id: CallId,
        items: Option<u32>,
        body: Body<'_>,
        answer: Answer,
    ) -> Result<(), Violation> {
        let (waker, inlet, outlet) = {
            let mut slot = self.slot(id)?.lock();
            if slot.generation != id.generation || !matches!(slot.phase, Phase::Waiting) {
                return Ok(());
            }
            let inlet = slot.streams.inlet.clone();
            if inlet.is_some() != items.is_some() {
                return Err(Violation::Fields);
            }
            slot.body.set(body);
            (slot.answer(answer), inlet, slot.streams.outlet.clone())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        finish(outlet.as_deref());
        match (inlet, items) {
            (Some(inlet), Some(items)) => inlet.end(items),
            _ => Ok(()),
        }
    }

    /// Delivers the reason why a call has no response.
    fn refuse(&self, id: CallId, status: Status) -> Result<(), Violation> {
        let (waker, streams) = {
            let mut slot = self.slot(id)?.lock();
            if slot.generation != id.generation {
                return Ok(());
            }
            (slot.answer(Answer::Status(status)), slot.streams.clone())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        finish(streams.outlet.as_deref());
        if let Some(inlet) = streams.inlet {
            inlet.fail(&Error::Cancelled);
        }
        Ok(())
    }

    /// Ends the calls in progress, none of which the server has started.
    fn refuse_all(&self) {
        self.close();
        for slot in &self.slots {
            let (waker, streams) = {
                let mut slot = slot.lock();
                if !matches!(slot.phase, Phase::Waiting) {
                    continue;
                }
                let streams = slot.streams.clone();
                (slot.answer(Answer::Status(Status::ShuttingDown)), streams)
            };
            streams.fail(&Error::ShuttingDown);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Returns a stream of a call; `None` if the call has ended.
    fn streams<T>(
        &self,
        id: CallId,
        of: impl FnOnce(&Slot) -> Option<T>,
    ) -> Result<Option<T>, Violation> {
        let slot = self.slot(id)?.lock();
        if slot.generation != id.generation || matches!(slot.phase, Phase::Free) {
            return Ok(None);
        }
        of(&slot).map(Some).ok_or(Violation::Window)
    }
}

/// Ends the caller's stream of a call that has its answer.
fn finish(outlet: Option<&Outlet>) {
    if let Some(outlet) = outlet {
        outlet.close(&Error::Cancelled);
    }
}
