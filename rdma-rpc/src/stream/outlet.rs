//! [`Outlet`]: the sending half of a stream, which spends the window that the peer grants.

use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::inlet::Window;
use crate::error::Error;
use crate::wire::Violation;

/// Window of a stream to the peer.
#[derive(Debug)]
pub(crate) struct Outlet {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    items: u32,
    /// Negative after an item that exceeds the window.
    bytes: i64,
    /// Sequence number of the next item.
    next: u32,
    closed: Option<Error>,
    waker: Option<Waker>,
}

impl Outlet {
    pub(crate) fn new(window: Window) -> Self {
        Self {
            state: Mutex::new(State {
                items: window.items,
                bytes: window.bytes.into(),
                next: 0,
                closed: None,
                waker: None,
            }),
        }
    }

    /// Adds a window that the peer grants.
    pub(crate) fn grant(&self, window: Window) -> Result<(), Violation> {
        let waker = {
            let mut state = self.state.lock();
            let items = state.items.checked_add(window.items);
            let bytes = state.bytes + i64::from(window.bytes);
            if bytes > i64::from(u32::MAX) {
                return Err(Violation::Window);
            }
            state.items = items.ok_or(Violation::Window)?;
            state.bytes = bytes;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Waits until an item may be sent, and returns its sequence number.
    pub(crate) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<u32, Error>> {
        let mut state = self.state.lock();
        if let Some(error) = &state.closed {
            return Poll::Ready(Err(error.clone()));
        }
        if state.items > 0 && state.bytes > 0 {
            return Poll::Ready(Ok(state.next));
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Sends an item with `place`, with the number of [`Self::poll_ready`], and counts it. `len` returns
    /// the length of the item in bytes.
    ///
    /// Both are one step for [`Self::sent`]: the response of a handler, which another task may send at
    /// this moment, counts an item if it is sent before the response.
    pub(crate) fn place<P, E>(
        &self,
        place: impl FnOnce() -> Result<P, E>,
        len: impl FnOnce(&P) -> usize,
    ) -> Result<P, E> {
        let mut state = self.state.lock();
        let placed = place()?;
        state.items = state.items.saturating_sub(1);
        state.bytes -= i64::try_from(len(&placed)).unwrap_or(i64::MAX);
        state.next = state.next.wrapping_add(1);
        Ok(placed)
    }

    /// Returns the number of items that were sent.
    pub(crate) fn sent(&self) -> u32 {
        self.state.lock().next
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

    fn ready(outlet: &Outlet) -> Option<u32> {
        match outlet.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(sequence) => Some(sequence.unwrap()),
            Poll::Pending => None,
        }
    }

    fn spend(outlet: &Outlet, len: usize) {
        outlet.place(|| Ok::<_, Error>(len), |len| *len).unwrap();
    }

    #[test]
    fn items_wait_for_both_parts_of_the_window() {
        let outlet = Outlet::new(Window {
            items: 2,
            bytes: 10,
        });
        assert_eq!(ready(&outlet), Some(0));
        spend(&outlet, 30);
        assert_eq!(ready(&outlet), None);
        let bytes = |bytes| Window { items: 0, bytes };
        outlet.grant(bytes(21)).unwrap();
        assert_eq!(ready(&outlet), Some(1));
        spend(&outlet, 0);
        assert_eq!(ready(&outlet), None);
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
