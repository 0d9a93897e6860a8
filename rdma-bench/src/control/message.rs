//! The messages of the control connection.

use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::statistics::Bandwidth;

/// A message of the control connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// The plan of this end: the first message of both ends.
    Hello {
        /// The protocol's version.
        version: u32,
        /// The plan.
        plan: Plan,
    },
    /// The data that the other end needs to connect, in a format that the layer under test defines.
    Offer(serde_json::Value),
    /// This end is ready for the next size.
    Ready,
    /// This end has finished a size, with the bandwidth if it measured one.
    Finished(Option<Bandwidth>),
    /// This end has failed, for this reason.
    Failed(String),
}

impl Message {
    /// The protocol version of this crate.
    pub const VERSION: u32 = 2;

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "a greeting",
            Self::Offer(_) => "an offer",
            Self::Ready => "readiness",
            Self::Finished(_) => "the end of a test",
            Self::Failed(_) => "a failure",
        }
    }
}
