//! One peer: its requests, their handlers, their answers.

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

/// How long a goodbye may take; a peer that takes no more messages is left without.
const GOODBYE: Duration = Duration::from_secs(1);

/// Serves a peer until it goes, breaks the protocol, or the server ends, and says which it was.
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
        // It arrives behind every answer, so that none is lost with the connection.
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

/// A request as it arrived.
struct Request<'s> {
    id: u64,
    deadline: Option<Instant>,
    codec: u8,
    /// Its method's name and handler, if there is one.
    method: Option<(&'s str, &'s Route)>,
    payload: Payload,
    /// Of the whole message.
    len: usize,
}

impl<'s> Connection<'s> {
    async fn run(&self, closing: &mut watch::Receiver<bool>) -> Error {
        let mut running = FuturesUnordered::new();
        // One future for many turns: each looks for messages a while before it sleeps.
        let mut receive = pin!(self.rdma.receive());
        let mut ended = pin!(self.rdma.ended());
        let mut last: Option<Instant> = None;
        loop {
            // A peer that always has another request ready must not keep the others of this thread
            // from theirs, nor the server from ending.
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
                // Answers before requests: the handlers that are ready go before the look for more.
                biased;
                Some(()) = running.next(), if !running.is_empty() => {}
                received = &mut receive, if room => {
                    receive.set(self.rdma.receive());
                    match received.map_err(Error::from).and_then(|region| self.request(region)) {
                        Ok(request) => running.push(self.answer(request, last.is_some())),
                        Err(error) if error_is_of_one_message(&error, self.rdma) => {
                            // The peer is told, and fails the call.
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

    /// The request that a message is.
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

    /// Handles a request and answers it, unless its deadline is over before.
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
        // Nothing of the handler's is used after its panic.
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
            // Its size is what a client refuses a message for.
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

/// Whether an error leaves the connection as it was.
fn error_is_of_one_message(error: &Error, rdma: &Rdma) -> bool {
    matches!(error, Error::Transport(_)) && rdma.failure().is_none()
}
