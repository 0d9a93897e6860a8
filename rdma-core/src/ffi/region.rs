//! Registrations of memory with a device: the owners of an `ibv_mr`.

use std::fmt;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys as sys;

use super::allocation::PAGE;
use super::context::{ContextHandle, positive};
use super::elements::LocalKey;
use super::owner::Backing;
use super::protection_domain::ProtectionDomainHandle;
use crate::error::{Errno, Error, Result};
use crate::memory::AccessFlags;

/// A registered memory region (`ibv_mr`), which [`Self::end`] deregisters. Dropping this value does
/// not deregister the region: the type that contains this value must call [`Self::end`] and handle
/// a failure.
#[derive(Debug)]
pub(super) struct RawRegion {
    /// The `ibv_mr` of the region, or `None` after the deregistration.
    raw: Option<NonNull<sys::ibv_mr>>,
    lkey: LocalKey,
    rkey: u32,
    domain: Arc<ProtectionDomainHandle>,
    /// Set for an imported region, which belongs to another object. That object deregisters the
    /// region.
    is_imported: bool,
}

// SAFETY: verbs are thread-safe on a memory region.
unsafe impl Send for RawRegion {}
// SAFETY: verbs are thread-safe on a memory region.
unsafe impl Sync for RawRegion {}

impl RawRegion {
    /// Takes ownership of the region that a registering verb returned. Returns `None` if `raw` is
    /// null.
    ///
    /// # Safety
    ///
    /// `raw` must be null, or a region of `domain` that no other code deregisters.
    pub(super) unsafe fn new(
        domain: Arc<ProtectionDomainHandle>,
        raw: *mut sys::ibv_mr,
    ) -> Option<Self> {
        let raw = NonNull::new(raw)?;
        // SAFETY: the region is registered; the keys change only with `ibv_rereg_mr`.
        let (lkey, rkey) = unsafe { (raw.as_ref().lkey, raw.as_ref().rkey) };
        Some(Self {
            raw: Some(raw),
            lkey: LocalKey::new(lkey, domain.context()),
            rkey,
            domain,
            is_imported: false,
        })
    }

    /// Takes ownership of an imported region, which is unimported instead of deregistered.
    ///
    /// # Safety
    ///
    /// `raw` must be a region that was imported into `domain`, and that no other code unimports.
    pub(super) unsafe fn import(
        domain: Arc<ProtectionDomainHandle>,
        raw: NonNull<sys::ibv_mr>,
    ) -> Self {
        // SAFETY: the caller guarantees an imported region.
        let (lkey, rkey) = unsafe { (raw.as_ref().lkey, raw.as_ref().rkey) };
        Self {
            raw: Some(raw),
            lkey: LocalKey::new(lkey, domain.context()),
            rkey,
            domain,
            is_imported: true,
        }
    }

    /// Updates the stored keys of the region after a reregistration, which changes the keys, and
    /// stores `domain` as the region's protection domain.
    pub(super) fn refresh(&mut self, domain: Arc<ProtectionDomainHandle>) {
        if let Some(raw) = self.raw {
            // SAFETY: the region is registered.
            let (lkey, rkey) = unsafe { (raw.as_ref().lkey, raw.as_ref().rkey) };
            (self.lkey, self.rkey) = (LocalKey::new(lkey, domain.context()), rkey);
        }
        self.domain = domain;
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_mr {
        self.raw.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    #[inline]
    pub(super) fn lkey(&self) -> LocalKey {
        self.lkey
    }

    #[inline]
    pub(super) fn rkey(&self) -> u32 {
        self.rkey
    }

    pub(super) fn domain(&self) -> &Arc<ProtectionDomainHandle> {
        &self.domain
    }

    /// Deregisters the region, or unimports an imported region. Does nothing if the region was
    /// already deregistered or unimported. On failure returns the error of `ibv_dereg_mr`.
    pub(super) fn end(&mut self) -> Result<()> {
        let Some(raw) = self.raw else { return Ok(()) };
        if self.is_imported {
            self.raw = None;
            // SAFETY: the region is imported; `raw` was cleared, so this is called once.
            unsafe { sys::ibv_unimport_mr(raw.as_ptr()) };
            return Ok(());
        }
        // SAFETY: the region is registered; `raw` is cleared below, so this succeeds once.
        let errno = unsafe { sys::ibv_dereg_mr(raw.as_ptr()) };
        if errno != 0 {
            let errno = positive(errno);
            let object = format!("a memory region of {}", self.domain.context().describe());
            return Err(Error::verb("ibv_dereg_mr", object, errno));
        }
        self.raw = None;
        Ok(())
    }
}

/// The owner of a memory region (`ibv_mr`) over a part of a [`Backing`].
///
/// The region is deregistered before the memory is freed: `Drop` deregisters the region, and the
/// memory is a field, which is dropped afterwards.
pub(crate) struct RegionHandle {
    raw: RawRegion,
    /// Difference between the address that requests use for a byte and the address of the byte in
    /// this process, modulo 2^64. Changes only when the region is reregistered with other memory.
    shift: u64,
    access: AccessFlags,
    memory: Arc<Backing>,
}

impl fmt::Debug for RegionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionHandle")
            .field("raw", &self.raw)
            .field("access", &self.access)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

/// The parameters of a registration, except the domain and the memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegistrationParameters {
    pub(crate) access: AccessFlags,
    /// The address that requests use for the first byte, if it differs from the address in this
    /// process.
    pub(crate) first: Option<u64>,
}

impl From<AccessFlags> for RegistrationParameters {
    fn from(access: AccessFlags) -> Self {
        Self {
            access,
            first: None,
        }
    }
}

impl RegistrationParameters {
    /// Replaces the flag [`AccessFlags::ZERO_BASED`] by an explicit address 0 for the first byte,
    /// because some devices ignore the flag. With the flag, requests count the bytes of the region
    /// from 0. Returns `self` if the flag is not set.
    ///
    /// Returns an error if the flag is set and another address was chosen. Also returns an error if
    /// the flag is set and `start` is not at a page boundary, because devices map whole pages.
    /// `start` is the address of the memory, or its offset in the object that contains it.
    pub(super) fn explicit(self, start: u64) -> Result<Self> {
        if !self.access.contains(AccessFlags::ZERO_BASED) {
            return Ok(self);
        }
        let what = "memory whose bytes requests count from 0";
        if let Some(first) = self.first.filter(|&first| first != 0) {
            let reason = format!("its first byte is to have the address {first:#x} as well");
            return Err(Error::invalid(what, reason));
        }
        if !start.is_multiple_of(PAGE as u64) {
            let reason = "it begins inside of a page, and devices map whole pages";
            return Err(Error::invalid(what, reason));
        }
        Ok(Self {
            access: self.access - AccessFlags::ZERO_BASED,
            first: Some(0),
        })
    }

    /// Returns the number that converts an address in this process to the address in requests: the
    /// sum of both is the address that requests use for the same byte. The addition wraps around.
    /// The number is 0 unless the registration has chosen an address for the first byte. `start` is
    /// the address of the region in this process.
    fn shift(self, start: *const u8) -> u64 {
        let start = start as u64;
        self.first.unwrap_or(start).wrapping_sub(start)
    }
}

impl RegionHandle {
    /// Registers the bytes `range` of `memory` in the protection domain `domain`. The range must
    /// lie inside the memory.
    pub(crate) fn register(
        domain: Arc<ProtectionDomainHandle>,
        memory: Arc<Backing>,
        range: Range<usize>,
        how: impl Into<RegistrationParameters>,
    ) -> Result<Self> {
        let how = how.into();
        let access = how.access;
        assert!(
            range.start <= range.end && range.end <= memory.len(),
            "range outside of memory"
        );
        check(&memory, &range, access)?;
        // SAFETY: the range lies inside the memory, as asserted above.
        let start = unsafe { memory.start().as_ptr().add(range.start) };
        let how = how.explicit(start as u64)?;
        let (flags, len) = (how.access.bits(), range.len());
        // SAFETY: the new handle keeps the memory until after the deregistration. The types that
        // contain this handle control when the device may access the memory.
        let (verb, raw) = unsafe {
            let (pd, start) = (domain.as_raw(), start.cast());
            let buffer = memory
                .device_buffer()
                .filter(|buffer| buffer.is_of(&domain));
            match (how.first, buffer) {
                (None, Some(buffer)) => {
                    let flags = flags.cast_signed();
                    let raw = sys::ibv_reg_buf_mr(pd, buffer.as_raw(), start, len as _, flags as _);
                    ("ibv_reg_buf_mr", raw)
                }
                (None, None) => {
                    let flags = flags.cast_signed();
                    (
                        "ibv_reg_mr",
                        sys::ibv_reg_mr(pd, start, len as _, flags as _),
                    )
                }
                (Some(first), _) => {
                    let raw = sys::ibv_reg_mr_iova2(pd, start, len as _, first, flags as _);
                    ("ibv_reg_mr_iova2", raw)
                }
            }
        };
        // SAFETY: `raw` is null, or a region that the verb has just created.
        let Some(raw) = (unsafe { RawRegion::new(Arc::clone(&domain), raw) }) else {
            let errno = Errno::last();
            return Err(refused(verb, errno, &domain, len, access));
        };
        Ok(Self {
            raw,
            shift: how.shift(start),
            access,
            memory,
        })
    }

    /// Creates a handle that owns `raw`, a region that covers all of `memory`. `how` contains the
    /// parameters of its registration.
    pub(super) fn adopt(raw: RawRegion, memory: Arc<Backing>, how: RegistrationParameters) -> Self {
        Self {
            raw,
            shift: how.shift(memory.start().as_ptr()),
            access: how.access,
            memory,
        }
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_mr {
        self.raw.as_ptr()
    }

    #[inline]
    pub(crate) fn lkey(&self) -> LocalKey {
        self.raw.lkey()
    }

    #[inline]
    pub(crate) fn rkey(&self) -> u32 {
        self.raw.rkey()
    }

    pub(crate) fn access(&self) -> AccessFlags {
        self.access
    }

    pub(crate) fn domain(&self) -> &Arc<ProtectionDomainHandle> {
        self.raw.domain()
    }

    pub(crate) fn memory(&self) -> &Arc<Backing> {
        &self.memory
    }

    /// Returns the address by which requests refer to a byte of the region. `address` is the
    /// address of the byte in this process.
    #[inline]
    pub(crate) fn request_address(&self, address: *const u8) -> u64 {
        (address as u64).wrapping_add(self.shift)
    }

    /// Returns whether requests refer to the bytes of the region by their addresses in this
    /// process. Returns `false` if the registration has chosen other addresses for requests.
    #[inline]
    pub(crate) fn is_mapped(&self) -> bool {
        self.shift == 0
    }

    /// Deregisters the region, which ends the device's access. After a failure, the caller can call
    /// this method again.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.raw.end()
    }

    /// Deregisters the region, and returns its memory. On failure returns the region and the error.
    #[allow(clippy::result_large_err, reason = "the region is what comes back")]
    pub(crate) fn release(mut self) -> Result<Arc<Backing>, (Self, Error)> {
        match self.raw.end() {
            Ok(()) => Ok(Arc::clone(&self.memory)),
            Err(error) => Err((self, error)),
        }
    }

    /// Records the new domain, access flags and memory of the region after a successful
    /// reregistration. Returns the former memory if `memory` replaces it. Requests then address the
    /// new memory by its address in this process.
    pub(super) fn changed(
        &mut self,
        domain: Arc<ProtectionDomainHandle>,
        access: AccessFlags,
        memory: Option<Arc<Backing>>,
    ) -> Option<Arc<Backing>> {
        self.raw.refresh(domain);
        self.access = access;
        memory.map(|memory| {
            self.shift = 0;
            std::mem::replace(&mut self.memory, memory)
        })
    }
}

/// Returns the error of the verb `verb`, which failed to register `len` bytes. Returns
/// [`Error::Unsupported`] if `access` requests on-demand paging and the device lacks that feature.
#[cold]
pub(super) fn refused(
    verb: &'static str,
    errno: Errno,
    domain: &ProtectionDomainHandle,
    len: usize,
    access: AccessFlags,
) -> Error {
    let context = domain.context();
    if access.contains(AccessFlags::ON_DEMAND) && context.lacks_on_demand_paging() {
        return Error::Unsupported {
            what: "on-demand paging",
            device: context.name().to_owned(),
        };
    }
    let object = format!("{len} bytes with access {access} on {}", context.describe());
    Error::verb(verb, object, errno)
}

/// Returns an error if no device could register the memory: the range is empty, or `access` allows
/// writes to read-only memory.
pub(super) fn check(memory: &Backing, range: &Range<usize>, access: AccessFlags) -> Result<()> {
    if range.is_empty() {
        let reason = "a region of 0 bytes cannot be registered";
        return Err(Error::invalid("memory region", reason));
    }
    let writes = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if !memory.is_writable() && access.intersects(writes) {
        return Err(Error::NotWritable);
    }
    Ok(())
}

impl Drop for RegionHandle {
    fn drop(&mut self) {
        if let Err(error) = self.raw.end() {
            // The device may still access the memory, so it must never be freed.
            std::mem::forget(Arc::clone(&self.memory));
            tracing::error!(%error, "deregistration failed; the memory is leaked");
        }
    }
}

impl ContextHandle {
    /// Returns `true` if the device does not support on-demand paging (memory that is not pinned),
    /// or if the query of the device fails.
    fn lacks_on_demand_paging(&self) -> bool {
        let mut attributes = sys::ibv_device_attr_ex::default();
        // SAFETY: the context is open and `attributes` is a valid place for the answer.
        let errno =
            unsafe { sys::ibv_query_device_ex(self.as_raw(), ptr::null(), &mut attributes) };
        let has = sys::ibv_odp_general_caps::IBV_ODP_SUPPORT.0;
        errno != 0 || attributes.odp_caps.general_caps & u64::from(has) == 0
    }
}
