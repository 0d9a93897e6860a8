//! The file descriptors of the device. Each process opens its own, and a program may close them by
//! mistake.
//!
//! # A child of `fork`
//! The numbers of all descriptors are recorded, so that a child of `fork` can close the descriptors
//! that it has inherited. Otherwise the child would keep the parent's addresses bound and the links
//! of the parent's peers open. The child's handler may neither allocate nor wait for a lock that
//! another thread held at the fork. So the numbers are stored as bits that can be read at any time,
//! and only the time between opening a file and recording its number is protected by [`Opening`],
//! which the forking thread holds meanwhile.
//!
//! # A program that closes all descriptors
//! Daemons do this. The device has then lost its files, and files that the program opens next may
//! get the same descriptor numbers. The device must detect this situation, fail, and write nothing
//! to a file of the program:
//! - Every file of the device has a mark that all descriptors of the file show ([`is_intact`]): the
//!   signal number of `F_SETSIG`, which nothing else here uses. The mark is checked before every
//!   operation that is not part of the data path: a handshake, a change of the arena's file, a
//!   capture, closing. On the data path the check would cost one more system call per packet.
//! - The device's numbers are high ([`MIN_NUMBER`]). The kernel gives a new file the lowest free
//!   number, so a program does not get one of them by opening files. An operation of the data path
//!   with a closed number thus fails with `EBADF`, and the device fails ([`report_loss`]).
//! - The engine also sleeps on a pipe of which the device has both ends. The closing of an end
//!   wakes the engine, even if no thread uses the device. From then on the mark is checked before
//!   every write.
//! - The device does not use the numbers of completion channels and contexts, which programs know.
//!   For each of these files the device uses a duplicate with a high number. A program that closes
//!   a known number by mistake does no harm.
//!
//! One case is not detected: a program closes the device's files and, before the engine's thread
//! runs, puts another file at one of the high numbers (`dup2`). To exclude this case, each send
//! would have to check the mark. Three alternatives were rejected. A descriptor table of the
//! engine's own (`unshare(CLONE_FILES)`) does not help, because threads of the program send as
//! well. Replacing `close` and similar functions in the program would miss the system calls of the
//! C library. A control message that only the device's sockets accept (`SCM_TXTIME`) costs every
//! send some tens of nanoseconds, and does nothing for eventfds.

use std::io;
use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, getrlimit};

/// A file descriptor that the device has opened, for example for a socket. Dropping this value
/// closes the file.
#[derive(Debug)]
pub struct Descriptor {
    file: ManuallyDrop<OwnedFd>,
    /// Number of forks ([`GENERATION`]) at the time when the descriptor was opened.
    generation: u32,
}

/// Permission to open files or map memory. While a thread holds the permission, no other thread can
/// fork. So a child of `fork` never inherits a file whose descriptor number the device has not
/// recorded yet. The holder must not allocate, and must not drop a [`Descriptor`].
pub(crate) struct Opening(PhantomData<*const ()>);

/// Limit of the descriptor numbers in [`OWN_NUMBERS`], the record of the device's descriptors. A
/// child of `fork` closes the recorded descriptors. The limit is the kernel's default limit for the
/// numbers of a process (`fs.nr_open`).
const MAX_NUMBER: usize = 1 << 20;

/// Lowest number of a descriptor that only the device uses. Lower numbers are left to the program,
/// which may expect certain numbers for its own files. If the process's limit is too low for this
/// number, three quarters of the limit are used instead. The number is not higher because the
/// kernel's table of descriptors grows with the highest number, and each `fork` copies the table.
const MIN_NUMBER: u64 = 3072;

/// Signal number that marks a file as a file of the device. The mark distinguishes this file from a
/// file of the program that later gets the same descriptor number. The kernel stores the signal
/// number (`F_SETSIG`), but sends no signal, because `O_ASYNC` is not set.
const MARK_SIGNAL: libc::c_int = 63;

/// Command of `fcntl` (linux/fcntl.h) that sets the signal number of a file. Here the number only
/// marks the file ([`MARK_SIGNAL`]).
const F_SETSIG: libc::c_int = 10;
/// Command of `fcntl` (linux/fcntl.h) that returns the signal number of a file. By this number the
/// device recognizes its own files ([`MARK_SIGNAL`]).
const F_GETSIG: libc::c_int = 11;

type Numbers = [AtomicU64; MAX_NUMBER / 64];

/// Bit set of the descriptor numbers of the device's files. A child of `fork` closes these
/// descriptors. [`check_all`] checks that the descriptors still belong to the device, except those
/// in [`PROGRAM_NUMBERS`].
static OWN_NUMBERS: Numbers = [const { AtomicU64::new(0) }; MAX_NUMBER / 64];

/// Bit set of the descriptor numbers that the device has given to the program, such as those of
/// completion channels. The program may close these descriptors: the device itself uses other
/// descriptors for the same files.
static PROGRAM_NUMBERS: Numbers = [const { AtomicU64::new(0) }; MAX_NUMBER / 64];

/// Flag that is set when the device detects that the program has closed one of the device's
/// descriptors by mistake. From then on, a descriptor number of the device can belong to a file of
/// the program. The device must therefore check the number before each use.
static HAS_LOST_FILES: AtomicBool = AtomicBool::new(false);

/// Function that makes the device fail with the given reason. Called when the program has closed a
/// descriptor of the device by mistake.
static ON_LOSS: OnceLock<fn(&str)> = OnceLock::new();

/// Flag that is set while a thread holds an [`Opening`] (permission to open files). During this
/// time, other threads cannot open files or fork.
static OPENING: AtomicBool = AtomicBool::new(false);

/// Number of forks that lead from the first process that used the device to this process: 0 in the
/// first process, and 1 in its children. A [`Descriptor`] with a lower number was inherited.
static GENERATION: AtomicU32 = AtomicU32::new(0);

impl Opening {
    /// Waits until no other thread is opening files or forking, and returns the permission to open
    /// files. Until the permission is dropped, no other thread can open files or fork.
    pub(crate) fn begin() -> Self {
        while OPENING.swap(true, Ordering::Acquire) {
            thread::yield_now();
        }
        Self(PhantomData)
    }

    /// Makes `file`, which was just opened, a file of the device. Moves the file to a high
    /// descriptor number, which the program's own files do not usually get. Marks the file and
    /// records the number, so that the device notices if the program closes the descriptor.
    pub(crate) fn adopt(&self, file: OwnedFd) -> Descriptor {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let first = (limit / 4).saturating_mul(3).min(MIN_NUMBER) as RawFd;
        // If no high number is free, the file keeps its number.
        let file = fcntl_dupfd_cloexec(&file, first).unwrap_or(file);
        self.record(file)
    }

    /// Returns a [`Descriptor`] for `file`, whose descriptor number only the program uses. Records
    /// the number, so that a child of `fork` closes the descriptor. A bit in [`PROGRAM_NUMBERS`]
    /// shows that the program may close the descriptor: the device then does not fail.
    fn record_public(&self, file: OwnedFd) -> Descriptor {
        let descriptor = self.record(file);
        if let Some((word, bit)) = word_and_bit(&PROGRAM_NUMBERS, descriptor.as_raw_fd()) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        descriptor
    }

    fn record(&self, file: OwnedFd) -> Descriptor {
        // SAFETY: the call takes no pointers, and only changes a number of an open file.
        unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, MARK_SIGNAL) };
        if let Some((word, bit)) = word_and_bit(&OWN_NUMBERS, file.as_raw_fd()) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Descriptor {
            file: ManuallyDrop::new(file),
            generation: generation(),
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        OPENING.store(false, Ordering::Release);
    }
}

impl Descriptor {
    /// Opens a file by calling `open`, and returns a descriptor that owns the file. The closure
    /// must make only system calls: no thread can fork during the call, and an allocator may wait
    /// for a thread that forks.
    pub(crate) fn open<E>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Self, E> {
        let opening = Opening::begin();
        open().map(|file| opening.adopt(file))
    }

    /// Duplicates the descriptor `file` for the program, and returns the duplicate. The device does
    /// not use the duplicate, so the program may close it without harm.
    pub(crate) fn for_program(file: BorrowedFd<'_>) -> io::Result<Self> {
        let opening = Opening::begin();
        Ok(opening.record_public(fcntl_dupfd_cloexec(file, 0)?))
    }

    /// Takes ownership of `file`, which the program has given to the device
    /// (`ibv_import_device(3)`). The file is a duplicate of a descriptor that the device has
    /// created [for the program](Self::for_program). The device holds the descriptor only to close
    /// it together with the imported context.
    pub(crate) fn of_program(file: OwnedFd) -> Self {
        Opening::begin().record_public(file)
    }

    /// Returns whether this descriptor still refers to the file that the device has opened. If the
    /// program has closed the descriptor, makes the device fail, and returns `false`.
    pub(crate) fn check(&self) -> bool {
        let is_intact = is_intact(self.as_fd());
        if !is_intact {
            report_loss();
        }
        is_intact
    }

    /// Writes all of `bytes` to the file. Fails and writes nothing if the program has closed the
    /// descriptor, because its number may now belong to a file of the program.
    pub(crate) fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        if !self.check() {
            return Err(Errno::BADF.into());
        }
        while !bytes.is_empty() {
            match rustix::io::write(self, bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns the lowest descriptor number that the process does not use. The next file of the
    /// program will get this number. Returns `None` if the process can open no further file.
    pub(crate) fn lowest_free_number(&self) -> Option<u32> {
        let _opening = Opening::begin();
        // The kernel gives the duplicate the lowest free number.
        let duplicate = fcntl_dupfd_cloexec(self, 0).ok()?;
        u32::try_from(duplicate.as_raw_fd()).ok()
    }

    /// Duplicates the descriptor, so that two owners can use the same file.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Self::open(|| self.file.try_clone())
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // In a child that has inherited the descriptor, the number is closed or belongs to another
        // file.
        if self.generation != generation() {
            return;
        }
        let _opening = Opening::begin();
        for noted in [&OWN_NUMBERS, &PROGRAM_NUMBERS] {
            if let Some((word, bit)) = word_and_bit(noted, self.file.as_raw_fd()) {
                word.fetch_and(!bit, Ordering::Relaxed);
            }
        }
        if !is_intact(self.as_fd()) {
            // The program has closed the descriptor, so the number now belongs to the program.
            return;
        }
        // SAFETY: the file is dropped only here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Prepares for a `fork`: waits until no thread is opening a file of the device, and prevents
/// threads from opening files until [`after_fork`] or [`after_fork_in_child`] is called. Must be
/// called before each `fork`.
pub(crate) fn before_fork() {
    mem::forget(Opening::begin());
}

/// Allows other threads to open files again. Must be called in the parent after a `fork` that
/// [`before_fork`] has prepared.
pub(crate) fn after_fork() {
    OPENING.store(false, Ordering::Release);
}

/// Closes all inherited descriptors, and allows threads to open files again. Must be called in the
/// child after a `fork` that [`before_fork`] has prepared. Makes only system calls.
pub(crate) fn after_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    for (at, word) in OWN_NUMBERS.iter().enumerate() {
        let mut bits = word.load(Ordering::Relaxed);
        while bits != 0 {
            let number = 64 * at as RawFd + bits.trailing_zeros() as RawFd;
            bits &= bits - 1;
            // SAFETY: a descriptor of the parent's device had this number at the fork, so the child
            // has the same file there, unless the parent closed it. Objects that still have the
            // number are of another generation, and never use it.
            unsafe {
                if is_marked(number) {
                    libc::close(number);
                }
            }
        }
        // Most words are zero, and are not written: the kernel copies each page that is written.
        for word in [word, &PROGRAM_NUMBERS[at]] {
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
    }
    HAS_LOST_FILES.store(false, Ordering::Relaxed);
    OPENING.store(false, Ordering::Release);
}

fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Finds the bit of the descriptor number `number` in the bit set `noted` ([`OWN_NUMBERS`] or
/// [`PROGRAM_NUMBERS`]). Returns the word that contains the bit, and a mask of the bit. Returns
/// `None` if the number is too large for the bit set.
fn word_and_bit(noted: &'static Numbers, number: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(number).ok()?;
    Some((noted.get(number / 64)?, 1 << (number % 64)))
}

/// Increments `eventfd`, an eventfd of the device, which wakes the threads that wait for it.
pub(crate) fn increment(eventfd: BorrowedFd<'_>) {
    if has_lost() && !is_intact(eventfd) {
        return;
    }
    // A full counter is an error that can be ignored: the eventfd is readable anyway.
    if let Err(Errno::BADF | Errno::INVAL) = rustix::io::write(eventfd, &1_u64.to_ne_bytes()) {
        report_loss();
    }
}

/// Increments the eventfd `eventfd`, which a peer process has passed to this process. Does nothing
/// if the counter is full, because the write would then block until the peer reads the eventfd.
pub(crate) fn increment_unless_full(eventfd: BorrowedFd<'_>) {
    let mut descriptors = [PollFd::new(&eventfd, PollFlags::OUT)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    if poll(&mut descriptors, Some(&now)) != Ok(0) {
        increment(eventfd);
    }
}

/// Returns whether `descriptor` still refers to the file that the device has opened. Returns
/// `false` if the program has closed the descriptor by mistake.
pub(crate) fn is_intact(descriptor: BorrowedFd<'_>) -> bool {
    is_marked(descriptor.as_raw_fd())
}

/// Returns whether all descriptors of the device still refer to the files that the device has
/// opened. If the program has closed a descriptor by mistake, makes the device fail, and returns
/// `false`.
pub(crate) fn check_all() -> bool {
    let is_intact = are_intact();
    if !is_intact {
        report_loss();
    }
    is_intact
}

fn are_intact() -> bool {
    // Prevents other threads from opening or closing a file of the device meanwhile.
    let _opening = Opening::begin();
    OWN_NUMBERS
        .iter()
        .zip(&PROGRAM_NUMBERS)
        .enumerate()
        .all(|(at, (open, public))| {
            let mut bits = open.load(Ordering::Relaxed) & !public.load(Ordering::Relaxed);
            while bits != 0 {
                let number = 64 * at as RawFd + bits.trailing_zeros() as RawFd;
                bits &= bits - 1;
                if !is_marked(number) {
                    return false;
                }
            }
            true
        })
}

/// Sets the function that makes the device fail with a given reason. The function is called when
/// the program has closed a descriptor of the device by mistake.
pub(crate) fn set_loss_handler(fail: fn(&str)) {
    // Only the first call has an effect; each call passes the same function.
    let _ = ON_LOSS.set(fail);
}

/// Reports a fatal error of the device, because the program has closed one of the device's
/// descriptors by mistake.
#[cold]
pub(crate) fn report_loss() {
    HAS_LOST_FILES.store(true, Ordering::SeqCst);
    // Before the device is first opened, there is nothing to fail.
    if let Some(fail) = ON_LOSS.get() {
        fail(
            "the program has closed file descriptors of the device, as it does that closes all it has not opened itself",
        );
    }
}

/// Returns whether the device has detected that the program closed one of its files.
#[inline]
pub(crate) fn has_lost() -> bool {
    HAS_LOST_FILES.load(Ordering::Relaxed)
}

fn is_marked(number: RawFd) -> bool {
    // SAFETY: the call is valid for any number.
    unsafe { libc::fcntl(number, F_GETSIG) == MARK_SIGNAL }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn a_full_counter_of_a_peer_does_not_block() {
        let full = Descriptor::open(|| eventfd(0, EventfdFlags::CLOEXEC)).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            increment_unless_full(full.as_fd());
            sender.send(full).unwrap();
        });
        let full = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        let mut counter = [0; 8];
        rustix::io::read(&full, &mut counter).unwrap();
        assert_eq!(u64::from_ne_bytes(counter), u64::MAX - 1);
        increment_unless_full(full.as_fd());
        rustix::io::read(&full, &mut counter).unwrap();
        assert_eq!(u64::from_ne_bytes(counter), 1);
    }
}
