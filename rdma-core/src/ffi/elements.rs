//! Scatter/gather lists, put together in room that the list does not own.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use ibverbs_sys as sys;

use super::context::ContextHandle;
use crate::error::{Error, Result};

/// How many scatter/gather elements a request of this crate can have.
pub(crate) const MAX_ELEMENTS: usize = 16;

/// The most bytes of a message (IBTA volume 1, 9.7.2). Providers count in 32 bits.
const MAX_MESSAGE: u64 = 1 << 31;

/// The local key of a registration, and which context's it is: another one may have given the same
/// key to other memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "a sealed trait, which is public, names it")]
pub struct LocalKey {
    number: u32,
    /// Where the context's handle is; it stays there as long as the registration.
    context: usize,
}

impl LocalKey {
    #[inline]
    pub(super) fn new(number: u32, context: &ContextHandle) -> Self {
        Self {
            number,
            context: place(context),
        }
    }

    /// As the device calls it.
    #[inline]
    pub(crate) fn number(self) -> u32 {
        self.number
    }
}

/// What tells a context from another one.
#[inline]
pub(super) fn place(context: &ContextHandle) -> usize {
    std::ptr::from_ref(context).addr()
}

/// A scatter/gather list in the making.
pub(crate) struct ElementList {
    room: NonNull<sys::ibv_sge>,
    /// How many fit into the room.
    capacity: usize,
    /// How many were pushed, including those that did not fit.
    len: usize,
    /// How many bytes they have together.
    bytes: u64,
    /// Whether no element may be empty, longer than a message or of another context: then it
    /// [does not fit](Self::fits).
    is_strict: bool,
    /// Not 0 if there is such an element. All in one number, which is asked once.
    odd: u64,
    /// Whether this process can read them where the elements say.
    is_mapped: bool,
    /// Whether the device may write to all of them.
    is_writable: bool,
    /// Where the context is that their keys must be of; 0 if that does not matter.
    context: usize,
    is_foreign: bool,
}

impl ElementList {
    /// An empty list in `room`, for a request to an object of this context, if it is given.
    ///
    /// # Safety
    ///
    /// The room is not used by anything else for as long as the list is.
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
            odd: 0,
            is_mapped: true,
            is_writable: true,
            context: context.map_or(0, place),
            is_foreign: false,
        }
    }

    /// An empty list of usual elements, to be asked whether it [fits](Self::fits); of the context at
    /// [this place](place).
    ///
    /// # Safety
    ///
    /// As [`Self::over`].
    #[inline]
    pub(super) unsafe fn of_usual(room: &mut [MaybeUninit<sys::ibv_sge>], context: usize) -> Self {
        // SAFETY: as the caller promises.
        let list = unsafe { Self::over(room, None) };
        Self {
            context,
            is_strict: true,
            ..list
        }
    }

    /// Says that an address is none of this process, so that nobody copies from there.
    #[inline]
    pub(crate) fn forbid_inline(&mut self) {
        self.is_mapped = false;
    }

    /// Whether the bytes can be copied from where the elements say.
    #[inline]
    pub(super) fn is_mapped(&self) -> bool {
        self.is_mapped
    }

    /// Says that memory may be read only, whatever its type allows and its key reaches.
    #[inline]
    pub(crate) fn forbid_writing(&mut self) {
        self.is_writable = false;
    }

    /// Whether the device may write to the bytes.
    #[inline]
    pub(super) fn is_writable(&self) -> bool {
        self.is_writable
    }

    #[inline]
    pub(crate) fn push(&mut self, address: u64, len: usize, key: LocalKey) {
        if self.is_strict {
            self.odd |= (key.context ^ self.context) as u64;
        } else {
            self.is_foreign |= key.context != self.context;
        }
        self.push_bytes(address, len, key.number);
    }

    /// What is copied from the address, or has a key of the right context.
    #[inline]
    pub(crate) fn push_bytes(&mut self, address: u64, len: usize, lkey: u32) {
        if self.is_strict {
            // 0 for a length from 1 to that of the longest message.
            self.odd |= (len as u64).wrapping_sub(1) / MAX_MESSAGE;
        } else if len == 0 {
            // To devices of several vendors an element of no bytes is one of 2^31.
            return;
        }
        if self.len < self.capacity {
            let element = sys::ibv_sge {
                addr: address,
                // What does not fit makes the sum of bytes too large.
                length: len as u32,
                lkey,
            };
            // SAFETY: the place is inside of the room, which is this list's.
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

    /// Whether the device can take it as it is. The limit is at least 1, and not above the capacity.
    #[inline]
    pub(super) fn fits(&self, limit: usize) -> bool {
        debug_assert!(self.is_strict);
        self.odd == 0 && (self.len <= 1 || (self.len <= limit && self.bytes <= MAX_MESSAGE))
    }

    /// Checks that the device can take it, with the number of elements that the queue pair has.
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
        // SAFETY: the list alone uses the room.
        test(&mut unsafe { ElementList::over(&mut room, None) });
    }

    #[test]
    fn lists_stay_within_elements_and_bytes() {
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
