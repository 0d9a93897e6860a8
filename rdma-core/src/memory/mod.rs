//! Registered memory. The types say which accesses are allowed.
//!
//! | type | who has it | as a slice | device may |
//! |---|---|---|---|
//! | [`Buffer`] | one owner | `&[u8]`, `&mut [u8]` | read and write, while it is in flight |
//! | [`BufferSlice`], [`BufferSliceMut`] | who borrows it | `&[u8]`, `&mut [u8]` | the same, within a scope |
//! | [`FrozenBuffer`] | many | `&[u8]` | read |
//! | [`SharedBuffer`] | decided at run time by claims | through a claim | as the claim says |
//! | [`LentMemory`] | many, and every peer with the key | `&[u8]` | let peers read |
//! | [`ExposedMemory`] | this process and every peer with the key | never | read and write |
//! | [`WindowLease`] | the same, through a window | never | let peers read and write |
//! | [`UnmappedRegion`] | devices and peers | never: it is not the process's | read and write |
//!
//! Memory begins as a [`Buffer`]: [allocated](crate::ProtectionDomain::allocate), or the program's
//! own ([`StableMemoryMut`], [`HostMemory`]), which comes back with [`Buffer::into_owner`]. What is
//! posted is moved into the request and comes back with its completion, so nobody can look at memory
//! that the device is writing. Memory that peers can write is never a slice: this process accesses it
//! through a [`VolatileSlice`], until the grant has ended *at the device* and the [`Buffer`] comes back.
//! [`ExposedMemory::revoke`] ends the grant by deregistering, [`WindowLease::unbind`] by a request.
//! [`LentMemory`], which peers can only read, is a slice.
//!
//! # Who is trusted with what
//!
//! **Any peer.** Nothing that a peer does makes safe code of this process read or write what it must
//! not, or sees freed memory. A peer that writes to memory it was granted, at any time and in any
//! pattern, changes values. A peer that comes late, or guesses keys (which is easy: they are small
//! numbers in a row), reaches what is granted at that moment and nothing else. [`RemoteMemory`] of a
//! peer is a name, not memory: a false one makes a request fail, or reaches other memory of that peer.
//! A peer may end the binding of a window of type 2 unasked; that takes from the peer, not from us.
//!
//! **A correct peer.** What values mean is the peer's affair. What is in exposed memory can change
//! between two looks: copy it out, then check it, then use it. A peer can give its key to others, who
//! are then the peer: a key grants to whoever shows it, through any queue pair of the protection
//! domain. A peer that kept the key of a window over 256 bindings has the key of the newest. And a peer
//! can stay silent: only timeouts help against that.
//!
//! **The device and its driver.** They are to do what verbs promise: to keep to the bounds and rights
//! of a key, to leave memory alone once a request has completed, a region is deregistered, a window
//! invalidated or freed, a queue pair reset or destroyed, and to complete what they completed. Where
//! deregistration fails, the memory is leaked rather than freed. Known not to keep to it: Soft-RoCE of
//! Linux 6.1 lets a window's key reach all of the *region* that the window is bound to. Before the first
//! lease of a part of a registration the device is tried, and such leases are
//! [refused](crate::Error::is_unsupported) there: [expose](Buffer::expose) the part instead.
//!
//! **The program**, where it says `unsafe`: that memory stays where it is ([`StableMemoryMut`]), that
//! an object of C is what it is said to be (`from_raw`), that a thread domain has one thread.
//!
//! # What is seen when
//!
//! When the completion of a receive, a read or an atomic has been polled, the bytes are there: polling
//! orders this thread behind the device. For memory that a peer writes without a completion here, the
//! usual protocol is to write the data, then a flag, and to poll the flag with
//! [`load_u64`](VolatileSlice::load_u64). That is right if the peer's writes are of one queue pair, the
//! flag is an aligned word of its own, and the device writes in order; most do, and none has to:
//! IBTA volume 1, 9.5, says that only a completion tells. [`AccessFlags::RELAXED_ORDERING`] takes it
//! away for good: the flag may be seen before the data. Then let the peer's last write carry immediate
//! data, or send a message behind it.
//!
//! Eight aligned bytes are seen as they were written, all or none, on the machines this crate is for.
//! Copies and words of different sizes may meet at one place. For two *threads* that race, Rust's
//! memory model leaves that open; devices are outside of that model, and processors and compilers
//! treat each access as the bytes it is of.
//!
//! # What `fork` does
//!
//! To the parent: a page that parent and child share is copied for whoever writes first, and the
//! device goes on with the old one. Since Linux 5.12 the kernel copies registered pages for the child
//! when it is made, and nothing is lost ([`fork_status`] is [`ForkStatus::Unneeded`]); before, call
//! [`fork_init`] first of all, which keeps registered pages away from children (`MADV_DONTFORK`). A
//! child that touches them then ends by a signal, and so it does with whatever else lies in the same
//! pages. The user-space device softroce needs nothing: a thread of the parent copies. Memory
//! that is the device's own ([`HostMemoryBuilder::domain`]) no child may touch, on any kernel: it may be
//! memory that several processes share.
//!
//! To the child: it must not use, nor drop, any object of this crate that the parent made, but `exec`
//! or `_exit`. The device's objects belong to both by then, and dropping one ends it for the parent.
//! On softroce every verb fails in a child whose parent used the device.

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
mod tagged;
mod unmapped;
mod volatile;
mod window;
mod window_bounds;

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
pub use tagged::Tagged;
pub use unmapped::UnmappedRegion;
pub use volatile::VolatileSlice;
pub use window::{MemoryWindow, WindowType};
