use std::ops::Range;
use std::rc::Rc;

use crate::proto::{AccessFlags, CompletionOpcode, Payload, Remote, SendOperation, WindowBinding};

use super::buffer::Buffer;
use super::content;
use super::generate::Draft;
use super::requester::{Content, Effect, Expectation, PeerWindow, WindowState};
use super::scenario::Scenario;
use super::shared_words::{Change, WORDS};

impl Scenario<'_> {
    /// Creates a random request of the simulated requester with the index `r`, which uses a
    /// reliable service. `id` is the ID of the request. The request is not posted yet.
    pub(super) fn draft_reliable(&mut self, r: usize, id: u64) -> Draft {
        let requester = &mut self.requesters[r];
        let pair = requester.partner.is_some();
        match requester.random.range(0, 99) {
            0..=23 => self.draft_send(r, id, false),
            24..=31 => self.draft_send(r, id, true),
            32..=37 => self.draft_send_invalidate(r, id),
            38..=57 => self.draft_write(r, id, false),
            58..=65 => self.draft_write(r, id, true),
            66..=82 => self.draft_read(r),
            83..=89 => self.draft_atomic(r),
            90..=95 => self.draft_shared(r, id),
            96..=98 if pair => self.draft_bind(r).unwrap_or_else(|| self.draft_read(r)),
            99 if pair => {
                let draft = self.draft_local_invalidate(r);
                draft.unwrap_or_else(|| self.draft_atomic(r))
            }
            _ => self.draft_atomic(r),
        }
    }

    /// Prepares a send of the simulated requester with the index `r`, with immediate data if
    /// `with_immediate` is set. The peer receives the message with one of its posted receives. `id`
    /// is the ID of the request.
    fn draft_send(&mut self, r: usize, id: u64, with_immediate: bool) -> Draft {
        let immediate = with_immediate.then(|| immediate_of(id));
        let operation = SendOperation::Send {
            immediate,
            invalidate: None,
        };
        let effect = Effect::Message(Content::Numbered);
        let mut draft = Draft::new(CompletionOpcode::Send, operation, effect);
        let mut content = Content::Numbered;
        if let Some((buffer, bytes)) = self.last_read(r) {
            // The message consists of bytes that an earlier read still fetches, so the request
            // needs a fence.
            draft.fence = true;
            draft.length = bytes.len();
            draft.payload = Payload::Gathered(buffer.segments().clone());
            draft.buffer = Some(buffer);
            content = Content::Read(bytes);
            draft.effect = Effect::Message(content.clone());
        } else {
            let length = self.draw_length(r);
            self.set_message(r, &mut draft, id, length);
        }
        draft.expected = Some(expect(id, content, true, draft.length, immediate));
        draft
    }

    /// Returns the buffer of the last read that the simulated requester with the index `r` has
    /// posted, and the bytes that the read will fetch. A send can then transfer these bytes.
    /// Returns `None` if the last request is not a read or is too long for a send, and otherwise at
    /// random in half of the calls.
    fn last_read(&mut self, r: usize) -> Option<(Rc<Buffer>, Rc<[u8]>)> {
        let requester = &mut self.requesters[r];
        let last = requester.posted.back()?;
        let (Effect::Read { bytes, .. }, Some(buffer)) = (&last.effect, &last.buffer) else {
            return None;
        };
        let largest = self.schedule.connections[requester.connection].largest;
        if bytes.len() > largest as usize || !requester.random.percent(50) {
            return None;
        }
        Some((buffer.clone(), bytes.clone()))
    }

    /// Prepares a send of the simulated requester with the index `r` that invalidates a memory
    /// window of the peer. Prepares a plain send if no window is bound. `id` is the ID of the
    /// request.
    fn draft_send_invalidate(&mut self, r: usize, id: u64) -> Draft {
        let mut draft = self.draft_send(r, id, false);
        let requester = &mut self.requesters[r];
        let bound = |window: &PeerWindow| window.state == WindowState::Bound;
        let Some(number) = requester.windows.iter().position(bound) else {
            return draft;
        };
        // A read through the window may have to be repeated after a loss, so it must complete
        // before the invalidation.
        draft.fence |= requester.is_reading_anything();
        let window = &mut requester.windows[number];
        window.state = WindowState::Invalidating;
        draft.window = Some(number);
        draft.operation = SendOperation::Send {
            immediate: None,
            invalidate: Some(window.key),
        };
        if let Some(expected) = &mut draft.expected {
            expected.invalidated = Some(window.key);
        }
        draft
    }

    /// Returns a random location of `length` bytes in the target of the simulated requester `r`:
    /// the memory of the peer that the requester accesses. The first element is the offset in the
    /// target. The second element is the remote address, with the key of the memory region or of a
    /// memory window. The third element is the index of the window, if a window is used.
    fn random_location(
        &mut self,
        r: usize,
        length: usize,
        align: usize,
    ) -> (usize, Remote, Option<usize>) {
        let requester = &mut self.requesters[r];
        let target = &requester.target;
        let random = &mut requester.random;
        let inside = |range: &Range<usize>| length <= range.len();
        let through = requester
            .windows
            .iter()
            .position(|window| window.state == WindowState::Bound && inside(&window.range));
        let through = through.filter(|_| random.percent(50));
        let range = match through {
            Some(number) => requester.windows[number].range.clone(),
            None => 0..target.len(),
        };
        let mut offset = random.range(range.start as u64, (range.end - length) as u64) as usize;
        if random.percent(30) && range.start == 0 {
            // Outstanding requests write to these bytes, too.
            offset = random.range(0, (range.end - length).min(256) as u64) as usize;
        }
        let offset = offset / align * align;
        let key = match through {
            Some(number) => requester.windows[number].key,
            // A request for zero bytes needs no valid key.
            None if length == 0 && random.percent(50) => random.bits() as u32,
            None => target.key,
        };
        let address = target.base + offset as u64;
        (offset, Remote { address, key }, through)
    }

    fn draft_write(&mut self, r: usize, id: u64, with_immediate: bool) -> Draft {
        let length = self.draw_length(r);
        let (offset, remote, window) = self.random_location(r, length, 1);
        let immediate = with_immediate.then(|| immediate_of(id));
        let bytes: Rc<[u8]> = content::message(id, length).into();
        let effect = Effect::Write {
            offset,
            bytes: bytes.clone(),
            told: with_immediate,
        };
        let operation = SendOperation::Write { remote, immediate };
        let mut draft = Draft::new(CompletionOpcode::Write, operation, effect);
        self.set_message(r, &mut draft, id, length);
        draft.window = window;
        let requester = &mut self.requesters[r];
        draft.fence = requester.is_reading(&(offset..offset + length));
        requester.target.write(offset, &bytes);
        if with_immediate {
            draft.expected = Some(expect(id, Content::Numbered, false, length, immediate));
        }
        draft
    }

    fn draft_read(&mut self, r: usize) -> Draft {
        let length = self.draw_length(r);
        let (offset, remote, window) = self.random_location(r, length, 1);
        let range = offset..offset + length;
        let bytes: Rc<[u8]> = self.requesters[r].target.read(range.clone()).into();
        let effect = Effect::Read { range, bytes };
        let mut draft = Draft::new(
            CompletionOpcode::Read,
            SendOperation::Read { remote },
            effect,
        );
        self.set_response_memory(r, &mut draft, length);
        draft.window = window;
        draft
    }

    /// Prepares an atomic operation of the simulated requester with the index `r`. The operation
    /// changes eight bytes of the peer's memory that no other requester changes.
    fn draft_atomic(&mut self, r: usize) -> Draft {
        let (offset, remote, window) = self.random_location(r, 8, 8);
        let requester = &mut self.requesters[r];
        let was = requester.target.number(offset);
        let random = &mut requester.random;
        let operand = random.bits();
        let (opcode, operation, becomes) = if random.percent(50) {
            let add = operand;
            let operation = SendOperation::FetchAdd { remote, add };
            (CompletionOpcode::FetchAdd, operation, was.wrapping_add(add))
        } else {
            let compare = if random.percent(60) {
                was
            } else {
                random.bits()
            };
            let becomes = if compare == was { operand } else { was };
            let operation = SendOperation::CompareSwap {
                remote,
                compare,
                swap: operand,
            };
            (CompletionOpcode::CompareSwap, operation, becomes)
        };
        let effect = Effect::Atomic {
            offset,
            was,
            becomes,
        };
        let fence = requester.is_reading(&(offset..offset + 8));
        requester.target.write(offset, &becomes.to_ne_bytes());
        let mut draft = Draft::new(opcode, operation, effect);
        self.set_response_memory(r, &mut draft, 8);
        draft.window = window;
        draft.fence = fence;
        draft
    }

    /// Prepares an atomic operation of the simulated requester with the index `r` on a shared word:
    /// eight bytes of the peer's memory that other requesters also change. `id` is the ID of the
    /// request.
    fn draft_shared(&mut self, r: usize, id: u64) -> Draft {
        let requester = &mut self.requesters[r];
        let word = requester.random.below(WORDS);
        let change = if requester.random.percent(60) {
            let add = requester.random.range(1, 1000);
            Change::Add { word, add }
        } else {
            let compare = requester.seen[word];
            Change::Swap {
                word,
                compare,
                swap: id,
            }
        };
        let remote = self.cells[requester.target.node].remote(change);
        let (opcode, operation) = match change {
            Change::Add { add, .. } => (
                CompletionOpcode::FetchAdd,
                SendOperation::FetchAdd { remote, add },
            ),
            Change::Swap { compare, swap, .. } => {
                let operation = SendOperation::CompareSwap {
                    remote,
                    compare,
                    swap,
                };
                (CompletionOpcode::CompareSwap, operation)
            }
        };
        let mut draft = Draft::new(opcode, operation, Effect::Shared(change));
        self.set_response_memory(r, &mut draft, 8);
        draft
    }

    /// Prepares a request of the simulated requester with the index `r` that binds a memory window.
    /// Through the window, the peer can then access memory of the requester's node. Returns `None`
    /// if no window is free.
    fn draft_bind(&mut self, r: usize) -> Option<Draft> {
        let partner = self.requesters[r].partner?;
        let random_key = self.requesters[r].random.range(0, 255) as u32;
        let requester = &mut self.requesters[partner];
        let free = |window: &PeerWindow| window.state == WindowState::Free;
        let number = requester.windows.iter().position(free)?;
        let length = requester.target.len();
        let start = requester.random.range(0, length as u64 / 2) as usize / 8 * 8;
        let end = requester.random.range(start as u64 + 8, length as u64) as usize;
        let window = &mut requester.windows[number];
        let old = window.key;
        window.state = WindowState::Binding;
        window.key = (old & !0xff) | random_key;
        window.range = start..end;
        let binding = WindowBinding {
            window: old,
            key: window.key,
            region: requester.target.key,
            address: requester.target.base + start as u64,
            length: (end - start) as u64,
            access: AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_ATOMIC,
        };
        let effect = Effect::Bind { window: number };
        Some(Draft::new(
            CompletionOpcode::Bind,
            SendOperation::Bind(binding),
            effect,
        ))
    }

    /// Creates a request of the simulated requester with the index `r` that invalidates one of the
    /// requester's memory windows. Selects a window that no outstanding request of the peer uses.
    /// Returns `None` if there is no such window.
    fn draft_local_invalidate(&mut self, r: usize) -> Option<Draft> {
        let partner = self.requesters[r].partner?;
        let requester = &mut self.requesters[partner];
        let number = (0..requester.windows.len()).find(|&number| {
            requester.windows[number].state == WindowState::Bound && !requester.uses(number)
        })?;
        let window = &mut requester.windows[number];
        window.state = WindowState::Invalidating;
        let operation = SendOperation::LocalInvalidate { key: window.key };
        let effect = Effect::Invalidate { window: number };
        Some(Draft::new(
            CompletionOpcode::LocalInvalidate,
            operation,
            effect,
        ))
    }

    /// Prepares a random send or write of the simulated requester with the index `r`, which has an
    /// unreliable connection: the network may lose its packets. `id` is the ID of the request.
    pub(super) fn draft_unreliable(&mut self, r: usize, id: u64) -> Draft {
        let random = &mut self.requesters[r].random;
        let with_immediate = random.percent(40);
        if random.percent(50) {
            return self.draft_send(r, id, with_immediate);
        }
        // Writes may arrive incompletely or not at all, so each write has a location of its own.
        let mut length = self.draw_length(r);
        let requester = &mut self.requesters[r];
        let offset = requester.cursor;
        length = length.min(requester.target.len() - offset);
        requester.cursor += length;
        let immediate = with_immediate.then(|| immediate_of(id));
        let remote = Remote {
            address: requester.target.base + offset as u64,
            key: requester.target.key,
        };
        let effect = Effect::Write {
            offset,
            bytes: content::message(id, length).into(),
            told: with_immediate,
        };
        let operation = SendOperation::Write { remote, immediate };
        let mut draft = Draft::new(CompletionOpcode::Write, operation, effect);
        self.set_message(r, &mut draft, id, length);
        if with_immediate {
            draft.expected = Some(expect(id, Content::Numbered, false, length, immediate));
        }
        draft
    }

    /// Creates a datagram request of the simulated requester with the index `r`, addressed to its
    /// peer. `id` is the ID of the request. The request is not posted yet.
    pub(super) fn draft_datagram(&mut self, r: usize, id: u64) -> Draft {
        let length = self.draw_length(r);
        let with_immediate = self.requesters[r].random.percent(40);
        let immediate = with_immediate.then(|| immediate_of(id));
        let (path, destination) = self.path_of(r);
        let random = &mut self.requesters[r].random;
        let wrong_key = random.percent(5);
        // If the top bit is set, the packet contains the queue pair's own key.
        let queue_key = match (wrong_key, random.percent(30)) {
            (true, _) => QUEUE_KEY ^ 1,
            (false, true) => 0x8000_0000,
            (false, false) => QUEUE_KEY,
        };
        let operation = SendOperation::Datagram {
            immediate,
            path,
            destination,
            queue_key,
        };
        let effect = Effect::Message(Content::Numbered);
        let mut draft = Draft::new(CompletionOpcode::Send, operation, effect);
        self.set_message(r, &mut draft, id, length);
        if !wrong_key {
            draft.expected = Some(expect(id, Content::Numbered, true, length, immediate));
        }
        draft
    }
}

/// Queue key of all datagram queue pairs. The top bit of the key is 0, because a set top bit in a
/// request selects the queue pair's own key.
pub(super) const QUEUE_KEY: u32 = 0x1234_5678;

/// Returns the immediate data of the message with the ID `id`, which is derived from the ID, so
/// that the receiver's completion can be checked.
fn immediate_of(id: u64) -> [u8; 4] {
    (id as u32).wrapping_mul(0x9e37_79b1).to_be_bytes()
}

/// Creates the expected properties of the message with the ID `id` that the peer must receive. The
/// received message is later compared with these properties. `is_send` is `false` for a write.
pub(super) fn expect(
    id: u64,
    content: Content,
    is_send: bool,
    length: usize,
    immediate: Option<[u8; 4]>,
) -> Expectation {
    Expectation {
        id,
        content,
        is_send,
        length,
        immediate,
        invalidated: None,
        solicited: false,
        srq: None,
        fault: &[],
    }
}
