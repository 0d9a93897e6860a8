//! Address handles, and the conversion of address vectors to and from the C struct.

use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;

use super::context::{ContextHandle, positive};
use super::protection_domain::ProtectionDomainHandle;
use super::queue_pair::{gid_bytes, set_destination};
use crate::address::{AddressHandle, AddressVector, StaticRate};
use crate::completion::WorkCompletion;
use crate::device::Gid;
use crate::error::{Errno, Error, Result};
use crate::protection_domain::ProtectionDomain;

/// The owner of an address handle (`ibv_ah`). Dropping this value destroys the handle.
#[derive(Debug)]
pub(crate) struct AddressHandleOwner {
    raw: NonNull<sys::ibv_ah>,
    domain: Arc<ProtectionDomainHandle>,
}

// SAFETY: verbs are thread-safe on an address handle.
unsafe impl Send for AddressHandleOwner {}
// SAFETY: verbs are thread-safe on an address handle.
unsafe impl Sync for AddressHandleOwner {}

impl AddressHandleOwner {
    pub(crate) fn create(
        domain: Arc<ProtectionDomainHandle>,
        vector: &AddressVector,
    ) -> Result<Self> {
        let mut attributes = vector.to_raw()?;
        // SAFETY: the new owner keeps the handle of the domain, which keeps the domain valid.
        let raw = unsafe { sys::ibv_create_ah(domain.as_raw(), &mut attributes) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self { raw, domain }),
            None => {
                let errno = Errno::last();
                let device = domain.context().describe();
                let object = match vector.gid {
                    Some(gid) => format!("{device}, GID index {} to {gid}", vector.gid_index),
                    None => format!("{device}, to LID {}", vector.lid),
                };
                Err(Error::verb("ibv_create_ah", object, errno))
            }
        }
    }

    #[inline]
    pub(crate) fn context(&self) -> &Arc<ContextHandle> {
        self.domain.context()
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_ah {
        self.raw.as_ptr()
    }
}

impl Drop for AddressHandleOwner {
    fn drop(&mut self) {
        // SAFETY: the handle is valid and destroyed once, here; every request that names it keeps
        // an `Arc` of this owner until the request has completed, so no such request is left.
        let errno = unsafe { sys::ibv_destroy_ah(self.raw.as_ptr()) };
        if errno != 0 {
            let device = self.domain.context().name();
            tracing::error!(%device, errno = %positive(errno), "ibv_destroy_ah failed");
        }
    }
}

impl AddressHandle {
    /// Takes ownership of an address handle that other code created, for example a vendor's
    /// extension.
    ///
    /// # Safety
    ///
    /// `raw` must be a valid address handle of `domain`. No other code may use or destroy it, and
    /// no outstanding request may name it.
    ///
    /// # Panics
    ///
    /// Panics if `raw` is null.
    pub unsafe fn from_raw(domain: &ProtectionDomain, raw: *mut sys::ibv_ah) -> Self {
        Self::from_owner(AddressHandleOwner {
            raw: NonNull::new(raw).expect("an address handle"),
            domain: Arc::clone(domain.handle()),
        })
    }
}

impl AddressVector {
    /// Converts the address vector to the C struct `ibv_ah_attr`. Fails if a value is out of range.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a service level, flow label or GID index out of range.
    pub fn to_raw(&self) -> Result<sys::ibv_ah_attr> {
        self.checked()?;
        // SAFETY: all-zero bytes are a valid value of this plain C struct.
        let mut raw: sys::ibv_ah_attr = unsafe { mem::zeroed() };
        raw.port_num = self.port;
        raw.dlid = self.lid;
        raw.sl = self.service_level;
        raw.src_path_bits = self.source_path_bits;
        raw.static_rate = self.static_rate.0;
        if let Some(gid) = self.gid {
            set_destination(&mut raw, gid.0);
            // `checked` has verified that the GID index fits into this field.
            raw.grh.sgid_index = self.gid_index as u8;
            raw.grh.flow_label = self.flow_label;
            raw.grh.hop_limit = self.hop_limit;
            raw.grh.traffic_class = self.traffic_class;
        }
        Ok(raw)
    }

    /// Converts the C struct `ibv_ah_attr` to an address vector.
    pub fn from_raw(raw: &sys::ibv_ah_attr) -> Self {
        Self {
            port: raw.port_num,
            gid: (raw.is_global != 0).then(|| Gid(gid_bytes(&raw.grh.dgid))),
            gid_index: raw.grh.sgid_index.into(),
            flow_label: raw.grh.flow_label,
            hop_limit: raw.grh.hop_limit,
            traffic_class: raw.grh.traffic_class,
            lid: raw.dlid,
            service_level: raw.sl,
            source_path_bits: raw.src_path_bits,
            static_rate: StaticRate(raw.static_rate),
        }
    }
}

/// Returns the address vector of the path back to the sender of a received datagram. `completion`
/// is the completion of the receive, and `port` is the port that received the datagram. `grh` is
/// the global routing header (GRH): the first 40 bytes of the receive's memory.
pub(crate) fn vector_of_completion(
    context: &ContextHandle,
    completion: &WorkCompletion,
    grh: &[u8; 40],
    port: u8,
) -> Result<AddressVector> {
    let mut completion = *completion.as_raw();
    // SAFETY: these are plain C structs of integers, for which all-zero bytes are a valid value.
    let (mut header, mut vector): (sys::ibv_grh, sys::ibv_ah_attr) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    const { assert!(size_of::<sys::ibv_grh>() == 40) };
    // SAFETY: `header` is 40 bytes, a plain C struct of integers for which any bytes are valid.
    unsafe { (&raw mut header).cast::<[u8; 40]>().write(*grh) };
    // SAFETY: the context is open, and the three structs are valid places.
    let errno = unsafe {
        sys::ibv_init_ah_from_wc(
            context.as_raw(),
            port,
            &mut completion,
            &mut header,
            &mut vector,
        )
    };
    if errno == 0 {
        return Ok(AddressVector::from_raw(&vector));
    }
    let errno = positive(errno);
    let object = format!("{} port {port}", context.describe());
    Err(Error::verb("ibv_init_ah_from_wc", object, errno))
}

/// Returns the `ibv_rate` code for a rate in Mbit/s; `None` if the rate has no code.
pub(crate) fn rate_of_megabits(megabits: u32) -> Option<u8> {
    let megabits = i32::try_from(megabits).ok()?;
    // SAFETY: the function only computes with numbers.
    let rate = unsafe { sys::mbps_to_ibv_rate(megabits) };
    // `mbps_to_ibv_rate` returns the code 0, the port's own rate, for a rate without a code.
    let code = u8::try_from(rate.0).ok()?;
    (code != 0).then_some(code)
}

/// Returns the rate in Mbit/s for an `ibv_rate` code; `None` if the code is unknown.
pub(crate) fn megabits_of_rate(code: u8) -> Option<u32> {
    // SAFETY: the function only computes with numbers, and accepts any code.
    let megabits = unsafe { sys::ibv_rate_to_mbps(sys::ibv_rate(code.into())) };
    u32::try_from(megabits)
        .ok()
        .filter(|&megabits| megabits > 0)
}
