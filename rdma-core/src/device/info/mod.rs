//! All information about a device, in the format of `ibv_devinfo`.

mod display;
mod names;
#[cfg(test)]
mod tests;

use super::{ExtendedDeviceAttributes, GidEntry, PortAttributes, TransportType};
use crate::context::Context;
use crate::error::{Error, Result};

/// All information about a device at one moment, from [`Context::info`].
///
/// The `Display` output equals, byte for byte, the output of the C program `ibv_devinfo` of
/// rdma-core 44. The format `{:#}` produces the output of `ibv_devinfo -v`.
///
/// ```
/// let context = rdma_core::Context::open_default()?;
/// let info = context.info()?;
/// print!("{info:#}");
/// assert!(info.to_string().starts_with(&format!("hca_id:\t{}\n", context.name())));
/// # Ok::<(), rdma_core::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The device's name.
    pub name: String,
    /// The transport that the device uses.
    pub transport: TransportType,
    /// The capabilities and limits of the device.
    pub attributes: ExtendedDeviceAttributes,
    /// The vendor's name for the board, or `None` if the driver does not report a name.
    pub board_id: Option<String>,
    /// The number of completion vectors.
    pub completion_vectors: u32,
    /// The ports of the device.
    pub ports: Vec<PortInfo>,
}

/// All information about a port at one moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PortInfo {
    /// The attributes of the port.
    pub attributes: PortAttributes,
    /// The valid entries of the port's GID table, in the order of the table.
    pub gids: Vec<GidEntry>,
}

impl DeviceInfo {
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let device = context.device();
        let mut gids = context.gids()?;
        gids.sort_by_key(|entry| entry.index);
        let of_port = |attributes: PortAttributes| PortInfo {
            attributes,
            gids: gids
                .iter()
                .filter(|entry| entry.port == attributes.number())
                .copied()
                .collect(),
        };
        Ok(Self {
            attributes: context.extended_attributes()?,
            board_id: device.board_id(),
            completion_vectors: context.completion_vectors(),
            ports: context.ports()?.into_iter().map(of_port).collect(),
            name: device.name(),
            transport: device.transport(),
        })
    }

    /// Removes all ports except the port with the number `number`. The output then equals the
    /// output of `ibv_devinfo -i PORT`.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPort`] if the device has no port with this number.
    pub fn only_port(mut self, number: u8) -> Result<Self> {
        self.ports.retain(|port| port.attributes.number() == number);
        if self.ports.is_empty() {
            return Err(Error::UnknownPort {
                device: self.name,
                port: number,
                ports: self.attributes.ports(),
            });
        }
        Ok(self)
    }
}
