//! Ranges of registered memory, with reads, writes and atomic operations on their bytes.

use std::sync::Arc;

use super::device::DeviceMemory;
use super::guarded::Missing;
use super::{ArenaLocation, Block, Piece, copy, is_mapped, kernel};
use crate::context::Refusal;
use crate::proto::CopyError;

/// Contiguous range of registered memory. The range is memory of the program, device memory, or the
/// range of the null region, which has no memory.
#[derive(Clone, Debug)]
pub struct Span {
    /// Address of the first byte in this process.
    address: usize,
    length: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Memory of the program.
    Mapped,
    /// Memory of the program that was allocated from the device's arena (shared file).
    Allocated {
        /// Block of the arena that contains the bytes of the span.
        block: Arc<Block>,
    },
    /// Memory of the program that may be unmapped at times (on-demand region). System calls copy
    /// the bytes, and report unmapped ones.
    OnDemand,
    /// Device memory.
    Device {
        /// Device memory that contains the bytes, which must not be freed before the span.
        _memory: Arc<DeviceMemory>,
    },
    /// No memory (null region): reads return zeroes, and writes are discarded.
    Null,
}

/// Error of an access to a span (range of registered memory): the bytes are not inside the span,
/// not mapped, not writable, or not aligned for an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inaccessible;

impl Span {
    /// Creates a span of `length` mapped bytes of the program's memory at `address`.
    ///
    /// # Safety
    /// While the span or a clone of it exists, the caller must ensure that:
    /// - no references exist in this process to bytes that are written through the span;
    /// - if bytes of the span are unmapped, nothing else is mapped at their addresses;
    /// - code that accesses the bytes concurrently does so atomically, or accepts the results that
    ///   the C memory model allows.
    pub unsafe fn mapped(address: usize, length: u64) -> Self {
        Self {
            address,
            length,
            kind: Kind::Mapped,
        }
    }

    /// Creates a span (range of registered memory) of `length` bytes at `address`, inside the block
    /// `block` of memory that was allocated from the device's in-memory file. Returns `None` if the
    /// bytes are not inside the block.
    ///
    /// # Safety
    /// The device and peers may access the bytes at any time. The caller must ensure that other
    /// code that accesses them concurrently does so atomically, or accepts the results that the C
    /// memory model allows.
    pub unsafe fn allocated(block: &Arc<Block>, address: usize, length: u64) -> Option<Self> {
        block.place(address, length).map(|_| Self {
            address,
            length,
            kind: Kind::Allocated {
                block: Arc::clone(block),
            },
        })
    }

    /// Creates a span (range of registered memory) of `length` bytes of the program's memory at
    /// `address`, for an on-demand region (registered with `IBV_ACCESS_ON_DEMAND`). Bytes may be
    /// unmapped at times. An access to unmapped bytes fails.
    ///
    /// # Safety
    /// The caller must ensure that no references exist in this process to bytes that are written
    /// through the span.
    pub unsafe fn on_demand(address: usize, length: u64) -> Self {
        Self {
            address,
            length,
            kind: Kind::OnDemand,
        }
    }

    /// Creates a span of `length` bytes at `offset` of the device memory `memory`. Returns `None`
    /// if the range is not inside the memory.
    pub fn device(memory: &Arc<DeviceMemory>, offset: u64, length: u64) -> Option<Self> {
        let end = offset.checked_add(length)?;
        (end <= memory.length()).then(|| Self {
            address: memory.address() + offset as usize,
            length,
            kind: Kind::Device {
                _memory: Arc::clone(memory),
            },
        })
    }

    /// Creates the span of the null region (`ibv_alloc_null_mr`), which has no memory: reads return
    /// zeroes, and writes are discarded.
    pub fn null() -> Self {
        Self {
            address: 0,
            length: u64::MAX,
            kind: Kind::Null,
        }
    }

    /// Returns the address of the first byte of this range of registered memory.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Returns the length of this range of registered memory in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns whether the bytes of the span are memory of the program. Returns `false` for device
    /// memory, and for the null region, which has no memory.
    pub fn is_program(&self) -> bool {
        matches!(
            self.kind,
            Kind::Mapped | Kind::Allocated { .. } | Kind::OnDemand
        )
    }

    /// Returns the block of the arena (shared file) that contains the span, and the span's location
    /// in the file. Returns `None` if the memory was not allocated from the arena.
    pub fn place(&self) -> Option<(&Arc<Block>, ArenaLocation)> {
        match &self.kind {
            Kind::Allocated { block } => Some((block, block.place(self.address, self.length)?)),
            _ => None,
        }
    }

    /// Returns whether this range belongs to the null region (`ibv_alloc_null_mr`), which has no
    /// memory.
    pub fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    /// Copies `data` to the beginning of the span. Fails if the span is shorter than `data`, or if
    /// not all of these bytes are writable.
    pub(crate) fn copy_in(&self, data: &[u8]) -> Result<(), Refusal> {
        self.write(0, data).map_err(|_| Refusal::Fault)
    }

    /// Copies `out.len()` bytes from the beginning of this range of registered memory to `out`.
    /// Fails if the range has fewer bytes, or if not all of these bytes are readable.
    pub(crate) fn copy_out(&self, out: &mut [u8]) -> Result<(), Refusal> {
        self.read(0, out).map_err(|_| Refusal::Fault)
    }

    /// Copies `out.len()` bytes of this range of registered memory to `out`. The bytes begin at
    /// byte `offset` of the range.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Inaccessible> {
        let address = self.locate(offset, out.len())?;
        match self.kind {
            // SAFETY: the bytes are inside the span, whose creator guarantees that no references to
            // them exist.
            Kind::Mapped | Kind::Allocated { .. } | Kind::Device { .. } => unsafe {
                copy::read(address, out).map_err(|_| Inaccessible)
            },
            Kind::OnDemand => kernel::read(address, out).ok_or(Inaccessible),
            Kind::Null => {
                out.fill(0);
                Ok(())
            }
        }
    }

    /// Copies `data` to this range of registered memory, beginning at byte `offset` of the range.
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Result<(), Inaccessible> {
        let address = self.locate(offset, data.len())?;
        match self.kind {
            // SAFETY: the bytes are inside the span, whose creator guarantees that no references to
            // them exist.
            Kind::Mapped | Kind::Allocated { .. } | Kind::Device { .. } => unsafe {
                copy::write(address, data).map_err(|_| Inaccessible)
            },
            Kind::OnDemand => kernel::write(address, data).ok_or(Inaccessible),
            Kind::Null => Ok(()),
        }
    }

    /// Copies `length` bytes of this span (range of registered memory) to the span `to`. The bytes
    /// begin at `offset` in this span, and at `to_offset` in the other span.
    #[inline]
    pub(super) fn copy_to(
        &self,
        offset: u64,
        to: &Self,
        to_offset: u64,
        length: usize,
    ) -> Result<(), CopyError> {
        let from = self.locate(offset, length).map_err(|_| CopyError::Local)?;
        let place = to.locate(to_offset, length).map_err(|_| CopyError::Peer)?;
        match (&self.kind, &to.kind) {
            (
                Kind::Mapped | Kind::Allocated { .. } | Kind::Device { .. },
                Kind::Mapped | Kind::Allocated { .. } | Kind::Device { .. },
            ) => {
                // SAFETY: the bytes are inside the spans, whose creators guarantee that no
                // references to them exist.
                unsafe { copy::copy(from, place, length) }.map_err(|missing| match missing {
                    Missing::Source => CopyError::Local,
                    Missing::Target => CopyError::Peer,
                })?;
            }
            _ => {
                let mut done = 0;
                let mut room = [0; 1024];
                while done < length {
                    let part = room.len().min(length - done);
                    let bytes = &mut room[..part];
                    self.read(offset + done as u64, bytes)
                        .map_err(|_| CopyError::Local)?;
                    to.write(to_offset + done as u64, bytes)
                        .map_err(|_| CopyError::Peer)?;
                    done += part;
                }
            }
        }
        Ok(())
    }

    /// Returns the `length` bytes at `offset` of the span as a [`Piece`] (borrowed memory range),
    /// writable if `write` is set. Returns `None` if the bytes are not inside the span, if they may
    /// be unmapped (on-demand region), or if the span has no memory (null region).
    #[inline]
    pub(super) fn piece(&self, offset: u64, length: usize, write: bool) -> Option<Piece<'_>> {
        let address = self.locate(offset, length).ok()?;
        match self.kind {
            Kind::Mapped | Kind::Allocated { .. } | Kind::Device { .. } => {
                // SAFETY: the bytes are inside the span, which the piece borrows. The span's
                // creator guarantees that no references to them exist.
                Some(unsafe { Piece::new(address, length, write) })
            }
            Kind::OnDemand | Kind::Null => None,
        }
    }

    /// Copies bytes of this span (range of registered memory) to the whole memory range `to`. The
    /// bytes begin at byte `offset` of the span. Fails if the bytes are not inside the span, or if
    /// bytes of either range cannot be accessed.
    #[inline]
    pub(super) fn copy_to_piece(&self, offset: u64, to: &Piece<'_>) -> Result<(), Inaccessible> {
        if let Some(from) = self.piece(offset, to.length(), false) {
            return from.copy_to(to).ok_or(Inaccessible);
        }
        self.by_parts(to, |room, done, part| {
            self.read(offset + done, room)?;
            Piece::of(room).copy_to(part).ok_or(Inaccessible)
        })
    }

    /// Copies all bytes of the memory range `from` to this range of registered memory, beginning at
    /// byte `offset`. Fails if not all bytes are inside this range and accessible.
    #[inline]
    pub(super) fn copy_from_piece(
        &self,
        offset: u64,
        from: &Piece<'_>,
    ) -> Result<(), Inaccessible> {
        if let Some(to) = self.piece(offset, from.length(), true) {
            return from.copy_to(&to).ok_or(Inaccessible);
        }
        self.by_parts(from, |room, done, part| {
            part.copy_to(&Piece::of_mut(room)).ok_or(Inaccessible)?;
            self.write(offset + done, room)
        })
    }

    /// Splits the memory range `piece` into parts of at most 1024 bytes, and calls `copy` for each
    /// part. `copy` gets three arguments: a temporary buffer with the length of the part, the
    /// offset of the part in `piece`, and the part. Stops at the first error of `copy`.
    #[cold]
    fn by_parts(
        &self,
        piece: &Piece<'_>,
        mut copy: impl FnMut(&mut [u8], u64, &Piece<'_>) -> Result<(), Inaccessible>,
    ) -> Result<(), Inaccessible> {
        let mut room = [0; 1024];
        for begin in (0..piece.length()).step_by(room.len()) {
            let end = piece.length().min(begin + room.len());
            for part in Piece::parts(&[*piece], begin..end) {
                copy(&mut room[..end - begin], begin as u64, &part)?;
            }
        }
        Ok(())
    }

    /// Executes an atomic compare and swap on the eight bytes at `offset` of the span: replaces the
    /// bytes by `swap` if they equal `compare`. Returns the previous value of the bytes.
    pub(super) fn compare_swap(
        &self,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Inaccessible> {
        let address = self.locate_word(offset)?;
        // SAFETY: the word is aligned and inside the span, whose creator guarantees that no
        // references to it exist.
        unsafe { copy::compare_swap(address, compare, swap) }.map_err(|_| Inaccessible)
    }

    /// Executes an atomic fetch and add on the eight bytes at `offset` of the span: adds `add` to
    /// their value. Returns the previous value.
    pub(super) fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Inaccessible> {
        let address = self.locate_word(offset)?;
        // SAFETY: the word is aligned and inside the span, whose creator guarantees that no
        // references to it exist.
        unsafe { copy::fetch_add(address, add) }.map_err(|_| Inaccessible)
    }

    /// Writes `value` to the eight bytes of the span at `offset`, in one atomic access.
    pub(super) fn store(&self, offset: u64, value: u64) -> Result<(), Inaccessible> {
        let mut before = self.fetch_add(offset, 0)?;
        loop {
            let found = self.compare_swap(offset, before, value)?;
            if found == before {
                return Ok(());
            }
            // Another processor has changed the bytes meanwhile.
            before = found;
        }
    }

    /// Returns the address of the byte at `offset` in this range of registered memory. Fails if the
    /// range does not contain `length` bytes from this offset on.
    #[inline]
    fn locate(&self, offset: u64, length: usize) -> Result<usize, Inaccessible> {
        let end = offset.checked_add(length as u64).ok_or(Inaccessible)?;
        if end > self.length {
            return Err(Inaccessible);
        }
        Ok(self.address.wrapping_add(offset as usize))
    }

    /// Returns the address of the eight bytes at `offset` of the span, for an atomic operation.
    /// Fails if the bytes are not inside the span or not aligned. Also fails for the null region,
    /// and for bytes of an on-demand region that are not mapped and writable.
    fn locate_word(&self, offset: u64) -> Result<usize, Inaccessible> {
        let address = self.locate(offset, size_of::<u64>())?;
        match self.kind {
            Kind::Null => return Err(Inaccessible),
            Kind::Mapped | Kind::Allocated { .. } | Kind::Device { .. } => {}
            // Without this check, the access would end the program on processors without guarded
            // accesses.
            Kind::OnDemand if !is_mapped(address, size_of::<u64>() as u64, true) => {
                return Err(Inaccessible);
            }
            Kind::OnDemand => {}
        }
        (address.is_multiple_of(8))
            .then_some(address)
            .ok_or(Inaccessible)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(length: u64) -> (Arc<DeviceMemory>, Span) {
        let memory = DeviceMemory::new(length).unwrap();
        let span = Span::device(&memory, 0, length).unwrap();
        (memory, span)
    }

    #[test]
    fn copies_stay_inside_and_errors_name_the_failing_side() {
        let ((_one, small), (_other, large)) = (memory(64), memory(128));
        assert_eq!(small.copy_to(1, &large, 0, 64), Err(CopyError::Local));
        assert_eq!(large.copy_to(0, &small, 1, 64), Err(CopyError::Peer));
        assert_eq!(large.copy_to(128, &small, 64, 0), Ok(()));
        large.write(0, &[7; 128]).unwrap();
        assert_eq!(Span::null().copy_to(0, &large, 3, 100), Ok(()));
        assert_eq!(large.copy_to(0, &Span::null(), 1 << 40, 128), Ok(()));
        let mut bytes = [0; 128];
        large.read(0, &mut bytes).unwrap();
        assert_eq!(bytes.iter().filter(|byte| **byte == 7).count(), 28);
    }

    #[test]
    fn no_memory_outside_is_accessed() {
        let (memory, span) = memory(64);
        let mut byte = [0];
        assert_eq!(span.read(64, &mut byte), Err(Inaccessible));
        assert_eq!(span.write(u64::MAX, &byte), Err(Inaccessible));
        assert_eq!(span.read(64, &mut []), Ok(()));
        assert_eq!(span.fetch_add(57, 1), Err(Inaccessible));
        assert_eq!(span.fetch_add(4, 1), Err(Inaccessible), "not aligned");
        assert!(Span::device(&memory, 1, 64).is_none());
        assert!(Span::device(&memory, u64::MAX, 2).is_none());
    }

    #[test]
    fn a_null_span_reads_as_zeros_and_ignores_writes() {
        let span = Span::null();
        let mut bytes = [7; 9];
        span.write(1 << 40, &bytes).unwrap();
        span.read(1 << 40, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 9]);
        assert_eq!(span.fetch_add(0, 1), Err(Inaccessible));
    }

    #[test]
    fn atomic_operations_of_several_threads_are_each_executed_once() {
        let (_memory, span) = memory(16);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| assert!(span.fetch_add(8, 3).is_ok())));
            }
        });
        assert_eq!(span.compare_swap(8, 12_000, 5), Ok(12_000));
        assert_eq!(span.compare_swap(8, 12_000, 6), Ok(5));
        assert_eq!(span.store(8, 9), Ok(()));
        assert_eq!(span.fetch_add(8, 0), Ok(9));
        assert_eq!(span.store(4, 1), Err(Inaccessible), "not aligned");
        assert_eq!(span.store(16, 1), Err(Inaccessible));
    }

    #[test]
    fn unmapped_memory_for_on_demand_paging_is_an_error() {
        let mut bytes = vec![1_u8; 64];
        let address = bytes.as_mut_ptr().expose_provenance();
        // SAFETY: no references to the bytes exist while the span does.
        let span = unsafe { Span::on_demand(address, u64::MAX - address as u64) };
        span.write(3, &[5; 7]).unwrap();
        let mut back = [0; 7];
        span.read(3, &mut back).unwrap();
        assert_eq!(back, [5; 7]);
        assert_eq!(bytes[2..11], [1, 5, 5, 5, 5, 5, 5, 5, 1]);

        // SAFETY: no program maps the first page.
        let nowhere = unsafe { Span::on_demand(0, 4096) };
        assert_eq!(nowhere.read(8, &mut back), Err(Inaccessible));
        assert_eq!(nowhere.write(8, &back), Err(Inaccessible));
        assert_eq!(nowhere.fetch_add(8, 1), Err(Inaccessible));
    }
}
