//! [`Outlet`]: the sending half of a stream, which spends the window that the peer grants.

use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::inlet::Window;
use crate::error::Error;
use crate::outbox::Unplaced;
use crate::wire::Violation;

/// Window of a stream to the peer.
#[derive(Debug)]
pub(crate) struct Outlet {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    window: OutletWindow,
    closed: Option<Error>,
    waker: Option<Waker>,
}

/// Numbers of items and bytes that may be sent.
#[derive(Debug)]
pub(crate) struct OutletWindow {
    items: u32,
    /// Negative after an item that exceeds the window.
    bytes: i64,
    /// Sequence number of the next item.
    next: u32,
}

impl OutletWindow {
    /// Returns whether an item may be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.items > 0 && self.bytes > 0
    }

    /// Returns the sequence number of the next item.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// Counts an item of `len` bytes as sent. The window must be open.
    pub(crate) fn spend(&mut self, len: usize) {
        self.items -= 1;
        self.bytes -= i64::try_from(len).unwrap_or(i64::MAX);
        self.next = self.next.wrapping_add(1);
    }
}

impl Outlet {
    pub(crate) fn new(window: Window) -> Self {
        Self {
            state: Mutex::new(State {
                window: OutletWindow {
                    items: window.items,
                    bytes: window.bytes.into(),
                    next: 0,
                },
                closed: None,
                waker: None,
            }),
        }
    }

    /// Adds a window that the peer grants.
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

    /// Waits until an item may be sent, and sends items with `place`, which counts them in the
    /// window.
    ///
    /// Sending and counting are one step for [`Self::sent`]: the response of a handler, which
    /// another task may send at this moment, counts an item if the item is sent before the
    /// response.
    pub(crate) fn poll_place<P>(
        &self,
        cx: &mut Context<'_>,
        place: impl FnOnce(&mut OutletWindow) -> Result<P, Unplaced>,
    ) -> Poll<Result<P, Unplaced>> {
        let mut state = self.state.lock();
        if let Some(error) = &state.closed {
            return Poll::Ready(Err(Unplaced::Transport(error.clone())));
        }
        if !state.window.is_open() {
            match &mut state.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        Poll::Ready(place(&mut state.window))
    }

    /// Returns the number of items that were sent.
    pub(crate) fn sent(&self) -> u32 {
        self.state.lock().window.next
    }

    /// Returns whether the stream was closed by [`Self::close`].
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed.is_some()
    }

    /// Ends the stream: sending fails with this error.
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

    /// Sends an item of `len` bytes, and returns its sequence number; `None` if it must wait.
    fn send(outlet: &Outlet, len: usize) -> Option<u32> {
        let mut cx = Context::from_waker(Waker::noop());
        let place = |window: &mut OutletWindow| {
            let sequence = window.next();
            window.spend(len);
            Ok(sequence)
        };
        match outlet.poll_place(&mut cx, place) {
            Poll::Ready(sequence) => Some(sequence.unwrap()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn items_wait_for_both_parts_of_the_window() {
        let outlet = Outlet::new(Window {
            items: 2,
            bytes: 10,
        });
        assert_eq!(send(&outlet, 30), Some(0));
        assert_eq!(send(&outlet, 0), None);
        let bytes = |bytes| Window { items: 0, bytes };
        outlet.grant(bytes(21)).unwrap();
        assert_eq!(send(&outlet, 0), Some(1));
        assert_eq!(send(&outlet, 0), None);
        assert_eq!(outlet.sent(), 2);
    }

    #[test]
    fn windows_that_overflow_are_refused() {
        let outlet = Outlet::new(Window { items: 1, bytes: 1 });
        let most = |items, bytes| Window { items, bytes };
        assert_eq!(outlet.grant(most(u32::MAX, 0)), Err(Violation::Window));
        assert_eq!(outlet.grant(most(0, u32::MAX)), Err(Violation::Window));
    }
}
