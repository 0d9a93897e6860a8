//! The handling of frames that a client receives, such as responses and stream items.

use std::sync::Arc;

use super::calls::{Answer, Calls, Phase, Slot};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::metadata::Metadata;
use crate::once;
use crate::outbox::MAX_BATCH_LEN;
use crate::payload::{Body, Message};
use crate::status::Status;
use crate::stream::SendWindow;
use crate::wire::{CallId, Frame, FrameReader, Violation};

impl Calls {
    /// Handles the frames of a message from the server, which can contain arbitrary bytes. Passes
    /// responses and stream items to their calls, and handles frames about the connection, such as
    /// settings. Fails if the message violates the protocol, or if the server announces that it
    /// closes the connection or refuses the client. The caller must then end the connection.
    pub(crate) fn handle(&self, core: &Arc<Core>, mut message: Message<'_>) -> Result<()> {
        let mut reader = FrameReader::new(message.bytes())?;
        loop {
            let is_last = reader.is_last();
            let Some(frame) = reader.next(message.bytes())? else {
                return Ok(());
            };
            if is_last {
                // Checks that no bytes follow, before a body takes the memory of the message.
                reader.next(message.bytes())?;
            }
            match frame {
                Frame::Response {
                    id,
                    codec,
                    is_error,
                    items,
                    body,
                } => {
                    let is_long = message.bytes().len() > MAX_BATCH_LEN;
                    let body = Body::take(&mut message, body, is_last);
                    self.respond(id, items, body, Answer::Response { codec, is_error })?;
                    if is_long && self.count_long_response() {
                        self.refuse_all();
                    }
                }
                Frame::Status { id, status, body } => {
                    let body = message.bytes().get(body).unwrap_or_default();
                    let status = Status::from_parts(status, body).ok_or(Violation::Fields)?;
                    self.refuse(id, status)?;
                }
                Frame::Items {
                    id,
                    codec,
                    first,
                    count,
                    body,
                } => {
                    if let Some(incoming) =
                        self.streams(id, |slot| slot.streams.incoming.clone())?
                    {
                        let body = Body::take(&mut message, body, is_last);
                        incoming.push(first, codec, count, body, core.message_limit())?;
                    }
                }
                Frame::Window { id, items, bytes } => {
                    if let Some(outgoing) =
                        self.streams(id, |slot| slot.streams.outgoing.clone())?
                    {
                        outgoing.grant(crate::stream::Window { items, bytes })?;
                    }
                }
                Frame::Settings { settings, metadata } => {
                    let metadata = message.bytes().get(metadata).unwrap_or_default();
                    let metadata = Metadata::decode(metadata).ok_or(Violation::Fields)?;
                    if let Some(instance_id) = once::instance_id(&metadata) {
                        core.set_instance_id(instance_id);
                    }
                    core.set_peer_settings(settings)?;
                    self.open_slots(settings.slots);
                }
                Frame::Goodbye { status: 0, .. } => self.close(),
                Frame::Goodbye { status: 2, body } => {
                    let body = message.bytes().get(body).unwrap_or_default();
                    let sent = match body.is_empty() {
                        true => [0; 8],
                        false => body.try_into().map_err(|_| Violation::Fields)?,
                    };
                    if self.set_sent_long_responses(u64::from_be_bytes(sent)) {
                        self.refuse_all();
                    }
                }
                Frame::Goodbye { status, body } => {
                    let body = message.bytes().get(body).unwrap_or_default();
                    let reason = String::from_utf8_lossy(body.get(..512).unwrap_or(body));
                    if status == 3 {
                        let reason = reason.into_owned();
                        return Err(Error::Denied { reason });
                    }
                    let reason = format!("closed by the peer: {reason}");
                    return Err(Error::disconnected(reason));
                }
                Frame::Bulk(frame) => core.bulks.handle(core, frame, &mut message, is_last)?,
                Frame::Request { .. } | Frame::End { .. } | Frame::Cancel { .. } => {
                    return Err(Violation::Direction.into());
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Returns the slot (the client's entry of a call) with the index in `id`, a call ID that the
    /// server has sent. Fails if no slot has this index. If the call has ended, the slot can
    /// contain a later call. The caller must therefore compare the generation (use count of the
    /// slot) in `id` with that of the slot.
    fn slot(&self, id: CallId) -> Result<&parking_lot::Mutex<Slot>, Violation> {
        self.slots.get(id.index as usize).ok_or(Violation::Index)
    }

    /// Stores the response to the call `id` and wakes the caller. `answer` is the kind of the
    /// response, and `body` contains its encoded value. `items` is the number of items that the
    /// server has sent in the call's stream; `None` if the method has no stream from the server.
    /// Ignores the response if the call no longer waits for it.
    fn respond(
        &self,
        id: CallId,
        items: Option<u32>,
        body: Body<'_>,
        answer: Answer,
    ) -> Result<(), Violation> {
        let (waker, incoming, outgoing) = {
            let mut slot = self.slot(id)?.lock();
            if slot.generation != id.generation || !matches!(slot.phase, Phase::Waiting) {
                return Ok(());
            }
            let incoming = slot.streams.incoming.clone();
            if incoming.is_some() != items.is_some() {
                return Err(Violation::Fields);
            }
            slot.body.set(body);
            (slot.answer(answer), incoming, slot.streams.outgoing.clone())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        finish(outgoing.as_deref());
        match (incoming, items) {
            (Some(incoming), Some(items)) => incoming.end(items),
            _ => Ok(()),
        }
    }

    /// Stores `status`, which the server has sent instead of the response to the call `id`, and
    /// wakes the task that made the call. Fails if the client cannot have made a call with this ID.
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
        finish(streams.outgoing.as_deref());
        if let Some(incoming) = streams.incoming {
            incoming.fail(&Error::Cancelled);
        }
        Ok(())
    }

    /// Fails all calls that wait for a response with [`Status::ShuttingDown`]. Called when the
    /// server shuts down and has announced that it has not started these calls.
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

    /// Returns a stream of the call `id`, to or from the server. `of` selects the stream from the
    /// client's entry of the call. Returns `None` if the call has ended. Fails if `of` returns
    /// `None`: the server has then sent a frame for a stream that the method does not have.
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

/// Closes `outgoing`, the stream in which the caller sends items to the server. Called when the
/// call was answered. Afterwards, sending another item fails. Does nothing for a call without such
/// a stream.
fn finish(outgoing: Option<&SendWindow>) {
    if let Some(outgoing) = outgoing {
        outgoing.close(&Error::Cancelled);
    }
}
