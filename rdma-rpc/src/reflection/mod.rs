//! The reflection service, which describes the methods of a server and their types.

mod sample;
mod schema;

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

pub(crate) use self::sample::schema;
pub use self::schema::{Fields, Format, Schema, TypeFormat};
use crate::method::MethodInfo;
use crate::server::{CountedMethod, Role, TypeUse};

/// Description of the type of an argument, a result, an error or a stream item in the signature of
/// a method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TypeDescription {
    /// Name of the argument or stream. Empty for a result or an error.
    pub name: String,
    /// Source text of the type in the trait, for example `"Vec<u8>"`.
    pub text: String,
    /// Structure of the type, or `None` if the structure is unknown, for example for Protocol
    /// Buffers.
    pub schema: Option<Schema>,
}

/// Description of a method of a server, for tools that list or call methods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MethodDescription {
    /// Name of the service and of the method, for example `"Store.get"`.
    pub name: String,
    /// Number of the method in requests.
    pub number: u32,
    /// Number of the requests' codec: 0 for unencoded bytes, 1 for Postcard, 2 for JSON, 3 for
    /// Protocol Buffers.
    pub codec: u8,
    /// Set if the method has no response.
    pub is_one_way: bool,
    /// Set if the server executes each call at most once, see
    /// [`Request::once`](crate::Request::once).
    pub is_once: bool,
    /// Arguments in order. Several arguments are encoded as a tuple.
    pub arguments: Vec<TypeDescription>,
    /// Item type of the caller's stream, or `None` without a stream.
    pub input: Option<TypeDescription>,
    /// Item type of the handler's stream, or `None` without a stream.
    pub output: Option<TypeDescription>,
    /// Type of the success value of the result, or `None` for unencoded bytes, or without a
    /// response.
    pub result: Option<TypeDescription>,
    /// Type of the service's error, or `None` without a response.
    pub error: Option<TypeDescription>,
}

/// Counts of a method's calls since the start of the server. The difference of `started` and
/// `ended` is the number of running calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallCounts {
    /// Name of the service and of the method.
    pub name: String,
    /// Number of calls that were started.
    pub started: u64,
    /// Number of calls that have ended.
    pub ended: u64,
    /// Number of ended calls without a result: the handler returned an error or panicked, or the
    /// call was cancelled.
    pub failed: u64,
    /// Sum of the durations of the ended calls in microseconds, from the start to the end of the
    /// handler.
    pub micros: u64,
}

/// Reflection service, which describes the services of a server to tools such as the command
/// `rdma-rpc`. [`Server::reflection`] adds this service to a server.
///
/// [`Server::reflection`]: crate::Server::reflection
///
/// ```
/// use rdma_rpc::{Address, ReflectionClient, Server};
///
/// #[rdma_rpc::service]
/// trait Doubler {
///     async fn double(&self, number: u32) -> Result<u64, String>;
/// }
///
/// # struct ByAddition;
/// # impl Doubler for ByAddition {
/// #     async fn double(&self, number: u32) -> Result<u64, String> {
/// #         Ok(2 * u64::from(number))
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), rdma_rpc::CallError<()>> {
/// let server = Server::new(DoublerServer::new(ByAddition)).reflection();
/// let server = server.listen(Address::memory()).await?;
/// let client = ReflectionClient::connect(server.address()).await?;
/// let methods = client.methods().await?;
/// assert_eq!(methods[0].name, "Doubler.double");
/// assert_eq!((methods[0].arguments[0].name.as_str(), methods[0].arguments[0].text.as_str()), ("number", "u32"));
/// # Ok(())
/// # }
/// ```
#[rdma_rpc_macros::service]
pub trait Reflection {
    /// Returns descriptions of the server's methods, ordered by name. Never fails: the error `()`
    /// does not occur.
    async fn methods(&self) -> Result<Vec<MethodDescription>, ()>;
    /// Returns the numbers of calls of each method, ordered by name.
    async fn calls(&self) -> Result<Vec<CallCounts>, ()>;
}

/// Implementation of the reflection service for the methods of a server. Creates the descriptions
/// of the methods at the first request, because this takes time: to find the structure of each
/// type, many sample values of the type are decoded.
#[derive(Debug)]
pub(crate) struct ReflectionService {
    methods: Vec<CountedMethod>,
    uses: Vec<TypeUse>,
    descriptions: OnceLock<Vec<MethodDescription>>,
}

impl ReflectionService {
    /// Creates the reflection service for `methods`, the methods of a server with the counters of
    /// their calls. `uses` are the types in the signatures of the methods.
    pub(crate) fn new(mut methods: Vec<CountedMethod>, uses: Vec<TypeUse>) -> Self {
        methods.sort_by_key(|(info, _, _)| info.name);
        Self {
            methods,
            uses,
            descriptions: OnceLock::new(),
        }
    }

    /// Creates the description of the method `info`. `codec` is the number that identifies the
    /// codec (encoding) of the method's requests on the wire.
    fn describe(&self, info: &'static MethodInfo, codec: u8) -> MethodDescription {
        let uses = self.uses.iter().filter(|used| used.method.id == info.id);
        let with = |role: Role| {
            let uses = uses.clone().filter(move |used| used.role == role);
            uses.map(|used| TypeDescription {
                name: used.texts[0].to_owned(),
                text: used.texts[1].to_owned(),
                schema: (used.schema)(),
            })
        };
        MethodDescription {
            name: info.name.to_owned(),
            number: info.id,
            codec,
            is_one_way: info.is_one_way,
            is_once: info.is_once,
            arguments: with(Role::Argument).collect(),
            input: with(Role::Input).next(),
            output: with(Role::Output).next(),
            result: with(Role::Result).next(),
            error: with(Role::Error).next(),
        }
    }
}

impl Reflection for ReflectionService {
    async fn methods(&self) -> Result<Vec<MethodDescription>, ()> {
        let descriptions = self.descriptions.get_or_init(|| {
            let methods = self.methods.iter();
            methods
                .map(|(info, codec, _)| self.describe(info, *codec))
                .collect()
        });
        Ok(descriptions.clone())
    }

    async fn calls(&self) -> Result<Vec<CallCounts>, ()> {
        let methods = self.methods.iter();
        Ok(methods
            .map(|(info, _, counters)| counters.read(info.name))
            .collect())
    }
}
