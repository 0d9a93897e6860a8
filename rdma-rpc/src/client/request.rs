//! [`Request`] and [`Reply`]: calls without a generated client.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Client;
use super::calls::Answer;
use super::perform::ErrorInfo;
use crate::codec::{CodecError, Decode, Encode, Raw, TypedBody};
use crate::core::Core;
use crate::error::{CallError, Error, Result};
use crate::metadata::Metadata;
use crate::method::number_of;
use crate::payload::{BodyBuffer, Payload};

/// Request of a unary call: the name of the method and the encoded arguments. Lets middleware and
/// tools call methods without a generated client.
///
/// ```
/// use rdma_rpc::{Address, Client, Postcard, Request, Server};
///
/// # #[rdma_rpc::service]
/// # trait Doubler {
/// #     async fn double(&self, number: u32) -> Result<u32, String>;
/// # }
/// # struct ByAddition;
/// # impl Doubler for ByAddition {
/// #     async fn double(&self, number: u32) -> Result<u32, String> {
/// #         Ok(number + number)
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::new(DoublerServer::new(ByAddition)).listen(Address::memory()).await?;
/// let client = Client::connect(server.address()).await?;
/// let reply = client.request(&Request::new::<Postcard, _>("Doubler.double", &4_u32)?).await?;
/// assert_eq!(reply.decode::<Postcard, u32, String>()?, 8);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Request {
    method: Arc<str>,
    number: u32,
    is_once: bool,
    codec: u8,
    body: Arc<[u8]>,
    metadata: Option<Metadata>,
    deadline: Option<Duration>,
}

impl Request {
    /// Creates a request for a method, such as `"Store.get"`, whose codec `C` encodes the argument.
    /// `argument` is the value of a single argument, a tuple of several arguments, or `()`.
    ///
    /// # Errors
    ///
    /// The error of the codec if the argument cannot be encoded.
    pub fn new<C: Encode<Q>, Q>(method: &str, argument: &Q) -> Result<Self, CodecError> {
        let mut body = vec![0; C::encoded_len(argument)?];
        let len = C::encode(argument, &mut body)?;
        body.truncate(
            len.ok_or_else(|| CodecError::new("the encoded length of the argument changes"))?,
        );
        Ok(Self::encoded(method, C::ID, &body))
    }

    /// Creates a request from an encoded argument and the number of its codec
    /// ([`Codec::ID`](crate::Codec::ID)).
    pub fn encoded(method: &str, codec: u8, argument: &[u8]) -> Self {
        Self {
            method: method.into(),
            number: number_of(method),
            is_once: false,
            codec,
            body: argument.into(),
            metadata: None,
            deadline: None,
        }
    }

    /// Sets the number of the method. By default, the number is a hash of the method's name. Needed
    /// if the service sets another number with `#[rpc(id = …)]`.
    #[must_use]
    pub fn with_number(mut self, number: u32) -> Self {
        self.number = number;
        self
    }

    /// Marks the request as a call that the server executes at most once. Required for a method
    /// with `#[rpc(once)]`.
    #[must_use]
    pub fn once(mut self) -> Self {
        self.is_once = true;
        self
    }

    /// Sets the metadata of the request. Default: the metadata of the client.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// Sets the time limit of this call. Default: the time limit of the client's calls.
    #[must_use]
    pub fn with_deadline(mut self, limit: Duration) -> Self {
        self.deadline = Some(limit);
        self
    }

    /// Returns the name of the method that the request calls.
    pub fn method(&self) -> &str {
        &self.method
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("method", &self.method)
            .field("len", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// Response to a [`Request`]: the encoded result, or the encoded error of the service.
#[derive(Debug)]
pub struct Reply {
    codec: u8,
    is_error: bool,
    body: Payload,
}

impl Reply {
    /// Decodes the reply with the codec `C` to the result `T`, or to the service's error `E`.
    ///
    /// # Errors
    ///
    /// The service's error, or [`Error::Decode`] if the reply has another codec or another type.
    pub fn decode<C, T, E>(self) -> Result<T, CallError<E>>
    where
        C: Decode<T> + Decode<E>,
    {
        let undecoded = |error| CallError::Rpc(Error::Decode(error));
        if self.codec != C::ID {
            return Err(undecoded(CodecError::codec_mismatch(self.codec, C::ID)));
        }
        if self.is_error {
            let error = C::decode_payload(self.body).map_err(undecoded)?;
            return Err(CallError::Service(error));
        }
        C::decode_payload(self.body).map_err(undecoded)
    }

    /// Returns whether the reply contains an error that the handler returned instead of a result.
    pub fn is_error(&self) -> bool {
        self.is_error
    }

    /// Returns the number ([`Codec::ID`](crate::Codec::ID)) of the codec that encoded the reply,
    /// for a caller that decodes [`Self::into_body`] itself.
    pub fn codec(&self) -> u8 {
        self.codec
    }

    /// Returns the encoded result, or the encoded error of the service if [`Self::is_error`] is
    /// true.
    pub fn into_body(self) -> Payload {
        self.body
    }
}

impl Client {
    /// Makes a unary call without a generated client, and returns the encoded response.
    ///
    /// # Errors
    ///
    /// The reason for which the call has no response. An error that the handler returned is a
    /// response, see [`Reply::is_error`].
    pub async fn request(&self, request: &Request) -> Result<Reply> {
        let deadline = request.deadline.unwrap_or(self.deadline);
        let info = ErrorInfo {
            method: request.method.to_string().into(),
            limit: deadline,
        };
        let client = match &request.metadata {
            Some(metadata) => &self.with_metadata(metadata.clone()),
            None => self,
        };
        let body = (request.codec, TypedBody::new::<Raw>(&*request.body));
        let decode = |_: &Arc<Core>, answer, body: &mut BodyBuffer| match answer {
            Answer::Response { codec, is_error } => Ok(Reply {
                codec,
                is_error,
                body: match body.take_retained() {
                    Some(retained) => retained.into(),
                    None => body.bytes().into(),
                },
            }),
            other => Err(CallError::<()>::Rpc(info.error_of(other))),
        };
        let method = (request.number, request.is_once);
        let called = client.unary_observed(method, &info, deadline, body, decode);
        called
            .await
            .map_err(|error| error.rpc().unwrap_or(Error::Cancelled))
    }
}
