//! Copies by the kernel between memory of this process and memory of another process.
//!
//! # Why memory is addressed by a thread ID
//! Each system call for a copy names the other process by an ID, from which the kernel finds the
//! memory. A process keeps its process ID when it calls `exec`. A write that uses the process ID at
//! that moment goes to the memory of the new program. Therefore each call uses the ID of the thread
//! of the peer's engine. `exec` ends all threads but the calling one before the new program's
//! memory exists, and the calling thread then has the process ID. The engine never calls `exec`. So
//! while the engine's thread exists, the kernel finds the memory of the program that performed the
//! handshake. After the thread has ended, the kernel finds no memory (`ESRCH`).
//!
//! Alternatives that are not used:
//! - `/proc/PID/mem`: a file that was opened before `exec` stays with the memory of the earlier
//!   program. But the kernel copies page by page through a page of its own, and writes to read-only
//!   mappings, too (`FOLL_FORCE`). Only kernels since 6.12 can disable that.
//! - A word at an address that is rarely mapped, as the first range of each call, since a call ends
//!   at a range that is not mapped. The kernel would have to find one more page at each call, and a
//!   program that maps nearly all addresses would defeat the check.
//! - A word that a separate call reads before or after the copy: the peer may call `exec` between
//!   the two calls.
//!
//! # Reuse of thread IDs
//! The kernel gives the thread ID of the engine to another thread only after it has assigned all
//! other IDs. A [link](super::link::Link) checks that the peer exists so often that fewer threads
//! can be created in between.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::AtomicU64;

use libc::c_void;
use rustix::process::Pid;
use smallvec::SmallVec;

use crate::memory::Piece;

/// Range of addresses in the memory of another process, from or to which the kernel copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteRange {
    pub(super) address: u64,
    pub(super) length: usize,
}

impl RemoteRange {
    /// Splits the range into two parts: the bytes in its last aligned word of 8 bytes, and all
    /// bytes before them. So the kernel can write the last word after all other bytes, and a
    /// program that polls the last byte of an RDMA write also finds the other bytes. Returns the
    /// parts and their number: two, or one if the range is not longer than a word.
    fn split_last_word(self) -> ([Self; 2], usize) {
        const WORD: usize = size_of::<u64>();
        if self.length <= WORD {
            let none = Self { length: 0, ..self };
            return ([self, none], 1);
        }
        let end = self.address.wrapping_add(self.length as u64);
        let tail = ((end.wrapping_sub(1) % WORD as u64) + 1) as usize;
        let body = Self {
            length: self.length - tail,
            ..self
        };
        let tail = Self {
            address: end.wrapping_sub(tail as u64),
            length: tail,
        };
        ([body, tail], 2)
    }

    fn vector(&self) -> libc::iovec {
        vector(self.address as usize, self.length)
    }
}

fn vector(address: usize, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: ptr::with_exposed_provenance_mut::<c_void>(address),
        iov_len: length,
    }
}

fn vectors(pieces: &[Piece<'_>]) -> SmallVec<[libc::iovec; 4]> {
    let each = pieces.iter();
    each.map(|piece| vector(piece.address(), piece.length()))
        .collect()
}

/// Copies the memory ranges `from` of this process to the range `to` of another process. Copies the
/// last word after all other bytes, so a program that sees the last word also sees the other bytes.
/// Returns the number of copied bytes. If a page cannot be written, this number is less than the
/// length of the range.
pub(super) fn write(process: Pid, from: &[Piece<'_>], to: RemoteRange) -> io::Result<usize> {
    let (parts, count) = to.split_last_word();
    let to = parts.map(|place| place.vector());
    let (from, to) = (vectors(from), &to[..count]);
    // SAFETY: both pointers are to vectors of the lengths given. The kernel checks all addresses in
    // them, and does not write to memory of this process.
    let copied = unsafe {
        libc::process_vm_writev(
            process.as_raw_pid(),
            from.as_ptr(),
            from.len() as _,
            to.as_ptr(),
            to.len() as _,
            0,
        )
    };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

/// Copies bytes of another process to the memory ranges `to` of this process. Returns the number of
/// copied bytes. If a page cannot be read, this number is less than the length of `from`. Fails if
/// one of the ranges `to` is not writable.
pub(super) fn read(process: Pid, from: RemoteRange, to: &[Piece<'_>]) -> io::Result<usize> {
    if !to.iter().all(Piece::is_writable) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let (from, to) = ([from.vector()], vectors(to));
    // SAFETY: both pointers are to vectors of the lengths given. The kernel checks all addresses of
    // the other process, and writes to writable pieces of this process only. The creator of each
    // piece guarantees that its memory may be written.
    let copied = unsafe {
        libc::process_vm_readv(
            process.as_raw_pid(),
            to.as_ptr(),
            to.len() as _,
            from.as_ptr(),
            from.len() as _,
            0,
        )
    };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

/// Returns the process at the other end of a Unix connection. For an accepted connection, the
/// result is the process that has connected. For an outgoing connection, the result is the process
/// that listens. Returns `None` if the process belongs to another user or another PID namespace.
pub(super) fn connected_process(socket: BorrowedFd<'_>) -> Option<Pid> {
    let mut who = libc::ucred {
        pid: 0,
        uid: libc::uid_t::MAX,
        gid: libc::gid_t::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to a `ucred` and to its length, which the kernel does not exceed.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut length,
        )
    };
    let this = rustix::process::geteuid().as_raw();
    // The ID is 0 if the process is not in the PID namespace of this process.
    (answer == 0 && who.uid == this)
        .then(|| Pid::from_raw(who.pid))
        .flatten()
}

/// Returns whether the process `process` is stopped by a signal or a debugger. Such a process may
/// stay stopped without a time limit.
pub(super) fn is_stopped(process: Pid) -> bool {
    let number = process.as_raw_nonzero();
    let status = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
    // The program's name in parentheses may itself contain parentheses and spaces.
    let state = status.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|state| state.starts_with(['T', 't']))
}

/// Returns whether this process permits other processes of the user to read its memory
/// (`PR_SET_DUMPABLE`).
pub(super) fn is_dumpable() -> bool {
    // SAFETY: this call takes no pointers.
    unsafe { libc::prctl(libc::PR_GET_DUMPABLE) == 1 }
}

/// Result of [`check_copy_permission`]: the kernel permits or refuses copies from and to the memory
/// of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KernelCopies {
    Allowed,
    /// The kernel refuses the copies because of a security module such as Yama, or a system call
    /// filter.
    Refused,
}

/// Checks whether the kernel permits this process to copy from and to the memory of the peer
/// `process`. For the check, reads the peer's [word] at `address`, and writes the same value back.
/// Returns the result and the ID `thread`, by which later copies name the peer. Returns `None` if
/// `thread` is not a thread of the peer, if it is the main thread, or if `address` is invalid.
pub(super) fn check_copy_permission(
    process: Pid,
    thread: i32,
    address: u64,
) -> Option<(Pid, KernelCopies)> {
    let thread = (thread > 0).then(|| Pid::from_raw(thread)).flatten()?;
    if thread == process {
        return None;
    }
    // SAFETY: with the signal number 0, the kernel only checks that the thread exists and belongs
    // to the process.
    let found = unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            process.as_raw_pid(),
            thread.as_raw_pid(),
            0,
        )
    };
    (found == 0).then_some(())?;
    match probe(thread, address) {
        Ok(true) => Some((thread, KernelCopies::Allowed)),
        Err(libc::EPERM | libc::EACCES | libc::ENOSYS) => Some((thread, KernelCopies::Refused)),
        Ok(false) | Err(_) => None,
    }
}

/// Word that exists only for permission checks: a peer reads it and writes it back to find out
/// whether the kernel permits copies from and to this process.
static PROBE_WORD: AtomicU64 = AtomicU64::new(0);

/// Returns the address of the word of this process that exists only for permission checks: peers
/// read the word and write the same value back.
pub(super) fn word() -> u64 {
    PROBE_WORD.as_ptr().expose_provenance() as u64
}

/// Tests whether the memory of another process can be read and written: reads the word at
/// `address`, and writes the same value back. Returns whether both copies were complete.
///
/// # Errors
/// The error number, if the kernel refuses a copy.
pub(super) fn probe(process: Pid, address: u64) -> Result<bool, i32> {
    let place = RemoteRange { address, length: 8 };
    let mut word = [0; 8];
    let copied = read(process, place, &[Piece::of_mut(&mut word)])
        .and_then(|found| Ok(found == 8 && write(process, &[Piece::of(&word)], place)? == 8));
    copied.map_err(|error| error.raw_os_error().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn this() -> Pid {
        rustix::process::getpid()
    }

    /// Returns the address range of the buffer `bytes` in this process, as the source or target of
    /// a copy in a test.
    fn place(bytes: &mut [u8]) -> RemoteRange {
        RemoteRange {
            address: bytes.as_mut_ptr().expose_provenance() as u64,
            length: bytes.len(),
        }
    }

    #[test]
    fn pieces_are_copied_between_processes() {
        for length in 0..40 {
            for skip in 0..9 {
                let mut target = [0_u8; 64];
                let source: Vec<u8> = (1..=length as u8).collect();
                let (first, second) = source.split_at(length / 3);
                let to = place(&mut target[skip..skip + length]);
                let copied = write(this(), &[Piece::of(first), Piece::of(second)], to);
                assert_eq!(copied.unwrap(), length);
                assert_eq!(&std::hint::black_box(&target)[skip..skip + length], source);
                assert!(target[..skip].iter().all(|byte| *byte == 0));
                assert!(target[skip + length..].iter().all(|byte| *byte == 0));
            }
        }
    }

    #[test]
    fn the_last_word_is_copied_separately() {
        let split = |address, length| {
            let (parts, count) = RemoteRange { address, length }.split_last_word();
            let parts = parts.map(|part| (part.address, part.length));
            parts[..count].to_vec()
        };
        assert_eq!(split(16, 8), [(16, 8)]);
        assert_eq!(split(13, 3), [(13, 3)]);
        assert_eq!(split(16, 16), [(16, 8), (24, 8)]);
        assert_eq!(split(17, 16), [(17, 15), (32, 1)]);
        assert_eq!(split(0, 4099), [(0, 4096), (4096, 3)]);
    }

    #[test]
    fn a_copy_of_unmapped_memory_fails() {
        let bytes = [7_u8; 8];
        let nowhere = RemoteRange {
            address: 8,
            length: 8,
        };
        assert!(write(this(), &[Piece::of(&bytes)], nowhere).is_err());
        let mut here = [0; 8];
        let denied = read(this(), place(&mut here), &[Piece::of(&bytes)]);
        assert_eq!(denied.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_word_of_unmapped_memory_is_not_found() {
        assert_eq!(probe(this(), word()), Ok(true));
        for wrong in [0, 8, u64::MAX, u64::MAX - 15] {
            assert_ne!(probe(this(), wrong), Ok(true));
        }
    }

    #[test]
    fn memory_is_accessible_through_a_thread_other_than_the_main_thread() {
        let first = this().as_raw_pid();
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        for wrong in [0, -1, i32::MIN, i32::MAX, first, child.id() as i32] {
            assert_eq!(check_copy_permission(this(), wrong, word()), None);
        }
        drop(child.stdin.take());
        child.wait().unwrap();
        let other = rustix::thread::gettid();
        // Each test runs in a thread that is not the main thread.
        assert_eq!(check_copy_permission(this(), other.as_raw_pid(), 8), None);
        assert_eq!(
            check_copy_permission(this(), other.as_raw_pid(), word()),
            Some((other, KernelCopies::Allowed))
        );
    }
}
