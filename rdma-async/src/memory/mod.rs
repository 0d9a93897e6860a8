//! Memory regions: registered memory of this process, and memory that the peer lends.

mod cache;
mod ledger;
mod local;
mod pool;
mod remote;
mod shared;
mod usage;

pub use cache::{CacheStatistics, RegistrationCache};
pub use ledger::GrantedMemory;
pub(crate) use ledger::{Amount, Charge, Exceeded, Ledger};
pub use local::{
    LocalMr, LocalMrReadAccess, LocalMrSlice, LocalMrSliceMut, LocalMrWriteAccess, NotJoined,
};
pub(crate) use local::{RegionParts, claim_read, claim_write};
pub(crate) use pool::{PieceLender, Pool, has_windows};
pub use remote::{
    RemoteMr, RemoteMrReadAccess, RemoteMrSlice, RemoteMrSliceMut, RemoteMrWriteAccess,
    SharedRemoteMr,
};
pub use shared::SharedLocalMr;
pub use usage::{PoolOptions, PoolStatistics};
