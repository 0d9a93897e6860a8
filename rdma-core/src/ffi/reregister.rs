//! Reregistration (`ibv_rereg_mr`): changing the domain, access or memory of a memory region in
//! place.

use std::ptr;
use std::sync::Arc;

use ibverbs_sys as sys;
use sys::{ibv_rereg_mr_err_code as Failure, ibv_rereg_mr_flags as Change};

use super::owner::Backing;
use super::protection_domain::ProtectionDomainHandle;
use super::region::{self, RegionHandle};
use crate::error::{Errno, Error, Result};
use crate::memory::AccessFlags;

/// The new attributes of a memory region for a reregistration. `None` leaves an attribute
/// unchanged.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) domain: Option<Arc<ProtectionDomainHandle>>,
    pub(crate) access: Option<AccessFlags>,
    pub(crate) memory: Option<Arc<Backing>>,
}

/// The condition of a memory region after a failed reregistration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// The region is unchanged and still valid.
    Valid,
    /// The region must not be used any more, but the owner must still deregister it.
    Unusable,
}

impl RegionHandle {
    /// Changes the protection domain, the access flags or the memory of the region by
    /// `ibv_rereg_mr`. This also changes the keys of the region. Returns the former memory if the
    /// memory changed.
    ///
    /// Returns an error for two changes, because `ibv_rereg_mr` cannot set the addresses that
    /// requests use. The first is [`AccessFlags::ZERO_BASED`] together with new memory: requests
    /// refer to the new memory by its addresses in this process. The second is a change of that
    /// flag without new memory: the addresses in requests stay the same.
    ///
    /// On failure the handle is unchanged. After [`Status::Unusable`] the caller must deregister
    /// the region and prevent its use. The region must cover the whole of its memory.
    pub(crate) fn reregister(
        &mut self,
        changes: &Changes,
    ) -> Result<Option<Arc<Backing>>, (Status, Error)> {
        let memory = changes.memory.as_ref().unwrap_or(self.memory());
        let access = changes.access.unwrap_or(self.access());
        region::check(memory, &(0..memory.len()), access)
            .and_then(|()| self.check_addresses(changes))
            .map_err(|error| (Status::Valid, error))?;
        let mut flags = Change(0);
        let (mut pd, mut start, mut len, mut wanted) = (ptr::null_mut(), ptr::null_mut(), 0, 0);
        if let Some(domain) = &changes.domain {
            flags |= Change::IBV_REREG_MR_CHANGE_PD;
            pd = domain.as_raw();
        }
        if let Some(memory) = &changes.memory {
            flags |= Change::IBV_REREG_MR_CHANGE_TRANSLATION;
            (start, len) = (memory.start().as_ptr(), memory.len());
        }
        if changes.access.is_some() {
            flags |= Change::IBV_REREG_MR_CHANGE_ACCESS;
            // At registration the device got an explicit address instead of this flag: see
            // [`RegistrationParameters::explicit`].
            wanted = (access - AccessFlags::ZERO_BASED).bits().cast_signed();
        }
        // libibverbs does not set `errno` if the driver does not implement the verb.
        clear_errno();
        // SAFETY: the region is registered, the domain is valid, and the handle keeps the memory:
        // the old one until the change has succeeded, the new one from then on. While the outcome
        // is unknown, the handle keeps the old memory and the caller the new one; the caller
        // deregisters before it drops the new one.
        let answer = unsafe {
            let flags = flags.0.cast_signed();
            sys::ibv_rereg_mr(self.as_raw(), flags, pd, start.cast(), len as _, wanted)
        };
        let errno = match Errno::last() {
            Errno(0) => Errno(libc::EOPNOTSUPP),
            errno => errno,
        };
        let answer = Failure(answer);
        if answer == Failure::IBV_REREG_MR_ERR_DO_FORK_OLD {
            // After this error the new region is valid (ibv_rereg_mr(3)).
            tracing::warn!(%errno, "memory that is no longer registered stays unavailable to children");
        } else if answer.0 != 0 {
            let remains = match answer {
                Failure::IBV_REREG_MR_ERR_INPUT | Failure::IBV_REREG_MR_ERR_DONT_FORK_NEW => {
                    Status::Valid
                }
                _ => Status::Unusable,
            };
            let object = format!("a memory region of {}", self.domain().context().describe());
            return Err((remains, Error::verb("ibv_rereg_mr", object, errno)));
        }
        let domain = Arc::clone(changes.domain.as_ref().unwrap_or(self.domain()));
        Ok(self.changed(domain, access, changes.memory.clone()))
    }

    /// Returns an error for two changes that `ibv_rereg_mr` does not support: the flag `ZERO_BASED`
    /// together with new memory, and a change of the flag `ZERO_BASED` without new memory.
    fn check_addresses(&self, changes: &Changes) -> Result<()> {
        let is_counted = |access: AccessFlags| access.contains(AccessFlags::ZERO_BASED);
        let before = is_counted(self.access());
        let after = is_counted(changes.access.unwrap_or(self.access()));
        if changes.memory.is_some() && after {
            let reason = "requests use its addresses in the process: it cannot be ZERO_BASED";
            return Err(Error::invalid("memory of a reregistration", reason));
        }
        if changes.memory.is_none() && before != after {
            let reason = "ZERO_BASED is decided when memory is registered";
            return Err(Error::invalid("access of a reregistration", reason));
        }
        Ok(())
    }
}

fn clear_errno() {
    // SAFETY: `errno` is a variable of this thread.
    unsafe { *libc::__errno_location() = 0 };
}
