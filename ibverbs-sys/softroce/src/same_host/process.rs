//! Copies from and to the memory of another process, by the kernel.
//!
//! # Whose memory it is
//! The kernel finds the memory by a number at each call, and a process keeps its number when it becomes another program by
//! `exec`: what is written by the process's number just then comes to the new program. So the number is that of a thread, and not of
//! the process's first one. `exec` ends all threads but one before the new program's memory is there, and that one has the process's
//! number then, whichever it was before. The thread that is named here is softroce's engine, which never calls `exec`: as long as
//! it is there its memory is that of the program which handed it over, and then the kernel finds nothing (`ESRCH`).
//!
//! What else there is, and why it is not used:
//! - `/proc/PID/mem`, opened once, stays with the memory that it was opened for. But the kernel copies by way of a page of its own, page
//!   by page, and it writes to what is mapped for reading alone (`FOLL_FORCE`), which only kernels from 6.12 on let be forbidden.
//! - A word at an address that a new program hardly has, as the first of each call's places: no call goes on behind a place that is not
//!   there. It is one more page to be found at each call, and a matter of chance in programs that map nearly everything.
//! - A word that is read by another call, before or behind: `exec` may come in between.
//!
//! That the thread's number becomes that of another thread takes as many new threads as there are numbers; a
//! [link](super::link::Link) looks whether the peer is there at intervals in which so many cannot begin.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_void;
use parking_lot::Mutex;
use rustix::process::Pid;
use smallvec::SmallVec;

use crate::memory::Piece;
use crate::per_process::PerProcess;

/// Bytes of another process, wherever they are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) address: u64,
    pub(super) length: usize,
}

impl Place {
    /// The two parts of which the second holds the last word, or what there is of it: who waits for the last byte
    /// sees all others before it.
    fn with_tail(self) -> ([Self; 2], usize) {
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

/// Copies bytes of this process to another one's, the last ones when all others are there. How many were copied,
/// before one that cannot be.
pub(super) fn write(process: Pid, from: &[Piece<'_>], to: Place) -> io::Result<usize> {
    let (parts, count) = to.with_tail();
    let to = parts.map(|place| place.vector());
    let (from, to) = (vectors(from), &to[..count]);
    // SAFETY: the kernel checks both sides, and writes nothing of this process.
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

/// Copies bytes of another process to this one's, which may be written. How many were copied, before one that cannot be.
pub(super) fn read(process: Pid, from: Place, to: &[Piece<'_>]) -> io::Result<usize> {
    if !to.iter().all(Piece::is_writable) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let (from, to) = ([from.vector()], vectors(to));
    // SAFETY: the kernel checks the other side; bytes of a piece that may be written are nobody's reference, and stay
    // for as long as it.
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

/// The process at the other end of a connection of this host, if it is one that this process can name, and of the same
/// user: of a connection that was accepted who asked for it, of another who listens.
pub(super) fn owner(socket: BorrowedFd<'_>) -> Option<Pid> {
    let mut who = libc::ucred {
        pid: 0,
        uid: libc::uid_t::MAX,
        gid: libc::gid_t::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: room for the answer, of the length that is said.
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
    // The number is 0 where the process is not in this one's namespace.
    (answer == 0 && who.uid == this)
        .then(|| Pid::from_raw(who.pid))
        .flatten()
}

/// Whether a process is stopped, by a signal or a debugger: it is not known when it goes on.
pub(super) fn is_stopped(process: Pid) -> bool {
    let number = process.as_raw_nonzero();
    let status = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
    // The name, in parentheses, may have any character in it.
    let state = status.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|state| state.starts_with(['T', 't']))
}

/// A thread of a process that is not its first one, if the number is that of one, and if the process's memory can be reached by
/// it: then the peer's [`Probe`] at the address is answered.
pub(super) fn reach(process: Pid, thread: i32, address: u64) -> Option<Pid> {
    let thread = (thread > 0).then(|| Pid::from_raw(thread)).flatten()?;
    if thread == process {
        return None;
    }
    // SAFETY: without a signal nothing is done but to look whether there is such a thread of the process.
    let found = unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            process.as_raw_pid(),
            thread.as_raw_pid(),
            0,
        )
    };
    (found == 0 && probe(thread, address)).then_some(thread)
}

/// Words of this process that a peer reads and writes, to see whether the kernel lets it.
///
/// A peer may do so long after this process has given up the handshake. So the words are never freed or used for
/// anything but later probes, of which none takes the answer to another one's secret.
#[derive(Debug)]
pub(super) struct Probe(&'static [AtomicU64; 2]);

/// Words that no probe uses at present: at most as many as there were handshakes at the same time.
static UNUSED: PerProcess<Mutex<Vec<&'static [AtomicU64; 2]>>> = PerProcess::new(Mutex::default);

/// Leaves the parent's words alone, in a child of `fork`.
pub(crate) fn forget() {
    UNUSED.forget();
}

impl Probe {
    /// Two words: one to be found, and one to be answered.
    pub(super) fn new(secret: u64) -> Self {
        let words = UNUSED.get().lock().pop();
        let words = words.unwrap_or_else(|| Box::leak(Box::default()));
        words[0].store(secret, Ordering::SeqCst);
        words[1].store(0, Ordering::SeqCst);
        Self(words)
    }

    /// Where they are.
    pub(super) fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    /// Whether the peer has found the one, and answered.
    pub(super) fn is_answered(&self) -> bool {
        let [secret, answered] = self.0;
        answered.load(Ordering::SeqCst) == answer(secret.load(Ordering::SeqCst))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        UNUSED.get().lock().push(self.0);
    }
}

/// Looks for a peer's words, and answers. Whether that could be done; it is not, where the kernel forbids it,
/// and where another process has the number.
pub(super) fn probe(process: Pid, address: u64) -> bool {
    let Some(second) = address.checked_add(8) else {
        return false;
    };
    let place = |address| Place { address, length: 8 };
    let secret = AtomicU64::new(0);
    let room = vector(secret.as_ptr().expose_provenance(), 8);
    let there = place(address).vector();
    // SAFETY: the kernel checks the other side; the word here is an atomic of this function's.
    let found = unsafe {
        libc::process_vm_readv(
            process.as_raw_pid(),
            &raw const room,
            1,
            &raw const there,
            1,
            0,
        )
    };
    let answered = answer(secret.load(Ordering::SeqCst)).to_ne_bytes();
    found == 8
        && matches!(
            write(process, &[Piece::of(&answered)], place(second)),
            Ok(8)
        )
}

/// What is answered to a secret.
fn answer(secret: u64) -> u64 {
    !secret.rotate_left(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn this() -> Pid {
        rustix::process::getpid()
    }

    /// A place in this process.
    fn place(bytes: &mut [u8]) -> Place {
        Place {
            address: bytes.as_mut_ptr().expose_provenance() as u64,
            length: bytes.len(),
        }
    }

    #[test]
    fn pieces_go_from_one_process_to_another() {
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
    fn the_last_word_is_a_part_of_its_own() {
        let split = |address, length| {
            let (parts, count) = Place { address, length }.with_tail();
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
    fn what_is_not_there_is_an_error() {
        let bytes = [7_u8; 8];
        let nowhere = Place {
            address: 8,
            length: 8,
        };
        assert!(write(this(), &[Piece::of(&bytes)], nowhere).is_err());
        let mut here = [0; 8];
        let denied = read(this(), place(&mut here), &[Piece::of(&bytes)]);
        assert_eq!(denied.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    /// A peer that is stopped in a handshake answers when it goes on.
    #[test]
    fn an_answer_that_comes_late_changes_nothing_else() {
        let given_up = Probe::new(1);
        let address = given_up.address();
        drop(given_up);
        let mut others: Vec<Box<[u64; 2]>> = (0..1000).map(|_| Box::new([0; 2])).collect();
        let later = Probe::new(2);
        assert!(probe(this(), address));
        // The kernel has written, and the compiler does not know of it.
        assert!(
            std::hint::black_box(&mut others)
                .iter()
                .all(|other| **other == [0; 2])
        );
        drop(later);
        assert!(!Probe::new(3).is_answered());
    }

    #[test]
    fn a_probe_is_found_and_answered() {
        let asked = Probe::new(0x1234_5678_9abc_def0);
        assert!(!asked.is_answered());
        assert!(probe(this(), asked.address()));
        assert!(asked.is_answered());
        for wrong in [0, 8, u64::MAX, u64::MAX - 15] {
            assert!(!probe(this(), wrong));
        }
    }

    #[test]
    fn memory_is_reached_by_a_thread_that_is_not_the_first() {
        let asked = Probe::new(1);
        let first = this().as_raw_pid();
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        for wrong in [0, -1, i32::MIN, i32::MAX, first, child.id() as i32] {
            assert_eq!(reach(this(), wrong, asked.address()), None);
        }
        assert!(!asked.is_answered());
        drop(child.stdin.take());
        child.wait().unwrap();
        let other = rustix::thread::gettid();
        // Tests run in threads of their own.
        assert_eq!(reach(this(), other.as_raw_pid(), 8), None);
        assert_eq!(
            reach(this(), other.as_raw_pid(), asked.address()),
            Some(other)
        );
        assert!(asked.is_answered());
    }
}
