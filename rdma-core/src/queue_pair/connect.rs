//! The attributes of a connection, and the steps from RESET to RTS.

use std::iter;
use std::time::Duration;

use super::Limit;
use super::retries::{self, Retries};
use super::{Endpoint, Modification, QueuePairState, Transport};
use crate::address::AddressVector;
use crate::device::{LocalAddress, Mtu};
use crate::error::Result;
use crate::memory::AccessFlags;

/// How a connection behaves: paces, patience and path. The defaults suit a local network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct ConnectOptions {
    mtu: Option<Mtu>,
    timeout: u8,
    retries: Retries,
    traffic_class: u8,
    service_level: u8,
    hop_limit: u8,
    flow_label: u32,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            mtu: None,
            timeout: 14,
            retries: Retries::default(),
            traffic_class: 0,
            service_level: 0,
            hop_limit: 64,
            flow_label: 0,
        }
    }
}

impl ConnectOptions {
    /// The path MTU. Default: the smaller of the two ports' active ones.
    pub fn mtu(mut self, mtu: Mtu) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// How long to wait for an acknowledgement before sending again: 4.096 us times two to this
    /// power, up to 31; 0 waits for ever. Default 14, 67 ms. Devices round up.
    #[doc(alias = "timeout")]
    pub fn ack_timeout_exponent(mut self, exponent: u8) -> Self {
        self.timeout = exponent;
        self
    }

    /// How often to send again without an answer, 0 to 7, before the connection fails. Default 7.
    #[doc(alias = "retry_cnt")]
    pub fn retries(mut self, retries: u8) -> Self {
        self.retries.unanswered = retries;
        self
    }

    /// How often to send again when the peer has no receive posted, 0 to 6; 7 is without end, the
    /// default.
    #[doc(alias = "rnr_retry")]
    pub fn rnr_retries(mut self, retries: u8) -> Self {
        self.retries.not_ready = retries;
        self
    }

    /// How long the peer is to wait, at the least, when this end has no receive posted, as the code
    /// of the specification's table, 0 to 31 (IBTA volume 1, table 46). Default 12, 0.64 ms.
    ///
    /// The codes are not in order: 1 is the shortest, 0.01 ms, each second one doubles it up to 31,
    /// 491.52 ms, and **0 is the longest, 655.36 ms**, which is what a forgotten attribute amounts
    /// to. [`Self::rnr_delay`] finds the code for a time. Too short a time wears the peer's
    /// [`rnr_retries`](Self::rnr_retries) out, if they are not endless; too long a one is how long a
    /// connection stands still each time a message comes before its receive is posted.
    pub fn min_rnr_timer(mut self, code: u8) -> Self {
        self.retries.not_ready_timer = code;
        self
    }

    /// Like [`Self::min_rnr_timer`], with the code for this time: the shortest that is not below it,
    /// or the longest of all.
    pub fn rnr_delay(self, delay: Duration) -> Self {
        self.min_rnr_timer(retries::code_of(delay))
    }

    /// The traffic class; on RoCE v2 the IP header's byte of DSCP and ECN. Default 0.
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.traffic_class = class;
        self
    }

    /// The service level, 0 to 15. Default 0.
    #[doc(alias = "sl")]
    pub fn service_level(mut self, level: u8) -> Self {
        self.service_level = level;
        self
    }

    /// How many routers a packet may pass. Default 64.
    pub fn hop_limit(mut self, limit: u8) -> Self {
        self.hop_limit = limit;
        self
    }

    /// The flow label, 20 bits: RoCE v2 makes the UDP source port from it, by which switches spread
    /// connections over several ways. Default 0.
    pub fn flow_label(mut self, label: u32) -> Self {
        self.flow_label = label;
        self
    }

    /// The time a request takes to fail when the peer does not answer, at the least; devices round
    /// the timeout up, to four times as long at the most (IBTA volume 1, 9.9.2.1.1). `None`: never.
    pub fn patience(&self) -> Option<Duration> {
        let timeout = Duration::from_nanos(4096) * (1 << self.timeout.min(31));
        (self.timeout > 0).then(|| timeout * (u32::from(self.retries.unanswered) + 1))
    }

    fn checked(&self) -> Result<()> {
        let timeout = Limit("timeout exponent", self.timeout.into(), 31);
        let path = [
            Limit("service level", self.service_level.into(), 15),
            Limit("flow label", self.flow_label, 0xf_ffff),
        ];
        let limits = iter::once(timeout).chain(self.retries.limits());
        Limit::check(limits.chain(path))
    }
}

/// RESET to INIT: port, partition and what peers may do.
pub(super) fn initial(
    kind: Transport,
    address: &LocalAddress,
    access: AccessFlags,
    pkey_index: u16,
) -> Modification {
    let change = Modification::to(QueuePairState::Init).port(address.port);
    match kind {
        Transport::RawPacket => change,
        // The key that counts is set with the step to RTR: nothing arrives before.
        Transport::Datagram => change.pkey_index(pkey_index).qkey(0),
        _ => change.pkey_index(pkey_index).access(access),
    }
}

/// INIT to RTR, towards `remote`.
pub(super) fn ready_to_receive(
    kind: Transport,
    address: &LocalAddress,
    local: &Endpoint,
    remote: &Endpoint,
    options: &ConnectOptions,
) -> Result<Modification> {
    options.checked()?;
    remote.checked()?;
    let vector = AddressVector {
        service_level: options.service_level,
        hop_limit: options.hop_limit,
        traffic_class: options.traffic_class,
        flow_label: options.flow_label,
        ..AddressVector::to_endpoint(address, remote)
    };
    let change = Modification::to(QueuePairState::ReadyToReceive)
        .address(vector)
        .path_mtu(options.mtu.unwrap_or(local.mtu.min(remote.mtu)))
        .destination(remote.queue_pair)
        .receive_sequence(remote.packet_sequence);
    Ok(match kind {
        Transport::ReliableConnected | Transport::XrcTarget => change
            .incoming_reads(local.incoming_reads)
            .min_rnr_timer(options.retries.not_ready_timer),
        _ => change,
    })
}

/// RTR to RTS, towards `remote`.
pub(super) fn ready_to_send(
    kind: Transport,
    local: &Endpoint,
    remote: &Endpoint,
    options: &ConnectOptions,
) -> Result<Modification> {
    options.checked()?;
    remote.checked()?;
    let mut change =
        Modification::to(QueuePairState::ReadyToSend).send_sequence(local.packet_sequence);
    if kind.is_reliable() {
        change = change.ack_timeout_exponent(options.timeout);
    }
    Ok(match kind {
        Transport::ReliableConnected | Transport::XrcInitiator => change
            .retries(options.retries.unanswered)
            .rnr_retries(options.retries.not_ready)
            .outgoing_reads(local.outgoing_reads.min(remote.incoming_reads)),
        _ => change,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_range_options_are_refused_by_name() {
        let error = ConnectOptions::default().retries(8).checked().unwrap_err();
        assert_eq!(error.to_string(), "number of retries: 8 is above 7");
        assert!(ConnectOptions::default().checked().is_ok());
    }

    #[test]
    fn a_delay_becomes_the_code_of_the_timer() {
        let options = ConnectOptions::default().rnr_delay(Duration::from_micros(960));
        assert_eq!(options, ConnectOptions::default().min_rnr_timer(13));
    }

    #[test]
    fn patience_counts_every_try() {
        let patience = ConnectOptions::default().patience().unwrap();
        assert_eq!(patience, Duration::from_nanos(4096 * (1 << 14) * 8));
        assert_eq!(
            ConnectOptions::default().ack_timeout_exponent(0).patience(),
            None
        );
    }
}
