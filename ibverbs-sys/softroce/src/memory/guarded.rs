//! Accesses to memory that may not be there: they end with an error then, and not with the program.
//!
//! A program can unmap memory that it has registered, take away its rights to it, or shorten the file behind it.
//! A device of the kernel keeps the pages of a region; this one cannot. So registered memory is touched by a few
//! instructions alone, and a `table` says where each of them goes on if it faults. The `handler` of SIGSEGV and SIGBUS
//! looks there. Where nothing faults, no instruction is added to a copy.
//!
//! Nothing protects
//! - a program that has installed a handler of its own since, unless that calls the one before it;
//! - a thread that has blocked the two signals: the kernel ends the program then;
//! - on processors other than x86-64 and ARM64, where the accesses are `plain`.

#[cfg(all(target_arch = "x86_64", not(any(miri, sanitized))))]
#[path = "guarded/x86_64.rs"]
mod processor;

#[cfg(all(target_arch = "aarch64", not(any(miri, sanitized))))]
#[path = "guarded/aarch64.rs"]
mod processor;

// Miri has no assembly, and sanitizers do not see what it does.
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

/// The side of a copy that is not there, or may not be accessed so.
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
    /// The bytes that are read.
    Source,
    /// The bytes that are written.
    Target,
}
