//! [`ReceiveBuffer`]: the received items of a stream, in order.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::run::Run;
use crate::error::Error;
use crate::payload::{Body, BodyBuffer};
use crate::wire::{ITEM_PREFIX_LEN, Violation};

/// Maximum number of unused buffers that a stream keeps for further items, which limits the idle
/// memory.
const MAX_SPARE_BUFFERS: usize = 16;

/// Received items of a stream that the program has not taken yet, and the numbers of items and
/// bytes that the peer may still send.
#[derive(Debug)]
pub(crate) struct ReceiveBuffer {
    state: Mutex<State>,
}

#[derive(Debug)]
/// Content of a [`ReceiveBuffer`] under its lock: the received items of a stream, and the numbers
/// of items and bytes that the peer may still send. Sequence numbers of items wrap around.
struct State {
    /// Runs (items of one frame) up to `arrived` without a gap, which the program can take.
    ready: VecDeque<Run>,
    /// Runs after a gap, ordered by sequence number.
    early: VecDeque<Run>,
    /// Sequence number of the first item that has not arrived.
    arrived: u32,
    /// Sequence number of the first item that the program has not finished.
    next: u32,
    /// First sequence number that the peer may not send yet.
    limit: u32,
    /// Number of bytes that the peer may still send. Negative after an item that exceeds the
    /// window.
    bytes: i64,
    /// Items and bytes that were taken and not yet granted again.
    taken: Window,
    /// Window of the peer at the beginning of the stream.
    window: Window,
    /// Total number of items of the stream, or `None` until the end is known.
    end: Option<u32>,
    /// Error that ended the stream.
    failure: Option<Error>,
    waker: Option<Waker>,
    /// Buffers of finished runs, for further runs.
    spare: Vec<BodyBuffer>,
}

/// Numbers of items and bytes that the sender of a stream may send before the receiver allows more.
/// Also used for the additional items and bytes that the receiver allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) items: u32,
    pub(crate) bytes: u32,
}

impl ReceiveBuffer {
    pub(crate) fn new(window: Window) -> Self {
        Self {
            state: Mutex::new(State {
                ready: VecDeque::new(),
                early: VecDeque::new(),
                arrived: 0,
                next: 0,
                limit: window.items,
                bytes: window.bytes.into(),
                taken: Window::default(),
                window,
                end: None,
                failure: None,
                waker: None,
                spare: Vec::new(),
            }),
        }
    }

    /// Adds the items of a received frame. `first` is the sequence number of the first item, and
    /// `count` the number of items, each preceded by its length. If `count` is 0, `body` is a
    /// single item. Ignores items after the end of the stream.
    ///
    /// Fails if the peer has sent more items or bytes than this end allows. While one byte is
    /// allowed, the peer can send an item of any length. Therefore the last item can exceed the
    /// allowed bytes, by less than `slack`, the maximum length of an item.
    pub(crate) fn push(
        &self,
        first: u32,
        codec: u8,
        count: u16,
        body: Body<'_>,
        slack: usize,
    ) -> Result<(), Violation> {
        let waker = {
            let mut state = self.state.lock();
            let slack = i64::try_from(slack).unwrap_or(i64::MAX);
            let offset = first.wrapping_sub(state.arrived);
            let end = offset.checked_add(u32::from(count).max(1));
            let allowed = state.limit.wrapping_sub(state.arrived);
            // `Run::new` checks that the body contains the lengths.
            let len = body
                .bytes()
                .len()
                .saturating_sub(usize::from(count) * ITEM_PREFIX_LEN);
            let bytes = state
                .bytes
                .saturating_sub(i64::try_from(len).unwrap_or(i64::MAX));
            if end.is_none_or(|end| end > allowed) || bytes <= -slack {
                return Err(Violation::Window);
            }
            let is_late = |end: u32| offset >= end.wrapping_sub(state.arrived);
            if state.end.is_some_and(is_late) {
                // A task of the handler may send an item while the handler returns.
                return Ok(());
            }
            let stored = state.spare.pop().unwrap_or_default();
            let run = Run::new(first, codec, count, body, stored)?;
            state.bytes = bytes;
            if state.insert(run)? {
                state.waker.take()
            } else {
                None
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Records that the stream ends after a total of `items` items, of which some have perhaps not
    /// arrived yet. Fails if the peer was not allowed to send so many items, or if an earlier end
    /// had a different number.
    pub(crate) fn end(&self, items: u32) -> Result<(), Violation> {
        let waker = {
            let mut state = self.state.lock();
            let left = items.wrapping_sub(state.next);
            if left > state.limit.wrapping_sub(state.next) {
                return Err(Violation::Window);
            }
            if state.end.is_some_and(|end| end != items) {
                return Err(Violation::Repeated);
            }
            state.end = Some(items);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Ends this received stream early. The program first gets the items that have arrived, and
    /// then `error`.
    pub(crate) fn fail(&self, error: &Error) {
        let waker = {
            let mut state = self.state.lock();
            state.failure.get_or_insert_with(|| error.clone());
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Polls for the items of the next frame of the stream. When the program has taken these items,
    /// the caller must pass them to [`Self::finish`] before the next poll. Returns `None` at the
    /// end of the stream, or the error that ended the stream early.
    pub(crate) fn poll_run(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Run>, Error>> {
        let mut state = self.state.lock();
        let left = state.end.map(|end| end.wrapping_sub(state.next));
        if left == Some(0) {
            return Poll::Ready(Ok(None));
        }
        if let Some(mut run) = state.ready.pop_front() {
            if let Some(left) = left {
                run.truncate(left);
            }
            return Poll::Ready(Ok(Some(run)));
        }
        if let Some(error) = &state.failure {
            return Poll::Ready(Err(error.clone()));
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Counts all items of `run`, a received frame, as taken by the program, and keeps its buffer
    /// for a later frame. Returns the numbers of further items and bytes that the peer may send.
    /// The caller must announce these numbers to the peer. Returns `None` until the program has
    /// taken half of the initial window since the last announcement, so that announcements are
    /// rare.
    pub(crate) fn finish(&self, run: Run) -> Option<Window> {
        let mut state = self.state.lock();
        let window = state.count(run.count(), run.bytes());
        if state.spare.len() < MAX_SPARE_BUFFERS {
            state.spare.push(run.into_stored());
        }
        window
    }
}

impl State {
    /// Inserts the items of a received frame, in the order of the sequence numbers. Returns whether
    /// the program can take them now, because all earlier items have arrived. Fails if an item has
    /// already arrived.
    fn insert(&mut self, run: Run) -> Result<bool, Violation> {
        let offset_of = |run: &Run, arrived: u32| run.first().wrapping_sub(arrived);
        let arrived = self.arrived;
        let offset = offset_of(&run, arrived);
        let behind = |other: &Run| offset_of(other, arrived) < offset;
        let place = self.early.partition_point(behind);
        let before = place.checked_sub(1).and_then(|place| self.early.get(place));
        let overlaps_before =
            before.is_some_and(|before| offset_of(before, arrived) + before.count() > offset);
        let overlaps_after = self
            .early
            .get(place)
            .is_some_and(|after| offset + run.count() > offset_of(after, arrived));
        if overlaps_before || overlaps_after {
            return Err(Violation::Repeated);
        }
        if offset > 0 {
            self.early.insert(place, run);
            return Ok(false);
        }
        let mut following = Some(run);
        while let Some(run) = following {
            self.arrived = self.arrived.wrapping_add(run.count());
            self.ready.push_back(run);
            let is_next = |run: &Run| run.first() == self.arrived;
            following = match self.early.front().is_some_and(is_next) {
                true => self.early.pop_front(),
                false => None,
            };
        }
        Ok(true)
    }

    /// Counts `items` items with a total of `bytes` bytes as taken by the program. Returns the
    /// numbers of items and bytes taken since the last announcement, which the peer may send in
    /// addition. Returns `None` until half of the initial window (in items or bytes) was taken, so
    /// that announcements are rare.
    fn count(&mut self, items: u32, bytes: u32) -> Option<Window> {
        self.next = self.next.wrapping_add(items);
        self.taken.items += items;
        self.taken.bytes = self.taken.bytes.saturating_add(bytes);
        let is_half = |taken: u32, window: u32| taken >= window.div_ceil(2);
        if !is_half(self.taken.items, self.window.items)
            && !is_half(self.taken.bytes, self.window.bytes)
        {
            return None;
        }
        let taken = std::mem::take(&mut self.taken);
        self.limit = self.limit.wrapping_add(taken.items);
        self.bytes += i64::from(taken.bytes);
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::super::run::EncodedItem;
    use super::*;

    fn buffer() -> ReceiveBuffer {
        ReceiveBuffer::new(Window {
            items: 4,
            bytes: 100,
        })
    }

    /// Pushes one item to a test's buffer: `len` bytes that all equal the item's sequence number
    /// `sequence`.
    fn push(buffer: &ReceiveBuffer, sequence: u32, len: usize) -> Result<(), Violation> {
        let bytes = vec![sequence as u8; len];
        buffer.push(sequence, 1, 0, Body::Short(&bytes), 1000)
    }

    /// Pushes a frame with `count` items to a test's buffer. Each item is one byte that equals its
    /// sequence number. `first` is the number of the first item.
    fn push_run(buffer: &ReceiveBuffer, first: u32, count: u16) -> Result<(), Violation> {
        let items = (first..first + u32::from(count)).flat_map(|item| [0, 1, item as u8]);
        let bytes: Vec<u8> = items.collect();
        buffer.push(first, 1, count, Body::Short(&bytes), 1000)
    }

    /// Takes all items of the next frame from `buffer`. Returns the first byte of each item, by
    /// which the test recognizes it, and the result of [`ReceiveBuffer::finish`].
    fn next(buffer: &ReceiveBuffer) -> Poll<Option<(Vec<u8>, Option<Window>)>> {
        let mut cx = Context::from_waker(Waker::noop());
        let decode = |_, item: EncodedItem<'_>| match item {
            EncodedItem::Bytes(bytes) => Ok(bytes.first().copied().unwrap_or(99)),
            EncodedItem::Retained(_) => panic!("an item of this size is copied"),
        };
        buffer.poll_run(&mut cx).map(|run| {
            let mut run = run.unwrap()?;
            let mut items = Vec::new();
            while !run.is_empty() {
                items.push(run.take(decode).unwrap());
            }
            Some((items, buffer.finish(run)))
        })
    }

    fn window(items: u32, bytes: u32) -> Option<Window> {
        Some(Window { items, bytes })
    }

    #[test]
    fn items_are_taken_in_order_regardless_of_the_order_of_arrival() {
        let buffer = buffer();
        push(&buffer, 1, 5).unwrap();
        assert!(next(&buffer).is_pending());
        push(&buffer, 2, 5).unwrap();
        buffer.end(3).unwrap();
        push(&buffer, 0, 5).unwrap();
        assert_eq!(next(&buffer), Poll::Ready(Some((vec![0], None))));
        assert_eq!(next(&buffer), Poll::Ready(Some((vec![1], window(2, 10)))));
        assert_eq!(next(&buffer), Poll::Ready(Some((vec![2], None))));
        assert_eq!(next(&buffer), Poll::Ready(None));
    }

    #[test]
    fn runs_are_taken_in_order_regardless_of_the_order_of_arrival() {
        let buffer = ReceiveBuffer::new(Window {
            items: 10,
            bytes: 100,
        });
        push_run(&buffer, 8, 2).unwrap();
        push_run(&buffer, 3, 2).unwrap();
        push_run(&buffer, 5, 3).unwrap();
        assert!(next(&buffer).is_pending());
        push_run(&buffer, 0, 3).unwrap();
        let taken: Vec<_> = (0..4).map(|_| next(&buffer)).collect();
        let expected = [
            (vec![0, 1, 2], None),
            (vec![3, 4], window(5, 5)),
            (vec![5, 6, 7], None),
            (vec![8, 9], window(5, 5)),
        ];
        assert_eq!(taken, expected.map(|run| Poll::Ready(Some(run))));
    }

    #[test]
    fn items_beyond_the_window_and_repeated_items_are_refused() {
        let buffer = buffer();
        assert_eq!(push(&buffer, 4, 1), Err(Violation::Window));
        assert_eq!(push(&buffer, u32::MAX, 1), Err(Violation::Window));
        push(&buffer, 1, 1).unwrap();
        assert_eq!(push(&buffer, 1, 1), Err(Violation::Repeated));
        assert_eq!(buffer.end(5), Err(Violation::Window));
        buffer.end(3).unwrap();
        assert_eq!(buffer.end(2), Err(Violation::Repeated));
    }

    #[test]
    fn runs_beyond_the_window_and_overlapping_runs_are_refused() {
        let buffer = ReceiveBuffer::new(Window {
            items: 10,
            bytes: 100,
        });
        assert_eq!(push_run(&buffer, 8, 3), Err(Violation::Window));
        push_run(&buffer, 3, 3).unwrap();
        for (first, count) in [(2, 2), (3, 3), (4, 1), (5, 3), (2, 8)] {
            assert_eq!(
                push_run(&buffer, first, count),
                Err(Violation::Repeated),
                "{first} {count}"
            );
        }
        assert_eq!(push_run(&buffer, 0, 4), Err(Violation::Repeated));
        push_run(&buffer, 0, 3).unwrap();
        assert_eq!(push_run(&buffer, 1, 1), Err(Violation::Window));
    }

    #[test]
    fn items_after_the_end_are_ignored() {
        let buffer = buffer();
        push(&buffer, 0, 1).unwrap();
        push_run(&buffer, 1, 2).unwrap();
        buffer.end(2).unwrap();
        push(&buffer, 3, 1).unwrap();
        assert_eq!(next(&buffer), Poll::Ready(Some((vec![0], None))));
        assert_eq!(next(&buffer), Poll::Ready(Some((vec![1], window(2, 3)))));
        assert_eq!(next(&buffer), Poll::Ready(None));
    }

    #[test]
    fn bytes_beyond_the_window_and_the_slack_are_refused() {
        let buffer = buffer();
        push(&buffer, 1, 900).unwrap();
        push(&buffer, 2, 199).unwrap();
        assert_eq!(push(&buffer, 0, 1), Err(Violation::Window));
        push(&buffer, 0, 0).unwrap();
    }

    #[test]
    fn taking_an_item_as_long_as_the_window_extends_the_window() {
        let buffer = buffer();
        push(&buffer, 0, 300).unwrap();
        assert_eq!(next(&buffer), Poll::Ready(Some((vec![0], window(1, 300)))));
    }

    #[test]
    fn sequence_numbers_wrap_around() {
        let buffer = buffer();
        {
            let mut state = buffer.state.lock();
            let last = u32::MAX - 1;
            (state.next, state.arrived, state.limit) = (last, last, last.wrapping_add(4));
        }
        buffer.push(0, 1, 1, Body::Short(&[0, 1, 70]), 0).unwrap();
        buffer
            .push(u32::MAX - 1, 1, 2, Body::Short(&[0, 1, 68, 0, 1, 69]), 0)
            .unwrap();
        buffer.end(1).unwrap();
        assert_eq!(
            next(&buffer),
            Poll::Ready(Some((vec![68, 69], window(2, 2))))
        );
        assert_eq!(next(&buffer), Poll::Ready(Some((vec![70], None))));
        assert_eq!(next(&buffer), Poll::Ready(None));
    }
}
