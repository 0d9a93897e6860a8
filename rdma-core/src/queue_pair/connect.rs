//! The attributes of a connection, and the steps from RESET to RTS.

use std::time::Duration;

use ibverbs_sys::{ibv_qp_attr_mask as mask, ibv_qp_state as state};

use super::{Endpoint, Transport};
use crate::device::{LinkLayer, LocalAddress, Mtu};
use crate::error::{Error, Result};
use crate::ffi::{QueuePairHandle, empty_attributes, set_destination};
use crate::memory::AccessFlags;

/// How a connection behaves: paces, patience and path. The defaults suit a local network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct ConnectOptions {
    mtu: Option<Mtu>,
    timeout: u8,
    retries: u8,
    rnr_retries: u8,
    min_rnr_timer: u8,
    traffic_class: u8,
    service_level: u8,
    hop_limit: u8,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            mtu: None,
            timeout: 14,
            retries: 7,
            rnr_retries: 7,
            min_rnr_timer: 12,
            traffic_class: 0,
            service_level: 0,
            hop_limit: 64,
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
        self.retries = retries;
        self
    }

    /// How often to send again when the peer has no receive posted, 0 to 6; 7 is without end, the
    /// default.
    #[doc(alias = "rnr_retry")]
    pub fn rnr_retries(mut self, retries: u8) -> Self {
        self.rnr_retries = retries;
        self
    }

    /// How long the peer is to wait when this end has no receive posted, as the code of the
    /// specification's table, 0 to 31 (IBTA volume 1, table 46). Default 12, 0.64 ms; 0 is the
    /// longest, 655 ms.
    pub fn min_rnr_timer(mut self, code: u8) -> Self {
        self.min_rnr_timer = code;
        self
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

    /// The time a request takes to fail when the peer does not answer, at the least; devices round
    /// the timeout up, to four times as long at the most (IBTA volume 1, 9.9.2.1.1). `None`: never.
    pub fn patience(&self) -> Option<Duration> {
        let timeout = Duration::from_nanos(4096) * (1 << self.timeout.min(31));
        (self.timeout > 0).then(|| timeout * (u32::from(self.retries) + 1))
    }

    fn checked(&self) -> Result<()> {
        let limits = [
            ("timeout exponent", self.timeout, 31),
            ("number of retries", self.retries, 7),
            ("number of receiver-not-ready retries", self.rnr_retries, 7),
            ("receiver-not-ready timer", self.min_rnr_timer, 31),
            ("service level", self.service_level, 15),
        ];
        match limits.into_iter().find(|(_, value, limit)| value > limit) {
            Some((what, value, limit)) => {
                Err(Error::invalid(what, format!("{value} is above {limit}")))
            }
            None => Ok(()),
        }
    }
}

/// RESET to INIT: port, partition and what peers may do.
pub(super) fn to_init(
    handle: &QueuePairHandle,
    address: &LocalAddress,
    access: AccessFlags,
) -> Result<()> {
    let mut attributes = empty_attributes();
    attributes.qp_state = state::IBV_QPS_INIT;
    attributes.port_num = address.port;
    attributes.qp_access_flags = access.bits();
    let what = mask::IBV_QP_STATE | mask::IBV_QP_PORT;
    let what = match handle.kind() {
        Transport::RawPacket => what,
        // The queue key is set with the step to RTR: nothing arrives before.
        Transport::Datagram => what | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_QKEY,
        _ => what | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_ACCESS_FLAGS,
    };
    handle.modify(&mut attributes, what, "RESET to INIT")
}

/// INIT to RTR and RTR to RTS, towards `remote`.
pub(super) fn to_ready(
    handle: &QueuePairHandle,
    address: &LocalAddress,
    local: &Endpoint,
    remote: &Endpoint,
    options: &ConnectOptions,
) -> Result<()> {
    options.checked()?;
    remote.checked()?;
    let kind = handle.kind();
    let requests = matches!(kind, Transport::ReliableConnected | Transport::XrcInitiator);
    let answers = matches!(kind, Transport::ReliableConnected | Transport::XrcTarget);
    let mut attributes = empty_attributes();
    attributes.qp_state = state::IBV_QPS_RTR;
    attributes.path_mtu = options.mtu.unwrap_or(local.mtu.min(remote.mtu)).to_raw();
    attributes.dest_qp_num = remote.queue_pair;
    attributes.rq_psn = remote.packet_sequence;
    attributes.max_dest_rd_atomic = local.incoming_reads;
    attributes.min_rnr_timer = options.min_rnr_timer;
    let vector = &mut attributes.ah_attr;
    vector.port_num = address.port;
    vector.dlid = remote.lid;
    vector.sl = options.service_level;
    if address.link_layer == LinkLayer::Ethernet || !address.gid.is_zero() {
        set_destination(vector, remote.gid.0);
        vector.grh.sgid_index = u8::try_from(address.gid_index).map_err(|_| {
            Error::invalid("GID index", format!("{} is above 255", address.gid_index))
        })?;
        vector.grh.hop_limit = options.hop_limit;
        vector.grh.traffic_class = options.traffic_class;
    }
    let mut receive = mask::IBV_QP_STATE
        | mask::IBV_QP_AV
        | mask::IBV_QP_PATH_MTU
        | mask::IBV_QP_DEST_QPN
        | mask::IBV_QP_RQ_PSN;
    if answers {
        receive |= mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER;
    }
    let step = format!(
        "INIT to RTR, GID index {} to {}",
        address.gid_index, remote.gid
    );
    handle.modify(&mut attributes, receive, &step)?;

    let mut attributes = empty_attributes();
    attributes.qp_state = state::IBV_QPS_RTS;
    attributes.sq_psn = local.packet_sequence;
    attributes.timeout = options.timeout;
    attributes.retry_cnt = options.retries;
    attributes.rnr_retry = options.rnr_retries;
    attributes.max_rd_atomic = local.outgoing_reads.min(remote.incoming_reads);
    let mut send = mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN;
    if kind.is_reliable() {
        send |= mask::IBV_QP_TIMEOUT;
    }
    if requests {
        send =
            send | mask::IBV_QP_RETRY_CNT | mask::IBV_QP_RNR_RETRY | mask::IBV_QP_MAX_QP_RD_ATOMIC;
    }
    handle.modify(&mut attributes, send, "RTR to RTS")
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
    fn patience_counts_every_try() {
        let patience = ConnectOptions::default().patience().unwrap();
        assert_eq!(patience, Duration::from_nanos(4096 * (1 << 14) * 8));
        assert_eq!(
            ConnectOptions::default().ack_timeout_exponent(0).patience(),
            None
        );
    }
}
