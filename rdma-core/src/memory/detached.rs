//! Memory that was registered and has been deregistered.

use std::fmt;
use std::sync::Arc;

use super::{Buffer, FrozenBuffer};
use crate::error::Error;
use crate::ffi::{Backing, Span};
use crate::refused::Refused;

/// Memory that [`Buffer::detach`] has deregistered, together with the value that owns the memory.
/// [`Registration::attach`](super::Registration::attach) registers the memory again.
pub struct DetachedMemory {
    backing: Backing,
}

impl fmt::Debug for DetachedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedMemory")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl DetachedMemory {
    pub(crate) fn new(backing: Backing) -> Self {
        Self { backing }
    }

    pub(crate) fn into_backing(self) -> Backing {
        self.backing
    }

    /// Returns the length of the memory in bytes.
    pub fn len(&self) -> usize {
        self.backing.len()
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.backing.len() == 0
    }

    /// Returns the value that owns the memory, if the value has the type `O`. The owner is the
    /// value that the program registered, or a [`HostMemory`](super::HostMemory) if this crate
    /// allocated the memory.
    ///
    /// # Errors
    ///
    /// Returns the detached memory unchanged if the owner has another type.
    pub fn into_owner<O: 'static>(self) -> Result<O, Self> {
        self.backing.into_owner().map_err(Self::new)
    }
}

impl Buffer {
    /// Deregisters the memory of this buffer, and returns the memory with its owner.
    ///
    /// # Errors
    ///
    /// Returns the buffer, with [`Error::InUse`] if the buffer is only a part of the registered
    /// memory or if the memory still has another registration, or with the error of `ibv_dereg_mr`.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn detach(self) -> Result<DetachedMemory, Refused<Self>> {
        let held = |holder| Error::in_use("a buffer", holder);
        let region = match self.into_span().into_region() {
            Ok(region) => region,
            Err(span) => {
                return Err(Refused::new(Self::new(span), held("another part of it")));
            }
        };
        if Arc::strong_count(region.memory()) > 1 {
            let error = held("a registration that could not be ended");
            return Err(Refused::new(Self::new(Span::whole(region)), error));
        }
        match region.release() {
            Ok(backing) => {
                let backing = Arc::into_inner(backing).expect("this is its only registration");
                Ok(DetachedMemory::new(backing))
            }
            Err((region, error)) => Err(Refused::new(Self::new(Span::whole(region)), error)),
        }
    }

    /// Deregisters the memory of this buffer, and returns its owner: the value that the program
    /// registered, or a [`HostMemory`](super::HostMemory) if this crate allocated the memory.
    ///
    /// # Errors
    ///
    /// Returns the buffer, with [`Error::InvalidArgument`] if the owner does not have the type `O`,
    /// or with an error of [`Self::detach`].
    #[doc(alias = "ibv_dereg_mr")]
    pub fn into_owner<O: 'static>(self) -> Result<O, Refused<Self>> {
        if !self.span().region().memory().is_owned_by::<O>() {
            let reason = format!("it is no {}", std::any::type_name::<O>());
            let error = Error::invalid("owner of a buffer", reason);
            return Err(Refused::new(self, error));
        }
        let owner = self.detach()?.into_owner();
        Ok(owner.expect("the owner is of this type"))
    }
}

impl FrozenBuffer {
    /// Deregisters the memory of this buffer, and returns its owner: the value that the program
    /// registered, or a [`HostMemory`](super::HostMemory) if this crate allocated the memory.
    ///
    /// # Errors
    ///
    /// Returns the buffer, with [`Error::InUse`] if other clones of the buffer exist, or with an
    /// error of [`Buffer::into_owner`].
    #[doc(alias = "ibv_dereg_mr")]
    pub fn into_owner<O: 'static>(self) -> Result<O, Refused<Self>> {
        let range = self.range();
        match self.into_inner() {
            Ok(buffer) => buffer
                .into_owner()
                .map_err(|refused| refused.map(|buffer: Buffer| buffer.freeze().with_range(range))),
            Err(frozen) => {
                let error = Error::in_use("a frozen buffer", "a clone or part of it");
                Err(Refused::new(frozen, error))
            }
        }
    }
}
