//! Connection options, and the attributes of each state transition from RESET to RTS.

use std::iter;
use std::time::Duration;

use super::Limit;
use super::retries::{self, Retries};
use super::{Endpoint, Modification, QueuePairState, Transport};
use crate::address::AddressVector;
use crate::device::{LocalAddress, Mtu};
use crate::error::Result;
use crate::memory::AccessFlags;

/// Options for connecting a queue pair: timeouts, retries and path. The default values suit a local
/// network.
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
    /// Sets the path MTU, which must be equal at both ends. The default is the smaller of the MTUs
    /// in the two [endpoints](Endpoint::mtu).
    pub fn mtu(mut self, mtu: Mtu) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// Returns the path MTU that the program has set by [`Self::mtu`], or `None` if the program has
    /// not set a path MTU.
    pub fn path_mtu(&self) -> Option<Mtu> {
        self.mtu
    }

    /// Sets the acknowledgement timeout, after which the device retransmits a request. The timeout
    /// is 4.096 us times two to the power of `exponent`. The maximum exponent is 31; 0 means no
    /// timeout. The default is 14, a timeout of 67 ms. Devices may round the timeout up.
    #[doc(alias = "timeout")]
    pub fn ack_timeout_exponent(mut self, exponent: u8) -> Self {
        self.timeout = exponent;
        self
    }

    /// Sets the maximum number of retransmissions, 0 to 7, of a request that the peer does not
    /// acknowledge. After the last retransmission, the connection fails. The default is 6. With the
    /// value 7, the kernel's Soft-RoCE device retransmits without a limit.
    #[doc(alias = "retry_cnt")]
    pub fn retries(mut self, retries: u8) -> Self {
        self.retries.unanswered = retries;
        self
    }

    /// Sets the maximum number of retries, 0 to 6, after receiver-not-ready (RNR) responses. The
    /// peer sends such a response if no receive is posted for the request. 7 means no limit. The
    /// default is 7.
    #[doc(alias = "rnr_retry")]
    pub fn rnr_retries(mut self, retries: u8) -> Self {
        self.retries.not_ready = retries;
        self
    }

    /// Sets the minimum time that the peer waits before a retry after a receiver-not-ready (RNR)
    /// response. This side sends such a response if no receive is posted for a request. `code` is
    /// the code of a delay in the specification, 0 to 31 (IBTA volume 1, table 45). The default is
    /// 12, which is 0.64 ms.
    ///
    /// Code 1 is the shortest delay, 0.01 ms. From code 2 (0.02 ms) on, every second code doubles
    /// the delay, up to 491.52 ms for code 31. **Code 0 is the longest delay, 655.36 ms.** A
    /// program that forgets to set the attribute gets this delay. [`Self::rnr_delay`] chooses the
    /// code for a duration.
    ///
    /// A short delay exhausts the peer's [`rnr_retries`](Self::rnr_retries), unless the number of
    /// retries is unlimited. A long delay stalls the connection for that time whenever a message
    /// arrives before its receive is posted.
    pub fn min_rnr_timer(mut self, code: u8) -> Self {
        self.retries.not_ready_timer = code;
        self
    }

    /// Sets the minimum time that the peer waits before a retry after a receiver-not-ready (RNR)
    /// response. Uses the shortest delay in the specification's table that is not less than
    /// `delay`, or the longest delay of the table if all delays are shorter.
    /// [`Self::min_rnr_timer`] sets the same attribute by the code of a delay.
    pub fn rnr_delay(self, delay: Duration) -> Self {
        self.min_rnr_timer(retries::code_of(delay))
    }

    /// Sets the traffic class of packets. On RoCE v2 the traffic class is the DSCP and ECN byte of
    /// the IP header. The default is 0.
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.traffic_class = class;
        self
    }

    /// Sets the service level, 0 to 15, by which the network can prioritize packets. The default is
    /// 0.
    #[doc(alias = "sl")]
    pub fn service_level(mut self, level: u8) -> Self {
        self.service_level = level;
        self
    }

    /// Sets the hop limit of packets. The default is 64.
    pub fn hop_limit(mut self, limit: u8) -> Self {
        self.hop_limit = limit;
        self
    }

    /// Sets the flow label of packets, 20 bits. RoCE v2 derives the UDP source port from the flow
    /// label. Switches use the UDP source port to distribute connections over several paths. The
    /// default is 0.
    pub fn flow_label(mut self, label: u32) -> Self {
        self.flow_label = label;
        self
    }

    /// Returns the minimum time after which a request to an unresponsive peer fails, or `None` if
    /// such a request never fails. The time is the acknowledgement timeout times the number of
    /// transmissions. Devices may round the timeout up to four times its value (IBTA volume 1,
    /// 9.9.2.1.1).
    pub fn time_to_failure(&self) -> Option<Duration> {
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

/// Returns the modification that moves a queue pair from RESET to INIT. The modification sets the
/// port and, depending on the transport, the partition key and the remote access rights.
pub(super) fn initial(
    kind: Transport,
    address: &LocalAddress,
    access: AccessFlags,
    pkey_index: u16,
) -> Modification {
    let change = Modification::to(QueuePairState::Init).port(address.port);
    match kind {
        Transport::RawPacket => change,
        // This queue key is a placeholder. The transition to RTR sets the actual key, and before
        // that transition the queue pair accepts no packet.
        Transport::Datagram => change.pkey_index(pkey_index).qkey(0),
        _ => change.pkey_index(pkey_index).access(access),
    }
}

/// Returns the modification that moves a queue pair from INIT to RTR (ready to receive). In RTR the
/// queue pair can receive from `remote`.
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

/// Returns the modification that moves a queue pair from RTR to RTS (ready to send). In RTS the
/// queue pair can send to `remote`.
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
    fn the_time_to_failure_counts_every_try() {
        let time = ConnectOptions::default().time_to_failure().unwrap();
        assert_eq!(time, Duration::from_nanos(4096 * (1 << 14) * 7));
        assert_eq!(
            ConnectOptions::default()
                .ack_timeout_exponent(0)
                .time_to_failure(),
            None
        );
    }
}
