//! [`Service`] and [`Methods`]: the methods that a server offers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::call::Call;
use super::handler::{Handler, TypedHandler};
use crate::codec::{Decode, Encode, MethodCodecs};
use crate::method::MethodInfo;

/// A service that a server can offer. The attribute [`service`](macro@crate::service) generates an
/// implementation, the type `…Server`.
pub trait Service {
    /// Adds the methods of the service to `methods`, the table of a server's methods. Implemented
    /// by generated code.
    #[doc(hidden)]
    fn register(self, methods: &mut Methods);
}

/// Table of the methods of a server. A request contains the number of its method, by which the
/// server finds the method in the table.
#[doc(hidden)]
#[derive(Default)]
pub struct Methods {
    handlers: HashMap<u32, Box<dyn Handler>, BuildHasherDefault<IdentityHasher>>,
    #[cfg(feature = "reflection")]
    type_uses: Vec<TypeUse>,
}

/// Part of a method's signature, such as an argument or the result. Reflection reports the type of
/// each part.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// An argument.
    Argument,
    /// The success value of the result.
    Result,
    /// The service's error.
    Error,
    /// The items of the caller's stream.
    Input,
    /// The items of the handler's stream.
    Output,
}

/// A method, the number of the codec of its requests, and the counters of its calls.
#[cfg(feature = "reflection")]
pub(crate) type CountedMethod = (&'static MethodInfo, u8, Arc<crate::observe::CallCounters>);

/// A type in the signature of a method, with the part of the signature ([`Role`]) that has this
/// type. Recorded for the reflection service, which describes the types.
#[cfg(feature = "reflection")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct TypeUse {
    pub(crate) method: &'static MethodInfo,
    pub(crate) role: Role,
    /// Name of the argument or stream, and the source text of the type.
    pub(crate) texts: [&'static str; 2],
    /// Function that returns the structure of the type; `None` if the codec cannot determine the
    /// structure.
    pub(crate) schema: fn() -> Option<crate::Schema>,
}

/// Hasher that uses a method number unchanged as its hash. Sufficient because most method numbers
/// are already hashes.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0 << 8 | u64::from(byte);
        }
    }

    fn write_u32(&mut self, number: u32) {
        // The hash table uses both the high and the low bits.
        self.0 = u64::from(number) << 32 | u64::from(number);
    }
}

impl Methods {
    /// Adds a method to the table of this server's methods. `info` contains its number, name and
    /// properties. `handle` executes a call of the method and returns the future of the result. `F`
    /// names the codecs by which requests and results are encoded.
    ///
    /// # Panics
    ///
    /// If another method has the same number.
    pub fn add<F, Q, T, E, Fut, H>(&mut self, info: &'static MethodInfo, handle: H)
    where
        F: MethodCodecs,
        F::Request: Decode<Q>,
        F::Response: Encode<T>,
        F::Error: Encode<E>,
        Q: 'static,
        T: Send + 'static,
        E: Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        H: Fn(Call<Q>) -> Fut + Send + Sync + 'static,
    {
        let handler = Arc::new(TypedHandler::<F, Q, T, E, Fut, H>::new(info, handle));
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

    /// Records for the reflection service that the type `T` occurs in the signature of `method`.
    /// `role` is the part of the signature, such as an argument or the result. `texts` are the name
    /// of the argument or stream, and the source text of the type. `C` is the codec of the type.
    pub fn describe<C: Decode<T>, T>(
        &mut self,
        method: &'static MethodInfo,
        role: Role,
        texts: [&'static str; 2],
    ) {
        #[cfg(feature = "reflection")]
        self.type_uses.push(TypeUse {
            method,
            role,
            texts,
            schema: C::schema,
        });
        let _ = (method, role, texts);
    }

    /// Returns all methods with their call counters, and the types in the methods' signatures, for
    /// the reflection service. The first call of this function creates the counters, so calls are
    /// counted only from then on.
    #[cfg(feature = "reflection")]
    pub(super) fn descriptions(&self) -> (Vec<CountedMethod>, Vec<TypeUse>) {
        let handlers = self.handlers.values();
        let methods = handlers.map(|handler| (handler.info(), handler.codec(), handler.counters()));
        (methods.collect(), self.type_uses.clone())
    }

    /// Returns the method with this number; `None` if the server has no such method.
    pub(super) fn get(&self, id: u32) -> Option<&dyn Handler> {
        self.handlers.get(&id).map(|handler| &**handler)
    }

    /// Returns the method with this name, for example `"Store.get"`; `None` if the server has no
    /// such method.
    pub(super) fn by_name(&self, name: &str) -> Option<&dyn Handler> {
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
