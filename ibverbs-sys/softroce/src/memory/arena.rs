#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use super::extents::Extents;
use super::segment::{self, HUGE, Segment};
use crate::context::Refusal;
use crate::descriptor::Descriptor;

/// Memory that the device hands out for regions (`ibv_alloc_buf`): one file in memory, of which peers
/// of the same host can map parts, too.
///
/// The file grows by segments, each of them one mapping, here and at a peer. A [`Block`] is a part of a
/// segment. Its pages are there, zeroed, when it is made, and given back to the system when the last that
/// uses it is gone: who allocated it, and each region that was registered of it.
///
/// The file cannot be made shorter, not by a peer either, so whoever maps it can touch all of the mapping.
/// A peer can write to all of it. Peers are those that could as well write to the process's memory by
/// `process_vm_writev`.
pub struct Arena {
    file: Descriptor,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    segments: Vec<Part>,
    /// By their addresses.
    blocks: BTreeMap<usize, Weak<Block>>,
    /// The size of the file.
    end: u64,
}

/// A segment, and what is free of it.
struct Part {
    segment: Segment,
    free: Extents,
}

/// Memory of the [`Arena`], until it is dropped.
pub struct Block {
    arena: Arc<Arena>,
    address: usize,
    length: usize,
    offset: u64,
    segment: Range<u64>,
}

/// Place of bytes of the process in a file that a peer of the same host can map: all that the peer must know, apart
/// from the descriptor itself.
///
/// Code that passes a place to a peer makes sure that the peer no longer touches the bytes when the block is dropped:
/// then they are handed out anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// In the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The part of the file that a peer should map at once: it is mapped as a whole here, and other blocks are in it.
    /// The part begins and ends at a multiple of two megabytes.
    pub segment: Range<u64>,
}

/// The size of a segment, unless a block needs a larger one.
const SEGMENT: usize = 64 << 20;

/// From here on the system is asked beforehand whether it has so much memory.
const MUCH: usize = 16 << 20;

impl Arena {
    /// Makes an arena without memory.
    pub fn new() -> io::Result<Arc<Self>> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Kernels before 6.3 do not know that it is no program; newer ones may want to be told.
        let file = Descriptor::open(|| {
            rustix::fs::memfd_create("softroce", flags | MemfdFlags::NOEXEC_SEAL)
                .or_else(|_| rustix::fs::memfd_create("softroce", flags))
        })?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(Arc::new(Self {
            file,
            state: Mutex::default(),
        }))
    }

    /// Makes a block of at least `length` zeroed bytes, page-aligned, and aligned to huge pages where it
    /// fills one.
    pub fn allocate(self: &Arc<Self>, length: usize) -> Result<Arc<Block>, Refusal> {
        let length = length
            .checked_next_multiple_of(segment::page_size())
            .filter(|length| isize::try_from(*length).is_ok())
            .ok_or(Refusal::Exhausted)?;
        if length == 0 {
            return Err(Refusal::Invalid);
        }
        if length >= MUCH && available().is_some_and(|available| length as u64 > available) {
            return Err(Refusal::Exhausted);
        }
        let block = self.place(length)?;
        // The block is given back on every failure here.
        segment::populate(block.address, length).map_err(|_| Refusal::Exhausted)?;
        Ok(block)
    }

    /// Returns the block that all of these bytes are in.
    pub fn find(&self, address: usize, length: u64) -> Option<Arc<Block>> {
        let block = {
            let state = self.state.lock();
            let (_, block) = state.blocks.range(..=address).next_back()?;
            block.upgrade()?
        };
        // Not under the lock, which a block takes that was dropped by all others meanwhile.
        block.place(address, length).is_some().then_some(block)
    }

    fn place(self: &Arc<Self>, length: usize) -> Result<Arc<Block>, Refusal> {
        let align = if length >= HUGE {
            HUGE
        } else {
            segment::page_size()
        };
        let mut state = self.state.lock();
        let mut parts = state.segments.iter_mut();
        let found = parts.find_map(|part| part.take(length, align));
        let (address, offset, segment) = match found {
            Some(found) => found,
            None => {
                let part = self.grow(&mut state, length)?;
                part.take(length, align).ok_or(Refusal::Exhausted)?
            }
        };
        let block = Arc::new(Block {
            arena: Arc::clone(self),
            address,
            length,
            offset,
            segment,
        });
        state.blocks.insert(address, Arc::downgrade(&block));
        Ok(block)
    }

    /// Makes a new segment with room for `length` bytes.
    fn grow<'a>(&self, state: &'a mut State, length: usize) -> Result<&'a mut Part, Refusal> {
        let size = length.max(SEGMENT).checked_next_multiple_of(HUGE);
        let size = size.ok_or(Refusal::Exhausted)?;
        let end = state.end + size as u64;
        if end > segment::file_size_limit() {
            return Err(Refusal::Exhausted);
        }
        if !self.file.check() {
            return Err(Refusal::Exhausted);
        }
        // First what is likely to fail: the file cannot be made shorter again.
        let segment = Segment::map(self.file.as_fd(), state.end, size);
        let segment = segment.map_err(|_| Refusal::Exhausted)?;
        rustix::fs::ftruncate(&self.file, end).map_err(|_| Refusal::Exhausted)?;
        state.end = end;
        let free = Extents::new(size);
        state.segments.push(Part { segment, free });
        state.segments.last_mut().ok_or(Refusal::Exhausted)
    }

    /// Gives the pages of a block that is no longer used back to the system, which leaves zeroes in their place.
    fn take_back(&self, block: &Block) {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let length = block.length as u64;
        let is_empty = self.file.check()
            && rustix::fs::fallocate(&self.file, hole, block.offset, length).is_ok();
        let mut state = self.state.lock();
        state.blocks.remove(&block.address);
        if !is_empty {
            // The old contents must not be visible to the next owner.
            return;
        }
        let mut parts = state.segments.iter();
        let Some(at) = parts.position(|part| part.segment.place() == block.segment) else {
            return;
        };
        let part = &mut state.segments[at];
        let start = block.address - part.segment.address();
        part.free.give_back(start, block.length);
        if part.segment.length() > SEGMENT && part.free.are_whole() {
            state.segments.swap_remove(at);
        }
    }
}

impl AsFd for Arena {
    /// Returns the file.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Arena")
            .field("segments", &state.segments.len())
            .field("blocks", &state.blocks.len())
            .field("end", &state.end)
            .finish_non_exhaustive()
    }
}

impl Part {
    /// Takes room for a block. Returns its address, its offset in the file, and the place of the segment.
    fn take(&mut self, length: usize, align: usize) -> Option<(usize, u64, Range<u64>)> {
        let start = self.free.take(length, align)?;
        let segment = self.segment.place();
        let offset = segment.start + start as u64;
        Some((self.segment.address() + start, offset, segment))
    }
}

impl Block {
    /// Returns the address of the first byte.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Returns the length in bytes: whole pages.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the arena that the block is a part of.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Returns where in the arena's file these bytes are. `None`: they are not all in the block.
    pub fn place(&self, address: usize, length: u64) -> Option<Place> {
        let start = address.checked_sub(self.address)? as u64;
        let size = self.length as u64;
        (start <= size && length <= size - start).then(|| Place {
            offset: self.offset + start,
            length,
            segment: self.segment.clone(),
        })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.take_back(self);
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("address", &self.address)
            .field("length", &self.length)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

/// Returns how many bytes of memory programs can still have, if the system tells it.
fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kilobytes = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let swap = kilobytes("SwapFree:").unwrap_or_default();
    kilobytes("MemAvailable:")?
        .checked_add(swap)?
        .checked_mul(1024)
}
