//! [`Guards`]: the functions that decide about connections and calls before the services do.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::address::Peer;
use crate::metadata::Metadata;

/// A call before it is started, as an [interceptor](crate::Server::intercept) sees it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct CallInfo<'c> {
    /// Name of the service and of the method: `"Store.get"`.
    pub method: &'static str,
    /// The caller's end of the connection.
    pub peer: &'c Peer,
    /// Identity that [authentication](crate::Server::authenticate) has found; empty without
    /// authentication.
    pub identity: &'c Metadata,
    /// Metadata of the request.
    pub metadata: &'c Metadata,
}

type Authenticate = dyn Fn(&Peer, &Metadata) -> Result<Metadata, String> + Send + Sync;
type Intercept = dyn Fn(&CallInfo<'_>) -> Result<(), String> + Send + Sync;

/// Functions that decide about connections and calls.
#[derive(Default)]
pub(super) struct Guards {
    pub(super) authenticate: Option<Box<Authenticate>>,
    pub(super) interceptors: Vec<Box<Intercept>>,
}

impl Guards {
    /// Returns whether a connection may make calls. `identity` is that of an authenticated client.
    pub(super) fn admit(&self, identity: Option<&Metadata>) -> bool {
        self.authenticate.is_none() || identity.is_some()
    }

    /// Returns the reason if a call is not allowed.
    pub(super) fn allow(&self, info: &CallInfo<'_>) -> Result<(), String> {
        for interceptor in &self.interceptors {
            let judged = catch_unwind(AssertUnwindSafe(|| interceptor(info)));
            judged.unwrap_or_else(|_| Err("an interceptor panicked".to_owned()))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Guards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guards").finish_non_exhaustive()
    }
}
