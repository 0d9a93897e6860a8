//! What a queue pair tells about itself.

use std::fmt;

use ibverbs_sys::{ibv_qp_attr, ibv_wr_opcode};

use super::{
    AlternatePath, AttributeMask, MigrationState, QueuePairCapacities, QueuePairState, Transport,
};
use crate::address::AddressVector;
use crate::device::Mtu;
use crate::error::Result;
use crate::ffi::QueuePairHandle;
use crate::memory::AccessFlags;

/// Every attribute of a queue pair, and what it was made with (`ibv_query_qp`).
///
/// Attributes that were not set yet, or that its kind does not have, are what the device makes of
/// them: zero as a rule.
#[doc(alias = "ibv_query_qp")]
#[doc(alias = "ibv_qp_attr")]
#[doc(alias = "ibv_qp_init_attr")]
#[derive(Clone, Copy)]
pub struct QueuePairAttributes {
    raw: ibv_qp_attr,
    kind: Transport,
    signals_all: bool,
    capacities: QueuePairCapacities,
}

impl QueuePairAttributes {
    pub(super) fn of(handle: &QueuePairHandle) -> Result<Self> {
        // No device tells the rate limit: libibverbs refuses to ask for it.
        let known = AttributeMask::known() - AttributeMask::RATE_LIMIT;
        let (raw, initial) = handle.query(known)?;
        Ok(Self {
            raw,
            kind: Transport::from_raw(initial.qp_type),
            signals_all: initial.sq_sig_all != 0,
            capacities: QueuePairCapacities::from_raw(initial.cap),
        })
    }

    /// The state it is in.
    #[doc(alias = "qp_state")]
    pub fn state(&self) -> QueuePairState {
        QueuePairState::from_raw(self.raw.qp_state)
    }

    /// The state that it is in according to `cur_qp_state`.
    #[doc(alias = "cur_qp_state")]
    pub fn current_state(&self) -> QueuePairState {
        QueuePairState::from_raw(self.raw.cur_qp_state)
    }

    /// Which service it gives.
    #[doc(alias = "qp_type")]
    pub fn kind(&self) -> Transport {
        self.kind
    }

    /// Whether every send request is signaled.
    #[doc(alias = "sq_sig_all")]
    pub fn signals_all(&self) -> bool {
        self.signals_all
    }

    /// The path MTU, if one was set.
    pub fn path_mtu(&self) -> Option<Mtu> {
        Mtu::from_raw(self.raw.path_mtu)
    }

    /// How far it is with a change of its path.
    #[doc(alias = "path_mig_state")]
    pub fn migration(&self) -> MigrationState {
        MigrationState::from_raw(self.raw.path_mig_state)
    }

    /// The queue key.
    pub fn qkey(&self) -> u32 {
        self.raw.qkey
    }

    /// The packet sequence number that it expects next, or was set to expect first.
    #[doc(alias = "rq_psn")]
    pub fn receive_sequence(&self) -> u32 {
        self.raw.rq_psn
    }

    /// The packet sequence number that it sends next, or was set to send first.
    #[doc(alias = "sq_psn")]
    pub fn send_sequence(&self) -> u32 {
        self.raw.sq_psn
    }

    /// The number of the peer's queue pair.
    #[doc(alias = "dest_qp_num")]
    pub fn destination(&self) -> u32 {
        self.raw.dest_qp_num
    }

    /// What the peer may do.
    #[doc(alias = "qp_access_flags")]
    pub fn access(&self) -> AccessFlags {
        AccessFlags::from_bits_retain(self.raw.qp_access_flags)
    }

    /// How much its queues hold, as the device granted it.
    #[doc(alias = "cap")]
    pub fn capacities(&self) -> QueuePairCapacities {
        self.capacities
    }

    /// The way to the peer.
    #[doc(alias = "ah_attr")]
    pub fn address(&self) -> AddressVector {
        AddressVector::from_raw(&self.raw.ah_attr)
    }

    /// The second way to the peer.
    #[doc(alias = "alt_ah_attr")]
    pub fn alternate_path(&self) -> AlternatePath {
        AlternatePath {
            address: AddressVector::from_raw(&self.raw.alt_ah_attr),
            pkey_index: self.raw.alt_pkey_index,
            port: self.raw.alt_port_num,
            ack_timeout_exponent: self.raw.alt_timeout,
        }
    }

    /// The place of its partition key in the port's table.
    pub fn pkey_index(&self) -> u16 {
        self.raw.pkey_index
    }

    /// Whether, in SQD, requests that were begun have not completed yet.
    #[doc(alias = "sq_draining")]
    pub fn is_draining(&self) -> bool {
        self.raw.sq_draining != 0
    }

    /// How many RDMA reads and atomics it may have outstanding.
    #[doc(alias = "max_rd_atomic")]
    pub fn outgoing_reads(&self) -> u8 {
        self.raw.max_rd_atomic
    }

    /// How many RDMA reads and atomics of the peer it takes at once.
    #[doc(alias = "max_dest_rd_atomic")]
    pub fn incoming_reads(&self) -> u8 {
        self.raw.max_dest_rd_atomic
    }

    /// How long a peer is to wait when there is no receive, as the code of
    /// [`ConnectOptions::min_rnr_timer`](super::ConnectOptions::min_rnr_timer).
    pub fn min_rnr_timer(&self) -> u8 {
        self.raw.min_rnr_timer
    }

    /// The port.
    #[doc(alias = "port_num")]
    pub fn port(&self) -> u8 {
        self.raw.port_num
    }

    /// How long it waits for an acknowledgement, as the exponent of
    /// [`ConnectOptions::ack_timeout_exponent`](super::ConnectOptions::ack_timeout_exponent).
    #[doc(alias = "timeout")]
    pub fn ack_timeout_exponent(&self) -> u8 {
        self.raw.timeout
    }

    /// How often it sends again without an answer.
    #[doc(alias = "retry_cnt")]
    pub fn retries(&self) -> u8 {
        self.raw.retry_cnt
    }

    /// How often it sends again to a peer without a receive; 7 is without end.
    #[doc(alias = "rnr_retry")]
    pub fn rnr_retries(&self) -> u8 {
        self.raw.rnr_retry
    }

    /// The C struct.
    pub fn as_raw(&self) -> &ibv_qp_attr {
        &self.raw
    }
}

impl fmt::Debug for QueuePairAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePairAttributes")
            .field("state", &self.state())
            .field("kind", &self.kind())
            .field("port", &self.port())
            .field("destination", &self.destination())
            .field("address", &self.address())
            .field("path_mtu", &self.path_mtu())
            .field("access", &self.access())
            .field("capacities", &self.capacities())
            .field("send_sequence", &self.send_sequence())
            .field("receive_sequence", &self.receive_sequence())
            .field("outgoing_reads", &self.outgoing_reads())
            .field("incoming_reads", &self.incoming_reads())
            .field("ack_timeout_exponent", &self.ack_timeout_exponent())
            .field("retries", &self.retries())
            .field("rnr_retries", &self.rnr_retries())
            .field("min_rnr_timer", &self.min_rnr_timer())
            .field("qkey", &self.qkey())
            .field("pkey_index", &self.pkey_index())
            .field("migration", &self.migration())
            .field("draining", &self.is_draining())
            .finish_non_exhaustive()
    }
}

bitflags::bitflags! {
    /// How the data of a message comes into memory, for programs that wait for its last byte
    /// instead of a completion (`ibv_query_qp_data_in_order_caps`).
    ///
    /// Holds only where the processor reads, and not for regions with relaxed ordering.
    #[doc(alias = "ibv_query_qp_data_in_order")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct DataOrder: u32 {
        /// In ascending order of addresses.
        const WHOLE_MESSAGE = 1;
        /// Each aligned 128 bytes in ascending order.
        const ALIGNED_128_BYTES = 1 << 1;
        // What later headers add.
        const _ = !0;
    }
}

/// How a message comes in, for the question about its [order](DataOrder).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Arrival {
    /// By the peer's send.
    Send,
    /// By the peer's RDMA write.
    Write,
    /// By an RDMA read of this end.
    Read,
}

impl Arrival {
    pub(super) fn to_raw(self) -> ibv_wr_opcode {
        match self {
            Self::Send => ibv_wr_opcode::IBV_WR_SEND,
            Self::Write => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            Self::Read => ibv_wr_opcode::IBV_WR_RDMA_READ,
        }
    }
}
