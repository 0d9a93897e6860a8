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

use super::range_allocator::RangeAllocator;
use super::segment::{self, HUGE, Segment};
use crate::context::Refusal;
use crate::descriptor::Descriptor;

/// An arena: an in-memory file from which the device allocates memory for regions
/// (`ibv_alloc_buf`). Peer processes of the same host can map parts of the file.
///
/// The file grows by segments. Each segment is a single mapping, in this process and in peers. A
/// [`Block`] is an allocated range within a segment. The pages of a block are allocated and zeroed
/// when the block is allocated. The program's allocation and each region in the block hold a
/// reference to the block. When the last reference is dropped, the pages are returned to the
/// system.
///
/// The file is sealed against shrinking, so a process can access all of a mapping without a fault.
/// A peer can write to all of the file. Only dumpable processes of the same user become peers,
/// because the kernel usually lets such a process write to this process's memory anyway.
pub struct Arena {
    file: Descriptor,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    segments: Vec<ArenaSegment>,
    /// Blocks of the arena that are in use, by the addresses of their first bytes.
    blocks: BTreeMap<usize, Weak<Block>>,
    /// Size of the arena's file in bytes.
    end: u64,
}

/// A segment (range) of the in-memory file from which memory for regions is allocated. Contains the
/// mapping of the segment, and an allocator of its free ranges.
struct ArenaSegment {
    segment: Segment,
    free: RangeAllocator,
}

/// A block of memory that was allocated from an [`Arena`]. Dropping the last reference to the block
/// returns the memory to the system.
pub struct Block {
    arena: Arc<Arena>,
    address: usize,
    length: usize,
    offset: u64,
    segment: Range<u64>,
}

/// Location of bytes in the file of an [`Arena`]. A peer process of the same host that has the
/// location and the file's descriptor can map the bytes.
///
/// Code that passes a location to a peer must ensure that the peer no longer accesses the bytes
/// when the block is dropped, because the arena then reuses them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaLocation {
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Number of bytes at this location.
    pub length: u64,
    /// Range in the file of the segment that contains the bytes. A peer should map the segment as a
    /// whole, as this process does. The segment may also contain other blocks. The start and end of
    /// the segment are multiples of 2 MiB.
    pub segment: Range<u64>,
}

/// Minimum length in bytes of a segment (one mapping of a part of the arena's file). With long
/// segments, many blocks share a mapping, and peers need few mappings. A longer block gets a longer
/// segment.
const MIN_SEGMENT: usize = 64 << 20;

/// Minimum length in bytes of a block for which the device checks the free memory of the system
/// before it allocates the block. For shorter blocks, reading `/proc/meminfo` is not worth the
/// time.
const CHECKED_LENGTH: usize = 16 << 20;

impl Arena {
    /// Creates an in-memory file from which programs allocate memory
    /// ([`allocate`](Self::allocate)). The file is empty at first, and grows when memory is
    /// allocated. Fails if the file cannot be created.
    pub fn new() -> io::Result<Arc<Self>> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Kernels before 6.3 do not support this flag; newer kernels may require it.
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

    /// Allocates a [`Block`] of at least `length` zeroed bytes from the in-memory file of this
    /// arena. The block is aligned to a page, or to a huge page if `length` is at least the size of
    /// a huge page. Fails if `length` is 0, or if not enough memory is free.
    pub fn allocate(self: &Arc<Self>, length: usize) -> Result<Arc<Block>, Refusal> {
        let length = length
            .checked_next_multiple_of(segment::page_size())
            .filter(|length| isize::try_from(*length).is_ok())
            .ok_or(Refusal::Exhausted)?;
        if length == 0 {
            return Err(Refusal::Invalid);
        }
        if length >= CHECKED_LENGTH && available().is_some_and(|free| length as u64 > free) {
            return Err(Refusal::Exhausted);
        }
        let block = self.place(length)?;
        // On failure, the block is dropped, which returns its memory.
        segment::populate(block.address, length).map_err(|_| Refusal::Exhausted)?;
        Ok(block)
    }

    /// Returns the [`Block`] (allocated range of the arena's memory) that contains all `length`
    /// bytes at `address`, or `None` if there is no such block.
    pub fn find(&self, address: usize, length: u64) -> Option<Arc<Block>> {
        let block = {
            let state = self.state.lock();
            let (_, block) = state.blocks.range(..=address).next_back()?;
            block.upgrade()?
        };
        // This runs after the lock is released: if the block has no other user, dropping it here
        // takes the lock.
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
        let found = parts.find_map(|part| part.allocate(length, align));
        let (address, offset, segment) = match found {
            Some(found) => found,
            None => {
                let part = self.grow(&mut state, length)?;
                part.allocate(length, align).ok_or(Refusal::Exhausted)?
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

    /// Adds a segment (mapping of a new part of the arena's file) that can hold a block of `length`
    /// bytes to `state`, the locked state of the arena. Returns the new segment.
    fn grow<'a>(
        &self,
        state: &'a mut State,
        length: usize,
    ) -> Result<&'a mut ArenaSegment, Refusal> {
        let size = length.max(MIN_SEGMENT).checked_next_multiple_of(HUGE);
        let size = size.ok_or(Refusal::Exhausted)?;
        let end = state.end + size as u64;
        if end > segment::file_size_limit() || !self.file.check() {
            return Err(Refusal::Exhausted);
        }
        // The mapping is made first, because it is more likely to fail, and the file cannot be
        // shortened afterwards.
        let segment = Segment::map(self.file.as_fd(), state.end, size);
        let segment = segment.map_err(|_| Refusal::Exhausted)?;
        rustix::fs::ftruncate(&self.file, end).map_err(|_| Refusal::Exhausted)?;
        state.end = end;
        let free = RangeAllocator::new(size);
        state.segments.push(ArenaSegment { segment, free });
        state.segments.last_mut().ok_or(Refusal::Exhausted)
    }

    /// Returns the pages of `block` to the system. The caller must ensure that the block is no
    /// longer in use. Later accesses to the pages read zeroes.
    fn release_pages(&self, block: &Block) {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let length = block.length as u64;
        let is_empty = self.file.check()
            && rustix::fs::fallocate(&self.file, hole, block.offset, length).is_ok();
        let mut state = self.state.lock();
        state.blocks.remove(&block.address);
        if !is_empty {
            // The block is not reused, because its old contents must not be visible to the next
            // owner.
            return;
        }
        let mut parts = state.segments.iter();
        let Some(at) = parts.position(|part| part.segment.place() == block.segment) else {
            return;
        };
        let part = &mut state.segments[at];
        let start = block.address - part.segment.address();
        part.free.free(start, block.length);
        if part.segment.length() > MIN_SEGMENT && part.free.are_all_free() {
            state.segments.swap_remove(at);
        }
    }
}

impl AsFd for Arena {
    /// Returns the file descriptor of the arena's file. The descriptor is sent to peer processes,
    /// so that they can map the file.
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

impl ArenaSegment {
    /// Allocates a block of `length` bytes in this segment, at a multiple of `align`. Returns the
    /// block's address, its offset in the arena's file, and the range of the file that the segment
    /// maps. Returns `None` if the segment has no such free range.
    fn allocate(&mut self, length: usize, align: usize) -> Option<(usize, u64, Range<u64>)> {
        let start = self.free.allocate(length, align)?;
        let segment = self.segment.place();
        let offset = segment.start + start as u64;
        Some((self.segment.address() + start, offset, segment))
    }
}

impl Block {
    /// Returns the address of the first byte of this block of allocated memory.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Returns the length in bytes of this block of allocated memory, a multiple of the page size.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the arena (shared file) from which the block was allocated.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Returns the location of the `length` bytes at `address` in the file that contains this
    /// block. A peer process that knows the location can map the bytes. Returns `None` if the bytes
    /// are not inside the block.
    pub fn place(&self, address: usize, length: u64) -> Option<ArenaLocation> {
        let start = address.checked_sub(self.address)? as u64;
        let size = self.length as u64;
        (start <= size && length <= size - start).then(|| ArenaLocation {
            offset: self.offset + start,
            length,
            segment: self.segment.clone(),
        })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.release_pages(self);
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

/// Returns the number of bytes of memory and swap that are available to programs, or `None` if the
/// system does not report the number.
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
