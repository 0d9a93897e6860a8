//! Options of connection identifiers.

use super::ConnectionId;
use crate::error::{Error, Result};

/// An option of a connection identifier (`rdma_set_option`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionIdOption {
    /// The type of service; on RoCE v2 the DSCP and ECN byte of the IP header. The program must set
    /// it before it resolves the address.
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    TypeOfService(u8),
    /// Set if several identifiers may bind to the same address. The program must set it before
    /// binding.
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    ReuseAddress(bool),
    /// Set if an identifier that is bound to an IPv6 address does not also use IPv4. The program
    /// must set it before binding.
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    AddressFamilyOnly(bool),
    /// The acknowledgement timeout of the queue pair, after which a request is retransmitted: 4.096
    /// us times two to the power of this value, which is at most 31. The program must set it before
    /// it connects the queue pair.
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    AckTimeoutExponent(u8),
}

impl ConnectionId {
    /// Sets an option of this connection identifier, for example before it is bound.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a value out of range, and the error of `rdma_set_option`.
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
