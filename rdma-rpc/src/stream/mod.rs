//! Streams of items within a call, in both directions.
//!
//! Items have sequence numbers, because a long message may overtake a short message. The receiver
//! grants a window of items and bytes, and extends the window when the program has taken half of
//! it.

mod receive_buffer;
mod receiver;
mod run;
mod send_window;
mod sender;

use std::sync::Arc;

pub(crate) use self::receive_buffer::{ReceiveBuffer, Window};
pub use self::receiver::Receiver;
pub(crate) use self::receiver::decode_stored;
pub(crate) use self::run::{EncodedItem, Run};
pub(crate) use self::send_window::SendWindow;
pub use self::sender::Sender;
use crate::bulk::Accesses;
use crate::error::Error;

/// Window of a stream in items. Large enough that a sender of small items rarely waits for the
/// receiver.
pub(crate) const WINDOW_ITEMS: u32 = 4096;

/// Window of a stream in bytes, which limits the memory of the receiver. The last item may exceed
/// the window.
pub(crate) const WINDOW_BYTES: u32 = 256 << 10;

/// Streams and received bulks of a call, which end with the call. The slot of the call refers to
/// them, so that received frames reach them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Streams {
    /// Buffer of the stream to this end.
    pub(crate) incoming: Option<Arc<ReceiveBuffer>>,
    /// Window of the stream from this end.
    pub(crate) outgoing: Option<Arc<SendWindow>>,
    /// Accesses to the bulks of the request.
    pub(crate) bulks: Accesses,
}

impl Streams {
    /// Ends both streams with `error`, and closes the access to the bulks.
    pub(crate) fn fail(&self, error: &Error) {
        self.bulks.close();
        if let Some(incoming) = &self.incoming {
            incoming.fail(error);
        }
        if let Some(outgoing) = &self.outgoing {
            outgoing.close(error);
        }
    }
}
