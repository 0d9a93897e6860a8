#![forbid(unsafe_code)]

use crate::context::Refusal;
use crate::proto::AccessFlags;

/// Bit mask of the optional access flags: a device may ignore such a flag if the device does not
/// support the flag. The mask contains the bits from `IB_UVERBS_ACCESS_OPTIONAL_FIRST` to
/// `IB_UVERBS_ACCESS_OPTIONAL_LAST`.
const OPTIONAL_FLAGS: u32 = 0x3ff0_0000;

/// Converts the access flags `bits` of a memory region (`ibv_reg_mr(3)`) to [`AccessFlags`], after
/// a check. Ignores optional flags.
///
/// # Errors
/// - [`Refusal::Unsupported`] for the right to flush data to persistent memory.
/// - [`Refusal::Invalid`] for an unknown flag or an invalid combination of flags.
pub fn region_access(bits: u32) -> Result<AccessFlags, Refusal> {
    let needed = bits & !OPTIONAL_FLAGS;
    let access = AccessFlags::from_bits(needed).ok_or(Refusal::Invalid)?;
    if access.contains(AccessFlags::FLUSH_PERSISTENT) {
        return Err(Refusal::Unsupported);
    }
    let remote = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    // IBTA C10-56 and the manual page: remote write access requires local write access.
    if access.intersects(remote) && !access.contains(AccessFlags::LOCAL_WRITE) {
        return Err(Refusal::Invalid);
    }
    if access.contains(AccessFlags::HUGETLB) && !access.contains(AccessFlags::ON_DEMAND) {
        // `HUGETLB` affects only on-demand regions.
        return Ok(access - AccessFlags::HUGETLB);
    }
    Ok(access)
}

/// Converts the access flags `bits` of a memory window (`ibv_bind_mw(3)`) to [`AccessFlags`]. Drops
/// optional flags, and flags that do not concern peers (local write, window binding, on-demand,
/// huge pages), because a window grants access to peers only. Keeps unknown flags: the bind request
/// later fails because of them.
pub fn window_access(bits: u32) -> AccessFlags {
    let without_effect = AccessFlags::LOCAL_WRITE
        | AccessFlags::MW_BIND
        | AccessFlags::ON_DEMAND
        | AccessFlags::HUGETLB;
    AccessFlags::from_bits_retain(bits & !OPTIONAL_FLAGS & !without_effect.bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_write_access_requires_local_write_access() {
        for bits in [1 << 1, 1 << 3, 1 << 1 | 1 << 3] {
            assert_eq!(region_access(bits), Err(Refusal::Invalid));
            assert!(region_access(bits | 1).is_ok());
        }
        assert!(
            region_access(1 << 2).is_ok(),
            "reading takes no right to write"
        );
    }

    #[test]
    fn unknown_flags_are_refused_and_optional_ones_ignored() {
        for bit in 10..20 {
            assert_eq!(region_access(1 << bit), Err(Refusal::Invalid));
        }
        for bit in 20..30 {
            assert_eq!(region_access(1 << bit), Ok(AccessFlags::empty()));
        }
        assert_eq!(region_access(1 << 30), Err(Refusal::Invalid));
        assert_eq!(region_access(1 << 31), Err(Refusal::Invalid));
        assert_eq!(region_access(1 << 8), Ok(AccessFlags::FLUSH_GLOBAL));
        assert_eq!(region_access(1 << 9), Err(Refusal::Unsupported));
    }

    #[test]
    fn windows_grant_remote_access_only() {
        let peers = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 5;
        let granted = window_access(peers);
        assert_eq!(granted.bits(), peers);
        for bit in [0, 4, 6, 7, 20] {
            assert_eq!(window_access(peers | 1 << bit), granted, "{bit}");
        }
        assert_eq!(window_access(1 << 31).bits(), 1 << 31);
    }
}
