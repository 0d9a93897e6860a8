//! Range checks of small numbers.

use crate::error::{Error, Result};

/// A value to compare with a maximum. The fields are the name of the value for the error message,
/// the value, and the maximum.
pub(crate) struct Limit(pub(crate) &'static str, pub(crate) u32, pub(crate) u32);

impl Limit {
    /// Returns an error that names the first value above its maximum, or `Ok` if all values are
    /// within their maximums.
    pub(crate) fn check(limits: impl IntoIterator<Item = Self>) -> Result<()> {
        for Self(what, value, limit) in limits {
            if value > limit {
                return Err(Error::invalid(what, format!("{value} is above {limit}")));
            }
        }
        Ok(())
    }
}
