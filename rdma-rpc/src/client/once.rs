//! Calls that a server executes at most once. If the connection ends, the call is sent again to the
//! same server.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::calls::Answer;
use super::perform::{ErrorInfo, Outcome, unary_on};
use super::{Client, Route};
use crate::codec::TypedBody;
use crate::core::Core;
use crate::error::{CallError, Error};
use crate::once;
use crate::payload::BodyBuffer;

/// Pause before the client sends a refused call to the same server again. Used if no other server
/// may execute the call, because this server has perhaps executed the call earlier. Short compared
/// with typical deadlines, but long enough not to load the server further.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

impl Client {
    /// Makes a unary call that its server executes at most once. After the end of a connection, a
    /// client of several servers sends the request again, but only to the same server. `body`
    /// contains the codec's number and the request. `decode` converts the server's answer and the
    /// received body to the outcome.
    pub(super) async fn unary_once<Q: ?Sized, T, E>(
        &self,
        method: u32,
        info: &ErrorInfo,
        deadline: Duration,
        body: (u8, TypedBody<'_, Q>),
        decode: impl Fn(&Arc<Core>, Answer, &mut BodyBuffer) -> Outcome<T, E>,
    ) -> Outcome<T, E> {
        let metadata = self.metadata_of(&info.method)?;
        let too_long = || Error::TooLarge {
            len: metadata.encoded().len() + once::LEN,
            limit: crate::metadata::MAX_LEN,
        };
        let mut numbered = self.session.begin();
        let endpoints = match &self.route {
            Route::One(connection) => {
                let begun = Instant::now();
                if connection.core.peer_settings().is_none() {
                    // The instance ID arrives with the settings.
                    let greeted = timeout(deadline, connection.core.wait_for_settings()).await;
                    greeted.unwrap_or_else(|_| Err(info.exceeded()))?;
                }
                let numbers = numbered.metadata(&metadata, connection.core.instance_id());
                let numbers = numbers.ok_or_else(too_long)?;
                let limit = (Some(deadline.saturating_sub(begun.elapsed())), info);
                let called = unary_on(&connection.core, (method, &numbers), limit, &body, &decode);
                return called
                    .await
                    .unwrap_or_else(|unstarted| Err(unstarted.0.into()));
            }
            Route::Several(endpoints) => endpoints,
        };
        let mut search = endpoints.search(deadline);
        // Error of the last connection on which a server may have executed the call.
        let mut ended: Option<Error> = None;
        loop {
            let chosen = match search.next().await {
                Ok(chosen) => chosen,
                Err(error) => return Err(ended.unwrap_or(error).into()),
            };
            let instance_id = chosen.core().instance_id();
            if !numbered.may_be_sent_to(instance_id) {
                let method = info.method.clone();
                return Err(Error::ExecutionUnknown { method }.into());
            }
            let numbers = numbered.metadata(&metadata, instance_id);
            let numbers = numbers.ok_or_else(too_long)?;
            let limit = (Some(search.remaining()), info);
            let called = unary_on(chosen.core(), (method, &numbers), limit, &body, &decode);
            match called.await {
                Ok(Err(CallError::Rpc(error))) if is_end(&error) => {
                    // Ends the connection if only the transport has ended so far. Otherwise the
                    // search would return the same connection again.
                    chosen.core().fail(error.clone());
                    numbered.set_sent(instance_id);
                    search.pin(&chosen);
                    ended = Some(error);
                }
                Ok(outcome) => return outcome,
                Err(_) if numbered.is_sent() => sleep(RETRY_PAUSE).await,
                Err(unstarted) => search.record_failure(&chosen, unstarted.0),
            }
        }
    }
}

/// Returns whether the error means that the connection has ended. After such an error the server
/// may or may not have executed the call.
fn is_end(error: &Error) -> bool {
    matches!(
        error,
        Error::Transport(_)
            | Error::Tcp { .. }
            | Error::Protocol { .. }
            | Error::Disconnected { .. }
            | Error::ShuttingDown
    )
}
