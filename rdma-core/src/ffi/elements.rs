//! Scatter/gather lists, built in memory that the list does not own.
//!
//! Every request of the safe interface fills an [`ElementList`], which checks the limits before the
//! request is posted.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use ibverbs_sys as sys;

use super::context::ContextHandle;
use crate::error::{Error, Result};

/// Maximum number of scatter/gather elements of a request. Each post places an array of this size
/// on the stack, and more elements are rarely needed.
pub(crate) const MAX_ELEMENTS: usize = 16;

/// Maximum number of bytes of a message (IBTA volume 1, 9.7.2).
const MAX_MESSAGE: u64 = 1 << 31;

/// The local key (lkey) of a memory registration, and the identity of the registration's context
/// (open device). The identity is needed because another context may have assigned the same key to
/// other memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "a sealed trait, which is public, names it")]
pub struct LocalKey {
    number: u32,
    /// Address of the context's handle, as [`context_id`] returns it. The address is constant as
    /// long as the registration exists.
    context: usize,
}

impl LocalKey {
    #[inline]
    pub(super) fn new(number: u32, context: &ContextHandle) -> Self {
        Self {
            number,
            context: context_id(context),
        }
    }

    /// Returns the number of the key, which requests contain and the device knows.
    #[inline]
    pub(crate) fn number(self) -> u32 {
        self.number
    }
}

/// Returns the address of a context's handle, which identifies the context.
#[inline]
pub(super) fn context_id(context: &ContextHandle) -> usize {
    std::ptr::from_ref(context).addr()
}

/// The scatter/gather list of a request under construction. The list also records properties of the
/// memory that are checked before the request is posted.
pub(crate) struct ElementList {
    room: NonNull<sys::ibv_sge>,
    /// Number of elements that fit into `room`.
    capacity: usize,
    /// Number of elements that were pushed, including elements that did not fit into `room`.
    len: usize,
    /// Total number of bytes of all elements.
    bytes: u64,
    /// Set if [`Self::fits`] will check the list. [`Self::fits`] rejects elements that are empty,
    /// longer than a message, or registered with another context.
    is_strict: bool,
    /// Nonzero if an element was pushed that [`Self::fits`] must reject. All checks accumulate in
    /// this number, so that testing it once suffices.
    rejected: u64,
    /// Set if this process can read the bytes at the addresses that the elements contain.
    is_mapped: bool,
    /// Set if the device may write to all elements.
    is_writable: bool,
    /// Address of the handle of the context that all keys must belong to, or 0 if keys of every
    /// context are allowed.
    context: usize,
    is_foreign: bool,
}

impl ElementList {
    /// Creates an empty list of scatter/gather elements, stored in `room`. The memory of all
    /// elements must be registered with `context`. If `context` is `None`, the memory may be
    /// registered with any context.
    ///
    /// # Safety
    ///
    /// Nothing else may use `room` while the list exists.
    #[inline]
    pub(super) unsafe fn over(
        room: &mut [MaybeUninit<sys::ibv_sge>],
        context: Option<&ContextHandle>,
    ) -> Self {
        Self {
            capacity: room.len(),
            room: NonNull::from(room).cast(),
            len: 0,
            bytes: 0,
            is_strict: false,
            rejected: 0,
            is_mapped: true,
            is_writable: true,
            context: context.map_or(0, context_id),
            is_foreign: false,
        }
    }

    /// Creates an empty list of scatter/gather elements for the fast path (posting with few
    /// checks), stored in `room`. After an element was added that the device cannot accept,
    /// [`Self::fits`] returns `false`. `context` is the [`context_id`] of the context with which
    /// the memory must be registered.
    ///
    /// # Safety
    ///
    /// Nothing else may use `room` while the list exists.
    #[inline]
    pub(super) unsafe fn of_fast_path(
        room: &mut [MaybeUninit<sys::ibv_sge>],
        context: usize,
    ) -> Self {
        // SAFETY: the caller guarantees that nothing else uses the room.
        let list = unsafe { Self::over(room, None) };
        Self {
            context,
            is_strict: true,
            ..list
        }
    }

    /// Marks the memory of the list's elements as not readable by this process, so that the data is
    /// not sent inline.
    #[inline]
    pub(crate) fn forbid_inline(&mut self) {
        self.is_mapped = false;
    }

    /// Returns whether this process can read the memory of the list's elements at their addresses.
    #[inline]
    pub(super) fn is_mapped(&self) -> bool {
        self.is_mapped
    }

    /// Marks the memory of the list's elements as read-only for the device. The mark takes effect
    /// even if the type and the registration of the memory allow writes.
    #[inline]
    pub(crate) fn forbid_writing(&mut self) {
        self.is_writable = false;
    }

    /// Returns whether the device may write to the memory of all elements in the list.
    #[inline]
    pub(super) fn is_writable(&self) -> bool {
        self.is_writable
    }

    #[inline]
    pub(crate) fn push(&mut self, address: u64, len: usize, key: LocalKey) {
        if self.is_strict {
            self.rejected |= (key.context ^ self.context) as u64;
        } else {
            self.is_foreign |= key.context != self.context;
        }
        self.push_bytes(address, len, key.number);
    }

    /// Adds the `len` bytes at `address` to the list, as a scatter/gather element. Does not check
    /// that the memory key `lkey` belongs to the right context. The caller must have checked the
    /// key, or must send the bytes inline, which needs no key.
    #[inline]
    pub(crate) fn push_bytes(&mut self, address: u64, len: usize, lkey: u32) {
        if self.is_strict {
            // The result of the division is 0 for every length from 1 to the maximum length of a
            // message.
            self.rejected |= (len as u64).wrapping_sub(1) / MAX_MESSAGE;
        } else if len == 0 {
            // Devices of several vendors interpret an element of length 0 as one of 2^31 bytes, so
            // it is left out.
            return;
        }
        if self.len < self.capacity {
            let element = sys::ibv_sge {
                addr: address,
                // A length that does not fit into 32 bits makes `bytes` too large, which a later
                // check rejects.
                length: len as u32,
                lkey,
            };
            // SAFETY: the place is inside the room, which only this list uses.
            unsafe { self.room.add(self.len).write(element) };
        }
        self.len += 1;
        self.bytes = self.bytes.saturating_add(len as u64);
    }

    #[inline]
    pub(super) fn start(&self) -> *mut sys::ibv_sge {
        self.room.as_ptr()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the device can accept this list of scatter/gather elements. Returns `false`
    /// if an element is empty or registered with another context, or if the list has too many
    /// elements or bytes. `limit` is the queue's maximum number of elements per request. The caller
    /// must ensure that `limit` is at least 1 and at most the capacity of the list.
    #[inline]
    pub(super) fn fits(&self, limit: usize) -> bool {
        debug_assert!(self.is_strict);
        self.rejected == 0 && (self.len <= 1 || (self.len <= limit && self.bytes <= MAX_MESSAGE))
    }

    /// Checks this list of scatter/gather elements of a request. Returns an error if the number of
    /// elements or bytes is too large, or if memory is registered with another context. `limit` is
    /// the queue's maximum number of elements per request.
    #[inline]
    pub(super) fn checked(&self, limit: u32) -> Result<()> {
        if self.is_foreign && self.context != 0 {
            return Err(foreign());
        }
        let limit = self.capacity.min(limit as usize);
        if self.len > limit {
            return Err(Error::TooManyElements {
                elements: self.len,
                limit,
            });
        }
        if self.bytes > MAX_MESSAGE {
            return Err(too_long(self.bytes));
        }
        Ok(())
    }
}

#[cold]
fn foreign() -> Error {
    let reason = "it is registered with another context than the queue is of";
    Error::invalid("memory of a request", reason)
}

#[cold]
fn too_long(bytes: u64) -> Error {
    let reason = format!("{bytes} bytes are more than a message can have");
    Error::invalid("memory of a request", reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_list(test: impl FnOnce(&mut ElementList)) {
        let mut room = [const { MaybeUninit::uninit() }; MAX_ELEMENTS];
        // SAFETY: only the list uses the room.
        test(&mut unsafe { ElementList::over(&mut room, None) });
    }

    #[test]
    fn element_lists_respect_the_limits_of_elements_and_bytes() {
        with_list(|list| {
            for _ in 0..3 {
                list.push_bytes(4096, 1 << 29, 1);
            }
            assert!(list.checked(4).is_ok());
            assert_eq!(
                list.checked(2).unwrap_err(),
                Error::TooManyElements {
                    elements: 3,
                    limit: 2
                }
            );
            list.push_bytes(4096, 1 << 29, 1);
            assert!(list.checked(4).is_ok(), "2^31 bytes");
            list.push_bytes(4096, 1, 1);
            assert!(list.checked(5).is_err());
            for _ in 0..MAX_ELEMENTS {
                list.push_bytes(4096, 1, 1);
            }
            let too_many = list.checked(u32::MAX).unwrap_err();
            assert!(matches!(
                too_many,
                Error::TooManyElements {
                    limit: MAX_ELEMENTS,
                    ..
                }
            ));
        });
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn lengths_that_wrap_around_are_refused() {
        with_list(|list| {
            list.push_bytes(4096, 1 << 32, 1);
            assert!(list.checked(4).is_err());
        });
        with_list(|list| {
            for _ in 0..16 {
                list.push_bytes(4096, 1 << 28, 1);
            }
            assert!(list.checked(16).is_err());
        });
    }

    #[test]
    fn pieces_without_bytes_are_no_elements() {
        with_list(|list| {
            list.push_bytes(4096, 0, 1);
            assert_eq!((list.len(), list.bytes()), (0, 0));
        });
    }
}
