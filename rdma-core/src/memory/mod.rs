//! Registered memory, with who may touch it in the types.
//!
//! | type | who has it | as a slice | device may |
//! |---|---|---|---|
//! | [`Buffer`] | one owner | `&[u8]`, `&mut [u8]` | read and write, while it is in flight |
//! | [`FrozenBuffer`] | many | `&[u8]` | read |
//! | [`SharedBuffer`] | decided at run time by claims | through a claim | as the claim says |
//! | [`ExposedMemory`] | this process and every peer with the key | never | read and write |
//!
//! Memory begins as a [`Buffer`]. What is posted is moved into the request and comes back with its
//! completion, so nobody can look at memory that the device is writing. What peers can reach is
//! never a slice: [`ExposedMemory`] is copied from and to, until [`ExposedMemory::revoke`] has ended
//! the grant at the device and the [`Buffer`] comes back.

#![forbid(unsafe_code)]

mod access;
mod advice;
mod atomic_result;
mod borrowed;
mod buffer;
mod detached;
mod device_memory;
mod exposed;
mod fork;
mod gather;
mod host;
mod lease;
mod lent;
mod registration;
mod remote;
mod reregister;
mod shared;
mod slice;
mod unmapped;
mod volatile;
mod window;

pub use crate::ffi::{StableMemory, StableMemoryMut};
pub use access::AccessFlags;
pub use advice::Prefetch;
pub use atomic_result::AtomicResult;
pub use borrowed::BorrowedMemory;
pub use buffer::{Buffer, FrozenBuffer};
pub use detached::DetachedMemory;
pub use device_memory::DeviceMemory;
pub use exposed::ExposedMemory;
pub use fork::{ForkStatus, fork_init, fork_status};
pub use gather::{Elements, Gather, Part, Scatter};
pub use host::{HostMemory, HostMemoryBuilder, HugePages, Pages};
pub use lease::{LeaseState, WindowLease};
pub use lent::LentMemory;
pub use registration::Registration;
pub use remote::RemoteMemory;
pub use reregister::{Left, ReregisterError, Reregistered, Reregistration};
pub use shared::{Claim, ReadClaim, SharedBuffer, WriteClaim};
pub use slice::{BufferSlice, BufferSliceMut};
pub use unmapped::UnmappedRegion;
pub use volatile::VolatileSlice;
pub use window::{MemoryWindow, WindowType};
