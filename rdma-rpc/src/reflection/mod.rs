//! The reflection service: the methods of a server, with their types.

mod schema;
mod trace;

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

pub use self::schema::{Fields, Format, Schema, TypeFormat};
pub(crate) use self::trace::schema;
use crate::method::MethodInfo;
use crate::server::{Method, Part, Role};

/// Type of an argument, a result or an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TypeDescription {
    /// Name of the argument or stream; empty for a result.
    pub name: String,
    /// The type, as the trait has it: `"Vec<u8>"`.
    pub text: String,
    /// Structure of the type; `None` if it is not known, for example for types of Protocol Buffers.
    pub schema: Option<Schema>,
}

/// Description of a method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MethodDescription {
    /// Name of the service and of the method: `"Store.get"`.
    pub name: String,
    /// Number in requests.
    pub number: u32,
    /// Number of the codec of requests: 0 for bytes, 1 for Postcard, 2 for JSON, 3 for Protocol
    /// Buffers.
    pub codec: u8,
    /// Set if the method has no response.
    pub is_one_way: bool,
    /// Set if the method is executed at most once: see [`Request::once`](crate::Request::once).
    pub is_once: bool,
    /// Arguments, in their order. Several are encoded as a tuple.
    pub arguments: Vec<TypeDescription>,
    /// Items of the stream of the caller.
    pub input: Option<TypeDescription>,
    /// Items of the stream of the handler.
    pub output: Option<TypeDescription>,
    /// Value of the result; `None` for bytes, and without a response.
    pub result: Option<TypeDescription>,
    /// The service's error; `None` without a response.
    pub error: Option<TypeDescription>,
}

/// Numbers of the calls of a method since the server was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallCounts {
    /// Name of the service and of the method.
    pub name: String,
    /// Number of calls that were started.
    pub started: u64,
    /// Number of calls that have ended.
    pub ended: u64,
}

/// The reflection service, which describes the services of a server: [`Server::reflection`] adds
/// it.
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
    /// Returns the methods of the server, in the order of their names.
    async fn methods(&self) -> Result<Vec<MethodDescription>, ()>;
    /// Returns the numbers of calls of each method, in the order of their names.
    async fn calls(&self) -> Result<Vec<CallCounts>, ()>;
}

/// Methods of a server, whose types are described at the first request.
#[derive(Debug)]
pub(crate) struct Described {
    methods: Vec<Method>,
    parts: Vec<Part>,
    descriptions: OnceLock<Vec<MethodDescription>>,
}

impl Described {
    pub(crate) fn new(mut methods: Vec<Method>, parts: Vec<Part>) -> Self {
        methods.sort_by_key(|(info, _, _)| info.name);
        Self {
            methods,
            parts,
            descriptions: OnceLock::new(),
        }
    }

    fn describe(&self, info: &'static MethodInfo, codec: u8) -> MethodDescription {
        let parts = self.parts.iter().filter(|part| part.method.id == info.id);
        let with = |role: Role| {
            let parts = parts.clone().filter(move |part| part.role == role);
            parts.map(|part| TypeDescription {
                name: part.texts[0].to_owned(),
                text: part.texts[1].to_owned(),
                schema: (part.schema)(),
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

impl Reflection for Described {
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
        let counts = self.methods.iter().map(|(info, _, counts)| {
            let (started, ended) = counts.numbers();
            CallCounts {
                name: info.name.to_owned(),
                started,
                ended,
            }
        });
        Ok(counts.collect())
    }
}
