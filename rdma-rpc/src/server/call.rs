//! [`Call`]: a decoded request, as generated code passes it to the service.

use crate::codec::{Decode, Encode};
use crate::server::Context;
use crate::stream::{Receiver, Sender, Streams};

/// A decoded request with its context and its streams.
#[doc(hidden)]
#[derive(Debug)]
pub struct Call<Q> {
    /// Context of the call.
    pub context: Context,
    /// Arguments of the method: the argument itself, or a tuple of several.
    pub request: Q,
    streams: Streams,
}

impl<Q> Call<Q> {
    pub(super) fn new(context: Context, request: Q, streams: Streams) -> Self {
        Self {
            context,
            request,
            streams,
        }
    }

    /// Returns the receiver of the caller's items.
    ///
    /// # Panics
    ///
    /// If the method has no input, which generated code rules out.
    pub fn receiver<C: Decode<T>, T>(&self) -> Receiver<T> {
        let inlet = self.streams.inlet.clone().expect("the method has an input");
        let (core, id) = self.context.parts();
        Receiver::new::<C>(inlet, core, id)
    }

    /// Returns the sender of the handler's items.
    ///
    /// # Panics
    ///
    /// If the method has no output, which generated code rules out.
    pub fn sender<C: Encode<T>, T>(&self) -> Sender<T> {
        let outlet = self
            .streams
            .outlet
            .clone()
            .expect("the method has an output");
        let (core, id) = self.context.parts();
        Sender::new::<C>(outlet, core, id)
    }
}
