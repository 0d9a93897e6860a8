//! [`SendWindow`]: the flow control of a stream that this end sends.

use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::receive_buffer::Window;
use crate::error::Error;
use crate::outbox::AppendError;
use crate::wire::Violation;

/// Flow control of a stream that this end sends: the numbers of items and bytes that the peer still
/// allows. The sender waits while either number is exhausted.
#[derive(Debug)]
pub(crate) struct SendWindow {
    state: Mutex<State>,
}

#[derive(Debug)]
/// State of a [`SendWindow`] under its lock: the numbers of items and bytes that may still be sent,
/// and the waker of a sender that waits until the peer allows more.
struct State {
    window: RemainingWindow,
    /// Error with which sending fails; `None` while the stream is open.
    closed: Option<Error>,
    waker: Option<Waker>,
}

impl State {
    /// Stores the waker of the present task. The task is woken when the peer allows the sending of
    /// further items, or when the stream ends.
    fn store_waker(&mut self, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
    }
}

/// Numbers of items and bytes of a stream that this end can send before the peer allows more, and
/// the sequence number of the next item. No item can be sent while one of the two numbers is used
/// up.
#[derive(Debug)]
pub(crate) struct RemainingWindow {
    items: u32,
    /// Negative after an item that exceeds the window.
    bytes: i64,
    /// Sequence number of the next item.
    next: u32,
}

impl RemainingWindow {
    /// Returns whether this end can send an item now. The peer must still allow at least one item
    /// and at least one byte. A single item can be longer than the allowed bytes.
    pub(crate) fn is_open(&self) -> bool {
        self.items > 0 && self.bytes > 0
    }

    /// Returns the sequence number of the next stream item to be sent.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// Counts an item of `len` bytes as sent. [`Self::is_open`] must have returned `true`.
    pub(crate) fn spend(&mut self, len: usize) {
        self.items -= 1;
        self.bytes -= i64::try_from(len).unwrap_or(i64::MAX);
        self.next = self.next.wrapping_add(1);
    }
}

impl SendWindow {
    pub(crate) fn new(window: Window) -> Self {
        Self {
            state: Mutex::new(State {
                window: RemainingWindow {
                    items: window.items,
                    bytes: window.bytes.into(),
                    next: 0,
                },
                closed: None,
                waker: None,
            }),
        }
    }

    /// Adds the further items and bytes that the peer has allowed, and wakes the task that waits to
    /// send. Fails if the total of items or bytes would exceed 32 bits: the peer has then violated
    /// the protocol.
    pub(crate) fn grant(&self, window: Window) -> Result<(), Violation> {
        let waker = {
            let mut state = self.state.lock();
            let own = &mut state.window;
            let items = own.items.checked_add(window.items);
            let bytes = own.bytes + i64::from(window.bytes);
            if bytes > i64::from(u32::MAX) {
                return Err(Violation::Window);
            }
            own.items = items.ok_or(Violation::Window)?;
            own.bytes = bytes;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Polls until the peer allows the sending of an item. Then calls `append` and returns its
    /// result. `append` can add items to the connection's send queue while
    /// [`RemainingWindow::is_open`] returns `true`, and must count each item with
    /// [`RemainingWindow::spend`]. Fails if the stream is closed.
    ///
    /// `append` runs under the lock of this value, so that [`Self::sent`] always counts exactly the
    /// appended items. At the same time, another task may be sending the handler's response, which
    /// contains this number.
    pub(crate) fn poll_append<P>(
        &self,
        cx: &mut Context<'_>,
        append: impl FnOnce(&mut RemainingWindow) -> Result<P, AppendError>,
    ) -> Poll<Result<P, AppendError>> {
        let mut state = self.state.lock();
        if let Some(error) = &state.closed {
            return Poll::Ready(Err(AppendError::Transport(error.clone())));
        }
        if !state.window.is_open() {
            state.store_waker(cx);
            return Poll::Pending;
        }
        Poll::Ready(append(&mut state.window))
    }

    /// Returns the error with which sending fails, once [`Self::close`] has closed the stream.
    /// Until then, returns `Pending` and stores the waker.
    pub(crate) fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<Error> {
        let mut state = self.state.lock();
        match &state.closed {
            Some(error) => Poll::Ready(error.clone()),
            None => {
                state.store_waker(cx);
                Poll::Pending
            }
        }
    }

    /// Returns the number of items that were sent. The frame that ends the stream contains this
    /// number.
    pub(crate) fn sent(&self) -> u32 {
        self.state.lock().window.next
    }

    /// Returns whether [`Self::close`] has closed the stream, so that no more items can be sent.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed.is_some()
    }

    /// Closes this stream for sending: each attempt to send a further item fails with `error`.
    pub(crate) fn close(&self, error: &Error) {
        let waker = {
            let mut state = self.state.lock();
            state.closed.get_or_insert_with(|| error.clone());
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends a stream item of `len` bytes in a test. Returns the sequence number of the item, or
    /// `None` if `window` does not allow the sending of an item now.
    fn send(window: &SendWindow, len: usize) -> Option<u32> {
        let mut cx = Context::from_waker(Waker::noop());
        let append = |window: &mut RemainingWindow| {
            let sequence = window.next();
            window.spend(len);
            Ok(sequence)
        };
        match window.poll_append(&mut cx, append) {
            Poll::Ready(sequence) => Some(sequence.unwrap()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn sending_needs_an_open_window_in_items_and_bytes() {
        let window = SendWindow::new(Window {
            items: 2,
            bytes: 10,
        });
        assert_eq!(send(&window, 30), Some(0));
        assert_eq!(send(&window, 0), None);
        let bytes = |bytes| Window { items: 0, bytes };
        window.grant(bytes(21)).unwrap();
        assert_eq!(send(&window, 0), Some(1));
        assert_eq!(send(&window, 0), None);
        assert_eq!(window.sent(), 2);
    }

    #[test]
    fn a_window_that_overflows_is_refused() {
        let window = SendWindow::new(Window { items: 1, bytes: 1 });
        let most = |items, bytes| Window { items, bytes };
        assert_eq!(window.grant(most(u32::MAX, 0)), Err(Violation::Window));
        assert_eq!(window.grant(most(0, u32::MAX)), Err(Violation::Window));
    }
}
