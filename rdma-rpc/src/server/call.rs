//! [`Call`]: a decoded request for generated code.

use super::call_limit::CallPermit;
use crate::codec::{Decode, Encode};
use crate::server::Context;
use crate::stream::{Receiver, Sender, Streams};

/// A decoded request, with the context and the streams of its call. Generated code passes these
/// values to the method of the service.
#[doc(hidden)]
#[derive(Debug)]
pub struct Call<Q> {
    /// Context of the call.
    pub context: Context,
    /// Arguments of the method: the value of a single argument, or a tuple of several arguments.
    pub request: Q,
    streams: Streams,
    /// Permits by which the server's limits count the call. Set only if the handler may run longer
    /// than its call. Otherwise the task of the handler owns the permits.
    permits: [Option<CallPermit>; 3],
}

impl<Q> Call<Q> {
    pub(super) fn new(context: Context, request: Q, streams: Streams) -> Self {
        Self {
            context,
            request,
            streams,
            permits: [None, None, None],
        }
    }

    /// Stores the permits of the call. Until the permits are dropped, the call counts as running
    /// for the limits of the server, of the method and of the connection. A handler that can run
    /// longer than its call gets the permits with [`Self::take_permits`].
    pub(super) fn set_permits(&mut self, permits: [Option<CallPermit>; 3]) {
        self.permits = permits;
    }

    /// Moves the permits out of this call, and returns them. The three permits are those of the
    /// server, of the method and of the connection. A permit is `None` if no such limit is set. The
    /// call counts as running until the permits are dropped. Therefore the caller must keep the
    /// permits until the handler ends, even if the call ends earlier.
    pub(crate) fn take_permits(&mut self) -> [Option<CallPermit>; 3] {
        std::mem::take(&mut self.permits)
    }

    /// Returns the receiver from which the handler gets the items of the caller's stream.
    ///
    /// # Panics
    ///
    /// If the method has no stream from the caller. Generated code never does this.
    pub fn receiver<C: Decode<T>, T>(&self) -> Receiver<T> {
        let incoming = self
            .streams
            .incoming
            .clone()
            .expect("the method has an input");
        let (core, id) = self.context.parts();
        Receiver::new::<C>(incoming, core, id)
    }

    /// Returns the sender by which the handler sends the items of its stream to the caller.
    ///
    /// # Panics
    ///
    /// If the method has no stream to the caller. Generated code never does this.
    pub fn sender<C: Encode<T>, T>(&self) -> Sender<T> {
        let outgoing = self
            .streams
            .outgoing
            .clone()
            .expect("the method has an output");
        let (core, id) = self.context.parts();
        Sender::new::<C>(outgoing, core, id)
    }
}
