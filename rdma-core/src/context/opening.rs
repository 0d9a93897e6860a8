//! Selection of the device to open.

use std::sync::Once;

use super::Context;
use crate::device::{AddressChoice, Device, DeviceSelector, devices};
use crate::error::{Error, Result};

impl Context {
    /// Opens the device with this name.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownDevice`] with the names of the existing devices, and the error of
    /// `ibv_open_device`.
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

    /// Opens the device that the variable `RDMA_DEVICE` selects or, without the variable, the first
    /// device with a usable port.
    ///
    /// The user-space device softroce is chosen only if no other device exists. If a network card
    /// exists but has no link, softroce is not used instead. A program can always open softroce by
    /// its name.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`] if no device exists, [`Error::UnknownDevice`] if the selector matches no
    /// device, and [`Error::NoUsableDevice`] with the reason for each device.
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
        static WARN_ONCE: Once = Once::new();
        WARN_ONCE.call_once(|| {
            tracing::info!(
                device = context.name(),
                "no RDMA device on this machine: using the one in user space"
            );
        });
        Ok(context)
    }

    /// Opens the first usable device among those that `selector` matches.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::open_default`].
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
}

/// The reasons why the devices of this system cannot be used, one error for each device.
struct Unusable(Vec<Error>);

impl Unusable {
    /// Converts the reasons to one error, which lists all of them. `instead` is a device that the
    /// program could choose explicitly.
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
