//! A test of whether a memory window of type 2 is usable only through the queue pair that has bound
//! the window.
//!
//! IBTA volume 1, 10.6.7.2, requires this restriction. Without the restriction, the key of a window
//! gives access to every peer of the protection domain.

use super::WindowType;
use super::window_bounds::{TrialWindow, connected, is_refused, write};
use crate::context::Context;
use crate::error::Result;

impl Context {
    /// Returns whether the device limits the access through a memory window of type 2 to the queue
    /// pair that has bound the window. IBTA volume 1, 10.6.7.2, requires this limit.
    ///
    /// The first call for each open device tests the device with temporary queue pairs, and blocks
    /// for the duration of the test: usually milliseconds, at most about 20 seconds. Later calls
    /// return the result of the test.
    ///
    /// ```
    /// # use rdma_core::Context;
    /// let context = Context::open_default()?;
    /// if context.enforces_window_owner()? {
    ///     println!("a peer with the key of a window needs the right queue pair, too");
    /// }
    /// # Ok::<(), rdma_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the device has no windows of type 2, or
    /// the error that prevented the test. The next call then repeats the test.
    pub fn enforces_window_owner(&self) -> Result<bool> {
        let known = self.handle().window_owner();
        if let Some(&known) = known.get() {
            return Ok(known);
        }
        let is_enforced = is_enforced(self)?;
        Ok(*known.get_or_init(|| is_enforced))
    }
}

/// Returns whether the device refuses a peer's write through a window if the write arrives at a
/// queue pair that has not bound the window. The test writes through two queue pairs of one
/// protection domain: first through the queue pair that has bound the window, then through the
/// other queue pair.
fn is_enforced(context: &Context) -> Result<bool> {
    let domain = context.protection_domain()?;
    let (peer, owner) = connected(&domain)?;
    let (other_peer, _other) = connected(&domain)?;
    let trial = TrialWindow::bind(&domain, &owner, WindowType::Two)?;
    // This write shows that the key is valid, so that only the queue pair can be the reason for
    // which the other write fails.
    write(&peer, &domain, trial.window)?.result()?;
    is_refused(&write(&other_peer, &domain, trial.window)?)
}
