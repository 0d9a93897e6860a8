//! [`Authorization`]: the program's functions that accept or refuse connections and calls.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::address::Peer;
use crate::metadata::Metadata;

/// Facts about a call that the server has not started yet: the method, the caller and the metadata.
/// An [interceptor](crate::Server::intercept), a function of the program, uses these facts to allow
/// or refuse the call.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct CallInfo<'c> {
    /// Name of the service and of the method, for example `"Store.get"`.
    pub method: &'static str,
    /// Description of the caller's connection.
    pub peer: &'c Peer,
    /// Identity that the [authentication](crate::Server::authenticate) function returned. Empty
    /// without authentication.
    pub identity: &'c Metadata,
    /// Metadata of the request.
    pub metadata: &'c Metadata,
}

/// Function that maps the credentials of a client to its identity, or returns the reason for
/// refusing the client.
type Authenticate = dyn Fn(&Peer, &Metadata) -> Result<Metadata, String> + Send + Sync;
/// Function that allows a call, or returns the reason for refusing the call.
type Intercept = dyn Fn(&CallInfo<'_>) -> Result<(), String> + Send + Sync;

/// Functions of the program that decide which clients may connect and which calls may start. Set
/// with [`Server::authenticate`](crate::Server::authenticate) and
/// [`Server::intercept`](crate::Server::intercept).
#[derive(Default)]
pub(super) struct Authorization {
    pub(super) authenticate: Option<Box<Authenticate>>,
    pub(super) interceptors: Vec<Box<Intercept>>,
}

impl Authorization {
    /// Returns whether the client of a connection can make calls: the server requires no
    /// authentication, or the authentication has succeeded. `identity` is the identity that the
    /// authentication has returned, if any.
    pub(super) fn admits(&self, identity: Option<&Metadata>) -> bool {
        self.authenticate.is_none() || identity.is_some()
    }

    /// Calls the interceptors in order, functions of the program that can refuse the call. Returns
    /// the reason of the first refusal as the error. A panic of an interceptor counts as a refusal.
    pub(super) fn check(&self, info: &CallInfo<'_>) -> Result<(), String> {
        for interceptor in &self.interceptors {
            let checked = catch_unwind(AssertUnwindSafe(|| interceptor(info)));
            checked.unwrap_or_else(|_| Err("an interceptor panicked".to_owned()))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorization").finish_non_exhaustive()
    }
}
