//! The routing of calls to handlers by method name.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::Context;
use crate::application::ApplicationError;
use crate::codec::{Codec, CodecError, Postcard, RAW};
use crate::failure::Failure;
use crate::message::{ComposeError, Composer, Outgoing, Payload};
use crate::wire::{Header, METHOD_LIMIT};

/// A received call, as passed to a [`Route`].
pub(super) struct Call<'c> {
    pub(super) id: u64,
    pub(super) codec: u8,
    pub(super) payload: Payload,
    pub(super) context: Context,
    pub(super) composer: Composer<'c>,
}

/// A function that decodes the request of a call, runs its handler, and encodes the response.
pub(super) type Route =
    Box<dyn for<'c> Fn(Call<'c>) -> BoxFuture<'c, Result<Outgoing, Failure>> + Send + Sync>;

/// The methods of a server by name, by convention `"service/method"`.
///
/// A handler is an async function that takes a request, and returns a response or any error that
/// converts into an [`ApplicationError`]. All handlers of a connection run in one task, which makes
/// short handlers cheap: a handler that blocks or computes for long should spawn a task. A handler is
/// dropped at an `await` when the deadline of its call has passed or its connection has ended.
///
/// ```
/// use rdma_rpc::{ApplicationError, Router};
///
/// async fn divide((dividend, divisor): (u64, u64)) -> Result<u64, ApplicationError> {
///     dividend.checked_div(divisor).ok_or_else(|| ApplicationError::new(1, "division by zero"))
/// }
///
/// let router = Router::new().route("arithmetic/divide", divide);
/// assert_eq!(router.methods().collect::<Vec<_>>(), ["arithmetic/divide"]);
/// ```
#[must_use = "a router does nothing without a server"]
pub struct Router<C = Postcard> {
    pub(super) routes: HashMap<Box<str>, Route>,
    codec: PhantomData<fn() -> C>,
}

impl Default for Router {
    fn default() -> Self {
        Self {
            routes: HashMap::new(),
            codec: PhantomData,
        }
    }
}

impl<C> fmt::Debug for Router<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Router").field(&self.routes.keys()).finish()
    }
}

impl Router {
    /// Creates a router without methods.
    pub fn new() -> Self {
        Self::default()
    }
}

impl<C> Router<C> {
    /// Sets the codec of the methods that are added from now on.
    pub fn codec<D: Codec>(self) -> Router<D> {
        Router {
            routes: self.routes,
            codec: PhantomData,
        }
    }

    /// Adds a method whose request and response are unencoded bytes, for
    /// [`Client::call_raw`](crate::Client::call_raw). The handler gets the request in the memory that
    /// it was received in; the response is copied once.
    ///
    /// # Panics
    ///
    /// If the router already has a method of this name, or the name is longer than 1024 bytes.
    pub fn raw<F, Fut, Response, E>(self, method: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Payload) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Response, E>> + Send + 'static,
        Response: AsRef<[u8]>,
        E: Into<ApplicationError>,
    {
        let route = of_calls(move |call| {
            let Call {
                id,
                codec,
                payload,
                composer,
                ..
            } = call;
            let response = check_codec(codec, RAW).map(|()| handler(payload));
            Box::pin(async move {
                let response = response?.await.map_err(application)?;
                let header = Header::Response { id, codec: RAW };
                Ok(composer.copied(header, "", response.as_ref())?)
            })
        });
        self.add(method.into(), route)
    }

    /// Adds all methods of another router.
    ///
    /// # Panics
    ///
    /// If both routers have a method of the same name.
    pub fn merge<D>(self, other: Router<D>) -> Self {
        let add =
            |router: Self, (method, route): (Box<str>, Route)| router.add(method.into(), route);
        other.routes.into_iter().fold(self, add)
    }

    /// Returns the names of the methods, in no particular order.
    pub fn methods(&self) -> impl Iterator<Item = &str> {
        self.routes.keys().map(AsRef::as_ref)
    }

    fn add(mut self, method: String, route: Route) -> Self {
        assert!(
            method.len() <= METHOD_LIMIT,
            "a method's name has at most {METHOD_LIMIT} bytes: {method}"
        );
        let former = self.routes.insert(method.clone().into(), route);
        assert!(former.is_none(), "there are two methods {method}");
        self
    }
}

impl<C: Codec> Router<C> {
    /// Adds a method that is handled by the async function `handler`.
    ///
    /// # Panics
    ///
    /// If the router already has a method of this name, or the name is longer than 1024 bytes.
    pub fn route<Request, Response, E, F, Fut>(self, method: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Response, E>> + Send + 'static,
        Request: DeserializeOwned,
        Response: Serialize,
        E: Into<ApplicationError>,
    {
        self.route_with_context(method, move |_context, request| handler(request))
    }

    /// Adds a method whose handler also gets the [`Context`] of the call.
    ///
    /// # Panics
    ///
    /// If the router already has a method of this name, or the name is longer than 1024 bytes.
    pub fn route_with_context<Request, Response, E, F, Fut>(
        self,
        method: impl Into<String>,
        handler: F,
    ) -> Self
    where
        F: Fn(Context, Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Response, E>> + Send + 'static,
        Request: DeserializeOwned,
        Response: Serialize,
        E: Into<ApplicationError>,
    {
        let route = of_calls(move |call| {
            let Call {
                id,
                codec,
                payload,
                context,
                composer,
            } = call;
            let request = check_codec(codec, C::ID)
                .and_then(|()| C::decode::<Request>(&payload).map_err(bad_request));
            // Frees the receive memory for further messages while the handler runs.
            drop(payload);
            let response = request.map(|request| handler(context, request));
            Box::pin(async move {
                let response = response?.await.map_err(application)?;
                let header = Header::Response { id, codec: C::ID };
                Ok(composer.encoded::<C, _>(header, "", &response)?)
            })
        });
        self.add(method.into(), route)
    }
}

/// Boxes a closure as a [`Route`]. This bound makes the compiler infer a closure that accepts every
/// lifetime of `Call`.
fn of_calls<F>(route: F) -> Route
where
    F: for<'c> Fn(Call<'c>) -> BoxFuture<'c, Result<Outgoing, Failure>> + Send + Sync + 'static,
{
    Box::new(route)
}

fn check_codec(codec: u8, own: u8) -> Result<(), Failure> {
    if codec == own {
        return Ok(());
    }
    Err(Failure::BadRequest(format!(
        "it is of codec {codec}, and the method takes {own}"
    )))
}

fn bad_request(error: CodecError) -> Failure {
    Failure::BadRequest(error.to_string())
}

fn application(error: impl Into<ApplicationError>) -> Failure {
    Failure::Application(error.into())
}

impl From<ComposeError> for Failure {
    fn from(error: ComposeError) -> Self {
        match error {
            ComposeError::Codec(error) => Self::BadResponse(error.to_string()),
            ComposeError::TooLarge { len, .. } => Self::ResponseTooLarge { len: len as u64 },
            ComposeError::Memory(error) => Self::BadResponse(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn nothing(_: ()) -> Result<(), ApplicationError> {
        Ok(())
    }

    #[test]
    fn routers_merge() {
        let first = Router::new().route("a/one", nothing);
        let second = Router::new()
            .route("b/one", nothing)
            .raw("b/raw", async |bytes: Payload| {
                Ok::<_, ApplicationError>(bytes)
            });
        let merged = first.merge(second);
        let mut methods: Vec<_> = merged.methods().collect();
        methods.sort_unstable();
        assert_eq!(methods, ["a/one", "b/one", "b/raw"]);
    }

    #[test]
    #[should_panic(expected = "there are two methods a/one")]
    fn a_name_is_one_methods() {
        drop(
            Router::new()
                .route("a/one", nothing)
                .route("a/one", nothing),
        );
    }
}
