//! [`Call`]: a decoded request, as generated code passes it to the service.

use super::gate::Entered;
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
    /// Limits that count the call, if its handler outlives the call.
    gates: [Option<Entered>; 3],
}

impl<Q> Call<Q> {
    pub(super) fn new(context: Context, request: Q, streams: Streams) -> Self {
        Self {
            context,
            request,
            streams,
            gates: [None, None, None],
        }
    }

    /// Lets the limits count the call as long as this value, or that of [`Self::take_gates`],
    /// lasts.
    pub(super) fn set_gates(&mut self, gates: [Option<Entered>; 3]) {
        self.gates = gates;
    }

    /// Takes the limits that count the call.
    pub(crate) fn take_gates(&mut self) -> [Option<Entered>; 3] {
        std::mem::take(&mut self.gates)
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
