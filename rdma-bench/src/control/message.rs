//! The messages of the control connection.

use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::statistics::Bandwidth;

/// A message on the control connection: the TCP connection on which server and client coordinate a
/// test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// The parameters of the test with which the sender was started. Each process sends this
    /// message first.
    Hello {
        /// The version of the sender's protocol.
        version: u32,
        /// The parameters of the test.
        plan: Plan,
    },
    /// The data that the receiver of this message needs to connect, in a format that the layer
    /// under test defines.
    Offer(serde_json::Value),
    /// The sender is ready to measure the next message size.
    Ready,
    /// The sender has finished measuring a message size, and reports its bandwidth if it measured
    /// one.
    Finished(Option<Bandwidth>),
    /// The sender has failed, for the given reason.
    Failed(String),
}

impl Message {
    /// The version of the protocol that this crate uses on control connections. A process refuses a
    /// peer that uses another version.
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
