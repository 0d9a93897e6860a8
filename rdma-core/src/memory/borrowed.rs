//! Borrowed memory that a request can use.

use super::gather::{Gather, Part, sealed};
use super::{BufferSlice, BufferSliceMut};

/// Memory that a request of a [`Scope`](crate::Scope) can borrow: [`BufferSlice`],
/// [`BufferSliceMut`], references, and tuples and arrays of these types. The requests of a scope
/// complete before the borrow ends. The trait is sealed: other crates cannot implement it.
///
/// Owned memory does not implement the trait:
///
/// ```compile_fail,E0277
/// # use rdma_core::{Buffer, QueuePair, SendRequest};
/// # fn example(queue_pair: &QueuePair, buffer: Buffer) {
/// let _ = queue_pair.scope(std::time::Duration::from_secs(1), |scope| {
///     let _ = scope.post(SendRequest::send(buffer));
/// });
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not borrowed memory",
    note = "requests of a scope take borrowed memory: `as_slice()`, `as_slice_mut()` or a reference"
)]
pub trait BorrowedMemory: Gather {}

impl BorrowedMemory for BufferSlice<'_> {}

impl BorrowedMemory for BufferSliceMut<'_> {}

impl<M: Gather + Sync + ?Sized> BorrowedMemory for &M {}

impl<M: Gather + ?Sized> BorrowedMemory for &mut M {}

impl BorrowedMemory for () {}

impl<M: BorrowedMemory> BorrowedMemory for Option<M> {}

impl<A: BorrowedMemory, B: BorrowedMemory> BorrowedMemory for (A, B) {}

impl<M: BorrowedMemory, const N: usize> BorrowedMemory for [M; N] {}

impl<M: BorrowedMemory + sealed::Contiguous> BorrowedMemory for Part<M> {}
