//! Changes of the domain, access or memory of an existing registration.

use std::fmt;
use std::sync::Arc;

use super::{AccessFlags, Buffer, DetachedMemory};
use crate::error::{Error, Result};
use crate::ffi::{Backing, Changes, RegionHandle, Span, StableMemoryMut, Status};
use crate::protection_domain::ProtectionDomain;

/// A set of changes to the registration of a buffer, for [`Buffer::reregister`]: a new protection
/// domain, new access flags or new memory.
#[derive(Debug, Default)]
#[must_use = "nothing changes until a buffer is reregistered"]
pub struct Reregistration {
    changes: Changes,
}

impl Reregistration {
    /// Creates an empty set of changes to a registration. The other methods add changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the change that moves the registration to the protection domain `domain`.
    #[doc(alias = "IBV_REREG_MR_CHANGE_PD")]
    pub fn domain(mut self, domain: &ProtectionDomain) -> Self {
        self.changes.domain = Some(Arc::clone(domain.handle()));
        self
    }

    /// Adds the change that sets the access flags of the registration to `access`. The device may
    /// always write to the memory, even without a flag for it.
    ///
    /// Without new memory, the addresses that requests use stay the same. `access` must therefore
    /// contain [`AccessFlags::ZERO_BASED`] exactly if the registration has this flag. With [new
    /// memory](Self::memory), `access` must not contain the flag.
    #[doc(alias = "IBV_REREG_MR_CHANGE_ACCESS")]
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.changes.access = Some(access | AccessFlags::LOCAL_WRITE);
        self
    }

    /// Adds the change that replaces the memory of the registration by the memory of `owner`.
    /// Requests then use the addresses that the new memory has in this process. If the registration
    /// has [`AccessFlags::ZERO_BASED`], the program must therefore also set [access
    /// flags](Self::access) that do not include this flag.
    #[doc(alias = "IBV_REREG_MR_CHANGE_TRANSLATION")]
    pub fn memory(mut self, owner: impl StableMemoryMut) -> Self {
        self.changes.memory = Some(Arc::new(Backing::exclusive(owner)));
        self
    }
}

/// The result of a successful [`Buffer::reregister`]: the buffer, and the memory that was replaced.
#[derive(Debug)]
pub struct Reregistered {
    /// The buffer, with a new local key.
    pub buffer: Buffer,
    /// The previous memory of the registration, or `None` if the memory was not replaced.
    pub old: Option<DetachedMemory>,
}

/// The error of [`Buffer::reregister`]: the reason of the failure, and the state of the buffer
/// after the failure.
///
/// If the program passed new memory, that memory has been dropped. `Debug` prints the same text as
/// `Display`.
#[derive(thiserror::Error)]
#[error("{error}; {buffer}")]
pub struct ReregisterError {
    /// The reason why the registration was not changed.
    pub error: Error,
    /// The state of the buffer and its memory after the failure.
    pub buffer: FailedBuffer,
}

/// The state of a buffer after a failed [`Buffer::reregister`], with the memory that the program
/// gets back.
#[derive(Debug)]
#[non_exhaustive]
pub enum FailedBuffer {
    /// The buffer is unchanged: the change was refused before it began.
    Unchanged(Buffer),
    /// The memory is no longer registered: the old registration ended, and the device then refused
    /// the change.
    Unregistered(DetachedMemory),
    /// The memory is lost: the registration could neither be changed nor ended. The memory is
    /// leaked, because the device may still access it.
    Lost,
}

impl From<ReregisterError> for Error {
    fn from(failed: ReregisterError) -> Self {
        failed.error
    }
}

impl fmt::Debug for ReregisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for FailedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unchanged(_) => "the buffer is unchanged",
            Self::Unregistered(_) => "the memory is no longer registered",
            Self::Lost => "the memory is leaked, because the device may still use it",
        })
    }
}

impl Buffer {
    /// Changes the protection domain, the access flags or the memory of this buffer's registration
    /// by `ibv_rereg_mr`. If the device supports a change in place, the registration does not end
    /// in between. The local key of the registration changes.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if the buffer is only a part of the registered memory.
    /// [`Error::InvalidArgument`] for an empty set of changes, for remote rights or for a change of
    /// addresses that `ibv_rereg_mr` cannot express. Also returns the error of `ibv_rereg_mr`. Many
    /// devices do [not support](Error::is_unsupported) reregistration. [`FailedBuffer`] describes
    /// the state of the memory after a failure.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn reregister(self, changes: Reregistration) -> Result<Reregistered, ReregisterError> {
        let Reregistration { changes } = changes;
        let unchanged = |buffer, error| ReregisterError {
            error,
            buffer: FailedBuffer::Unchanged(buffer),
        };
        if let Err(error) = check(&self, &changes) {
            return Err(unchanged(self, error));
        }
        let mut region = match self.into_span().into_region() {
            Ok(region) => region,
            Err(span) => {
                let error = Error::in_use("a buffer", "another part of it");
                return Err(unchanged(Self::new(span), error));
            }
        };
        match region.reregister(&changes) {
            Ok(old) => Ok(Reregistered {
                buffer: Self::new(Span::whole(region)),
                old: old.and_then(Arc::into_inner).map(DetachedMemory::new),
            }),
            Err((Status::Valid, error)) => Err(unchanged(Self::new(Span::whole(region)), error)),
            Err((Status::Unusable, error)) => {
                let buffer = ended(region, changes);
                Err(ReregisterError { error, buffer })
            }
        }
    }
}

fn check(buffer: &Buffer, changes: &Changes) -> Result<()> {
    let Changes {
        domain,
        access,
        memory,
    } = changes;
    if domain.is_none() && access.is_none() && memory.is_none() {
        return Err(Error::invalid("reregistration", "nothing is to change"));
    }
    if access.is_some_and(|access| access.intersects(AccessFlags::REMOTE)) {
        let reason = "a buffer is this process's alone; expose it to grant remote access";
        return Err(Error::invalid("access of a buffer", reason));
    }
    let old = buffer.span().region().domain().context();
    if domain
        .as_ref()
        .is_some_and(|domain| !Arc::ptr_eq(domain.context(), old))
    {
        return Err(Error::invalid(
            "protection domain",
            "it is of another context",
        ));
    }
    Ok(())
}

/// Deregisters `region` after a failed reregistration, and returns the state of the buffer with the
/// remaining memory. If the deregistration also fails, leaks the old memory and the new memory in
/// `changes`, because the device may still use either memory.
fn ended(region: RegionHandle, changes: Changes) -> FailedBuffer {
    match region.release() {
        Ok(memory) => Arc::into_inner(memory)
            .map(DetachedMemory::new)
            .map_or(FailedBuffer::Lost, FailedBuffer::Unregistered),
        Err((region, _)) => {
            // The device may still use the old memory, which dropping `region` leaks, or the new
            // memory.
            std::mem::forget(changes.memory);
            drop(region);
            FailedBuffer::Lost
        }
    }
}
