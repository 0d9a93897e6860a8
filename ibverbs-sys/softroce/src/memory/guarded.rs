//! Accesses to memory that may be unmapped. After a fault, the access returns an error, and the
//! program does not end.
//!
//! A program can unmap memory that it has registered, change its protection, or truncate the file
//! behind it. A kernel device pins the pages of a region, but this device cannot do so. So only a
//! few instructions access registered memory, and a `table` contains for each of them the address
//! at which the thread continues after a fault. The `handler` of SIGSEGV and SIGBUS looks up the
//! faulting instruction in the table. Without faults, copies execute no additional instructions.
//!
//! Three cases are not protected:
//! - a program that later installs a signal handler of its own which does not call the previous
//!   handler;
//! - a thread that has blocked SIGSEGV or SIGBUS: the kernel then ends the program at a fault;
//! - processors other than x86-64 and ARM64, where the accesses are `plain`.

#[cfg(all(target_arch = "x86_64", not(any(miri, sanitized))))]
#[path = "guarded/x86_64.rs"]
mod processor;

#[cfg(all(target_arch = "aarch64", not(any(miri, sanitized))))]
#[path = "guarded/aarch64.rs"]
mod processor;

// Miri does not support assembly, and sanitizers do not see accesses in it.
#[cfg(any(
    miri,
    sanitized,
    not(any(target_arch = "x86_64", target_arch = "aarch64"))
))]
#[path = "guarded/plain.rs"]
mod processor;

#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, sanitized))
))]
mod handler;
#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, sanitized))
))]
mod table;
#[cfg(all(
    test,
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, sanitized))
))]
mod tests;

pub(super) use processor::{
    compare_swap, copy_1, copy_2, copy_4, copy_8, copy_words, fetch_add, install,
};

/// Side of a copy at which a fault occurred, because the bytes are not mapped or lack the required
/// protection.
#[cfg_attr(
    any(
        miri,
        sanitized,
        not(any(target_arch = "x86_64", target_arch = "aarch64"))
    ),
    expect(dead_code, reason = "plain accesses do not fail")
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The bytes that the copy reads.
    Source,
    /// The bytes that the copy writes.
    Target,
}
