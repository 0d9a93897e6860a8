//! What the two ends tell each other.

use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::statistics::Bandwidth;

/// A message of the control connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// What this end was started for: the first message of both.
    Hello {
        /// The protocol's version.
        version: u32,
        /// The plan.
        plan: Plan,
    },
    /// What the other end needs to connect; the layer under test knows what it is.
    Offer(serde_json::Value),
    /// This end is ready for the next size.
    Ready,
    /// This end is done with a size, with the bandwidth if it measured one.
    Finished(Option<Bandwidth>),
    /// This end gives up, and why.
    Failed(String),
}

impl Message {
    /// The version that this crate speaks.
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
