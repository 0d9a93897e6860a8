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

/// A service that a server offers: the `…Server` type that [`service`](macro@crate::service) generates.
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
