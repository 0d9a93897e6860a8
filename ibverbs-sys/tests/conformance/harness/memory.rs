//! Protection domains, memory and memory regions.

use std::ffi::c_int;
use std::ptr;
use std::rc::Rc;

use ibverbs_sys::*;

use super::check::{Outcome, pointer, status};
use super::device::{Device, must};

/// Every access that needs no capability.
pub(crate) const ALL_ACCESS: ibv_access_flags = ibv_access_flags(
    ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
        | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
        | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
        | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0,
);

pub(crate) const NO_ACCESS: ibv_access_flags = ibv_access_flags(0);

/// A protection domain. Clones refer to the same domain.
#[derive(Clone)]
pub(crate) struct Pd(Rc<PdHandle>);

struct PdHandle {
    raw: *mut ibv_pd,
    device: Device,
}

impl Pd {
    pub(crate) fn new(device: &Device) -> Self {
        Self::from_raw(
            device,
            unsafe { ibv_alloc_pd(device.context()) }.succeeds("ibv_alloc_pd"),
        )
    }

    /// Takes over a protection domain or a parent domain.
    pub(crate) fn from_raw(device: &Device, raw: *mut ibv_pd) -> Self {
        Self(Rc::new(PdHandle {
            raw,
            device: device.clone(),
        }))
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.0.raw
    }

    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }
}

impl Drop for PdHandle {
    fn drop(&mut self) {
        must("ibv_dealloc_pd", unsafe { ibv_dealloc_pd(self.raw) });
    }
}

/// Pages of zeroes. The device may write them at any time, so they are read by volatile accesses.
pub(crate) struct Memory {
    start: *mut u8,
    length: usize,
}

impl Memory {
    pub(crate) fn new(length: usize) -> Self {
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert!(start != libc::MAP_FAILED, "no memory");
        Self {
            start: start.cast(),
            length,
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.start as u64
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length);
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(offset), bytes.len()) };
    }

    pub(crate) fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.length);
        (offset..offset + length)
            .map(|at| unsafe { self.start.add(at).read_volatile() })
            .collect()
    }

    /// Returns whether both memories contain equal bytes.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        let chunk = |memory: &Self, at: usize| {
            let end = memory.length.min(at + (1 << 16));
            memory.read(at, end - at)
        };
        self.length == other.length
            && (0..self.length)
                .step_by(1 << 16)
                .all(|at| chunk(self, at) == chunk(other, at))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// A memory region and its memory.
pub(crate) struct Mr {
    raw: *mut ibv_mr,
    memory: Rc<Memory>,
    _pd: Pd,
}

impl Mr {
    /// Registers new memory of `length` bytes.
    pub(crate) fn new(pd: &Pd, length: usize, access: ibv_access_flags) -> Self {
        Self::of(pd, &Rc::new(Memory::new(length)), 0, length, access).succeeds("ibv_reg_mr")
    }

    /// Registers a part of `memory`.
    pub(crate) fn of(
        pd: &Pd,
        memory: &Rc<Memory>,
        offset: usize,
        length: usize,
        access: ibv_access_flags,
    ) -> Result<Self, c_int> {
        let start = (memory.address() + offset as u64) as *mut _;
        let raw = unsafe { ibv_reg_mr(pd.raw(), start, length, access.0 as c_int) };
        Ok(Self::from_raw(pd, memory, pointer(raw)?))
    }

    /// Takes over a memory region.
    pub(crate) fn from_raw(pd: &Pd, memory: &Rc<Memory>, raw: *mut ibv_mr) -> Self {
        Self {
            raw,
            memory: Rc::clone(memory),
            _pd: pd.clone(),
        }
    }

    pub(crate) fn raw(&self) -> *mut ibv_mr {
        self.raw
    }

    pub(crate) fn lkey(&self) -> u32 {
        unsafe { (*self.raw).lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        unsafe { (*self.raw).rkey }
    }

    /// Returns the address of the byte at `offset` of a region that is registered at its own
    /// address.
    pub(crate) fn at(&self, offset: usize) -> u64 {
        unsafe { (*self.raw).addr as u64 + offset as u64 }
    }

    pub(crate) fn sge(&self, offset: usize, length: usize) -> ibv_sge {
        ibv_sge {
            addr: self.at(offset),
            length: length as u32,
            lkey: self.lkey(),
        }
    }

    pub(crate) fn memory(&self) -> &Rc<Memory> {
        &self.memory
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.memory.write(offset, bytes);
    }

    pub(crate) fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        self.memory.read(offset, length)
    }

    pub(crate) fn set_u64(&self, offset: usize, value: u64) {
        self.write(offset, &value.to_ne_bytes());
    }

    pub(crate) fn u64(&self, offset: usize) -> u64 {
        let bytes = self.read(offset, 8);
        u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
    }

    /// Deregisters the region now, or at its end if that fails. Returns the memory, which is not
    /// freed.
    pub(crate) fn deregister(mut self) -> (Rc<Memory>, Result<(), c_int>) {
        let result = status(unsafe { ibv_dereg_mr(self.raw) });
        if result.is_ok() {
            self.raw = ptr::null_mut();
        }
        (Rc::clone(&self.memory), result)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            must("ibv_dereg_mr", unsafe { ibv_dereg_mr(self.raw) });
        }
    }
}

/// Returns `length` bytes of a pattern that depends on `seed` and the offset.
pub(crate) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed)
        .collect()
}
