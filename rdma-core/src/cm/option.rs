//! Options of connection identifiers.

use super::ConnectionId;
use crate::error::{Error, Result};

/// An option of a connection identifier (`rdma_set_option`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionIdOption {
    /// The type of service; on RoCE v2 the IP header's byte of DSCP and ECN. Before the address is
    /// resolved.
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    TypeOfService(u8),
    /// Whether others may bind to the same address. Before binding.
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    ReuseAddress(bool),
    /// Whether an IPv6 address means IPv6 alone, and not IPv4 with it. Before binding.
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    AddressFamilyOnly(bool),
    /// How long the queue pair waits for an acknowledgement before it sends again: 4.096 us times
    /// two to this power, up to 31. Before the queue pair is brought up.
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    AckTimeoutExponent(u8),
}

impl ConnectionId {
    /// Sets an option.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a value out of range, and the verb's.
    #[doc(alias = "rdma_set_option")]
    pub fn set_option(&self, option: ConnectionIdOption) -> Result<()> {
        match option {
            ConnectionIdOption::TypeOfService(value) => self.handle().set_type_of_service(value),
            ConnectionIdOption::ReuseAddress(reuse) => self.handle().set_reuse_address(reuse),
            ConnectionIdOption::AddressFamilyOnly(only) => {
                self.handle().set_address_family_only(only)
            }
            ConnectionIdOption::AckTimeoutExponent(exponent @ 0..=31) => {
                self.handle().set_ack_timeout(exponent)
            }
            ConnectionIdOption::AckTimeoutExponent(exponent) => Err(Error::invalid(
                "timeout exponent",
                format!("{exponent} is above 31"),
            )),
        }
    }
}
