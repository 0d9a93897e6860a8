//! Streams of items within a call: from the caller to the handler, from the handler to the caller,
//! or both.
//!
//! Items have sequence numbers, because a long message may overtake a short message. The *window*
//! is the number of items and bytes that the sender may send before the receiver grants more. The
//! receiver grants more when the program has taken half of the window.

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

/// Maximum number of items of a stream that the sender can send before the receiver has taken any.
/// Large enough that a sender of small items rarely waits for the receiver.
pub(crate) const WINDOW_ITEMS: u32 = 4096;

/// Maximum number of bytes of a stream that the sender can send before the receiver has taken any.
/// Limits the memory of the receiver. The sender can send an item while at least one byte is left,
/// so the last item can exceed this number.
pub(crate) const WINDOW_BYTES: u32 = 256 << 10;

/// Streams of a call, and permissions to access the memory of the [`Bulk`](crate::Bulk)s in its
/// request. The streams and the permissions end with the call. Stored in the call's entry of the
/// table of calls, so that received frames are passed to their stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct Streams {
    /// Received items of the stream to this end; `None` if the method has no such stream.
    pub(crate) incoming: Option<Arc<ReceiveBuffer>>,
    /// Window of the stream from this end; `None` if the method has no such stream.
    pub(crate) outgoing: Option<Arc<SendWindow>>,
    /// Permissions to access the bulks of the request.
    pub(crate) bulks: Accesses,
}

impl Streams {
    /// Ends the streams of the call in both directions with `error`, and refuses further transfers
    /// of the bulks that the call has received.
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
