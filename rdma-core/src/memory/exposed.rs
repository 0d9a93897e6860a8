//! Memory that peers can reach.

use std::ops::{Range, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::buffer::resolve;
use super::gather::{Elements, Gather, Scatter, out_of_range, sealed};
use super::{AccessFlags, Buffer, RemoteMemory};
use crate::error::{Error, Result};
use crate::ffi::{Exposed, RegionHandle};

/// Memory, or a part of it, that peers can reach by RDMA for as long as it is exposed.
///
/// A peer may write at any moment, so this is never a slice: it is read and written by copies, each
/// byte (each aligned eight bytes) an atomic of its own. Clones and parts share the memory. The same
/// memory can be the local side of any number of requests at once.
///
/// ```compile_fail,E0608
/// # fn example(exposed: rdma_core::ExposedMemory) {
/// println!("{}", exposed[0]);
/// # }
/// ```
///
/// The grant ends at the device, with [`Self::revoke`] or when the last clone is dropped: a peer
/// that comes later gets a remote access error.
#[derive(Debug, Clone)]
pub struct ExposedMemory {
    exposed: Arc<Exposed>,
    range: Range<usize>,
    access: AccessFlags,
}

impl ExposedMemory {
    pub(crate) fn new(exposed: Exposed, access: AccessFlags) -> Self {
        let range = 0..exposed.len();
        Self {
            exposed: Arc::new(exposed),
            range,
            access,
        }
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// What the device lets peers do, and, as every grant does, itself.
    pub fn access(&self) -> AccessFlags {
        self.access
    }

    /// The C object of the registration that grants it, valid for as long as this.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_mr {
        self.exposed.lease().as_raw()
    }

    pub(super) fn lease(&self) -> &RegionHandle {
        self.exposed.lease()
    }

    /// What a peer needs to reach it.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            address: self.exposed.address().wrapping_add(self.range.start as u64),
            len: self.range.len() as u64,
            rkey: self.exposed.lease().rkey(),
        }
    }

    /// A part of it, sharing the memory.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = resolve(range, self.range.len())?;
        let start = self.range.start;
        let range = start + range.start..start + range.end;
        Ok(Self {
            exposed: Arc::clone(&self.exposed),
            range,
            access: self.access,
        })
    }

    /// Copies `to.len()` bytes out, from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if they are not inside.
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.exposed.read(self.inside(offset, to.len())?, to);
        Ok(())
    }

    /// Copies `from` in, from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if it would not fit inside.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.exposed.write(self.inside(offset, from.len())?, from);
        Ok(())
    }

    /// Reads the byte at `offset`, with acquire ordering: what the writer wrote before it is seen.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if it is not inside.
    #[inline]
    pub fn load_u8(&self, offset: usize) -> Result<u8> {
        Ok(self
            .exposed
            .byte(self.inside(offset, 1)?)
            .load(Ordering::Acquire))
    }

    /// Writes the byte at `offset`, with release ordering.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if it is not inside.
    #[inline]
    pub fn store_u8(&self, offset: usize, value: u8) -> Result<()> {
        self.exposed
            .byte(self.inside(offset, 1)?)
            .store(value, Ordering::Release);
        Ok(())
    }

    /// Reads the eight bytes at `offset` at once, in the host's byte order, with acquire ordering.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if they are not inside, [`Error::InvalidArgument`] if their address is
    /// not a multiple of eight.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        Ok(self
            .exposed
            .word(self.word(offset)?)
            .load(Ordering::Acquire))
    }

    /// Writes the eight bytes at `offset` at once, in the host's byte order, with release ordering.
    ///
    /// # Errors
    ///
    /// As [`Self::load_u64`].
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<()> {
        self.exposed
            .word(self.word(offset)?)
            .store(value, Ordering::Release);
        Ok(())
    }

    /// Ends the grant at the device; the memory is the owner's alone again, and a slice.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] and the memory, if clones or parts of it are held or in flight; or the
    /// device's error, with the memory still exposed.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn revoke(self) -> Result<Buffer, (Self, Error)> {
        let Self {
            exposed,
            range,
            access,
        } = self;
        let whole = |exposed| Self {
            exposed,
            range,
            access,
        };
        match Arc::try_unwrap(exposed) {
            Ok(mut exposed) => match exposed.end() {
                Ok(()) => Ok(Buffer::new(exposed.into_span())),
                Err(error) => Err((whole(Arc::new(exposed)), error)),
            },
            Err(exposed) => Err((
                whole(exposed),
                Error::InUse {
                    holder: "a clone of the exposed memory",
                },
            )),
        }
    }

    /// The place of `offset` in the whole memory, if `len` bytes from there on lie inside.
    #[inline]
    fn inside(&self, offset: usize, len: usize) -> Result<usize> {
        match offset.checked_add(len) {
            Some(end) if end <= self.range.len() => Ok(self.range.start + offset),
            end => Err(out_of_range(
                &(offset..end.unwrap_or(usize::MAX)),
                self.range.len(),
            )),
        }
    }

    #[inline]
    fn word(&self, offset: usize) -> Result<usize> {
        let place = self.inside(offset, size_of::<u64>())?;
        if self.exposed.is_aligned(place, size_of::<u64>()) {
            return Ok(place);
        }
        Err(Error::invalid(
            "eight-byte word",
            format!("offset {offset} is not aligned to 8 bytes"),
        ))
    }
}

impl sealed::Sealed for ExposedMemory {}

impl sealed::Contiguous for ExposedMemory {
    #[inline]
    fn address(&self) -> u64 {
        self.exposed.address().wrapping_add(self.range.start as u64)
    }

    #[inline]
    fn size(&self) -> usize {
        self.range.len()
    }

    #[inline]
    fn lkey(&self) -> u32 {
        self.exposed.lease().lkey()
    }

    #[inline]
    fn is_mapped(&self) -> bool {
        self.exposed.lease().is_mapped()
    }
}

impl Gather for ExposedMemory {
    #[inline]
    fn gather(&self, elements: &mut Elements<'_>) {
        elements.push(self);
    }
}

impl Scatter for ExposedMemory {}
