//! The library `libsoftroce.so`, which brings the device softroce to unmodified programs by
//! `LD_PRELOAD`.
//!
//! The library contains all verbs of the crate `softroce`, and functions of the C library that find
//! files. Programs such as UCX look for a device in `/dev/infiniband` and `/sys/class/infiniband`
//! before they use verbs. The functions here answer questions about softroce's own device, and only
//! those: a question about any other path goes to the C library's function, with the same
//! arguments.
//!
//! | paths that are answered here | what is there |
//! |---|---|
//! | `/dev/infiniband/DEVICE` | a character device, which is `/dev/null` |
//! | `/sys/class/infiniband/DEVICE`, `/sys/class/infiniband_verbs/DEVICE`, `/sys/devices/virtual/...` | the files that the kernel has for a Soft-RoCE device |
//! | the directories above these, such as `/sys/class/infiniband` | softroce's device and the devices of the machine |
//!
//! A program that links the crate `softroce` has none of these functions: only this package
//! contains them, and builds only a shared library.
//!
//! # One table, one directory
//! The table of files is [`device::sysfs::State::files`]. The first question creates a private
//! directory of the process with these files, preferably in `/dev/shm` ([`tree`]). An answer
//! replaces the path by that of the file in this directory, and calls the C library's function with
//! it ([`question`]). So all functions give consistent answers, and a directory that was opened
//! works with `readdir`, `fdopendir`, `openat` and `fstatat`, although these do not know about it.
//! Before each answer, files whose content has changed are replaced: GIDs, the state of the port,
//! counters.
//!
//! Alternatives were rejected: answers from memory would need directories (`DIR`) that only the C
//! library can create, and one directory for all processes would need files with the same content
//! for all, but each process is a network card of its own.
//!
//! The directory is removed when the process exits. If a process is killed or calls `_exit`, its
//! directory remains until the next process of the same user creates its own directory. If no
//! directory can be created, the C library answers, and a message on standard error says so.
//!
//! # Costs and limits
//! For other paths, a function compares bytes of the path and calls the C library's function
//! ([`next`]), without a lock, an allocation, a system call or a change of `errno`. So it may be
//! called before `main`, in signal handlers, and in a child of `fork` or `vfork`.
//!
//! Programs that make system calls themselves, such as static programs and those in Go, do not call
//! these functions. Nor do functions of the C library that open directories themselves, such as
//! `glob` and `nftw`.

mod attributes;
mod directories;
mod links;
mod next;
mod open;
mod question;
mod status;
mod tree;

/// Sets the paths of the device's files in its C object, because programs find the files with this
/// library.
#[used]
#[unsafe(link_section = ".init_array")]
static SET_DEVICE_PATHS: extern "C" fn() = {
    extern "C" fn show() {
        device::sysfs::show();
    }
    show
};
