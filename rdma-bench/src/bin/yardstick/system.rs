//! The three things of the system that no safe interface offers, and all unsafe code of this
//! program: shared mappings, writes to another process, and options of UDP sockets.

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

/// Two lines, because processors fetch them in pairs.
const LINE: usize = 128;

/// Memory that processes share: a memfd, mapped and present.
#[derive(Debug)]
pub(crate) struct Shared {
    base: NonNull<u8>,
    len: usize,
    file: File,
}

impl Shared {
    /// Memory of `words` words, all 0.
    pub(crate) fn new(words: usize) -> io::Result<Self> {
        Self::with_bytes(words * LINE)
    }

    /// Memory of `len` bytes.
    pub(crate) fn with_bytes(len: usize) -> io::Result<Self> {
        let file = File::from(rustix::fs::memfd_create("yardstick", MemfdFlags::CLOEXEC)?);
        file.set_len(len as u64)?;
        Self::map(file)
    }

    /// The memory that another process named.
    pub(crate) fn open(path: &str) -> io::Result<Self> {
        Self::map(OpenOptions::new().read(true).write(true).open(path)?)
    }

    /// Its name for processes that this one starts.
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
        let place = number * LINE;
        assert!(
            place + size_of::<AtomicU64>() <= self.len,
            "no word {number}"
        );
        // SAFETY: the word is inside of the mapping, which lives as long as `self`, and aligned,
        // because the mapping is to a page. All processes use it as an atomic alone: memory of words
        // is never filled.
        unsafe { AtomicU64::from_ptr(self.base.add(place).as_ptr().cast()) }
    }

    /// The value of a word, and with it what was written before it.
    #[inline]
    pub(crate) fn load(&self, number: usize) -> u64 {
        self.word(number).load(Ordering::Acquire)
    }

    /// Sets a word, after all that was written before.
    #[inline]
    pub(crate) fn store(&self, number: usize, value: u64) {
        self.word(number).store(value, Ordering::Release);
    }

    /// Copies `bytes`, as many as the memory has, into it.
    #[inline(never)]
    pub(crate) fn fill(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len, "all of it is filled");
        // SAFETY: both have that many bytes, and private memory does not overlap the mapping. No
        // reference to memory that is filled is ever made, in this process or another.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr(), bytes.len()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and references to it do not outlive it.
        // It fails for no mapping, and then there is nothing to do.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Writes `bytes` to `address` in another process.
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
    // SAFETY: the kernel reads `bytes` through the one vector, and writes nothing of this process:
    // `process` is another.
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

/// An option of a UDP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UdpOption {
    /// What is sent is cut into datagrams of so many bytes.
    Segment,
    /// Datagrams of one sender may be received as one.
    Gather,
}

/// Sets an option.
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
        let one = Shared::new(2).unwrap();
        let other = Shared::open(&one.path()).unwrap();
        one.store(1, 7);
        assert_eq!((other.load(0), other.load(1)), (0, 7));
    }

    #[test]
    fn a_process_that_is_not_there_is_told() {
        // Process numbers end well before this.
        assert!(write_remote(0x7fff_fff0, 0x1000, &[0; 8]).is_err());
    }
}
