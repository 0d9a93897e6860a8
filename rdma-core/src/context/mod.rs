//! Contexts: open devices.

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

/// An open device. Clones refer to the same open device. The device stays open as long as a clone
/// of the context, or an object created from the context, exists.
///
/// A context is `Send` and `Sync`: verbs on a context are thread-safe, and the device is closed
/// only once, when the last handle is dropped.
#[doc(alias = "ibv_context")]
#[derive(Debug, Clone)]
pub struct Context {
    handle: Arc<ContextHandle>,
    /// The port that the [device selector](crate::device::DeviceSelector) contained when it
    /// selected this device; `None` if the selector contained no port.
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

    /// Creates a context from the shared handle of an open device.
    pub(crate) fn from_shared(handle: Arc<ContextHandle>) -> Self {
        Self {
            handle,
            preferred_port: None,
        }
    }

    /// Creates a context from a reference to the shared handle of an open device. Increments the
    /// reference count of the handle.
    pub(crate) fn of(handle: &Arc<ContextHandle>) -> Self {
        Self {
            handle: Arc::clone(handle),
            preferred_port: None,
        }
    }

    pub(crate) fn handle(&self) -> &Arc<ContextHandle> {
        &self.handle
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Returns the device that this context has open.
    pub fn device(&self) -> Device {
        Device::from_handle(self.handle.device().clone())
    }

    /// Returns the capabilities and limits of the device.
    ///
    /// # Errors
    ///
    /// The error of `ibv_query_device`.
    #[doc(alias = "ibv_query_device")]
    pub fn attributes(&self) -> Result<DeviceAttributes> {
        self.handle.query_device().map(DeviceAttributes::new)
    }

    /// Returns the capabilities and limits of the device, including values that only newer devices
    /// and drivers report.
    ///
    /// # Errors
    ///
    /// The error of `ibv_query_device_ex`.
    #[doc(alias = "ibv_query_device_ex")]
    pub fn extended_attributes(&self) -> Result<ExtendedDeviceAttributes> {
        let raw = self.handle.query_device_ex()?;
        Ok(ExtendedDeviceAttributes::new(raw))
    }

    /// Returns all information about the device and its ports. The result can be printed in the
    /// format of the program `ibv_devinfo`.
    ///
    /// # Errors
    ///
    /// The errors of the verbs that this method calls.
    #[doc(alias = "ibv_devinfo")]
    pub fn info(&self) -> Result<DeviceInfo> {
        DeviceInfo::new(self)
    }

    /// Returns the number of completion vectors (interrupts) of the device.
    /// [`CompletionQueueBuilder::vector`] selects the vector of a completion queue.
    #[doc(alias = "num_comp_vectors")]
    pub fn completion_vectors(&self) -> u32 {
        self.handle.completion_vectors()
    }

    /// Returns the clock that the device uses for the timestamps of completions. The clock converts
    /// timestamps to durations.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device has no readable clock, and the errors of the verbs that
    /// this method calls.
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

    /// Creates a protection domain, to which memory regions and queue pairs belong.
    ///
    /// # Errors
    ///
    /// The error of `ibv_alloc_pd`.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn protection_domain(&self) -> Result<ProtectionDomain> {
        ProtectionDomain::new(self)
    }

    /// Creates a completion channel, by which a thread can wait for completions instead of polling.
    ///
    /// # Errors
    ///
    /// The error of `ibv_create_comp_channel`.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn completion_channel(&self) -> Result<CompletionChannel> {
        CompletionChannel::new(self)
    }

    /// Returns a builder for a completion queue that can hold at least `entries` completions.
    #[doc(alias = "ibv_create_cq")]
    pub fn completion_queue(&self, entries: u32) -> CompletionQueueBuilder {
        CompletionQueueBuilder::new(self.clone(), entries)
    }

    /// Returns the source of asynchronous events of the device, its ports, and the queues created
    /// from this context.
    ///
    /// The call makes the event descriptor of the context non-blocking, also for C code that shares
    /// the descriptor.
    ///
    /// # Errors
    ///
    /// The error of `fcntl(2)`.
    #[doc(alias = "ibv_get_async_event")]
    pub fn async_events(&self) -> Result<AsyncEvents> {
        AsyncEvents::new(self)
    }

    /// Returns the file descriptor on which the device's asynchronous events arrive: see
    /// [`Self::async_events`].
    pub fn async_fd(&self) -> RawFd {
        self.handle.async_fd()
    }

    /// Returns the underlying `ibv_context`. The pointer is valid as long as this context exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_context {
        self.handle.as_raw()
    }
}
