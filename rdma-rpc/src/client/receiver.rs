//! The task that receives answers and delivers them to the waiting calls.

use std::sync::Arc;

use rdma_async::{LocalMr, LocalMrReadAccess};

use super::Connection;
use super::calls::Answer;
use crate::error::Error;
use crate::failure::Failure;
use crate::message::Payload;
use crate::wire::{Head, Violation};

/// Receives answers until the connection ends; then fails every call with the reason.
pub(super) async fn receive(connection: Arc<Connection>) {
    let _stopped = Stopped(Arc::clone(&connection));
    let end = loop {
        match connection.rdma.receive().await {
            Ok(region) => {
                if let Err(end) = deliver(&connection, region) {
                    break end;
                }
                // The woken call runs first: `receive` may poll for the next message for a while.
                tokio::task::yield_now().await;
            }
            Err(error) if connection.rdma.failure().is_some() => break error.into(),
            // Only this message could not be received. The transport reports the refusal to the server,
            // which then fails the call.
            Err(error) => tracing::warn!(%error, "a response could not be received"),
        }
    };
    tracing::debug!(peer = %connection.rdma.peer_address(), %end, "no more answers");
    connection.calls.fail(end);
}

fn deliver(connection: &Connection, region: LocalMr) -> Result<(), Error> {
    let bytes = region.as_slice();
    let (id, answer) = match Head::parse(bytes)? {
        Head::Response { id, codec, body } => {
            let payload = Payload::new(region, body);
            (id, Answer::Response { codec, payload })
        }
        Head::Failure { id, status, body } => {
            let failure = Failure::from_parts(status, &bytes[body]).ok_or_else(|| {
                let reason = format!("the peer sent an unknown or incomplete failure, {status}");
                Error::Protocol { reason }
            })?;
            (id, Answer::Failure(failure))
        }
        Head::Goodbye => return Err(Error::ShuttingDown),
        Head::Request { .. } => return Err(Violation::Request.into()),
    };
    if !connection.calls.answer(id, answer) {
        tracing::trace!(id, "an answer that nobody waits for any more");
    }
    Ok(())
}

/// Fails every call when the receiving task ends in any way, even with its runtime. Has no effect if
/// the calls have already been failed.
struct Stopped(Arc<Connection>);

impl Drop for Stopped {
    fn drop(&mut self) {
        let reason = "the runtime that the client was made on has ended".into();
        let end = rdma_async::Error::Disconnected { reason };
        self.0.calls.fail(end.into());
    }
}
