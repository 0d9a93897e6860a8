//! Tests of copies that reach beyond the end of accessible memory.

use std::ptr;

use super::{Missing, install};
use crate::memory::copy;

const PAGE: usize = 4096;

/// Two mapped pages. The test chooses the access rights of the second page.
struct Pages {
    start: *mut libc::c_void,
}

impl Pages {
    fn new(rights: libc::c_int) -> Self {
        install();
        // SAFETY: a new mapping at an address that the kernel chooses; then the protection of its
        // second page.
        unsafe {
            let both = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start = libc::mmap(ptr::null_mut(), 2 * PAGE, both, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(start.byte_add(PAGE), PAGE, rights), 0);
            Self { start }
        }
    }

    /// Returns the address that is `before` bytes before the end of the first page.
    fn at(&self, before: usize) -> usize {
        self.start.expose_provenance() + PAGE - before
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this object owns the mapping, and nothing uses it any more.
        unsafe { libc::munmap(self.start, 2 * PAGE) };
    }
}

/// Returns pairs of a length and a number of accessible bytes. The lengths need accesses of all
/// sizes.
fn cases() -> impl Iterator<Item = (usize, usize)> {
    let lengths = (1..70).chain([511, 512, 513, 520, 1031, 3000]);
    lengths.flat_map(|length| {
        let there = [
            0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 31, 32, 33, 64, 511, 512, 519,
        ];
        there.into_iter().map(move |there| (length, there))
    })
}

#[test]
fn a_copy_ends_at_unmapped_memory_and_the_error_names_the_side() {
    let (lost, good) = (Pages::new(libc::PROT_NONE), Pages::new(libc::PROT_READ));
    for (length, there) in cases() {
        let is_missing = there < length;
        let mut out = vec![1; length];
        for other in [3500, 3501, 3504, 3506] {
            // SAFETY: no references to the bytes of the two mappings exist.
            let (read, write, from, to) = unsafe {
                (
                    copy::read(lost.at(there), &mut out),
                    copy::write(lost.at(there), &out),
                    copy::copy(lost.at(there), good.at(other), length),
                    copy::copy(good.at(other), lost.at(there), length),
                )
            };
            let missing = |side| if is_missing { Err(side) } else { Ok(()) };
            assert_eq!(read, missing(Missing::Source), "{length} {there}");
            assert_eq!(write, missing(Missing::Target), "{length} {there}");
            assert_eq!(from, missing(Missing::Source), "{length} {there} {other}");
            assert_eq!(to, missing(Missing::Target), "{length} {there} {other}");
        }
    }
}

#[test]
fn read_only_memory_is_read_and_not_written() {
    let border = Pages::new(libc::PROT_READ);
    for (length, there) in cases() {
        let mut out = vec![1; length];
        // SAFETY: no references to the bytes of the mapping exist.
        let (read, write) = unsafe {
            (
                copy::read(border.at(there), &mut out),
                copy::write(border.at(there), &vec![0; length]),
            )
        };
        assert_eq!(read, Ok(()), "{length} {there}");
        assert_eq!(write.is_err(), there < length, "{length} {there}");
        assert!(out.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn an_atomic_operation_is_executed_completely_or_not_at_all() {
    let border = Pages::new(libc::PROT_READ);
    // SAFETY: aligned words of the mapping, to which no references exist.
    unsafe {
        assert_eq!(copy::fetch_add(border.at(8), 5), Ok(0));
        assert_eq!(copy::compare_swap(border.at(8), 4, 9), Ok(5));
        assert_eq!(copy::compare_swap(border.at(8), 5, 9), Ok(5));
        assert_eq!(copy::fetch_add(border.at(8), u64::MAX), Ok(9));
        assert_eq!(copy::fetch_add(border.at(8), 0), Ok(8));
        assert!(copy::fetch_add(border.at(0), 5).is_err());
        assert!(copy::compare_swap(border.at(0), 0, 9).is_err());
        assert!(copy::compare_swap(border.at(0), 1, 9).is_err());
    }
}

/// Checks that a copy that reaches beyond the border copies all bytes before the border, in order.
#[test]
fn the_bytes_before_unmapped_memory_are_copied() {
    let border = Pages::new(libc::PROT_NONE);
    let data: Vec<u8> = (0..600).map(|at| (at % 251) as u8 + 1).collect();
    for there in [8, 64, 520] {
        let mut back = vec![0; there];
        // SAFETY: no references to the bytes of the mapping exist.
        unsafe {
            assert_eq!(copy::write(border.at(there), &data), Err(Missing::Target));
            assert_eq!(copy::read(border.at(there), &mut back), Ok(()));
        }
        assert_eq!(back, data[..there]);
    }
}
