//! [`Inlet`]: the receiving half of a stream, which puts the items in order.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::codec::CodecError;
use crate::error::Error;
use crate::payload::{Body, Stored};
use crate::wire::Violation;

/// Received items of a stream that wait for the program.
#[derive(Debug)]
pub(crate) struct Inlet {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Items from `next` on; `None` for an item that has not arrived.
    entries: VecDeque<Option<(u8, Stored)>>,
    /// Sequence number of the next item that the program takes.
    next: u32,
    /// Number of items from `next` on that the peer may send.
    items: u32,
    /// Number of bytes that the peer may still send. Negative after an item that exceeds the window.
    bytes: i64,
    taken: Window,
    window: Window,
    /// Number of items of the whole stream, once it is known.
    end: Option<u32>,
    failure: Option<Error>,
    waker: Option<Waker>,
    /// Memory of items that were taken.
    spare: Vec<Stored>,
}

/// A number of items and of bytes that the peer may send in addition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) items: u32,
    pub(crate) bytes: u32,
}

/// Result of [`Inlet::poll_next`]: an item, and a window that is granted to the peer.
pub(crate) type Taken<T> = (Result<T, CodecError>, Option<Window>);

impl Inlet {
    pub(crate) fn new(window: Window) -> Self {
        Self {
            state: Mutex::new(State {
                entries: VecDeque::new(),
                next: 0,
                items: window.items,
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

    /// Adds an item. Items behind the end are ignored. `slack` is the number of bytes by which all items
    /// together may exceed the window: the maximum length of the last one.
    pub(crate) fn push(
        &self,
        sequence: u32,
        codec: u8,
        body: Body<'_>,
        slack: usize,
    ) -> Result<(), Violation> {
        let waker = {
            let mut state = self.state.lock();
            let offset = sequence.wrapping_sub(state.next);
            let slack = i64::try_from(slack).unwrap_or(i64::MAX);
            let len = i64::try_from(body.bytes().len()).unwrap_or(i64::MAX);
            let bytes = state.bytes.saturating_sub(len);
            if offset >= state.items || bytes <= -slack {
                return Err(Violation::Window);
            }
            let is_late = |end: u32| offset >= end.wrapping_sub(state.next);
            if state.end.is_some_and(is_late) {
                // A task of the handler may send an item while the handler returns.
                return Ok(());
            }
            // The window limits the offset.
            let offset = offset as usize;
            while state.entries.len() <= offset {
                state.entries.push_back(None);
            }
            if state.entries[offset].is_some() {
                return Err(Violation::Repeated);
            }
            state.bytes = bytes;
            let mut stored = state.spare.pop().unwrap_or_default();
            stored.set(body);
            state.entries[offset] = Some((codec, stored));
            if offset == 0 {
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

    /// Sets the number of items of the whole stream.
    pub(crate) fn end(&self, items: u32) -> Result<(), Violation> {
        let waker = {
            let mut state = self.state.lock();
            let left = items.wrapping_sub(state.next);
            if left > state.items {
                return Err(Violation::Window);
            }
            if state.end.is_some_and(|end| end != items) {
                return Err(Violation::Repeated);
            }
            state.end = Some(items);
            state.entries.truncate(left as usize);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Ends the stream with this error, after the items that have arrived.
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

    /// Takes the next item, decoded by `decode`; `None` at the end, or an error that ended the stream
    /// early.
    pub(crate) fn poll_next<T>(
        &self,
        cx: &mut Context<'_>,
        decode: impl FnOnce(u8, &mut Stored) -> Result<T, CodecError>,
    ) -> Poll<Result<Option<Taken<T>>, Error>> {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(Some(_)) = state.entries.front()
            && let Some(Some((codec, mut stored))) = state.entries.pop_front()
        {
            // Before the item is decoded: a decoder that panics has taken the item too.
            let window = state.take(stored.bytes().len());
            let item = decode(codec, &mut stored);
            stored.clear();
            if state.spare.len() < state.window.items as usize {
                state.spare.push(stored);
            }
            return Poll::Ready(Ok(Some((item, window))));
        }
        if state.end == Some(state.next) {
            return Poll::Ready(Ok(None));
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
}

impl State {
    /// Counts an item of `len` bytes as taken. Returns a window for the peer once half of the window
    /// was taken.
    fn take(&mut self, len: usize) -> Option<Window> {
        self.next = self.next.wrapping_add(1);
        self.items -= 1;
        self.taken.items += 1;
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.taken.bytes = self.taken.bytes.saturating_add(len);
        let is_half = |taken: u32, window: u32| taken >= window.div_ceil(2);
        if !is_half(self.taken.items, self.window.items)
            && !is_half(self.taken.bytes, self.window.bytes)
        {
            return None;
        }
        let taken = std::mem::take(&mut self.taken);
        self.items += taken.items;
        self.bytes += i64::from(taken.bytes);
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn inlet() -> Inlet {
        Inlet::new(Window {
            items: 4,
            bytes: 100,
        })
    }

    fn push(inlet: &Inlet, sequence: u32, len: usize) -> Result<(), Violation> {
        let bytes = vec![sequence as u8; len];
        inlet.push(sequence, 1, Body::Short(&bytes), 1000)
    }

    fn next(inlet: &Inlet) -> Poll<Option<(u8, Option<Window>)>> {
        let mut cx = Context::from_waker(Waker::noop());
        let decode = |_, stored: &mut Stored| Ok(stored.bytes().first().copied().unwrap_or(99));
        inlet
            .poll_next(&mut cx, decode)
            .map(|taken| taken.unwrap().map(|(item, window)| (item.unwrap(), window)))
    }

    #[test]
    fn items_are_taken_in_order_whatever_the_order_of_their_arrival() {
        let inlet = inlet();
        push(&inlet, 1, 5).unwrap();
        assert!(next(&inlet).is_pending());
        push(&inlet, 2, 5).unwrap();
        inlet.end(3).unwrap();
        push(&inlet, 0, 5).unwrap();
        assert_eq!(next(&inlet), Poll::Ready(Some((0, None))));
        let window = Some(Window {
            items: 2,
            bytes: 10,
        });
        assert_eq!(next(&inlet), Poll::Ready(Some((1, window))));
        assert_eq!(next(&inlet), Poll::Ready(Some((2, None))));
        assert_eq!(next(&inlet), Poll::Ready(None));
    }

    #[test]
    fn items_beyond_the_window_and_repeated_ones_are_refused() {
        let inlet = inlet();
        assert_eq!(push(&inlet, 4, 1), Err(Violation::Window));
        assert_eq!(push(&inlet, u32::MAX, 1), Err(Violation::Window));
        push(&inlet, 1, 1).unwrap();
        assert_eq!(push(&inlet, 1, 1), Err(Violation::Repeated));
        assert_eq!(inlet.end(5), Err(Violation::Window));
        inlet.end(3).unwrap();
        assert_eq!(inlet.end(2), Err(Violation::Repeated));
    }

    #[test]
    fn the_items_behind_one_whose_decoder_panics_keep_their_order() {
        let inlet = inlet();
        push(&inlet, 0, 1).unwrap();
        let taken = catch_unwind(AssertUnwindSafe(|| {
            let mut cx = Context::from_waker(Waker::noop());
            let decode = |_, _: &mut Stored| -> Result<(), CodecError> { panic!("asked to") };
            inlet.poll_next(&mut cx, decode).is_ready()
        }));
        assert!(taken.is_err());
        push(&inlet, 2, 1).unwrap();
        assert!(next(&inlet).is_pending());
        push(&inlet, 1, 1).unwrap();
        let window = Some(Window { items: 2, bytes: 2 });
        assert_eq!(next(&inlet), Poll::Ready(Some((1, window))));
        assert_eq!(next(&inlet), Poll::Ready(Some((2, None))));
    }

    #[test]
    fn items_behind_the_end_are_ignored() {
        let inlet = inlet();
        push(&inlet, 0, 1).unwrap();
        push(&inlet, 1, 1).unwrap();
        inlet.end(1).unwrap();
        push(&inlet, 2, 1).unwrap();
        assert_eq!(next(&inlet), Poll::Ready(Some((0, None))));
        assert_eq!(next(&inlet), Poll::Ready(None));
    }

    #[test]
    fn bytes_beyond_the_window_and_the_slack_are_refused() {
        let inlet = inlet();
        push(&inlet, 1, 900).unwrap();
        push(&inlet, 2, 199).unwrap();
        assert_eq!(push(&inlet, 0, 1), Err(Violation::Window));
        push(&inlet, 0, 0).unwrap();
    }

    #[test]
    fn an_item_of_the_whole_window_extends_it() {
        let inlet = inlet();
        push(&inlet, 0, 300).unwrap();
        let window = Some(Window {
            items: 1,
            bytes: 300,
        });
        assert_eq!(next(&inlet), Poll::Ready(Some((0, window))));
    }
}
