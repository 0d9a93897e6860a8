//! Questions to the kernel about the program's memory: where something is mapped, and copies that end with an error,
//! instead of ending the program, where nothing is mapped.

use std::fs::File;
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;

use super::mapping::Mapping;
use crate::descriptor::Descriptor;
use crate::per_process::PerProcess;

/// Copies the bytes from `address` on, if they are all there.
pub(super) fn read(address: usize, out: &mut [u8]) -> Option<()> {
    transfer(
        libc::SYS_process_vm_readv,
        address,
        out.as_mut_ptr(),
        out.len(),
    )
}

/// Copies to the bytes from `address` on, if they are all there and may be written.
pub(super) fn write(address: usize, data: &[u8]) -> Option<()> {
    transfer(
        libc::SYS_process_vm_writev,
        address,
        data.as_ptr().cast_mut(),
        data.len(),
    )
}

/// Returns the mapping at an address; `None` if nothing is mapped there.
///
/// The answer takes half a microsecond, where all of `/proc/self/maps` takes hundreds. `Err`: the kernel is older than
/// 6.11, or there is no `/proc`.
pub(super) fn mapping_at(address: u64) -> Result<Option<Mapping>, NoAnswer> {
    /// `_IOWR('f', 17, struct procmap_query)` of `linux/fs.h`.
    const PROCMAP_QUERY: libc::c_ulong = 0b11 << 30
        | (size_of::<Query>() as libc::c_ulong) << 16
        | (b'f' as libc::c_ulong) << 8
        | 17;
    const READABLE: u64 = 1;
    const WRITABLE: u64 = 1 << 1;
    let maps = MAPS.get().as_ref().ok_or(NoAnswer)?;
    let mut query = Query {
        size: size_of::<Query>() as u64,
        address,
        ..Query::default()
    };
    // SAFETY: the descriptor is open, and the kernel fills a query of the size that it is told. Without
    // room for names it writes nowhere else.
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
        _ => Err(NoAnswer),
    }
}

/// The file of this process's mappings. Every process needs its own, as the file shows the mappings of the process that
/// opened it.
static MAPS: PerProcess<Option<Descriptor>> =
    PerProcess::new(|| Descriptor::open(|| File::open("/proc/self/maps").map(Into::into)).ok());

/// Leaves the parent's file alone, in a child of `fork`.
pub(crate) fn forget() {
    MAPS.forget();
}

/// The kernel cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoAnswer;

/// `struct procmap_query`
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
    // SAFETY: the calls check `remote`; `local` is of a slice of this length, and is only written by
    // the call that reads `remote`.
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
