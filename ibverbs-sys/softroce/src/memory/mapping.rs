#![forbid(unsafe_code)]

use std::fs;

/// Whether all of the program's memory from `address` on is mapped, readable and, if asked for, writable: what
/// the kernel would find when it pins the pages of a region. Where `/proc` does not tell, it is believed.
pub fn is_mapped(address: usize, length: u64, writable: bool) -> bool {
    match fs::read_to_string("/proc/self/maps") {
        Ok(maps) => covers(&maps, address as u64, length, writable),
        Err(_) => true,
    }
}

/// Whether the mappings, which are in ascending order, leave no gap.
fn covers(maps: &str, address: u64, length: u64, writable: bool) -> bool {
    let Some(end) = address.checked_add(length) else {
        return false;
    };
    let mut reached = address;
    for mapping in maps.lines().filter_map(Mapping::parse) {
        if reached >= end || mapping.start > reached {
            break;
        }
        if mapping.end > reached {
            if !mapping.readable || writable && !mapping.writable {
                return false;
            }
            reached = mapping.end;
        }
    }
    reached >= end
}

struct Mapping {
    start: u64,
    end: u64,
    readable: bool,
    writable: bool,
}

impl Mapping {
    /// Of a line such as `7f0000000000-7f0000001000 rw-p 00000000 00:00 0`.
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

    #[test]
    fn what_is_mapped_without_a_gap_is_covered() {
        assert!(covers(MAPS, 0x1000, 0x1000, true));
        assert!(
            covers(MAPS, 0x1fff, 2, false),
            "over the border of two mappings"
        );
        assert!(
            !covers(MAPS, 0x1fff, 2, true),
            "the second may only be read"
        );
        assert!(!covers(MAPS, 0x2fff, 2, false), "a guard page");
        assert!(!covers(MAPS, 0x0fff, 2, false), "begins before");
        assert!(!covers(MAPS, 0x6fff, 2, false), "ends behind");
        assert!(!covers(MAPS, 0x1000, u64::MAX, false), "wraps");
        assert!(covers(MAPS, 0x5000, 0, true), "nothing is everywhere");
    }

    #[test]
    fn of_this_process() {
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
}
