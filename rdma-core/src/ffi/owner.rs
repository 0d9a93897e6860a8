//! Memory of the program's own, which a registration borrows from its owner.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::device_buffer::DeviceBuffer;
use crate::memory::HostMemory;

/// An owner of bytes that stay where they are, and that nobody but it can reach.
///
/// Its memory can be registered: [`ProtectionDomain::register`](crate::ProtectionDomain::register)
/// takes the owner, keeps it while the device may use the memory, and gives it back after the
/// deregistration.
///
/// It is implemented for `Vec<u8>` (its length, not its capacity), `Box<[u8]>`, [`HostMemory`] and,
/// with the feature `bytes`, for `bytes::BytesMut`.
///
/// # Safety
///
/// [`Self::memory`] gives a range that, from then on until the value is used or dropped,
///
/// - lies at the same address, wherever the value is moved to;
/// - is mapped, and valid for reads and writes of bytes, all of them initialised;
/// - is accessed by nobody else, in this process or in another that runs the same program's code:
///   all access is through the pointer.
///
/// Dropping the value may end all that. Sending the value to another thread does not ([`Send`]).
pub unsafe trait StableMemoryMut: Send + 'static {
    /// The bytes.
    fn memory(&mut self) -> NonNull<[u8]>;
}

/// An owner of bytes that stay where they are, and that nobody writes to; others may read them.
///
/// Its memory can be registered for reading:
/// [`ProtectionDomain::register_shared`](crate::ProtectionDomain::register_shared).
///
/// It is implemented for `&'static [u8]`, `Arc<[u8]>`, `Arc<Vec<u8>>` and, with the feature `bytes`,
/// for `bytes::Bytes`.
///
/// # Safety
///
/// [`Self::memory`] gives a range that, for as long as the value exists,
///
/// - lies at the same address, wherever the value is moved to;
/// - is mapped, and valid for reads of bytes, all of them initialised;
/// - is written by nobody.
pub unsafe trait StableMemory: Send + 'static {
    /// The bytes.
    fn memory(&self) -> NonNull<[u8]>;
}

// SAFETY: a vector's elements are on the heap, and are its own. They do not move unless the vector
// is used.
unsafe impl StableMemoryMut for Vec<u8> {
    fn memory(&mut self) -> NonNull<[u8]> {
        NonNull::from(self.as_mut_slice())
    }
}

// SAFETY: a box's content is on the heap and its own.
unsafe impl StableMemoryMut for Box<[u8]> {
    fn memory(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut **self)
    }
}

// SAFETY: the allocation is its own, and has one address until it is dropped.
unsafe impl StableMemoryMut for HostMemory {
    fn memory(&mut self) -> NonNull<[u8]> {
        self.allocation().span()
    }
}

// SAFETY: constant for ever.
unsafe impl StableMemory for &'static [u8] {
    fn memory(&self) -> NonNull<[u8]> {
        NonNull::from(*self)
    }
}

// SAFETY: the content of an `Arc` does not move, and is not written while it is shared; this value
// is one who shares it.
unsafe impl StableMemory for Arc<[u8]> {
    fn memory(&self) -> NonNull<[u8]> {
        NonNull::from(&**self)
    }
}

// SAFETY: as above; the vector does not change, so that its elements stay as well.
unsafe impl StableMemory for Arc<Vec<u8>> {
    fn memory(&self) -> NonNull<[u8]> {
        NonNull::from(self.as_slice())
    }
}

// SAFETY: a `BytesMut` is the only one with access to its bytes, which do not move unless it is used.
#[cfg(feature = "bytes")]
unsafe impl StableMemoryMut for bytes::BytesMut {
    fn memory(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut **self)
    }
}

// SAFETY: the bytes of a `Bytes` are constant and stay for as long as one of its clones does.
#[cfg(feature = "bytes")]
unsafe impl StableMemory for bytes::Bytes {
    fn memory(&self) -> NonNull<[u8]> {
        NonNull::from(&**self)
    }
}

/// Memory behind registrations, with its owner. It gives out its address only; who may form
/// references into it is decided by the types built on it ([`super::Span`], [`super::Exposed`]).
pub(crate) struct Backing {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    /// The device's buffer that it is all inside of.
    buffer: Option<Arc<DeviceBuffer>>,
    /// Not touched until it is given back or dropped, since that might invalidate `start`.
    owner: Box<dyn Any + Send>,
}

// SAFETY: the owner is `Send`; access to its memory is governed by the types built on this.
unsafe impl Send for Backing {}
// SAFETY: as above: a shared `Backing` gives out an address, and no access to the owner.
unsafe impl Sync for Backing {}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backing")
            .field("start", &self.start)
            .field("len", &self.len)
            .field("writable", &self.writable)
            .finish_non_exhaustive()
    }
}

impl Backing {
    /// Memory that is its owner's alone.
    pub(crate) fn exclusive(owner: impl StableMemoryMut) -> Self {
        // The owner is put where it stays first: moving it later could invalidate the pointer.
        let mut owner = Box::new(owner);
        let host = (&*owner as &dyn Any).downcast_ref::<HostMemory>();
        let buffer = host.and_then(|memory| memory.allocation().device_buffer().cloned());
        let memory = owner.memory();
        Self {
            start: memory.cast(),
            len: memory.len(),
            writable: true,
            buffer,
            owner,
        }
    }

    /// Memory that is only read.
    pub(crate) fn shared(owner: impl StableMemory) -> Self {
        let owner = Box::new(owner);
        let memory = owner.memory();
        Self {
            start: memory.cast(),
            len: memory.len(),
            writable: false,
            buffer: None,
            owner,
        }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    pub(super) fn device_buffer(&self) -> Option<&Arc<DeviceBuffer>> {
        self.buffer.as_ref()
    }

    /// Whether the owner is of this type.
    pub(crate) fn is_owned_by<O: 'static>(&self) -> bool {
        self.owner.is::<O>()
    }

    /// The owner, if it is of this type.
    pub(crate) fn into_owner<O: 'static>(self) -> Result<O, Self> {
        let Self {
            start,
            len,
            writable,
            buffer,
            owner,
        } = self;
        owner.downcast().map(|owner| *owner).map_err(|owner| Self {
            start,
            len,
            writable,
            buffer,
            owner,
        })
    }
}
