//! A registration of memory with a device.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;

use super::allocation::Allocation;
use super::context::positive;
use super::protection_domain::ProtectionDomainHandle;
use crate::error::{Errno, Error, Result};
use crate::memory::AccessFlags;

/// Owner of an `ibv_mr` over part of an [`Allocation`].
///
/// Deregistration comes before the memory is freed: `Drop` deregisters, and the fields, the memory
/// among them, are dropped after it.
#[derive(Debug)]
pub(crate) struct RegionHandle {
    /// `None` once deregistered.
    raw: Option<NonNull<sys::ibv_mr>>,
    lkey: u32,
    rkey: u32,
    domain: Arc<ProtectionDomainHandle>,
    memory: Arc<Allocation>,
}

// SAFETY: verbs are thread-safe on a memory region; the memory is governed by other types.
unsafe impl Send for RegionHandle {}
// SAFETY: as above.
unsafe impl Sync for RegionHandle {}

impl RegionHandle {
    /// Registers `range` of `memory`, which the caller has checked to lie inside of it.
    pub(crate) fn register(
        domain: Arc<ProtectionDomainHandle>,
        memory: Arc<Allocation>,
        range: Range<usize>,
        access: AccessFlags,
    ) -> Result<Self> {
        assert!(
            range.start <= range.end && range.end <= memory.len(),
            "range outside of memory"
        );
        let flags = i32::try_from(access.bits()).expect("access flags fit a C int");
        // SAFETY: the range lies inside of the allocation, which the new handle keeps until after
        // it has deregistered. Access of the device to it is governed by the types built on this.
        let raw = unsafe {
            let start = memory.start().as_ptr().add(range.start);
            sys::ibv_reg_mr(domain.as_raw(), start.cast(), range.len() as _, flags as _)
        };
        let Some(raw) = NonNull::new(raw) else {
            let errno = Errno::last();
            let object = format!(
                "{} bytes with access {access} on {}",
                range.len(),
                domain.context().describe()
            );
            return Err(Error::verb("ibv_reg_mr", object, errno));
        };
        // SAFETY: the region was just registered; its keys do not change.
        let (lkey, rkey) = unsafe { (raw.as_ref().lkey, raw.as_ref().rkey) };
        Ok(Self {
            raw: Some(raw),
            lkey,
            rkey,
            domain,
            memory,
        })
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_mr {
        self.raw.map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }

    pub(crate) fn domain(&self) -> &Arc<ProtectionDomainHandle> {
        &self.domain
    }

    pub(crate) fn memory(&self) -> &Arc<Allocation> {
        &self.memory
    }
}

impl RegionHandle {
    /// Ends the device's access, or tells why it could not and gives the handle back.
    pub(crate) fn deregister(mut self) -> Result<(), (Self, Error)> {
        match self.end() {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }

    fn end(&mut self) -> Result<()> {
        let Some(raw) = self.raw else { return Ok(()) };
        // SAFETY: the region is registered; `raw` is cleared below, so this succeeds once.
        let errno = unsafe { sys::ibv_dereg_mr(raw.as_ptr()) };
        if errno != 0 {
            let object = format!("a memory region of {}", self.domain.context().describe());
            return Err(Error::verb("ibv_dereg_mr", object, positive(errno)));
        }
        self.raw = None;
        Ok(())
    }
}

impl Drop for RegionHandle {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            // The device may still reach the memory: it must never be freed.
            std::mem::forget(Arc::clone(&self.memory));
            tracing::error!(%error, "deregistration failed; the memory is leaked");
        }
    }
}
