//! Registered memory. The type of a value determines which accesses are allowed.
//!
//! | type | holders | access as a slice | operations of the device |
//! |---|---|---|---|
//! | [`Buffer`] | one owner | `&[u8]`, `&mut [u8]` | reads and writes, while it is in flight |
//! | [`BufferSlice`], [`BufferSliceMut`] | the borrower | `&[u8]`, `&mut [u8]` | reads and writes, within a scope |
//! | [`FrozenBuffer`] | many | `&[u8]` | reads |
//! | [`SharedBuffer`] | decided at run time by claims | through a claim | as the claim allows |
//! | [`SharedFrozenBuffer`] | many, with claims for reading | `&[u8]` | reads |
//! | [`LentMemory`] | many, and every peer with the key | `&[u8]` | reads on behalf of peers |
//! | [`ExposedMemory`] | this process and every peer with the key | never | reads and writes |
//! | [`WindowLease`] | this process and, through a window, every peer with the key | never | reads and writes on behalf of peers |
//! | [`UnmappedRegion`] | devices and peers | never: it is not memory of the process | reads and writes |
//!
//! Memory begins as a [`Buffer`]. The crate [allocates](crate::ProtectionDomain::allocate) the
//! memory, or the program registers its own memory ([`StableMemoryMut`], [`HostMemory`]), and gets
//! the memory back from [`Buffer::into_owner`]. Posting moves the memory into the request, and the
//! completion gives the memory back, so safe code cannot read memory that the device is writing.
//! Memory that peers can write is never exposed as a slice: this process accesses such memory
//! through a [`VolatileSlice`], until the access of peers has ended *at the device* and the program
//! has the [`Buffer`] again. [`ExposedMemory::revoke`] ends the access by deregistration,
//! [`WindowLease::unbind`] by a work request. [`LentMemory`] can be read as a slice, because peers
//! can only read it.
//!
//! # Trust
//!
//! **Any peer.** Whatever a peer does, safe code of this process neither accesses memory that it
//! must not access nor uses freed memory. A peer that writes to memory that was granted to it
//! changes values, at any time and in any pattern. A peer that accesses memory late, or guesses
//! keys (which are small consecutive numbers), can access only what is granted at that moment. The
//! [`RemoteMemory`] of a peer is only an identifier: a false value makes a request fail, or
//! accesses other memory of that peer. A peer may invalidate a window of type 2 at any time, but
//! only that peer loses access.
//!
//! **A correct peer.** The program relies on the peer for the meaning of values. The content of
//! exposed memory can change between two reads: copy it, then check the copy, then use the copy. A
//! peer can give its key to other processes, which then have the same rights: a key grants access
//! to every holder, through any queue pair of the protection domain. A peer that kept the key of a
//! window over 256 bindings holds the key of the newest binding. A peer can also stop responding.
//! Only timeouts help against such a peer.
//!
//! **The device and its driver.** The program relies on both to keep the guarantees of verbs:
//! enforce the bounds and rights of a key; access no memory after the request has completed, the
//! region was deregistered, the window invalidated or deallocated, or the queue pair reset or
//! destroyed; and report only completions of requests that have completed. If a deregistration
//! fails, the memory is leaked and not freed. One known violation: in Soft-RoCE of Linux 6.1 the
//! key of a window gives access to the whole *region* that the window is bound to. The first lease
//! of a part of a registration therefore tests the device. If the test fails, such leases are
//! [unsupported](crate::Error::is_unsupported): [expose](Buffer::expose) the part instead.
//!
//! **The program**, where it uses `unsafe`. The program must ensure that memory does not move
//! ([`StableMemoryMut`]), that a libibverbs object has the stated properties (`from_raw`), and that
//! one thread at a time uses the objects of a thread domain.
//!
//! # Visibility of writes
//!
//! When the completion of a receive, a read or an atomic has been polled, the data is visible to
//! the polling thread: polling orders later reads after the device's writes. For memory that a peer
//! writes without a local completion, the usual protocol is that the peer writes the data and then
//! a flag, and this process polls the flag with [`load_u64`](VolatileSlice::load_u64). The protocol
//! works if both writes use the same queue pair, the flag is a separate aligned word, and the
//! device writes in order. Most devices write in order, but IBTA volume 1, 9.5, guarantees
//! visibility only after a completion. [`AccessFlags::RELAXED_ORDERING`] permits the flag to become
//! visible before the data. In that case the peer's last write must contain immediate data, or the
//! peer must send a message after it.
//!
//! Eight aligned bytes are read and written atomically on the machines that this crate supports.
//! Copies and accesses of different sizes may overlap. Rust's memory model does not define such
//! mixed-size races between two *threads*. Devices are outside of that model, and processors and
//! compilers treat each access as an access to its individual bytes.
//!
//! # Effects of `fork`
//!
//! On the parent: a page that parent and child share is copied when either of them first writes to
//! it, and the device continues to use the old page. Since Linux 5.12 the kernel copies registered
//! pages for the child at the fork, so nothing is lost ([`fork_status`] is
//! [`ForkStatus::Unneeded`]). On older kernels, call [`fork_init`] before any registration:
//! registered pages are then not inherited by children (`MADV_DONTFORK`). A child that accesses
//! such a page, or other data in it, is killed by a signal. The user-space device softroce needs no
//! preparation, because a thread of the parent copies the data. Whatever the kernel, a child must
//! not access memory that comes from a device's allocator ([`HostMemoryBuilder::domain`]), because
//! several processes may share that memory.
//!
//! On the child: the child must neither use nor drop any object of this crate that the parent
//! created. The child may only call `exec` or `_exit`. Parent and child share the device's objects,
//! so dropping an object in the child destroys it for the parent. On softroce every verb fails in a
//! child whose parent used the device.

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
mod window_owner;

pub use crate::ffi::{StableMemory, StableMemoryMut};
pub use access::AccessFlags;
pub use advice::Prefetch;
pub use atomic_result::AtomicResult;
pub use borrowed::BorrowedMemory;
pub use buffer::{Buffer, FrozenBuffer};
pub use detached::DetachedMemory;
pub use device_memory::DeviceMemory;
pub use exposed::{ExposedGrant, ExposedMemory};
pub use fork::{ForkStatus, fork_init, fork_status};
pub use gather::{Elements, Gather, Part, Scatter};
pub use host::{HostMemory, HostMemoryBuilder, HugePages, Pages};
pub use lease::{LeaseState, WindowLease};
pub use lent::LentMemory;
pub use registration::Registration;
pub use remote::RemoteMemory;
pub use reregister::{FailedBuffer, ReregisterError, Reregistered, Reregistration};
pub use shared::{Claim, ReadClaim, SharedBuffer, SharedFrozenBuffer, WriteClaim};
pub use slice::{BufferSlice, BufferSliceMut};
pub use tagged::Tagged;
pub use unmapped::UnmappedRegion;
pub use volatile::VolatileSlice;
pub use window::{MemoryWindow, WindowType};
