//! An open device.

#![forbid(unsafe_code)]

mod opening;
mod ports;

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::completion::{CompletionChannel, CompletionQueueBuilder};
use crate::device::{Device, DeviceAttributes, DeviceClock, DeviceInfo, ExtendedDeviceAttributes};
use crate::error::{Error, Result};
use crate::event::AsyncEvents;
use crate::ffi::ContextHandle;
use crate::protection_domain::ProtectionDomain;

/// An open device; clones are the same one, and everything made from it keeps it open.
///
/// It is `Send` and `Sync`: verbs on a context are thread-safe, and it is closed once, whichever
/// thread drops the last handle.
#[doc(alias = "ibv_context")]
#[derive(Debug, Clone)]
pub struct Context {
    handle: Arc<ContextHandle>,
    /// The port that the device's selector named.
    preferred_port: Option<u8>,
}

impl Context {
    pub(crate) fn from_device(device: &Device) -> Result<Self> {
        ContextHandle::open(device.handle()).map(Self::from_handle)
    }

    pub(crate) fn from_handle(handle: ContextHandle) -> Self {
        Self {
            handle: Arc::new(handle),
            preferred_port: None,
        }
    }

    /// The context of this handle, which others have too.
    pub(crate) fn from_shared(handle: Arc<ContextHandle>) -> Self {
        Self {
            handle,
            preferred_port: None,
        }
    }

    /// The open device that something was made from.
    pub(crate) fn of(handle: &Arc<ContextHandle>) -> Self {
        Self {
            handle: Arc::clone(handle),
            preferred_port: None,
        }
    }

    pub(crate) fn handle(&self) -> &Arc<ContextHandle> {
        &self.handle
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// The device that this is open on.
    pub fn device(&self) -> Device {
        Device::from_handle(self.handle.device().clone())
    }

    /// What the device can do.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "ibv_query_device")]
    pub fn attributes(&self) -> Result<DeviceAttributes> {
        self.handle.query_device().map(DeviceAttributes::new)
    }

    /// What the device can do, also what only newer devices and drivers tell.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "ibv_query_device_ex")]
    pub fn extended_attributes(&self) -> Result<ExtendedDeviceAttributes> {
        let raw = self.handle.query_device_ex()?;
        Ok(ExtendedDeviceAttributes::new(raw))
    }

    /// Everything about the device and its ports, which prints as `ibv_devinfo` does.
    ///
    /// # Errors
    ///
    /// The verbs'.
    #[doc(alias = "ibv_devinfo")]
    pub fn info(&self) -> Result<DeviceInfo> {
        DeviceInfo::new(self)
    }

    /// How many completion vectors the device has, which
    /// [`CompletionQueueBuilder::vector`] chooses from.
    #[doc(alias = "num_comp_vectors")]
    pub fn completion_vectors(&self) -> u32 {
        self.handle.completion_vectors()
    }

    /// The clock that completions are stamped with.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device has none that can be read, and the verbs'.
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn clock(&self) -> Result<DeviceClock> {
        let unsupported = || Error::Unsupported {
            what: "a clock that can be read",
            device: self.name().to_owned(),
        };
        let attributes = self.extended_attributes()?;
        let kilohertz = attributes.clock_kilohertz().ok_or_else(unsupported)?;
        match self.handle.query_clock() {
            Err(error) if error.is_unsupported() => return Err(unsupported()),
            outcome => outcome?,
        };
        let mask = attributes.timestamp_mask().unwrap_or(u64::MAX);
        Ok(DeviceClock::new(self.clone(), kilohertz, mask))
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn protection_domain(&self) -> Result<ProtectionDomain> {
        ProtectionDomain::new(self)
    }

    /// Makes a completion channel.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn completion_channel(&self) -> Result<CompletionChannel> {
        CompletionChannel::new(self)
    }

    /// Begins a completion queue with room for at least `entries` completions.
    #[doc(alias = "ibv_create_cq")]
    pub fn completion_queue(&self, entries: u32) -> CompletionQueueBuilder {
        CompletionQueueBuilder::new(self.clone(), entries)
    }

    /// The events of the device, its ports and the queues made from this context that no
    /// completion tells.
    ///
    /// From now on the context's event descriptor is non-blocking, also for C code that shares it.
    ///
    /// # Errors
    ///
    /// That of `fcntl(2)`.
    #[doc(alias = "ibv_get_async_event")]
    pub fn async_events(&self) -> Result<AsyncEvents> {
        AsyncEvents::new(self)
    }

    /// The descriptor on which the device's asynchronous events arrive: see
    /// [`Self::async_events`].
    pub fn async_fd(&self) -> RawFd {
        self.handle.async_fd()
    }

    /// The C object, valid for as long as this context.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_context {
        self.handle.as_raw()
    }
}
