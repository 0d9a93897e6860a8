//! Registered memory that is no longer mapped: every access returns an error, and the process
//! continues.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use ibverbs_sys::*;
use libc::c_void;

use super::alone;
use super::end::{Bytes, Device, End, with_pair};

const SEND: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_SEND;
pub(super) const WRITE: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
const READ: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
const ADD: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
const SWAP: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;

const SUCCESS: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;
const LOCAL: ibv_wc_status = ibv_wc_status::IBV_WC_LOC_PROT_ERR;
pub(super) const REMOTE: ibv_wc_status = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
const OPERATION: ibv_wc_status = ibv_wc_status::IBV_WC_REM_OP_ERR;

pub(super) const PAGE: usize = 4096;

/// Number of pages of each test's memory: more than three packets.
const PAGES: usize = 4;

/// Lengths in bytes that are copied in different ways.
const LENGTHS: [u32; 5] = [1, 8, 100, 1000, 9000];

/// Changes of memory after its registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    Unmapped,
    Inaccessible,
    /// The memory is readable, but not writable.
    ReadOnly,
    /// The file of the memory is empty.
    Truncated,
    /// Only the last pages are unmapped.
    Tail,
}

const LOSSES: [Loss; 5] = [
    Loss::Unmapped,
    Loss::Inaccessible,
    Loss::ReadOnly,
    Loss::Truncated,
    Loss::Tail,
];

impl Loss {
    /// Returns whether an access of `length` bytes reaches memory that is missing.
    fn hits(self, length: u32, writes: bool) -> bool {
        match self {
            Self::Unmapped | Self::Inaccessible | Self::Truncated => true,
            Self::ReadOnly => writes,
            Self::Tail => length as usize > PAGE,
        }
    }
}

/// Pages of memory in a file, and their region.
pub(super) struct Memory {
    pub(super) start: *mut c_void,
    pub(super) file: i32,
    mr: *mut ibv_mr,
}

impl Memory {
    pub(super) fn new(device: &Device) -> Self {
        /// Distance between two mappings in bytes.
        const STRIDE: usize = 1 << 20;
        // Far from the addresses that the kernel chooses. Otherwise the next mapping of another
        // thread could get the address of memory that a test has unmapped, and a peer's write would
        // reach that mapping.
        static NEXT: AtomicUsize = AtomicUsize::new(0x1000_0000_0000);
        let address = NEXT.fetch_add(STRIDE, Ordering::Relaxed);
        // SAFETY: the file is new, and is mapped where no mapping exists.
        unsafe {
            let file = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC);
            assert!(file >= 0, "{}", io::Error::last_os_error());
            assert_eq!(libc::ftruncate(file, (PAGES * PAGE) as i64), 0);
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
            let address = ptr::without_provenance_mut(address);
            let start = libc::mmap(address, PAGES * PAGE, rights, flags, file, 0);
            assert_ne!(start, libc::MAP_FAILED);
            let mr = device.register(start, PAGES * PAGE);
            assert!(!mr.is_null());
            Self { start, file, mr }
        }
    }

    pub(super) fn bytes(&self, length: u32) -> Bytes {
        Bytes {
            address: self.start.expose_provenance() as u64,
            length,
            // SAFETY: the region is valid.
            key: unsafe { (*self.mr).lkey },
        }
    }

    pub(super) fn lose(&self, loss: Loss) {
        let (start, length) = (self.start, PAGES * PAGE);
        // SAFETY: no code in this process holds a reference to the memory.
        let answer = unsafe {
            match loss {
                Loss::Unmapped => libc::munmap(start, length),
                Loss::Inaccessible => libc::mprotect(start, length, libc::PROT_NONE),
                Loss::ReadOnly => libc::mprotect(start, length, libc::PROT_READ),
                Loss::Truncated => libc::ftruncate(self.file, 0),
                Loss::Tail => libc::munmap(start.byte_add(PAGE), length - PAGE),
            }
        };
        assert_eq!(answer, 0, "{loss:?}: {}", io::Error::last_os_error());
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: no code uses the objects any more, and unmapping unmapped memory is no error.
        unsafe {
            assert_eq!(ibv_dereg_mr(self.mr), 0);
            libc::munmap(self.start, PAGES * PAGE);
            libc::close(self.file);
        }
    }
}

/// Runs `case` for each way to lose memory and each length, on intact and on missing memory.
fn for_each_loss(
    test: &str,
    writes: bool,
    case: impl Fn(Loss, u32, &End<'_>, &End<'_>, &Memory, &Memory),
) {
    for path in ["direct", "shared", "udp"] {
        let ended = alone(test, &[("SOFTROCE_PATH", path)], || {
            for loss in LOSSES {
                for length in LENGTHS {
                    if loss.hits(length, writes) {
                        with_pair(|device, one, other| {
                            let (good, lost) = (Memory::new(device), Memory::new(device));
                            lost.lose(loss);
                            case(loss, length, one, other, &good, &lost);
                        });
                    }
                }
            }
            works();
        });
        if ended.is_none() {
            return;
        }
    }
}

/// Checks that the device still works afterwards.
pub(super) fn works() {
    with_pair(|device, one, other| {
        let (from, to) = (Memory::new(device), Memory::new(device));
        for opcode in [WRITE, READ] {
            assert_eq!(one.post(1, opcode, from.bytes(9000), to.bytes(9000)), 0);
            assert_eq!(one.complete(), (1, SUCCESS));
        }
        assert_eq!(other.post_receive(2, to.bytes(9000)), 0);
        assert_eq!(one.post(3, SEND, from.bytes(9000), Bytes::NONE), 0);
        assert_eq!(one.complete(), (3, SUCCESS));
        assert_eq!(other.complete(), (2, SUCCESS));
    });
}

#[test]
fn a_peer_that_writes_gets_an_access_error() {
    let test = "missing::a_peer_that_writes_gets_an_access_error";
    for_each_loss(test, true, |loss, length, one, _other, good, lost| {
        assert_eq!(
            one.post(7, WRITE, good.bytes(length), lost.bytes(length)),
            0
        );
        assert_eq!(one.complete(), (7, REMOTE), "{loss:?}, {length} bytes");
    });
}

#[test]
fn a_peer_that_reads_gets_an_access_error() {
    let test = "missing::a_peer_that_reads_gets_an_access_error";
    for_each_loss(test, false, |loss, length, one, _other, good, lost| {
        assert_eq!(one.post(7, READ, good.bytes(length), lost.bytes(length)), 0);
        assert_eq!(one.complete(), (7, REMOTE), "{loss:?}, {length} bytes");
    });
}

#[test]
fn a_remote_atomic_operation_gets_an_access_error() {
    let test = "missing::a_remote_atomic_operation_gets_an_access_error";
    for_each_loss(test, true, |loss, length, one, _other, good, lost| {
        if length != 8 {
            return;
        }
        let opcode = if loss == Loss::Unmapped { SWAP } else { ADD };
        assert_eq!(one.post(7, opcode, good.bytes(8), lost.bytes(8)), 0);
        assert_eq!(one.complete(), (7, REMOTE), "{loss:?}");
    });
}

#[test]
fn a_send_from_unmapped_memory_fails_with_a_protection_error() {
    let test = "missing::a_send_from_unmapped_memory_fails_with_a_protection_error";
    for_each_loss(test, false, |loss, length, one, other, good, lost| {
        assert_eq!(other.post_receive(1, good.bytes(9000)), 0);
        assert_eq!(one.post(7, SEND, lost.bytes(length), Bytes::NONE), 0);
        assert_eq!(one.complete(), (7, LOCAL), "{loss:?}, {length} bytes");
    });
}

#[test]
fn a_write_from_unmapped_memory_fails_with_a_protection_error() {
    let test = "missing::a_write_from_unmapped_memory_fails_with_a_protection_error";
    for_each_loss(test, false, |loss, length, one, _other, good, lost| {
        assert_eq!(
            one.post(7, WRITE, lost.bytes(length), good.bytes(length)),
            0
        );
        assert_eq!(one.complete(), (7, LOCAL), "{loss:?}, {length} bytes");
    });
}

#[test]
fn a_read_to_unmapped_memory_fails_with_a_protection_error() {
    let test = "missing::a_read_to_unmapped_memory_fails_with_a_protection_error";
    for_each_loss(test, true, |loss, length, one, _other, good, lost| {
        assert_eq!(one.post(7, READ, lost.bytes(length), good.bytes(length)), 0);
        assert_eq!(one.complete(), (7, LOCAL), "{loss:?}, {length} bytes");
    });
}

#[test]
fn an_atomic_operation_that_answers_to_nowhere_ends_with_a_protection_error() {
    let test = "missing::an_atomic_operation_that_answers_to_nowhere_ends_with_a_protection_error";
    for_each_loss(test, true, |loss, length, one, _other, good, lost| {
        if length == 8 {
            assert_eq!(one.post(7, ADD, lost.bytes(8), good.bytes(8)), 0);
            assert_eq!(one.complete(), (7, LOCAL), "{loss:?}");
        }
    });
}

/// Checks IBTA 9.9.3: the receiver's request ends with a local protection error, the sender's with
/// a remote operation error.
#[test]
fn a_receive_to_unmapped_memory_fails_both_requests() {
    let test = "missing::a_receive_to_unmapped_memory_fails_both_requests";
    for_each_loss(test, true, |loss, length, one, other, good, lost| {
        assert_eq!(other.post_receive(1, lost.bytes(9000)), 0);
        assert_eq!(one.post(7, SEND, good.bytes(length), Bytes::NONE), 0);
        assert_eq!(one.complete(), (7, OPERATION), "{loss:?}, {length} bytes");
        assert_eq!(other.complete(), (1, LOCAL), "{loss:?}, {length} bytes");
    });
}
