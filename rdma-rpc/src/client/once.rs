//! Calls that are executed at most once: sent again, to the same server, if their connection ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::calls::Answer;
use super::perform::{Outcome, Told, unary_on};
use super::{Client, Route};
use crate::codec::Value;
use crate::core::Core;
use crate::error::{CallError, Error};
use crate::once;
use crate::payload::Stored;

/// Pause before a call is sent again to a server that has refused it, for example because of its
/// load.
const PAUSE: Duration = Duration::from_millis(10);

impl Client {
    /// Makes a unary call that its server executes at most once.
    pub(super) async fn unary_once<Q: ?Sized, T, E>(
        &self,
        method: u32,
        told: &Told,
        deadline: Duration,
        body: (u8, Value<'_, Q>),
        decode: impl Fn(&Arc<Core>, Answer, &mut Stored) -> Outcome<T, E>,
    ) -> Outcome<T, E> {
        let metadata = self.metadata_of(&told.method)?;
        let too_long = || Error::TooLarge {
            len: metadata.encoded().len() + once::LEN,
            limit: crate::metadata::LIMIT,
        };
        let mut numbered = self.session.begin();
        let endpoints = match &self.route {
            Route::One(handle) => {
                let begun = Instant::now();
                if handle.core.others().is_none() {
                    // Only the settings tell the incarnation.
                    let greeted = timeout(deadline, handle.core.greeted()).await;
                    greeted.unwrap_or_else(|_| Err(told.exceeded()))?;
                }
                let numbers = numbered.metadata(&metadata, handle.core.incarnation());
                let numbers = numbers.ok_or_else(too_long)?;
                let limit = (Some(deadline.saturating_sub(begun.elapsed())), told);
                let called = unary_on(&handle.core, (method, &numbers), limit, &body, &decode);
                return called
                    .await
                    .unwrap_or_else(|unstarted| Err(unstarted.0.into()));
            }
            Route::Several(endpoints) => endpoints,
        };
        let mut search = endpoints.search(deadline);
        // Error of the connection on which a server may have executed the call.
        let mut ended: Option<Error> = None;
        loop {
            let chosen = match search.next().await {
                Ok(chosen) => chosen,
                Err(error) => return Err(ended.unwrap_or(error).into()),
            };
            let incarnation = chosen.core().incarnation();
            if !numbered.suits(incarnation) {
                let method = told.method.clone();
                return Err(Error::ExecutionUnknown { method }.into());
            }
            let numbers = numbered.metadata(&metadata, incarnation);
            let numbers = numbers.ok_or_else(too_long)?;
            let limit = (Some(search.left()), told);
            let called = unary_on(chosen.core(), (method, &numbers), limit, &body, &decode);
            match called.await {
                Ok(Err(CallError::Rpc(error))) if is_end(&error) => {
                    numbered.set_sent(incarnation);
                    search.pin(&chosen);
                    ended = Some(error);
                }
                Ok(outcome) => return outcome,
                Err(_) if numbered.is_sent() => sleep(PAUSE).await,
                Err(unstarted) => search.failed(&chosen, unstarted.0),
            }
        }
    }
}

/// Returns whether an error is that of a connection that has ended.
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
