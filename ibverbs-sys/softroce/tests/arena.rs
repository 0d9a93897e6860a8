//! Memory that the device allocates for regions: its place, its mapping by other processes, and its
//! lifetime.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::Arc;

use libc::c_void;
use softroce::context::{DomainId, Refusal};
use softroce::memory::{Arena, ArenaLocation, Block, RegionAttributes, Registry, Span, WindowKind};
use softroce::proto::AccessFlags;

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;

fn arena() -> Arc<Arena> {
    Arena::new().expect("a file in memory")
}

fn pointer(block: &Block) -> *mut u8 {
    ptr::with_exposed_provenance_mut(block.address())
}

/// Returns all bytes of a block.
fn content(block: &Block) -> Vec<u8> {
    let start = pointer(block);
    let byte = |at| {
        // SAFETY: the offset is inside of the block.
        unsafe { start.add(at).read_volatile() }
    };
    (0..block.length()).map(byte).collect()
}

fn fill(block: &Block, byte: u8) {
    // SAFETY: the range is the whole block, which no other code uses.
    unsafe { ptr::write_bytes(pointer(block), byte, block.length()) };
}

/// Returns the size in kilobytes of the allocated pages of the file.
fn in_use(arena: &Arena) -> u64 {
    rustix::fs::fstat(arena.as_fd())
        .expect("the file")
        .st_blocks as u64
        / 2
}

/// Runs `child` in a forked process, which inherits the descriptors of this process but not the
/// mapping of the arena. Returns the result of `child`.
fn in_another_process(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only makes system calls, and ends without destructors.
    unsafe {
        let process = libc::fork();
        assert!(process >= 0, "{}", io::Error::last_os_error());
        if process == 0 {
            libc::_exit(child());
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(process, &raw mut status, 0), process);
        assert!(libc::WIFEXITED(status), "ended by a signal: {status:#x}");
        libc::WEXITSTATUS(status)
    }
}

/// Maps the segment of a place, as a peer does. Returns the address of the place, or null if the
/// mapping fails.
fn map(file: i32, place: &ArenaLocation) -> *mut u8 {
    let length = (place.segment.end - place.segment.start) as usize;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let at = place.segment.start as libc::off_t;
    // SAFETY: the mapping is new, at an address that the kernel chooses.
    let start = unsafe { libc::mmap(ptr::null_mut(), length, rights, libc::MAP_SHARED, file, at) };
    if start == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    start
        .cast::<u8>()
        .wrapping_add((place.offset - place.segment.start) as usize)
}

#[test]
fn another_process_maps_the_file_and_sees_the_same_bytes() {
    let arena = arena();
    // The second block is not the first of its segment.
    let _before = arena.allocate(PAGE).unwrap();
    let block = arena.allocate(3 * PAGE).unwrap();
    fill(&block, 7);
    let place = block.place(block.address() + 100, 50).unwrap();
    assert_eq!(place.length, 50);
    let file = arena.as_fd().as_raw_fd();
    let answer = in_another_process(|| {
        let there = map(file, &place);
        if there.is_null() {
            return 1;
        }
        // SAFETY: `place` is inside of the mapping.
        unsafe {
            for at in 0..50 {
                if there.add(at).read_volatile() != 7 {
                    return 2;
                }
                there.add(at).write_volatile(9);
            }
        }
        0
    });
    assert_eq!(answer, 0);
    let mut expected = vec![7; 3 * PAGE];
    expected[100..150].fill(9);
    assert!(content(&block) == expected);
}

#[test]
fn a_child_does_not_have_the_mapping() {
    let arena = arena();
    let block = arena.allocate(PAGE).unwrap();
    let start = pointer(&block).cast::<c_void>();
    let answer = in_another_process(|| {
        let mut resident = 0;
        // SAFETY: the call writes one byte for one page, and does not access the page.
        let there = unsafe { libc::mincore(start, PAGE, &raw mut resident) };
        let absent = io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM);
        i32::from(there != -1 || !absent)
    });
    assert_eq!(answer, 0);
    fill(&block, 1);
}

#[test]
fn the_file_cannot_be_truncated() {
    let arena = arena();
    let block = arena.allocate(PAGE).unwrap();
    assert_eq!(
        rustix::fs::ftruncate(&*arena, 0),
        Err(rustix::io::Errno::PERM)
    );
    fill(&block, 1);
}

#[test]
fn memory_is_zeroed_aligned_and_there() {
    let arena = arena();
    for length in [1, PAGE, PAGE + 1, HUGE - 1, HUGE, HUGE + 1, 5 * HUGE] {
        let before = in_use(&arena);
        let block = arena.allocate(length).unwrap();
        assert!(block.length() >= length && block.length().is_multiple_of(PAGE));
        let align = if length >= HUGE { HUGE } else { PAGE };
        assert!(block.address().is_multiple_of(align), "{length}");
        // A page of the process is also a page of the file.
        let place = block.place(block.address(), length as u64).unwrap();
        assert!(place.offset.is_multiple_of(align as u64));
        assert_eq!(place.segment.start % HUGE as u64, 0);
        assert!(in_use(&arena) - before >= block.length() as u64 / 1024);
        assert!(content(&block).iter().all(|byte| *byte == 0));
        fill(&block, 0xa5);
    }
}

#[test]
fn released_pages_are_returned_to_the_system_and_zeroed() {
    let arena = arena();
    let first = arena.allocate(HUGE).unwrap();
    fill(&first, 0xa5);
    let address = first.address();
    drop(first);
    assert_eq!(in_use(&arena), 0);
    let again = arena.allocate(HUGE).unwrap();
    assert_eq!(again.address(), address, "the place is used again");
    assert!(content(&again).iter().all(|byte| *byte == 0));
}

#[test]
fn blocks_do_not_overlap_and_a_large_one_has_a_segment_of_its_own() {
    let arena = arena();
    let mut blocks: Vec<_> = (1..100)
        .map(|pages| arena.allocate(pages * PAGE).unwrap())
        .collect();
    let large = arena.allocate(65 << 20).unwrap();
    let place = large.place(large.address(), 1).unwrap();
    assert_ne!(
        place.segment,
        blocks[0].place(blocks[0].address(), 1).unwrap().segment
    );
    blocks.push(large);
    for (number, block) in blocks.iter().enumerate() {
        fill(block, number as u8);
    }
    for (number, block) in blocks.iter().enumerate() {
        assert!(content(block).iter().all(|byte| *byte == number as u8));
    }
}

#[test]
fn an_invalid_or_too_large_allocation_is_refused() {
    let arena = arena();
    assert_eq!(arena.allocate(0).unwrap_err(), Refusal::Invalid);
    for length in [usize::MAX, isize::MAX as usize, 1 << 50] {
        assert_eq!(arena.allocate(length).unwrap_err(), Refusal::Exhausted);
    }
    assert_eq!(in_use(&arena), 0);
    arena.allocate(PAGE).unwrap();
}

#[test]
fn bytes_are_found_by_their_address() {
    let arena = arena();
    let (first, second) = (
        arena.allocate(2 * PAGE).unwrap(),
        arena.allocate(PAGE).unwrap(),
    );
    let found = |address, length| arena.find(address, length).map(|block| block.address());
    let start = first.address();
    assert_eq!(found(start, 2 * PAGE as u64), Some(start));
    assert_eq!(found(start + 5, 1), Some(start));
    assert_eq!(found(start + 5, 2 * PAGE as u64), None, "over its end");
    assert_eq!(found(start - 1, 1), None);
    assert_eq!(found(0, u64::MAX), None);
    assert_eq!(found(second.address(), 1), Some(second.address()));
    drop(first);
    assert_eq!(found(start, 1), None);
}

/// Checks that the memory of a region outlives all other references to its block, and is found by
/// the region's key.
#[test]
fn a_region_keeps_its_block() {
    let registry = Registry::new();
    let arena = registry.arena().expect("files in memory");
    let domain = DomainId::unique();
    let block = arena.allocate(2 * PAGE).unwrap();
    let start = block.address() + 64;
    // SAFETY: no other code uses the block.
    let span = unsafe { Span::allocated(&block, start, 128) }.unwrap();
    // SAFETY: no other code uses the block.
    assert!(unsafe { Span::allocated(&block, start, 2 * PAGE as u64) }.is_none());
    let expected = block.place(start, 128).unwrap();
    let key = registry
        .register(RegionAttributes {
            domain,
            span,
            start: 0,
            access: AccessFlags::LOCAL_WRITE,
        })
        .unwrap();
    drop(block);
    let (block, place) = registry.place(key).expect("it is the arena's");
    assert_eq!(place, expected);
    assert!(Arc::ptr_eq(block.arena(), arena));
    assert!(registry.place(key ^ 1).is_none());
    let window = registry.allocate_window(domain, WindowKind::Type1).unwrap();
    assert!(registry.place(window).is_none());
    fill(&block, 3);
    drop(block);
    assert!(in_use(arena) > 0);
    registry.deregister(key).unwrap();
    assert_eq!(in_use(arena), 0);
}
