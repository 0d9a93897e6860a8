//! Options of connection identifiers.

use super::ConnectionId;
use crate::error::{Error, Result};

/// An option of a connection identifier (`rdma_set_option`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionIdOption {
    /// The type of service of the packets. On RoCE v2, the value is the DSCP and ECN byte of the IP
    /// header. The program must set this option before it resolves the address.
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    TypeOfService(u8),
    /// `true` allows several identifiers to bind to the same address. The program must set this
    /// option before binding.
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    ReuseAddress(bool),
    /// `true` prevents an identifier with an IPv6 address from also using IPv4. The program must
    /// set this option before binding.
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    AddressFamilyOnly(bool),
    /// The acknowledgement timeout of the queue pair: 4.096 µs times 2 to the power of this value.
    /// The maximum value is 31. The queue pair retransmits a request that the peer has not
    /// acknowledged within this time. The program must set this option before it connects the queue
    /// pair.
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    AckTimeoutExponent(u8),
}

impl ConnectionId {
    /// Sets an option of this connection identifier. Each [`ConnectionIdOption`] describes when the
    /// program must set that option.
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
