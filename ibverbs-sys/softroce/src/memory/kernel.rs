//! System calls that access the program's memory: a query of the mapping at an address, and copies
//! that return an error for unmapped memory, instead of ending the program.

use std::fs::File;
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;

use super::mapping::Mapping;
use crate::descriptor::Descriptor;
use crate::per_process::PerProcess;

/// Copies memory of this process at `address` to `out`. A system call copies the bytes, so unmapped
/// bytes cause no fault. Returns `None` if not all bytes are readable. Part of the bytes may then
/// have been copied.
pub(super) fn read(address: usize, out: &mut [u8]) -> Option<()> {
    transfer(
        libc::SYS_process_vm_readv,
        address,
        out.as_mut_ptr(),
        out.len(),
    )
}

/// Copies `data` to memory of this process at `address` by a system call. Returns `None` if not all
/// bytes are writable.
pub(super) fn write(address: usize, data: &[u8]) -> Option<()> {
    transfer(
        libc::SYS_process_vm_writev,
        address,
        data.as_ptr().cast_mut(),
        data.len(),
    )
}

/// Returns the mapping of this process that contains `address`, or `None` if the address is not
/// mapped.
///
/// Fails if the kernel is older than 6.11, or if there is no `/proc`. The query takes half a
/// microsecond, while reading all of `/proc/self/maps` takes hundreds of microseconds.
pub(super) fn mapping_at(address: u64) -> Result<Option<Mapping>, QueryUnsupported> {
    /// Number of the ioctl `PROCMAP_QUERY` (`linux/fs.h`), which queries the mapping at an address:
    /// `_IOWR('f', 17, struct procmap_query)`.
    const PROCMAP_QUERY: libc::c_ulong = 0b11 << 30
        | (size_of::<Query>() as libc::c_ulong) << 16
        | (b'f' as libc::c_ulong) << 8
        | 17;
    const READABLE: u64 = 1;
    const WRITABLE: u64 = 1 << 1;
    let maps = MAPS.get().as_ref().ok_or(QueryUnsupported)?;
    let mut query = Query {
        size: size_of::<Query>() as u64,
        address,
        ..Query::default()
    };
    // SAFETY: the descriptor is open. The kernel writes to the query only, whose size is in it; the
    // fields for names are 0.
    let answer = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
    if answer == 0 {
        return Ok(Some(Mapping {
            start: query.start,
            end: query.end,
            readable: query.rights & READABLE != 0,
            writable: query.rights & WRITABLE != 0,
        }));
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOENT) => Ok(None),
        _ => Err(QueryUnsupported),
    }
}

/// The open file `/proc/self/maps`. Each process needs its own open file, because the file shows
/// the mappings of the process that opened it.
static MAPS: PerProcess<Option<Descriptor>> =
    PerProcess::new(|| Descriptor::open(|| File::open("/proc/self/maps").map(Into::into)).ok());

/// Discards the open file `/proc/self/maps` of the parent in a child of `fork`, because this file
/// shows the parent's mappings. The descriptor stays open, because the discarded value is not
/// dropped.
pub(crate) fn reset_in_child() {
    MAPS.reset_in_child();
}

/// Error: the kernel cannot return the mapping at an address, because the kernel is too old, or
/// because there is no `/proc`. The caller must try to read `/proc/self/maps` instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryUnsupported;

/// Argument of the ioctl `PROCMAP_QUERY`. The layout is that of `struct procmap_query` in
/// `linux/fs.h`.
#[derive(Default)]
#[repr(C)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const _: () = assert!(size_of::<Query>() == 104 && mem::offset_of!(Query, name) == 88);

fn transfer(call: libc::c_long, remote: usize, local: *mut u8, length: usize) -> Option<()> {
    let local = libc::iovec {
        iov_base: local.cast(),
        iov_len: length,
    };
    let remote = libc::iovec {
        iov_base: ptr::with_exposed_provenance_mut(remote),
        iov_len: length,
    };
    // SAFETY: the kernel checks the addresses of `remote`. `local` describes a slice of this
    // length, which only the call that reads `remote` writes to; the caller of that call passes an
    // exclusive slice.
    let copied = unsafe {
        libc::syscall(
            call,
            libc::getpid(),
            &raw const local,
            1_usize,
            &raw const remote,
            1_usize,
            0_usize,
        )
    };
    (usize::try_from(copied) == Ok(length)).then_some(())
}
