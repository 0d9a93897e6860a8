//! [`Service`] and [`Methods`]: what a server can be asked for.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::call::Call;
use super::handler::{Handler, Typed};
use crate::codec::{Decode, Encode, Format};
use crate::method::MethodInfo;

/// A service that a server offers: the `…Server` type that [`service`](macro@crate::service)
/// generates.
pub trait Service {
    /// Adds the methods of the service. Generated code implements this function.
    #[doc(hidden)]
    fn register(self, methods: &mut Methods);
}

/// Methods of a server by number.
#[doc(hidden)]
#[derive(Default)]
pub struct Methods {
    handlers: HashMap<u32, Box<dyn Handler>, BuildHasherDefault<Identity>>,
    #[cfg(feature = "reflection")]
    parts: Vec<Part>,
}

/// Role of a type in a method.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// An argument.
    Argument,
    /// The value of the result.
    Result,
    /// The service's error.
    Error,
    /// The items of the caller's stream.
    Input,
    /// The items of the handler's stream.
    Output,
}

/// A method, the number of the codec of its requests, and the counts of its calls.
#[cfg(feature = "reflection")]
pub(crate) type Method = (&'static MethodInfo, u8, Arc<crate::observe::Counts>);

/// Type in a method, for reflection.
#[cfg(feature = "reflection")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) method: &'static MethodInfo,
    pub(crate) role: Role,
    /// Name of an argument or stream, and the type as the trait has it.
    pub(crate) texts: [&'static str; 2],
    pub(crate) schema: fn() -> Option<crate::Schema>,
}

/// Hasher of method numbers, which are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0 << 8 | u64::from(byte);
        }
    }

    fn write_u32(&mut self, number: u32) {
        // The table uses the high bits and the low bits.
        self.0 = u64::from(number) << 32 | u64::from(number);
    }
}

impl Methods {
    /// Adds a method.
    ///
    /// # Panics
    ///
    /// If there is a method of the same number.
    pub fn add<F, Q, T, E, Fut, H>(&mut self, info: &'static MethodInfo, handle: H)
    where
        F: Format,
        F::Request: Decode<Q>,
        F::Response: Encode<T>,
        F::Error: Encode<E>,
        Q: 'static,
        T: Send + 'static,
        E: Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        H: Fn(Call<Q>) -> Fut + Send + Sync + 'static,
    {
        let handler = Arc::new(Typed::<F, Q, T, E, Fut, H>::new(info, handle));
        match self.handlers.entry(info.id) {
            Entry::Vacant(place) => {
                place.insert(Box::new(handler));
            }
            Entry::Occupied(former) => panic!(
                "the methods {} and {} have the same number {:#010x}: set one with #[rpc(id = …)]",
                former.get().info().name,
                info.name,
                info.id
            ),
        }
    }

    /// Describes a type of a method, for reflection.
    pub fn describe<C: Decode<T>, T>(
        &mut self,
        method: &'static MethodInfo,
        role: Role,
        texts: [&'static str; 2],
    ) {
        #[cfg(feature = "reflection")]
        self.parts.push(Part {
            method,
            role,
            texts,
            schema: C::schema,
        });
        let _ = (method, role, texts);
    }

    /// Returns the methods, each with the number of the codec of its requests and the counts of its
    /// calls, and the types within them.
    #[cfg(feature = "reflection")]
    pub(super) fn described(&self) -> (Vec<Method>, Vec<Part>) {
        let handlers = self.handlers.values();
        let methods = handlers.map(|handler| (handler.info(), handler.codec(), handler.count()));
        (methods.collect(), self.parts.clone())
    }

    pub(super) fn get(&self, id: u32) -> Option<&dyn Handler> {
        self.handlers.get(&id).map(|handler| &**handler)
    }

    /// Returns the method of this name.
    pub(super) fn named(&self, name: &str) -> Option<&dyn Handler> {
        let mut handlers = self.handlers.values();
        handlers
            .find(|handler| handler.info().name == name)
            .map(|handler| &**handler)
    }
}

impl fmt::Debug for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.handlers.values().map(|handler| handler.info().name);
        f.debug_list().entries(names).finish()
    }
}
