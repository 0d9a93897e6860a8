//! Selection of the device to open.

use super::Context;
use crate::device::{AddressChoice, Device, DeviceSelector, devices};
use crate::error::{Error, Result};

impl Context {
    /// Opens the device with this name. The crate logs that the device was chosen by its name.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownDevice`] with the names of the existing devices, and the error of
    /// `ibv_open_device`.
    #[doc(alias = "ibv_open_device")]
    pub fn open(name: &str) -> Result<Self> {
        let devices = devices()?;
        match devices.iter().find(|device| device.name() == name) {
            Some(device) => {
                let context = device.open()?;
                context.log_choice("opened by its name");
                Ok(context)
            }
            None => Err(Error::UnknownDevice {
                name: name.to_owned(),
                available: devices.iter().map(Device::name).collect(),
            }),
        }
    }

    /// Opens the device that the environment variable `RDMA_DEVICE` selects. If the variable is not
    /// set, opens the first device with a usable port.
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
            return Self::open_for(&selector, DeviceSelector::VARIABLE);
        }
        let devices = devices()?;
        let (emulated, real): (Vec<_>, Vec<_>) =
            devices.iter().partition(|device| device.is_emulated());
        if !real.is_empty() {
            let devices = real.into_iter().map(|device| (device, None));
            return Self::first_usable(devices, "the first device with a usable port")
                .map_err(|unusable| unusable.error(emulated.first().copied()));
        }
        let devices = emulated.into_iter().map(|device| (device, None));
        Self::first_usable(
            devices,
            "the device in user space with a usable port, as this machine has no other device",
        )
        .map_err(|unusable| unusable.error(None))
    }

    /// Opens the first usable device that `selector` matches.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::open_default`].
    pub fn open_selected(selector: &DeviceSelector) -> Result<Self> {
        Self::open_for(selector, "the selector of the program")
    }

    /// Opens the first usable device that `selector` matches. `reason` is a text for the log that
    /// describes the source of the selector.
    fn open_for(selector: &DeviceSelector, reason: &'static str) -> Result<Self> {
        let devices = devices()?;
        let meant = devices
            .iter()
            .filter_map(|device| Some((device, selector.matches(&device.name())?)));
        match Self::first_usable(meant, reason) {
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

    /// Opens the first usable device of `devices`. Each device comes with the port that must be
    /// usable, or `None` if any port is enough. `reason` is a text for the log that describes the
    /// reason of the choice.
    fn first_usable<'a>(
        devices: impl Iterator<Item = (&'a Device, Option<u8>)>,
        reason: &'static str,
    ) -> Result<Self, Unusable> {
        let mut unusable = Vec::new();
        for (device, port) in devices {
            let usable = device.open().and_then(|context| {
                let context = Self {
                    preferred_port: port,
                    ..context
                };
                // Without the GID index of the environment: the program may set another index.
                let any = AddressChoice {
                    port,
                    ..AddressChoice::default()
                };
                any.choose(context.name(), &context.ports()?, &context.gids()?)?;
                Ok(context)
            });
            match usable {
                Ok(context) => {
                    context.log_choice(reason);
                    return Ok(context);
                }
                Err(error) => unusable.push(error),
            }
        }
        Err(Unusable(unusable))
    }

    fn log_choice(&self, reason: &'static str) {
        let port = self.preferred_port;
        tracing::info!(device = %self.name(), port, reason, "device chosen");
    }
}

/// The reasons why no device of this system can be used: one error for each device.
struct Unusable(Vec<Error>);

impl Unusable {
    /// Converts the errors of all devices to one error. `instead` is another device, if any. The
    /// error then suggests that the program open this device by its name.
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
