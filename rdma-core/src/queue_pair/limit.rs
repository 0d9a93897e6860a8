//! Numbers of few bits.

use crate::error::{Error, Result};

/// What a number is, the number, and the largest that is allowed.
pub(crate) struct Limit(pub(crate) &'static str, pub(crate) u32, pub(crate) u32);

impl Limit {
    /// The first that is not kept, as an error.
    pub(crate) fn check(limits: impl IntoIterator<Item = Self>) -> Result<()> {
        for Self(what, value, limit) in limits {
            if value > limit {
                return Err(Error::invalid(what, format!("{value} is above {limit}")));
            }
        }
        Ok(())
    }
}
