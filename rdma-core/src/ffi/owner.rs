//! Memory that the program owns. A registration keeps such memory together with its owner.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::device_buffer::DeviceBuffer;
use crate::memory::HostMemory;

/// An owner of bytes that stay at a fixed address. No other code can access the bytes.
///
/// The bytes can be registered: [`ProtectionDomain::register`](crate::ProtectionDomain::register)
/// takes the owner, keeps it while the device may use the memory, and gives it back after the
/// deregistration.
///
/// The trait is implemented for `Vec<u8>` (its length, not its capacity), `Box<[u8]>`,
/// [`HostMemory`] and, with the feature `bytes`, for `bytes::BytesMut`.
///
/// # Safety
///
/// From the call of [`Self::memory`] until the value is used or dropped, the returned range must
///
/// - stay at the same address when the value is moved;
/// - be mapped, and valid for reads and writes of bytes, all of them initialised;
/// - be accessed only through the returned pointer, by this process and by every other process that
///   runs the program's code.
///
/// The conditions need not hold any longer once the value is dropped. The conditions must still
/// hold after the value was sent to another thread ([`Send`]).
pub unsafe trait StableMemoryMut: Send + 'static {
    /// Returns the address and length of the memory that `self` owns.
    fn memory(&mut self) -> NonNull<[u8]>;
}

/// An owner of read-only bytes that stay at a fixed address. Other code may read the bytes, but no
/// code writes to them.
///
/// The bytes can be registered for reading:
/// [`ProtectionDomain::register_shared`](crate::ProtectionDomain::register_shared).
///
/// The trait is implemented for `&'static [u8]`, `Arc<[u8]>`, `Arc<Vec<u8>>` and, with the feature
/// `bytes`, for `bytes::Bytes`.
///
/// # Safety
///
/// For as long as the value exists, the range that [`Self::memory`] returns must
///
/// - stay at the same address when the value is moved;
/// - be mapped, and valid for reads of bytes, all of them initialised;
/// - never be written.
pub unsafe trait StableMemory: Send + 'static {
    /// Returns the address and length of the memory that `self` keeps alive.
    fn memory(&self) -> NonNull<[u8]>;
}

// SAFETY: a vector owns its elements, which are on the heap and move only when the vector is used.
unsafe impl StableMemoryMut for Vec<u8> {
    fn memory(&mut self) -> NonNull<[u8]> {
        NonNull::from(self.as_mut_slice())
    }
}

// SAFETY: a box owns its content, which is on the heap.
unsafe impl StableMemoryMut for Box<[u8]> {
    fn memory(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut **self)
    }
}

// SAFETY: the value owns the allocation, whose address does not change until it is freed.
unsafe impl StableMemoryMut for HostMemory {
    fn memory(&mut self) -> NonNull<[u8]> {
        self.allocation().span()
    }
}

// SAFETY: the bytes of a `'static` reference never move and are never written.
unsafe impl StableMemory for &'static [u8] {
    fn memory(&self) -> NonNull<[u8]> {
        NonNull::from(*self)
    }
}

// SAFETY: the content of an `Arc` does not move, and is not written while it is shared. This value
// shares it.
unsafe impl StableMemory for Arc<[u8]> {
    fn memory(&self) -> NonNull<[u8]> {
        NonNull::from(&**self)
    }
}

// SAFETY: the vector inside a shared `Arc` does not change, so its elements stay where they are.
unsafe impl StableMemory for Arc<Vec<u8>> {
    fn memory(&self) -> NonNull<[u8]> {
        NonNull::from(self.as_slice())
    }
}

// SAFETY: a `BytesMut` has the sole access to its bytes, which do not move unless it is used.
#[cfg(feature = "bytes")]
unsafe impl StableMemoryMut for bytes::BytesMut {
    fn memory(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut **self)
    }
}

// SAFETY: the bytes of a `Bytes` are constant, and stay for as long as a clone of it exists.
#[cfg(feature = "bytes")]
unsafe impl StableMemory for bytes::Bytes {
    fn memory(&self) -> NonNull<[u8]> {
        NonNull::from(&**self)
    }
}

/// The memory of one or more registrations, together with its owner. A `Backing` returns only the
/// address of the memory. The types that contain a `Backing` decide when references to the memory
/// may exist ([`super::Span`], [`super::Exposed`]).
pub(crate) struct Backing {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    /// The device's buffer that contains all of the memory; `None` if the memory was not allocated
    /// by a device.
    buffer: Option<Arc<DeviceBuffer>>,
    /// The owner of the memory. Not accessed until it is returned or dropped: an access might
    /// invalidate `start`.
    owner: Box<dyn Any + Send>,
}

// SAFETY: the owner is `Send`; the types built on this one control access to its memory.
unsafe impl Send for Backing {}
// SAFETY: a shared `Backing` returns an address and gives no access to the owner.
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
    /// Creates a `Backing` that owns `owner` and its memory, so that the memory can be registered.
    /// The device may write to the memory. [`StableMemoryMut`] guarantees that no other code can
    /// access it.
    pub(crate) fn exclusive(owner: impl StableMemoryMut) -> Self {
        // The owner is boxed before `memory` is called: moving it afterwards could invalidate the
        // pointer.
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

    /// Creates a `Backing` that owns `owner` and its memory, so that the memory can be registered.
    /// The device may only read the memory, because other code may read it as well.
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

    /// Returns whether the owner of the memory has the type `O`. If so, [`Self::into_owner`] with
    /// this type returns the owner.
    pub(crate) fn is_owned_by<O: 'static>(&self) -> bool {
        self.owner.is::<O>()
    }

    /// Returns the owner of the memory: the value from which this `Backing` was created. Returns
    /// `self` if the owner does not have the type `O`.
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
