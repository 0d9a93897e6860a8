//! Modifications: changes to the attributes and the state of a queue pair.

use std::fmt;

use ibverbs_sys::{ibv_mig_state, ibv_qp_attr, ibv_qp_cap};

use super::{AttributeMask, QueuePairState};
use crate::address::AddressVector;
use crate::device::Mtu;
use crate::error::Result;
use crate::ffi::empty_attributes;
use crate::memory::AccessFlags;

/// A set of attribute changes to apply to a queue pair. The changes affect only attributes that the
/// program has set in this value.
///
/// ```
/// use rdma_core::QueuePairState;
/// use rdma_core::queue_pair::{AttributeMask, Modification};
///
/// let change = Modification::to(QueuePairState::Init).port(1).pkey_index(0);
/// let mask = AttributeMask::STATE | AttributeMask::PORT | AttributeMask::PKEY_INDEX;
/// assert_eq!(change.mask(), mask);
/// ```
#[doc(alias = "ibv_qp_attr")]
#[derive(Clone)]
#[must_use = "a modification changes nothing until a queue pair is modified by it"]
pub struct Modification {
    mask: AttributeMask,
    /// The values of all attributes except the two paths, which have fields of their own.
    values: ibv_qp_attr,
    address: Option<AddressVector>,
    alternate: Option<AlternatePath>,
}

/// A second path to the peer, which the device uses when the primary path fails (IBTA volume 1,
/// 17.2.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AlternatePath {
    /// The address vector of the alternate path.
    #[doc(alias = "alt_ah_attr")]
    pub address: AddressVector,
    /// The index of the partition key in the P_Key table of `port`.
    #[doc(alias = "alt_pkey_index")]
    pub pkey_index: u16,
    /// The local port that the alternate path uses.
    #[doc(alias = "alt_port_num")]
    pub port: u8,
    /// The exponent of the acknowledgement timeout on the alternate path.
    /// [`Modification::ack_timeout_exponent`] describes the exponent.
    #[doc(alias = "alt_timeout")]
    pub ack_timeout_exponent: u8,
}

/// The path migration state of a queue pair (`ibv_mig_state`; IBTA volume 1, 17.2.8). Path
/// migration is the change of a connection to the alternate path.
#[doc(alias = "ibv_mig_state")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MigrationState {
    /// The queue pair has only one path, or has already migrated to the alternate path.
    #[doc(alias = "IBV_MIG_MIGRATED")]
    Migrated,
    /// The program requests that the two sides prepare for a migration again.
    #[doc(alias = "IBV_MIG_REARM")]
    Rearm,
    /// Both sides are prepared to migrate to the alternate path.
    #[doc(alias = "IBV_MIG_ARMED")]
    Armed,
    /// A value that this crate does not know.
    Unknown(u32),
}

impl MigrationState {
    pub(super) fn from_raw(state: ibv_mig_state) -> Self {
        match state {
            ibv_mig_state::IBV_MIG_MIGRATED => Self::Migrated,
            ibv_mig_state::IBV_MIG_REARM => Self::Rearm,
            ibv_mig_state::IBV_MIG_ARMED => Self::Armed,
            ibv_mig_state(other) => Self::Unknown(other),
        }
    }

    fn to_raw(self) -> ibv_mig_state {
        match self {
            Self::Migrated => ibv_mig_state::IBV_MIG_MIGRATED,
            Self::Rearm => ibv_mig_state::IBV_MIG_REARM,
            Self::Armed => ibv_mig_state::IBV_MIG_ARMED,
            Self::Unknown(other) => ibv_mig_state(other),
        }
    }
}

/// The capacities of a queue pair (`ibv_qp_cap`): the maximum numbers of requests and of
/// scatter/gather elements, and the maximum length of inline data.
#[doc(alias = "ibv_qp_cap")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QueuePairCapacities {
    /// Maximum number of outstanding send requests.
    #[doc(alias = "max_send_wr")]
    pub send_requests: u32,
    /// Maximum number of outstanding receive requests.
    #[doc(alias = "max_recv_wr")]
    pub receive_requests: u32,
    /// Maximum number of scatter/gather elements of a send request.
    #[doc(alias = "max_send_sge")]
    pub send_elements: u32,
    /// Maximum number of scatter/gather elements of a receive request.
    #[doc(alias = "max_recv_sge")]
    pub receive_elements: u32,
    /// Maximum length in bytes of the inline data of a request.
    #[doc(alias = "max_inline_data")]
    pub inline_data: u32,
}

impl QueuePairCapacities {
    pub(super) fn from_raw(raw: ibv_qp_cap) -> Self {
        Self {
            send_requests: raw.max_send_wr,
            receive_requests: raw.max_recv_wr,
            send_elements: raw.max_send_sge,
            receive_elements: raw.max_recv_sge,
            inline_data: raw.max_inline_data,
        }
    }
}

impl Default for Modification {
    fn default() -> Self {
        Self::new()
    }
}

impl Modification {
    /// Creates an empty modification, which changes no attribute of the queue pair.
    pub fn new() -> Self {
        Self {
            mask: AttributeMask::empty(),
            values: empty_attributes(),
            address: None,
            alternate: None,
        }
    }

    /// Creates a modification that moves the queue pair to the state `state`. The queue pair may
    /// already be in this state.
    #[doc(alias = "qp_state")]
    pub fn to(state: QueuePairState) -> Self {
        let mut new = Self::new().with(AttributeMask::STATE);
        new.values.qp_state = state.to_raw();
        new
    }

    fn with(mut self, attribute: AttributeMask) -> Self {
        self.mask |= attribute;
        self
    }

    /// Sets the state in which the queue pair must be before the modification. If the queue pair is
    /// in another state, the device refuses the modification. The check is useful because a queue
    /// pair can change its state without a request of the program.
    #[doc(alias = "cur_qp_state")]
    pub fn assuming(mut self, state: QueuePairState) -> Self {
        self.values.cur_qp_state = state.to_raw();
        self.with(AttributeMask::CURRENT_STATE)
    }

    /// Enables or disables the asynchronous event that reports a drained send queue. In the state
    /// SQD, the send queue has drained when all requests that the device had started have
    /// completed.
    #[doc(alias = "en_sqd_async_notify")]
    pub fn notify_drained(mut self, notify: bool) -> Self {
        self.values.en_sqd_async_notify = notify.into();
        self.with(AttributeMask::NOTIFY_DRAINED)
    }

    /// Sets the remote access rights: the operations that the peer may perform through the queue
    /// pair. The memory must also be registered with these rights.
    #[doc(alias = "qp_access_flags")]
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.values.qp_access_flags = access.bits();
        self.with(AttributeMask::ACCESS)
    }

    /// Sets the index of the partition key in the port's P_Key table.
    pub fn pkey_index(mut self, index: u16) -> Self {
        self.values.pkey_index = index;
        self.with(AttributeMask::PKEY_INDEX)
    }

    /// Sets the number of the local port, counted from 1.
    #[doc(alias = "port_num")]
    pub fn port(mut self, number: u8) -> Self {
        self.values.port_num = number;
        self.with(AttributeMask::PORT)
    }

    /// Sets the queue key (Q_Key) of the queue pair. Datagrams to the queue pair must contain this
    /// key.
    pub fn qkey(mut self, key: u32) -> Self {
        self.values.qkey = key;
        self.with(AttributeMask::QKEY)
    }

    /// Sets the address vector (addresses and routing parameters) of the primary path to the peer.
    #[doc(alias = "ah_attr")]
    pub fn address(mut self, vector: AddressVector) -> Self {
        self.address = Some(vector);
        self.with(AttributeMask::ADDRESS)
    }

    /// Sets the path MTU, the maximum payload of a packet.
    pub fn path_mtu(mut self, mtu: Mtu) -> Self {
        self.values.path_mtu = mtu.to_raw();
        self.with(AttributeMask::PATH_MTU)
    }

    /// Sets the acknowledgement timeout, after which the device retransmits a request. The timeout
    /// is 4.096 us times two to the power of `exponent`. The maximum exponent is 31; 0 means no
    /// timeout.
    #[doc(alias = "timeout")]
    pub fn ack_timeout_exponent(mut self, exponent: u8) -> Self {
        self.values.timeout = exponent;
        self.with(AttributeMask::ACK_TIMEOUT)
    }

    /// Sets the maximum number of retransmissions, 0 to 7, of a request that the peer does not
    /// acknowledge. After the last retransmission, the connection fails.
    #[doc(alias = "retry_cnt")]
    pub fn retries(mut self, retries: u8) -> Self {
        self.values.retry_cnt = retries;
        self.with(AttributeMask::RETRIES)
    }

    /// Sets the maximum number of retries, 0 to 6, after receiver-not-ready (RNR) responses. The
    /// peer sends such a response if no receive is posted for the request. 7 means no limit.
    #[doc(alias = "rnr_retry")]
    pub fn rnr_retries(mut self, retries: u8) -> Self {
        self.values.rnr_retry = retries;
        self.with(AttributeMask::RNR_RETRIES)
    }

    /// Sets the minimum time that the peer waits before a retry after a receiver-not-ready (RNR)
    /// response. [`ConnectOptions::min_rnr_timer`](super::ConnectOptions::min_rnr_timer) describes
    /// `code`.
    pub fn min_rnr_timer(mut self, code: u8) -> Self {
        self.values.min_rnr_timer = code;
        self.with(AttributeMask::MIN_RNR_TIMER)
    }

    /// Sets the sequence number (PSN, 24 bits) of the first packet to receive. The peer must begin
    /// to send with this number.
    #[doc(alias = "rq_psn")]
    pub fn receive_sequence(mut self, number: u32) -> Self {
        self.values.rq_psn = number;
        self.with(AttributeMask::RECEIVE_SEQUENCE)
    }

    /// Sets the sequence number (PSN, 24 bits) of the first packet to send.
    #[doc(alias = "sq_psn")]
    pub fn send_sequence(mut self, number: u32) -> Self {
        self.values.sq_psn = number;
        self.with(AttributeMask::SEND_SEQUENCE)
    }

    /// Sets the maximum number of outstanding RDMA reads and atomics of this queue pair.
    #[doc(alias = "max_rd_atomic")]
    pub fn outgoing_reads(mut self, count: u8) -> Self {
        self.values.max_rd_atomic = count;
        self.with(AttributeMask::OUTGOING_READS)
    }

    /// Sets the maximum number of RDMA reads and atomics that this queue pair executes for the peer
    /// at the same time.
    #[doc(alias = "max_dest_rd_atomic")]
    pub fn incoming_reads(mut self, count: u8) -> Self {
        self.values.max_dest_rd_atomic = count;
        self.with(AttributeMask::INCOMING_READS)
    }

    /// Sets the alternate path to the peer, which the device uses when the primary path fails.
    #[doc(alias = "alt_ah_attr")]
    pub fn alternate_path(mut self, path: AlternatePath) -> Self {
        self.alternate = Some(path);
        self.with(AttributeMask::ALTERNATE_PATH)
    }

    /// Sets the path migration state, for example to request the change to the alternate path.
    #[doc(alias = "path_mig_state")]
    pub fn migration(mut self, state: MigrationState) -> Self {
        self.values.path_mig_state = state.to_raw();
        self.with(AttributeMask::MIGRATION)
    }

    /// Sets the capacities of the send and receive queues, such as the maximum number of
    /// outstanding requests. Hardly any device supports this change.
    #[doc(alias = "cap")]
    pub fn capacities(mut self, capacities: QueuePairCapacities) -> Self {
        self.values.cap = ibv_qp_cap {
            max_send_wr: capacities.send_requests,
            max_recv_wr: capacities.receive_requests,
            max_send_sge: capacities.send_elements,
            max_recv_sge: capacities.receive_elements,
            max_inline_data: capacities.inline_data,
        };
        self.with(AttributeMask::CAPACITIES)
    }

    /// Sets the queue pair number (24 bits) of the peer.
    #[doc(alias = "dest_qp_num")]
    pub fn destination(mut self, queue_pair: u32) -> Self {
        self.values.dest_qp_num = queue_pair;
        self.with(AttributeMask::DESTINATION)
    }

    /// Sets the maximum rate at which the queue pair sends data, in kilobits per second. 0 means
    /// the rate of the port.
    pub fn rate_limit(mut self, kilobits: u32) -> Self {
        self.values.rate_limit = kilobits;
        self.with(AttributeMask::RATE_LIMIT)
    }

    /// Removes the attributes in `attributes` from the modification.
    pub fn without(mut self, attributes: AttributeMask) -> Self {
        self.mask -= attributes;
        self
    }

    /// Returns the set of attributes that the modification changes.
    pub fn mask(&self) -> AttributeMask {
        self.mask
    }

    /// Returns the state to which the modification moves the queue pair, or `None` if the
    /// modification does not change the state.
    pub fn state(&self) -> Option<QueuePairState> {
        let state = QueuePairState::from_raw(self.values.qp_state);
        self.mask.contains(AttributeMask::STATE).then_some(state)
    }

    /// Returns the values of all attributes except the path to the peer and the alternate path.
    /// Only attributes in [`Self::mask`] have meaningful values.
    pub(super) fn values(&self) -> &ibv_qp_attr {
        &self.values
    }

    pub(super) fn vector(&self) -> Option<&AddressVector> {
        let set = self.mask.contains(AttributeMask::ADDRESS);
        self.address.as_ref().filter(|_| set)
    }

    pub(super) fn alternate(&self) -> Option<&AlternatePath> {
        let set = self.mask.contains(AttributeMask::ALTERNATE_PATH);
        self.alternate.as_ref().filter(|_| set)
    }

    /// Converts the modification to the C struct `ibv_qp_attr`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a path with a service level,
    /// flow label or GID index out of range.
    pub fn to_raw(&self) -> Result<ibv_qp_attr> {
        let mut raw = self.values;
        if let Some(vector) = self.vector() {
            raw.ah_attr = vector.to_raw()?;
        }
        if let Some(path) = self.alternate() {
            raw.alt_ah_attr = path.address.to_raw()?;
            raw.alt_pkey_index = path.pkey_index;
            raw.alt_port_num = path.port;
            raw.alt_timeout = path.ack_timeout_exponent;
        }
        Ok(raw)
    }

    /// Creates a modification from the C struct `raw`. The modification sets only the attributes in
    /// `mask`.
    pub fn from_raw(raw: &ibv_qp_attr, mask: AttributeMask) -> Self {
        Self {
            mask,
            values: *raw,
            address: Some(AddressVector::from_raw(&raw.ah_attr)),
            alternate: Some(AlternatePath {
                address: AddressVector::from_raw(&raw.alt_ah_attr),
                pkey_index: raw.alt_pkey_index,
                port: raw.alt_port_num,
                ack_timeout_exponent: raw.alt_timeout,
            }),
        }
    }
}

impl fmt::Debug for Modification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = &self.values;
        let mut out = f.debug_struct("Modification");
        for attribute in self.mask.each() {
            let name = attribute.to_string();
            match attribute {
                AttributeMask::ADDRESS => out.field(&name, &self.address),
                AttributeMask::ALTERNATE_PATH => out.field(&name, &self.alternate),
                AttributeMask::STATE => out.field(&name, &values.qp_state.0),
                _ => out.field(&name, &self.number(attribute)),
            };
        }
        out.finish()
    }
}

impl Modification {
    /// Returns the value of one attribute of the modification as a number. Returns `None` if the
    /// value is not a single number, as for an address vector.
    pub(super) fn number(&self, attribute: AttributeMask) -> Option<u64> {
        let values = &self.values;
        Some(match attribute {
            AttributeMask::STATE => values.qp_state.0.into(),
            AttributeMask::CURRENT_STATE => values.cur_qp_state.0.into(),
            AttributeMask::NOTIFY_DRAINED => values.en_sqd_async_notify.into(),
            AttributeMask::ACCESS => values.qp_access_flags.into(),
            AttributeMask::PKEY_INDEX => values.pkey_index.into(),
            AttributeMask::PORT => values.port_num.into(),
            AttributeMask::QKEY => values.qkey.into(),
            AttributeMask::PATH_MTU => values.path_mtu.0.into(),
            AttributeMask::ACK_TIMEOUT => values.timeout.into(),
            AttributeMask::RETRIES => values.retry_cnt.into(),
            AttributeMask::RNR_RETRIES => values.rnr_retry.into(),
            AttributeMask::RECEIVE_SEQUENCE => values.rq_psn.into(),
            AttributeMask::OUTGOING_READS => values.max_rd_atomic.into(),
            AttributeMask::MIN_RNR_TIMER => values.min_rnr_timer.into(),
            AttributeMask::SEND_SEQUENCE => values.sq_psn.into(),
            AttributeMask::INCOMING_READS => values.max_dest_rd_atomic.into(),
            AttributeMask::MIGRATION => values.path_mig_state.0.into(),
            AttributeMask::DESTINATION => values.dest_qp_num.into(),
            AttributeMask::RATE_LIMIT => values.rate_limit.into(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::device::Gid;

    fn vector() -> AddressVector {
        AddressVector {
            port: 1,
            gid: Some(Gid::from(IpAddr::from([127, 0, 0, 1]))),
            gid_index: 3,
            flow_label: 5,
            hop_limit: 6,
            traffic_class: 7,
            lid: 8,
            service_level: 9,
            source_path_bits: 0,
            static_rate: crate::address::StaticRate::PORT,
        }
    }

    /// Returns a modification that sets every attribute, each to a different value.
    fn all_attributes() -> Modification {
        Modification::to(QueuePairState::ReadyToSend)
            .assuming(QueuePairState::SendQueueDrain)
            .notify_drained(true)
            .access(AccessFlags::REMOTE_READ)
            .pkey_index(11)
            .port(12)
            .qkey(13)
            .address(vector())
            .path_mtu(Mtu::Mtu2048)
            .ack_timeout_exponent(14)
            .retries(5)
            .rnr_retries(6)
            .receive_sequence(15)
            .send_sequence(16)
            .outgoing_reads(17)
            .incoming_reads(18)
            .min_rnr_timer(19)
            .migration(MigrationState::Rearm)
            .destination(20)
            .rate_limit(21)
            .capacities(QueuePairCapacities {
                send_requests: 22,
                ..QueuePairCapacities::default()
            })
            .alternate_path(AlternatePath {
                address: vector(),
                pkey_index: 23,
                port: 24,
                ack_timeout_exponent: 25,
            })
    }

    #[test]
    fn every_attribute_can_be_set_and_comes_back_from_c() {
        let all = all_attributes();
        assert_eq!(all.mask(), AttributeMask::known());
        let raw = all.to_raw().unwrap();
        assert_eq!((raw.timeout, raw.alt_timeout, raw.rate_limit), (14, 25, 21));
        let again = Modification::from_raw(&raw, all.mask());
        assert_eq!(format!("{again:?}"), format!("{all:?}"));
        assert_eq!(again.vector(), Some(&vector()));
    }

    #[test]
    fn removed_attributes_are_not_changed() {
        let most = all_attributes().without(AttributeMask::STATE | AttributeMask::ADDRESS);
        assert_eq!((most.state(), most.vector()), (None, None));
        assert_eq!(most.to_raw().unwrap().ah_attr.dlid, 0);
    }
}
