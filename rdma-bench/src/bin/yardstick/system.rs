//! System interfaces that have no safe wrapper: shared mappings, writes to another process, and
//! options of UDP sockets. All unsafe code of this program is here.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// Distance in bytes between two words of a [`Shared`] memory: two cache lines, because processors
/// fetch lines in pairs.
const LINE: usize = 128;

/// Memory that processes share: a mapped memfd. The first part of the memory consists of atomic
/// words, the rest of bytes.
#[derive(Debug)]
pub(crate) struct Shared {
    base: NonNull<u8>,
    len: usize,
    file: File,
}

impl Shared {
    /// Creates shared memory with `words` atomic words, followed by `bytes` bytes. All words and
    /// bytes are 0.
    pub(crate) fn with_words_and_bytes(words: usize, bytes: usize) -> io::Result<Self> {
        Self::with_bytes(words * LINE + bytes)
    }

    /// Creates shared memory of `len` bytes, which are all 0.
    pub(crate) fn with_bytes(len: usize) -> io::Result<Self> {
        let file = File::from(rustix::fs::memfd_create("yardstick", MemfdFlags::CLOEXEC)?);
        file.set_len(len as u64)?;
        Self::map(file)
    }

    /// Maps memory that another process created, given the [path](Self::path) of this memory.
    pub(crate) fn open(path: &str) -> io::Result<Self> {
        Self::map(OpenOptions::new().read(true).write(true).open(path)?)
    }

    /// Returns the path by which child processes open this memory with [`open`](Self::open).
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", process::id(), self.file.as_raw_fd())
    }

    fn map(file: File) -> io::Result<Self> {
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let how = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses where, so no other memory is replaced.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, access, how, &file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len, file })
    }

    fn word(&self, number: usize) -> &AtomicU64 {
        let offset = number * LINE;
        assert!(
            offset + size_of::<AtomicU64>() <= self.len,
            "the shared memory has no word {number}"
        );
        // SAFETY: the word is inside of the mapping, which lives as long as `self`. The word is
        // aligned, because the mapping begins at a page. All processes access it only as an atomic:
        // `fill` is never called on memory of words, and `copy_in` and `copy_out` begin behind the
        // words.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).as_ptr().cast()) }
    }

    /// Returns the value of the word with the index `number`. Memory writes that another process
    /// made before it [stored](Self::store) this value are visible to the caller.
    #[inline]
    pub(crate) fn load(&self, number: usize) -> u64 {
        self.word(number).load(Ordering::Acquire)
    }

    /// Sets the word with the index `number` to `value`. The caller's earlier memory writes are
    /// visible to a process that [loads](Self::load) the value.
    #[inline]
    pub(crate) fn store(&self, number: usize, value: u64) {
        self.word(number).store(value, Ordering::Release);
    }

    /// Copies `bytes` into the byte area of this memory, which follows its words. `words` is the
    /// number of words, and `offset` the target position in the byte area. No other thread or
    /// process may access the target at the same time.
    #[inline]
    pub(crate) fn copy_in(&self, words: usize, offset: usize, bytes: &[u8]) {
        let start = self.part(words, offset, bytes.len());
        // SAFETY: `part` has checked that the target is inside of the mapping, which private memory
        // does not overlap. No process ever makes a reference to this memory.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(start).as_ptr(), bytes.len());
        }
    }

    /// Fills `bytes` from the byte area of this memory, which follows its words. `words` is the
    /// number of words, and `offset` the source position in the byte area. No other thread or
    /// process may access the source at the same time.
    #[inline]
    pub(crate) fn copy_out(&self, words: usize, offset: usize, bytes: &mut [u8]) {
        let start = self.part(words, offset, bytes.len());
        // SAFETY: as in `copy_in`, with source and target exchanged.
        unsafe {
            ptr::copy_nonoverlapping(
                self.base.add(start).as_ptr(),
                bytes.as_mut_ptr(),
                bytes.len(),
            );
        }
    }

    /// Returns the offset, from the start of this memory, of the byte `offset` of the byte area.
    /// The byte area follows `words` atomic words, which are [`LINE`] bytes apart. Panics if fewer
    /// than `len` bytes of memory begin there.
    fn part(&self, words: usize, offset: usize, len: usize) -> usize {
        let start = words * LINE + offset;
        assert!(start + len <= self.len, "no such part of the shared memory");
        start
    }

    /// Copies `bytes` into the whole of this memory. Panics if `bytes` and this memory differ in
    /// size.
    #[inline(never)]
    pub(crate) fn fill(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len, "wrong length");
        // SAFETY: source and target have `bytes.len()` bytes, and private memory does not overlap
        // the mapping. No process ever makes a reference to memory that is filled.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr(), bytes.len()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference into the mapping outlives it. An
        // error is ignored: `munmap` does not fail for an existing mapping.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Writes `bytes` to the memory of another process, at `address` (`process_vm_writev`).
#[inline]
pub(crate) fn write_remote(process: u32, address: u64, bytes: &[u8]) -> io::Result<()> {
    let local = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: ptr::without_provenance_mut(address as usize),
        iov_len: bytes.len(),
    };
    // SAFETY: the kernel reads `bytes` through the local vector and writes only to the memory of
    // `process`, which is another process.
    let count = unsafe {
        libc::process_vm_writev(
            process as libc::pid_t,
            &raw const local,
            1,
            &raw const remote,
            1,
            0,
        )
    };
    match usize::try_from(count) {
        Ok(count) if count == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// An option of a UDP socket that makes one system call transfer several datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UdpOption {
    /// Option that makes the kernel split sent data into datagrams of the given number of bytes
    /// (`UDP_SEGMENT`).
    Segment,
    /// Option that allows the kernel to deliver several datagrams of one sender in one call
    /// (`UDP_GRO`).
    Gather,
}

/// Sets the option `option` of the UDP socket `socket` to `value`.
pub(crate) fn set_udp_option(
    socket: &UdpSocket,
    option: UdpOption,
    value: c_int,
) -> io::Result<()> {
    let name = match option {
        UdpOption::Segment => libc::UDP_SEGMENT,
        UdpOption::Gather => libc::UDP_GRO,
    };
    // SAFETY: the value is an int that lives through the call, as both options take one, and the
    // descriptor is the socket's.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            name,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_by_its_name() {
        let one = Shared::with_words_and_bytes(2, 0).unwrap();
        let other = Shared::open(&one.path()).unwrap();
        one.store(1, 7);
        assert_eq!((other.load(0), other.load(1)), (0, 7));
    }

    #[test]
    fn a_missing_process_is_an_error() {
        // No process has a number as large as this.
        assert!(write_remote(0x7fff_fff0, 0x1000, &[0; 8]).is_err());
    }
}
