#![forbid(unsafe_code)]

use std::fs;

use super::kernel::{self, QueryUnsupported};

/// Returns whether the program's memory from `address` to `address + length` is mapped and
/// readable, and also writable if `writable` is set. Returns `true` if the check is not possible
/// because there is no `/proc`.
pub fn is_mapped(address: usize, length: u64, writable: bool) -> bool {
    let address = address as u64;
    covers(kernel::mapping_at, address, length, writable).unwrap_or_else(|QueryUnsupported| {
        let Ok(maps) = fs::read_to_string("/proc/self/maps") else {
            return true;
        };
        let mappings: Vec<Mapping> = maps.lines().filter_map(Mapping::parse).collect();
        let find = |address| {
            Ok(mappings
                .iter()
                .copied()
                .find(|mapping| mapping.has(address)))
        };
        covers(find, address, length, writable) == Ok(true)
    })
}

/// Returns whether the `length` bytes at `address` are mapped and readable, and also writable if
/// `writable` is set. `mapping_at` returns the mapping that contains an address. The range may
/// consist of several adjacent mappings.
fn covers(
    mapping_at: impl Fn(u64) -> Result<Option<Mapping>, QueryUnsupported>,
    address: u64,
    length: u64,
    writable: bool,
) -> Result<bool, QueryUnsupported> {
    let Some(end) = address.checked_add(length) else {
        return Ok(false);
    };
    let mut reached = address;
    while reached < end {
        match mapping_at(reached)? {
            Some(mapping) if mapping.readable && (mapping.writable || !writable) => {
                reached = mapping.end;
            }
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Range of mapped addresses with the same protection, as in a line of `/proc/self/maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) readable: bool,
    pub(super) writable: bool,
}

impl Mapping {
    fn has(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Parses a line of `/proc/self/maps`, such as
    /// `7f0000000000-7f0000001000 rw-p 00000000 00:00 0`, into the address range and the access
    /// rights of a mapping. Returns `None` if the line has another form.
    fn parse(line: &str) -> Option<Self> {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let mut rights = rest.bytes();
        Some(Self {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            readable: rights.next() == Some(b'r'),
            writable: rights.next() == Some(b'w'),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-2000 rw-p 00000000 00:00 0
2000-3000 r--p 00000000 00:00 0 /some/file
3000-4000 ---p 00000000 00:00 0
6000-7000 rw-p 00000000 00:00 0 [heap]
";

    fn is_covered(address: u64, length: u64, writable: bool) -> bool {
        let mappings: Vec<Mapping> = MAPS.lines().filter_map(Mapping::parse).collect();
        assert_eq!(mappings.len(), 4);
        let find = |address| {
            Ok(mappings
                .iter()
                .copied()
                .find(|mapping| mapping.has(address)))
        };
        covers(find, address, length, writable).unwrap()
    }

    #[test]
    fn a_range_without_gaps_in_the_mappings_is_covered() {
        assert!(is_covered(0x1000, 0x1000, true));
        assert!(
            is_covered(0x1fff, 2, false),
            "over the border of two mappings"
        );
        assert!(!is_covered(0x1fff, 2, true), "the second may only be read");
        assert!(!is_covered(0x2fff, 2, false), "a guard page");
        assert!(!is_covered(0x0fff, 2, false), "begins before");
        assert!(!is_covered(0x6fff, 2, false), "ends behind");
        assert!(!is_covered(0x1000, u64::MAX, false), "wraps");
        assert!(is_covered(0x5000, 0, true), "nothing is everywhere");
    }

    #[test]
    fn mappings_of_this_process_are_read() {
        let bytes = [0_u8; 8];
        assert!(is_mapped(bytes.as_ptr().addr(), 8, true));
        static CONSTANT: [u8; 8] = [1; 8];
        assert!(is_mapped(CONSTANT.as_ptr().addr(), 8, false));
        assert!(
            !is_mapped(CONSTANT.as_ptr().addr(), 8, true),
            "constants are not writable"
        );
        assert!(!is_mapped(8, 8, false));
    }

    /// Checks that `kernel::mapping_at`, which queries the kernel, and `/proc/self/maps` return the
    /// same mapping for an address. Checks nothing if the kernel does not support the query.
    #[test]
    fn the_query_and_the_maps_file_agree() {
        let bytes = vec![0_u8; 1 << 20];
        let address = bytes.as_ptr().addr() as u64;
        let Ok(answer) = kernel::mapping_at(address) else {
            return;
        };
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let mut listed = maps.lines().filter_map(Mapping::parse);
        let listed = listed.find(|mapping| mapping.has(address)).unwrap();
        let answer = answer.unwrap();
        // Start and end of the mapping are not compared: other threads may map adjacent memory
        // meanwhile.
        assert!(answer.has(address));
        assert_eq!(
            (answer.readable, answer.writable),
            (listed.readable, listed.writable)
        );
        assert_eq!(kernel::mapping_at(8), Ok(None));
    }
}
