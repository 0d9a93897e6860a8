//! Streams of items within a call, in both directions.
//!
//! Items have sequence numbers, because a long message may overtake a short one. The receiver
//! grants a window, a number of items and of bytes, and extends it when its program has taken half
//! of it.

mod inlet;
mod outlet;
mod receiver;
mod run;
mod sender;

use std::sync::Arc;

pub(crate) use self::inlet::{Inlet, Window};
pub(crate) use self::outlet::Outlet;
pub use self::receiver::Receiver;
pub(crate) use self::receiver::decode_stored;
pub(crate) use self::run::{Encoded, Run};
pub use self::sender::Sender;
use crate::bulk::Accesses;
use crate::error::Error;

/// Number of items in the window of a stream.
pub(crate) const WINDOW_ITEMS: u32 = 4096;

/// Number of bytes in the window of a stream. The last item of the window may exceed it.
pub(crate) const WINDOW_BYTES: u32 = 256 << 10;

/// Streams of a call, and its bulks of the peer, which end with the call. The slot of the call
/// holds them for the frames that arrive.
#[derive(Debug, Clone, Default)]
pub(crate) struct Streams {
    pub(crate) inlet: Option<Arc<Inlet>>,
    pub(crate) outlet: Option<Arc<Outlet>>,
    pub(crate) bulks: Accesses,
}

impl Streams {
    /// Ends both streams with this error, and the access to the bulks.
    pub(crate) fn fail(&self, error: &Error) {
        self.bulks.close();
        if let Some(inlet) = &self.inlet {
            inlet.fail(error);
        }
        if let Some(outlet) = &self.outlet {
            outlet.close(error);
        }
    }
}
