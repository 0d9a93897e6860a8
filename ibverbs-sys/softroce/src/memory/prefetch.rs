//! A hint to the processor that this thread writes to a cache line soon.

/// Prefetches the cache line that contains `place` for writing. Does not wait for the cache line. A
/// later store to `place` is then faster, because the processor already owns the cache line.
#[inline(always)]
pub(crate) fn prefetch_for_write<T>(place: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction only moves a cache line. Processors without it ignore it.
    unsafe {
        std::arch::asm!(
            "prefetchw [{place}]",
            place = in(reg) place,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: the instruction only moves a cache line.
    unsafe {
        std::arch::asm!(
            "prfm pstl1keep, [{place}]",
            place = in(reg) place,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = place;
}
