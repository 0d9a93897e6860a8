//! The error of an operation that consumes a value and returns the value on failure.

use std::fmt;

use crate::error::Error;

/// The error of a failed operation, together with the value that the operation would have consumed.
///
/// `?` in a function that returns [`Error`] returns the error and drops the value. `Debug` prints
/// the same text as `Display`.
///
/// ```
/// use rdma_core::{AccessFlags, Context, Refused, Result};
///
/// fn first_bytes() -> Result<[u8; 2]> {
///     let domain = Context::open_default()?.protection_domain()?;
///     let exposed = domain.allocate(64)?.expose(AccessFlags::REMOTE_READ)?;
/// // While a slice of the exposed memory is held, the memory cannot be revoked.
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
    /// The reason why the operation failed.
    pub error: Error,
    /// The value that the operation would have consumed, unchanged.
    pub value: T,
}

impl<T> Refused<T> {
    #[inline]
    pub(crate) fn new(value: T, error: Error) -> Self {
        Self { error, value }
    }

    /// Converts the value in this error by `change`, and keeps the error itself. The value is the
    /// object that the failed operation gave back to the caller instead of consuming the object.
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
