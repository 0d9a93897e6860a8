//! An open device.

#![forbid(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::{Arc, Once};

use crate::completion::{CompletionChannel, CompletionQueueBuilder};
use crate::device::{
    AddressChoice, Device, DeviceAttributes, DeviceClock, DeviceInfo, DeviceSelector,
    ExtendedDeviceAttributes, Gid, GidEntry, GidType, LinkSpeed, LocalAddress, PartitionKey,
    PortAttributes, Protocol, devices, speed_of_rate,
};
use crate::error::{Errno, Error, Result};
use crate::event::AsyncEvents;
use crate::ffi::{ContextHandle, gid_bytes};
use crate::protection_domain::ProtectionDomain;

/// An open device; clones are the same one, and everything made from it keeps it open.
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

    /// Opens the device of this name.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownDevice`] with the names that exist, and the verb's.
    #[doc(alias = "ibv_open_device")]
    pub fn open(name: &str) -> Result<Self> {
        let devices = devices()?;
        match devices.iter().find(|device| device.name() == name) {
            Some(device) => device.open(),
            None => Err(Error::UnknownDevice {
                name: name.to_owned(),
                available: devices.iter().map(Device::name).collect(),
            }),
        }
    }

    /// Opens the device that `RDMA_DEVICE` selects, or the first with a usable port.
    ///
    /// The user-space device softroce is chosen only where it is the only device: it does not
    /// stand in for a card whose cable is out. It is reached by its name.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`] without any, [`Error::UnknownDevice`] if the selector matches none, and
    /// [`Error::NoUsableDevice`] with what each one lacks.
    pub fn open_default() -> Result<Self> {
        if let Some(selector) = DeviceSelector::from_environment()? {
            return Self::open_selected(&selector);
        }
        let devices = devices()?;
        let (emulated, real): (Vec<_>, Vec<_>) =
            devices.iter().partition(|device| device.is_emulated());
        if !real.is_empty() {
            return Self::first_usable(real.into_iter().map(|device| (device, None)))
                .map_err(|unusable| unusable.error(emulated.first().copied()));
        }
        let context = Self::first_usable(emulated.into_iter().map(|device| (device, None)))
            .map_err(|unusable| unusable.error(None))?;
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            tracing::info!(
                device = context.name(),
                "no RDMA device on this machine: using the one in user space"
            );
        });
        Ok(context)
    }

    /// Opens the first usable device that the selector means.
    ///
    /// # Errors
    ///
    /// As [`Self::open_default`].
    pub fn open_selected(selector: &DeviceSelector) -> Result<Self> {
        let devices = devices()?;
        let meant = devices
            .iter()
            .filter_map(|device| Some((device, selector.matches(&device.name())?)));
        match Self::first_usable(meant) {
            Ok(context) => Ok(context),
            Err(Unusable(none)) if none.is_empty() && !devices.is_empty() => {
                Err(Error::UnknownDevice {
                    name: selector.as_str().to_owned(),
                    available: devices.iter().map(Device::name).collect(),
                })
            }
            Err(unusable) => Err(unusable.error(None)),
        }
    }

    fn first_usable<'a>(
        devices: impl Iterator<Item = (&'a Device, Option<u8>)>,
    ) -> Result<Self, Unusable> {
        let mut unusable = Vec::new();
        for (device, port) in devices {
            let usable = device.open().and_then(|context| {
                let context = Self {
                    preferred_port: port,
                    ..context
                };
                context.address(AddressChoice::default())?;
                Ok(context)
            });
            match usable {
                Ok(context) => {
                    tracing::debug!(device = %context.name(), "chosen");
                    return Ok(context);
                }
                Err(error) => unusable.push(error),
            }
        }
        Err(Unusable(unusable))
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

    /// What a port is and does.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPort`] if there is none of this number, and the verb's.
    #[doc(alias = "ibv_query_port")]
    pub fn port(&self, number: u8) -> Result<PortAttributes> {
        self.check_port(number)?;
        let port = PortAttributes::new(number, self.handle.query_port(number)?);
        if port.speed() != LinkSpeed::Ndr {
            return Ok(port);
        }
        // The field is too narrow for more, so more is said to be this much (the kernel's
        // `ib_uverbs_query_port`).
        let rate = self.device().rate(number);
        Ok(match rate.as_deref().and_then(speed_of_rate) {
            Some("XDR") => port.with_speed(LinkSpeed::Xdr),
            _ => port,
        })
    }

    fn check_port(&self, number: u8) -> Result<()> {
        let ports = self.attributes()?.ports();
        if (1..=ports).contains(&number) {
            return Ok(());
        }
        Err(Error::UnknownPort {
            device: self.name().to_owned(),
            port: number,
            ports,
        })
    }

    /// Every port.
    ///
    /// # Errors
    ///
    /// The verb's.
    pub fn ports(&self) -> Result<Vec<PortAttributes>> {
        (1..=self.attributes()?.ports())
            .map(|number| self.port(number))
            .collect()
    }

    /// The valid entries of all ports' GID tables.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "ibv_query_gid_table")]
    #[doc(alias = "ibv_query_gid_ex")]
    pub fn gids(&self) -> Result<Vec<GidEntry>> {
        let room = self
            .ports()?
            .iter()
            .map(PortAttributes::gid_table_len)
            .sum();
        let entries = self.handle.query_gid_table(room)?;
        Ok(entries.iter().map(gid_entry).collect())
    }

    /// One entry of a port's GID table.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPort`] if there is no such port, [`Error::UnknownGidIndex`] if the entry is
    /// empty or outside of the table, and the verb's.
    #[doc(alias = "ibv_query_gid_ex")]
    #[doc(alias = "ibv_query_gid")]
    pub fn gid(&self, port: u8, index: u32) -> Result<GidEntry> {
        self.check_port(port)?;
        match self.handle.query_gid(port, index) {
            Ok(raw) => Ok(gid_entry(&raw)),
            Err(error) if error.errno().is_some_and(is_no_entry) => {
                let valid = self.gids()?;
                let own = valid.iter().filter(|entry| entry.port == port);
                Err(Error::UnknownGidIndex {
                    device: self.name().to_owned(),
                    port,
                    index,
                    valid: own.map(ToString::to_string).collect(),
                })
            }
            Err(error) => Err(error),
        }
    }

    /// What a port speaks, by the entries of its GID table: on Ethernet usually RoCE v1 and v2.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPort`] if there is none of this number, and the verbs'.
    pub fn protocols(&self, port: u8) -> Result<Vec<Protocol>> {
        let link = self.port(port)?.link_layer();
        let transport = self.device().transport();
        let gids = self.gids()?;
        let own = gids.iter().filter(|entry| entry.port == port);
        let mut protocols: Vec<_> = own
            .map(|entry| Protocol::of(transport, link, Some(entry.kind)))
            .collect();
        if protocols.is_empty() {
            protocols.push(Protocol::of(transport, link, None));
        }
        protocols.sort_unstable();
        protocols.dedup();
        Ok(protocols)
    }

    /// A port's P_Key table, empty entries too: their index is their place.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPort`] if there is none of this number, and the verbs'.
    #[doc(alias = "ibv_query_pkey")]
    #[doc(alias = "ibv_get_pkey_index")]
    pub fn pkeys(&self, port: u8) -> Result<Vec<PartitionKey>> {
        let entries = self.port(port)?.as_raw().pkey_tbl_len;
        (0..entries)
            .map(|index| self.handle.query_pkey(port, index).map(PartitionKey))
            .collect()
    }

    /// The port and GID to use: what `choice` and the variable `RDMA_GID_INDEX` leave open is
    /// decided by the rule of [`AddressChoice`], and logged with its reason.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPort`], [`Error::UnknownGidIndex`], [`Error::NoUsablePort`], and the verbs'.
    pub fn address(&self, choice: AddressChoice) -> Result<LocalAddress> {
        let mut choice = choice.or_environment()?;
        choice.port = choice.port.or(self.preferred_port);
        let address = choice.choose(self.name(), &self.ports()?, &self.gids()?)?;
        tracing::info!(
            device = %self.name(),
            port = address.port,
            gid_index = address.gid_index,
            gid = %address.gid,
            mtu = %address.mtu,
            reason = address.reason,
            "address chosen"
        );
        Ok(address)
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

fn gid_entry(raw: &ibverbs_sys::ibv_gid_entry) -> GidEntry {
    GidEntry {
        index: raw.gid_index,
        port: u8::try_from(raw.port_num).unwrap_or(0),
        gid: Gid(gid_bytes(&raw.gid)),
        kind: GidType::from_raw(raw.gid_type),
        interface: raw.ndev_ifindex,
    }
}

/// Whether this is how a device says that a table has no such entry.
fn is_no_entry(errno: Errno) -> bool {
    matches!(errno.0, libc::ENODATA | libc::EINVAL | libc::ENOENT)
}

/// What each device lacks.
struct Unusable(Vec<Error>);

impl Unusable {
    /// The error of a program that has none to use, where `instead` could be taken.
    fn error(mut self, instead: Option<&Device>) -> Error {
        match (self.0.len(), instead) {
            (0, _) => Error::NoDevice,
            (1, None) => self.0.remove(0),
            _ => Error::NoUsableDevice {
                reasons: self.0.iter().map(Error::to_string).collect(),
                instead: instead.map(Device::name),
            },
        }
    }
}
