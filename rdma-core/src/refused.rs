//! The error of operations that consume a value and give it back when they fail.

use std::fmt;

use crate::error::Error;

/// An operation that failed, with the value that it was to consume.
///
/// `?` in a function that returns [`Error`] keeps the error and drops the value. `Debug` prints the
/// same text as `Display`.
///
/// ```
/// use rdma_core::{AccessFlags, Context, Refused, Result};
///
/// fn first_bytes() -> Result<[u8; 2]> {
///     let domain = Context::open_default()?.protection_domain()?;
///     let exposed = domain.allocate(64)?.expose(AccessFlags::REMOTE_READ)?;
///     // A slice of it is held, so that it cannot be revoked.
///     let held = exposed.slice(..8)?;
///     let Refused { error, value } = exposed.revoke().unwrap_err();
///     println!("{error}");
///     drop(held);
///     let buffer = value.revoke()?;
///     Ok([buffer[0], buffer[1]])
/// }
/// assert_eq!(first_bytes()?, [0, 0]);
/// # Ok::<(), rdma_core::Error>(())
/// ```
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Refused<T> {
    /// Reason of the failure.
    pub error: Error,
    /// The value, as it was before.
    pub value: T,
}

impl<T> Refused<T> {
    #[inline]
    pub(crate) fn new(value: T, error: Error) -> Self {
        Self { error, value }
    }

    /// Returns the same error with the value that `change` makes of this one.
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Refused<U> {
        Refused::new(change(self.value), self.error)
    }
}

impl<T> fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<T> From<Refused<T>> for Error {
    fn from(refused: Refused<T>) -> Self {
        refused.error
    }
}
