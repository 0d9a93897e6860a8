//! The server side of one connection: receives requests, runs their handlers and sends the answers.

use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use rdma_async::{LocalMr, LocalMrReadAccess, Rdma};
use tokio::sync::watch;
use tokio::task::consume_budget;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::Shared;
use super::context::Context;
use super::router::{Call, Route};
use crate::error::Error;
use crate::failure::Failure;
use crate::message::{Composer, Outgoing, Payload};
use crate::wire::{Head, Header, Violation};

/// Maximum time for sending the goodbye message. It limits the wait for a peer that receives no more
/// messages.
const GOODBYE: Duration = Duration::from_secs(1);

/// Serves a peer until the peer disconnects or violates the protocol, or the server shuts down. Returns
/// the reason.
pub(super) async fn serve(
    shared: &Shared,
    rdma: Rdma,
    mut closing: watch::Receiver<bool>,
) -> Error {
    let connection = Connection {
        shared,
        rdma: &rdma,
        composer: Composer {
            rdma: &rdma,
            limit: shared.message_limit,
        },
    };
    let end = connection.run(&mut closing).await;
    if matches!(end, Error::ShuttingDown) {
        // The goodbye arrives after all answers, so once it has arrived, closing the connection loses
        // none of them.
        let goodbye = connection.composer.copied(Header::Goodbye, "", b"");
        if let Ok(goodbye) = goodbye
            && !matches!(timeout(GOODBYE, goodbye.send(&rdma)).await, Ok(Ok(())))
        {
            tracing::debug!(peer = %rdma.peer_address(), "went without a goodbye");
        }
    }
    tracing::debug!(peer = %rdma.peer_address(), %end, "no longer served");
    end
}

struct Connection<'s> {
    shared: &'s Shared,
    rdma: &'s Rdma,
    composer: Composer<'s>,
}

/// A received request.
struct Request<'s> {
    id: u64,
    deadline: Option<Instant>,
    codec: u8,
    /// The method's name and handler; `None` if the server has no such method.
    method: Option<(&'s str, &'s Route)>,
    payload: Payload,
    /// The length of the whole message in bytes.
    len: usize,
}

impl<'s> Connection<'s> {
    async fn run(&self, closing: &mut watch::Receiver<bool>) -> Error {
        let mut running = FuturesUnordered::new();
        // Kept across turns of the loop: each new future would first poll for messages for a while
        // before it sleeps.
        let mut receive = pin!(self.rdma.receive());
        let mut ended = pin!(self.rdma.ended());
        let mut last: Option<Instant> = None;
        loop {
            // Yields now and then, so that a peer which always has another request ready delays neither
            // the other tasks of this thread nor the shutdown.
            consume_budget().await;
            if last.is_none() && closing.has_changed().unwrap_or(true) {
                last = Some(Instant::now() + self.shared.grace);
            }
            if last.is_some_and(|last| running.is_empty() || Instant::now() >= last) {
                return Error::ShuttingDown;
            }
            let room = running.len() < self.shared.concurrency;
            let out_of_time = async {
                match last {
                    Some(last) => sleep_until(last).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                // Running handlers come first: a ready handler must not wait while `receive` polls for
                // the next request.
                biased;
                Some(()) = running.next(), if !running.is_empty() => {}
                received = &mut receive, if room => {
                    receive.set(self.rdma.receive());
                    match received.map_err(Error::from).and_then(|region| self.request(region)) {
                        Ok(request) => running.push(self.answer(request, last.is_some())),
                        Err(error) if error_is_of_one_message(&error, self.rdma) => {
                            // The transport reports the refusal to the peer, which then fails the call.
                            tracing::warn!(%error, "a request could not be received");
                        }
                        Err(end) => return end,
                    }
                }
                end = &mut ended, if !room => return end.into(),
                _ = closing.changed(), if last.is_none() => {
                    last = Some(Instant::now() + self.shared.grace);
                }
                () = out_of_time, if last.is_some() => {}
            }
        }
    }

    /// Parses a received message as a request and looks up its method.
    fn request(&self, region: LocalMr) -> Result<Request<'s>, Error> {
        let bytes = region.as_slice();
        let len = bytes.len();
        let Head::Request {
            id,
            deadline,
            codec,
            method,
            body,
        } = Head::parse(bytes)?
        else {
            return Err(Violation::Answer.into());
        };
        let name = str::from_utf8(&bytes[method]).map_err(|_| Violation::Method)?;
        let method = self.shared.routes.get_key_value(name);
        Ok(Request {
            id,
            deadline: deadline.and_then(|left| Instant::now().checked_add(left)),
            codec,
            method: method.map(|(name, route)| (&**name, route)),
            payload: Payload::new(region, body),
            len,
        })
    }

    /// Handles a request and sends its answer. Stops without an answer at the deadline of the request.
    async fn answer(&self, request: Request<'s>, closing: bool) {
        let (id, deadline) = (request.id, request.deadline);
        let answer = async {
            let message = match self.outcome(request, closing).await {
                Ok(message) => Some(message),
                Err(failure) => self.failure(id, &failure),
            };
            if let Some(message) = message {
                self.post(id, &message).await;
            }
        };
        match deadline {
            Some(deadline) => {
                if timeout_at(deadline, answer).await.is_err() {
                    tracing::debug!(id, "a call was dropped at its deadline");
                }
            }
            None => answer.await,
        }
    }

    async fn outcome(&self, request: Request<'s>, closing: bool) -> Result<Outgoing, Failure> {
        let Request {
            id,
            deadline,
            codec,
            method,
            payload,
            len,
        } = request;
        if closing {
            return Err(Failure::ShuttingDown);
        }
        let limit = self.shared.message_limit;
        if len > limit {
            let limit = limit as u64;
            return Err(Failure::RequestTooLarge { limit });
        }
        let Some((method, route)) = method else {
            return Err(Failure::UnknownMethod);
        };
        let Ok(_running) = self.shared.calls.try_acquire() else {
            return Err(Failure::Overloaded);
        };
        let context = Context {
            peer: self.rdma.peer_address(),
            deadline,
        };
        let composer = self.composer;
        let call = Call {
            id,
            codec,
            payload,
            context,
            composer,
        };
        let handled = async { route(call).await };
        // Unwind safe: the state of the handler is not used after its panic.
        AssertUnwindSafe(handled)
            .catch_unwind()
            .await
            .unwrap_or_else(|_| {
                tracing::error!(method, "a handler panicked");
                Err(Failure::Panicked)
            })
    }

    fn failure(&self, id: u64, failure: &Failure) -> Option<Outgoing> {
        let compose = |failure: &Failure| {
            let (status, body) = failure.to_parts();
            let header = Header::Failure { id, status };
            self.composer.copied(header, "", &body)
        };
        let shorter = |error| compose(&Failure::from(error));
        match compose(failure).or_else(shorter) {
            Ok(message) => Some(message),
            Err(error) => {
                tracing::warn!(?error, ?failure, "a failure could not be told");
                None
            }
        }
    }

    async fn post(&self, id: u64, message: &Outgoing) {
        let outcome = match message.post(self.rdma).await {
            // A client refuses a message only because of its size.
            Err(rdma_async::Error::Refused { .. }) => {
                let len = message.len() as u64;
                match self.failure(id, &Failure::ResponseTooLarge { len }) {
                    Some(failure) => failure.post(self.rdma).await,
                    None => Ok(()),
                }
            }
            outcome => outcome,
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, id, "an answer could not be sent");
        }
    }
}

/// Returns whether `error` concerns one message only, so that the connection can still be used.
fn error_is_of_one_message(error: &Error, rdma: &Rdma) -> bool {
    matches!(error, Error::Transport(_)) && rdma.failure().is_none()
}
