//! A stretch of registered memory, and what may be done with it.

use std::sync::Arc;

use super::device::DeviceMemory;
use super::guarded::Missing;
use super::{Block, Piece, Place, copy, is_mapped, kernel};
use crate::context::Refusal;
use crate::proto::Misplaced;

/// A stretch of memory that was registered.
#[derive(Clone, Debug)]
pub struct Span {
    /// The first byte.
    address: usize,
    length: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// The program's.
    Mapped,
    /// The program's, which it has from the device.
    Allocated {
        /// Keeps the bytes at `address`.
        block: Arc<Block>,
    },
    /// The program's, which may come and go: copied by the kernel, which says when it is not there.
    OnDemand,
    /// The device's.
    Device {
        /// Keeps the bytes at `address`.
        _memory: Arc<DeviceMemory>,
    },
    /// No memory: reads give zeroes and writes vanish.
    Null,
}

/// The memory cannot be accessed as it is asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inaccessible;

impl Span {
    /// Makes a span of the program's memory from `address` on.
    ///
    /// # Safety
    /// Until the span and all its clones are gone, the caller makes sure that nobody on this side holds a reference to
    /// bytes that are written through the span, and that bytes which are unmapped meanwhile are not replaced by a
    /// mapping for anything else. Code that accesses the bytes at the same time must do so atomically, or accept the
    /// results that the C memory model allows.
    pub unsafe fn mapped(address: usize, length: u64) -> Self {
        Self {
            address,
            length,
            kind: Kind::Mapped,
        }
    }

    /// Makes a span of a part of memory that the device handed out. `None`: the part is not all inside of the block.
    ///
    /// # Safety
    /// All that write or read the bytes at the same time do it atomically, or live with what the C
    /// memory model says of them.
    pub unsafe fn allocated(block: &Arc<Block>, address: usize, length: u64) -> Option<Self> {
        block.place(address, length).map(|_| Self {
            address,
            length,
            kind: Kind::Allocated {
                block: Arc::clone(block),
            },
        })
    }

    /// Makes a span of the program's memory, parts of which may be unmapped: an access to those fails.
    ///
    /// # Safety
    /// The caller makes sure that nobody on this side holds a reference to bytes that are written through the span.
    pub unsafe fn on_demand(address: usize, length: u64) -> Self {
        Self {
            address,
            length,
            kind: Kind::OnDemand,
        }
    }

    /// Makes a span of a part of the device's memory. `None`: the part is not all inside of the memory.
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

    /// Makes a span without memory.
    pub fn null() -> Self {
        Self {
            address: 0,
            length: u64::MAX,
            kind: Kind::Null,
        }
    }

    /// Returns the first byte's address.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns whether this is memory of the program.
    pub fn is_program(&self) -> bool {
        matches!(
            self.kind,
            Kind::Mapped | Kind::Allocated { .. } | Kind::OnDemand
        )
    }

    /// Returns where a peer of the same host finds the bytes in the file of the block's arena. `None`: the device did
    /// not hand out this memory.
    pub fn place(&self) -> Option<(&Arc<Block>, Place)> {
        match &self.kind {
            Kind::Allocated { block } => Some((block, block.place(self.address, self.length)?)),
            _ => None,
        }
    }

    /// Returns whether there is no memory behind this.
    pub fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    /// Copies to all of it.
    pub(crate) fn copy_in(&self, data: &[u8]) -> Result<(), Refusal> {
        self.write(0, data).map_err(|_| Refusal::Fault)
    }

    /// Copies all of it.
    pub(crate) fn copy_out(&self, out: &mut [u8]) -> Result<(), Refusal> {
        self.read(0, out).map_err(|_| Refusal::Fault)
    }

    /// Copies the bytes from `offset` on to `out`.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Inaccessible> {
        let address = self.locate(offset, out.len())?;
        match self.kind {
            // SAFETY: the bytes are inside of the span, and the function that made it promised that nobody holds a
            // reference to them.
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

    /// Copies `data` to the bytes from `offset` on.
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Result<(), Inaccessible> {
        let address = self.locate(offset, data.len())?;
        match self.kind {
            // SAFETY: as in `read`.
            Kind::Mapped | Kind::Allocated { .. } | Kind::Device { .. } => unsafe {
                copy::write(address, data).map_err(|_| Inaccessible)
            },
            Kind::OnDemand => kernel::write(address, data).ok_or(Inaccessible),
            Kind::Null => Ok(()),
        }
    }

    /// Copies `length` bytes from `offset` on to those of another span, from `to_offset` on.
    #[inline]
    pub(super) fn copy_to(
        &self,
        offset: u64,
        to: &Self,
        to_offset: u64,
        length: usize,
    ) -> Result<(), Misplaced> {
        let from = self.locate(offset, length).map_err(|_| Misplaced::Here)?;
        let place = to.locate(to_offset, length).map_err(|_| Misplaced::There)?;
        match (&self.kind, &to.kind) {
            (
                Kind::Mapped | Kind::Allocated { .. } | Kind::Device { .. },
                Kind::Mapped | Kind::Allocated { .. } | Kind::Device { .. },
            ) => {
                // SAFETY: inside the spans, as in `read`.
                unsafe { copy::copy(from, place, length) }.map_err(|missing| match missing {
                    Missing::Source => Misplaced::Here,
                    Missing::Target => Misplaced::There,
                })?;
            }
            _ => {
                let mut done = 0;
                let mut room = [0; 1024];
                while done < length {
                    let part = room.len().min(length - done);
                    let bytes = &mut room[..part];
                    self.read(offset + done as u64, bytes)
                        .map_err(|_| Misplaced::Here)?;
                    to.write(to_offset + done as u64, bytes)
                        .map_err(|_| Misplaced::There)?;
                    done += part;
                }
            }
        }
        Ok(())
    }

    /// Returns the `length` bytes from `offset` on, to be read or, if `write`, written as well. `None`: they are not
    /// all inside, or may not be there.
    #[inline]
    pub(super) fn piece(&self, offset: u64, length: usize, write: bool) -> Option<Piece<'_>> {
        let address = self.locate(offset, length).ok()?;
        match self.kind {
            Kind::Mapped | Kind::Allocated { .. } | Kind::Device { .. } => {
                // SAFETY: inside the span, which the piece borrows, as in `read`.
                Some(unsafe { Piece::new(address, length, write) })
            }
            Kind::OnDemand | Kind::Null => None,
        }
    }

    /// Copies bytes from `offset` on to `to`, as many as that has room for.
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

    /// Copies all bytes of `from` to those from `offset` on.
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

    /// Calls `copy` for each part of a piece, with as much room, and the number of bytes before the part.
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

    /// Compares and swaps the eight bytes at `offset`; what they were.
    pub(super) fn compare_swap(
        &self,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Inaccessible> {
        let address = self.locate_word(offset)?;
        // SAFETY: inside the span, as in `read`, and aligned.
        unsafe { copy::compare_swap(address, compare, swap) }.map_err(|_| Inaccessible)
    }

    /// Adds to the eight bytes at `offset`; what they were.
    pub(super) fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Inaccessible> {
        let address = self.locate_word(offset)?;
        // SAFETY: as above.
        unsafe { copy::fetch_add(address, add) }.map_err(|_| Inaccessible)
    }

    /// Returns the address of `length` bytes from `offset` on.
    #[inline]
    fn locate(&self, offset: u64, length: usize) -> Result<usize, Inaccessible> {
        let end = offset.checked_add(length as u64).ok_or(Inaccessible)?;
        if end > self.length {
            return Err(Inaccessible);
        }
        Ok(self.address.wrapping_add(offset as usize))
    }

    /// Returns the address of the eight bytes at `offset`, for an atomic operation.
    fn locate_word(&self, offset: u64) -> Result<usize, Inaccessible> {
        let address = self.locate(offset, size_of::<u64>())?;
        match self.kind {
            Kind::Null => return Err(Inaccessible),
            Kind::Mapped | Kind::Allocated { .. } | Kind::Device { .. } => {}
            // On processors without guarded accesses, the access would end the program.
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
    fn copies_stay_inside_and_say_which_side_was_wrong() {
        let ((_one, small), (_other, large)) = (memory(64), memory(128));
        assert_eq!(small.copy_to(1, &large, 0, 64), Err(Misplaced::Here));
        assert_eq!(large.copy_to(0, &small, 1, 64), Err(Misplaced::There));
        assert_eq!(large.copy_to(128, &small, 64, 0), Ok(()));
        large.write(0, &[7; 128]).unwrap();
        assert_eq!(Span::null().copy_to(0, &large, 3, 100), Ok(()));
        assert_eq!(large.copy_to(0, &Span::null(), 1 << 40, 128), Ok(()));
        let mut bytes = [0; 128];
        large.read(0, &mut bytes).unwrap();
        assert_eq!(bytes.iter().filter(|byte| **byte == 7).count(), 28);
    }

    #[test]
    fn nothing_outside_is_touched() {
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
    fn a_null_span_gives_zeroes_and_swallows() {
        let span = Span::null();
        let mut bytes = [7; 9];
        span.write(1 << 40, &bytes).unwrap();
        span.read(1 << 40, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 9]);
        assert_eq!(span.fetch_add(0, 1), Err(Inaccessible));
    }

    #[test]
    fn atomics_of_many_threads_are_each_done_once() {
        let (_memory, span) = memory(16);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| assert!(span.fetch_add(8, 3).is_ok())));
            }
        });
        assert_eq!(span.compare_swap(8, 12_000, 5), Ok(12_000));
        assert_eq!(span.compare_swap(8, 12_000, 6), Ok(5));
    }

    #[test]
    fn memory_on_demand_may_be_missing() {
        let mut bytes = vec![1_u8; 64];
        let address = bytes.as_mut_ptr().expose_provenance();
        // SAFETY: nobody holds a reference to the bytes meanwhile.
        let span = unsafe { Span::on_demand(address, u64::MAX - address as u64) };
        span.write(3, &[5; 7]).unwrap();
        let mut back = [0; 7];
        span.read(3, &mut back).unwrap();
        assert_eq!(back, [5; 7]);
        assert_eq!(bytes[2..11], [1, 5, 5, 5, 5, 5, 5, 5, 1]);

        // SAFETY: the first page is mapped in no program.
        let nowhere = unsafe { Span::on_demand(0, 4096) };
        assert_eq!(nowhere.read(8, &mut back), Err(Inaccessible));
        assert_eq!(nowhere.write(8, &back), Err(Inaccessible));
        assert_eq!(nowhere.fetch_add(8, 1), Err(Inaccessible));
    }
}
