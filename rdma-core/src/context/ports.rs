//! Queries of the ports of an open device and their GID and P_Key tables.

use super::Context;
use crate::device::{
    AddressChoice, Gid, GidEntry, GidType, LinkSpeed, LocalAddress, PartitionKey, PortAttributes,
    Protocol, speed_of_rate,
};
use crate::error::{Errno, Error, Result};
use crate::ffi::gid_bytes;

impl Context {
    /// Returns the attributes of the port with this number, such as its state and MTU.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPort`] if no port has this number, and the error of `ibv_query_port`.
    #[doc(alias = "ibv_query_port")]
    pub fn port(&self, number: u8) -> Result<PortAttributes> {
        self.check_port(number)?;
        let port = PortAttributes::new(number, self.handle.query_port(number)?);
        if port.speed() != LinkSpeed::Ndr {
            return Ok(port);
        }
        // The speed field of the C struct is too narrow for speeds above NDR, so the kernel reports
        // these as NDR (`ib_uverbs_query_port`).
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

    /// Returns the attributes of all ports of the device.
    ///
    /// # Errors
    ///
    /// The error of `ibv_query_device` or `ibv_query_port`.
    pub fn ports(&self) -> Result<Vec<PortAttributes>> {
        (1..=self.attributes()?.ports())
            .map(|number| self.port(number))
            .collect()
    }

    /// Returns the valid entries of the GID tables of all ports of the device.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::ports`], and the error of `ibv_query_gid_table`.
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

    /// Returns the entry at `index` of a port's GID table, the list of the port's network
    /// addresses.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPort`] if no port has this number, [`Error::UnknownGidIndex`] if the entry
    /// is empty or outside of the table, and the error of `ibv_query_gid_ex`.
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

    /// Returns the wire protocols that a port can use, according to the types of the GIDs in the
    /// port's GID table. On Ethernet these are usually RoCE v1 and RoCE v2.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPort`] if no port has this number, and the errors of the verbs that this
    /// method calls.
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

    /// Returns a port's P_Key table. The result includes empty entries, so the position of a P_Key
    /// in the result is its table index.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPort`] if no port has this number, and the errors of the verbs that this
    /// method calls.
    #[doc(alias = "ibv_query_pkey")]
    #[doc(alias = "ibv_get_pkey_index")]
    pub fn pkeys(&self, port: u8) -> Result<Vec<PartitionKey>> {
        let entries = self.port(port)?.as_raw().pkey_tbl_len;
        (0..entries)
            .map(|index| self.handle.query_pkey(port, index).map(PartitionKey))
            .collect()
    }

    /// Chooses the local port and GID (network address) that a queue pair should use. The crate
    /// keeps every value that `choice` sets, and chooses the other values as [`AddressChoice`]
    /// describes. If `choice` contains no GID index, the environment variable `RDMA_GID_INDEX` can
    /// set the index. The crate logs the result and the reason of the choice.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPort`], [`Error::UnknownGidIndex`], [`Error::NoUsablePort`], and the errors
    /// of the verbs that this method calls.
    pub fn address(&self, choice: AddressChoice) -> Result<LocalAddress> {
        let is_automatic = choice.gid_index.is_none();
        let mut choice = choice.or_environment()?;
        choice.port = choice.port.or(self.preferred_port);
        let mut address = choice.choose(self.name(), &self.ports()?, &self.gids()?)?;
        if is_automatic && choice.gid_index.is_some() {
            address.reason = "the index in RDMA_GID_INDEX";
        }
        tracing::info!(
            device = %self.name(),
            port = address.port,
            gid_index = address.gid_index,
            gid = %address.gid,
            mtu = %address.mtu,
            source = choice.source.map(tracing::field::display),
            reason = address.reason,
            "address chosen"
        );
        Ok(address)
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

/// Returns whether `errno` is an error number that devices return for an empty or missing entry of
/// a GID table.
fn is_no_entry(errno: Errno) -> bool {
    matches!(errno.0, libc::ENODATA | libc::EINVAL | libc::ENOENT)
}
