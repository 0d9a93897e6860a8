//! The attributes of a queue pair, as the device reports them.

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

/// The attributes and the creation parameters of a queue pair, as `ibv_query_qp` returns them.
///
/// The value of an attribute is arbitrary, usually zero, if the attribute was not set yet or does
/// not exist for the transport.
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
        // libibverbs refuses to query the rate limit, so the query does not contain it.
        let known = AttributeMask::known() - AttributeMask::RATE_LIMIT;
        let (raw, initial) = handle.query(known)?;
        Ok(Self {
            raw,
            kind: Transport::from_raw(initial.qp_type),
            signals_all: initial.sq_sig_all != 0,
            capacities: QueuePairCapacities::from_raw(initial.cap),
        })
    }

    /// Returns the state of the queue pair, such as INIT or RTS (the C field `qp_state`).
    #[doc(alias = "qp_state")]
    pub fn state(&self) -> QueuePairState {
        QueuePairState::from_raw(self.raw.qp_state)
    }

    /// Returns the C field `cur_qp_state`, in which drivers report the state of the queue pair a
    /// second time. The value is usually equal to [`Self::state`], which is the field `qp_state`.
    #[doc(alias = "cur_qp_state")]
    pub fn current_state(&self) -> QueuePairState {
        QueuePairState::from_raw(self.raw.cur_qp_state)
    }

    /// Returns the transport type of the queue pair.
    #[doc(alias = "qp_type")]
    pub fn kind(&self) -> Transport {
        self.kind
    }

    /// Returns whether every send request of the queue pair produces a completion (is signaled).
    #[doc(alias = "sq_sig_all")]
    pub fn signals_all(&self) -> bool {
        self.signals_all
    }

    /// Returns the path MTU, the maximum payload of a packet. Returns `None` if the path MTU has
    /// not been set.
    pub fn path_mtu(&self) -> Option<Mtu> {
        Mtu::from_raw(self.raw.path_mtu)
    }

    /// Returns the path migration state. Path migration is the change of a connection from the
    /// primary path to the alternate path.
    #[doc(alias = "path_mig_state")]
    pub fn migration(&self) -> MigrationState {
        MigrationState::from_raw(self.raw.path_mig_state)
    }

    /// Returns the queue key (Q_Key) of the queue pair, which received datagrams must contain.
    pub fn qkey(&self) -> u32 {
        self.raw.qkey
    }

    /// Returns the sequence number (PSN) of the next packet that the queue pair expects. If no
    /// packet has arrived, the number is the initial PSN.
    #[doc(alias = "rq_psn")]
    pub fn receive_sequence(&self) -> u32 {
        self.raw.rq_psn
    }

    /// Returns the sequence number (PSN) of the next packet to send. If no packet was sent, the
    /// number is the initial PSN.
    #[doc(alias = "sq_psn")]
    pub fn send_sequence(&self) -> u32 {
        self.raw.sq_psn
    }

    /// Returns the queue pair number of the peer.
    #[doc(alias = "dest_qp_num")]
    pub fn destination(&self) -> u32 {
        self.raw.dest_qp_num
    }

    /// Returns the remote access rights: the operations that the peer may perform through the queue
    /// pair.
    #[doc(alias = "qp_access_flags")]
    pub fn access(&self) -> AccessFlags {
        AccessFlags::from_bits_retain(self.raw.qp_access_flags)
    }

    /// Returns the capacities that the device granted, such as the maximum number of outstanding
    /// requests.
    #[doc(alias = "cap")]
    pub fn capacities(&self) -> QueuePairCapacities {
        self.capacities
    }

    /// Returns the address vector (addresses and routing parameters) of the primary path to the
    /// peer.
    #[doc(alias = "ah_attr")]
    pub fn address(&self) -> AddressVector {
        AddressVector::from_raw(&self.raw.ah_attr)
    }

    /// Returns the alternate path to the peer, which the device uses when the primary path fails.
    #[doc(alias = "alt_ah_attr")]
    pub fn alternate_path(&self) -> AlternatePath {
        AlternatePath {
            address: AddressVector::from_raw(&self.raw.alt_ah_attr),
            pkey_index: self.raw.alt_pkey_index,
            port: self.raw.alt_port_num,
            ack_timeout_exponent: self.raw.alt_timeout,
        }
    }

    /// Returns the index of the partition key in the port's P_Key table.
    pub fn pkey_index(&self) -> u16 {
        self.raw.pkey_index
    }

    /// Returns whether the send queue is still draining. In the state SQD, the send queue drains
    /// until all requests that the device has started have completed.
    #[doc(alias = "sq_draining")]
    pub fn is_draining(&self) -> bool {
        self.raw.sq_draining != 0
    }

    /// Returns the maximum number of outstanding RDMA reads and atomics of this queue pair.
    #[doc(alias = "max_rd_atomic")]
    pub fn outgoing_reads(&self) -> u8 {
        self.raw.max_rd_atomic
    }

    /// Returns the maximum number of RDMA reads and atomics that this queue pair executes for the
    /// peer at the same time.
    #[doc(alias = "max_dest_rd_atomic")]
    pub fn incoming_reads(&self) -> u8 {
        self.raw.max_dest_rd_atomic
    }

    /// Returns the 5-bit code of the minimum time that the peer waits before a retry after a
    /// receiver-not-ready (RNR) response.
    /// [`ConnectOptions::min_rnr_timer`](super::ConnectOptions::min_rnr_timer) describes the code.
    pub fn min_rnr_timer(&self) -> u8 {
        self.raw.min_rnr_timer
    }

    /// Returns the number of the local port that the queue pair uses.
    #[doc(alias = "port_num")]
    pub fn port(&self) -> u8 {
        self.raw.port_num
    }

    /// Returns the exponent of the acknowledgement timeout. The timeout is 4.096 us times two to
    /// the power of the exponent. The exponent 0 means no timeout.
    #[doc(alias = "timeout")]
    pub fn ack_timeout_exponent(&self) -> u8 {
        self.raw.timeout
    }

    /// Returns the maximum number of retransmissions of a request that the peer does not
    /// acknowledge.
    #[doc(alias = "retry_cnt")]
    pub fn retries(&self) -> u8 {
        self.raw.retry_cnt
    }

    /// Returns the maximum number of retries after receiver-not-ready (RNR) responses. The value 7
    /// means no limit.
    #[doc(alias = "rnr_retry")]
    pub fn rnr_retries(&self) -> u8 {
        self.raw.rnr_retry
    }

    /// Returns the attributes as the C struct `ibv_qp_attr`.
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
    /// The guaranteed order in which the data of an incoming message becomes visible in memory
    /// (`ibv_query_qp_data_in_order_caps`). Programs that poll the last byte of a message, instead
    /// of a completion, depend on this order.
    ///
    /// The guarantee covers only reads by the processor, and only memory regions without relaxed
    /// ordering.
    #[doc(alias = "ibv_query_qp_data_in_order")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct DataOrder: u32 {
        /// The whole message becomes visible in ascending order of addresses.
        const WHOLE_MESSAGE = 1;
        /// Within each aligned block of 128 bytes, data becomes visible in ascending order of
        /// addresses.
        const ALIGNED_128_BYTES = 1 << 1;
        // Permits bits that only later versions of the header define.
        const _ = !0;
    }
}

/// The kind of operation that delivers data to local memory: the peer's send, the peer's RDMA
/// write, or an RDMA read of this queue pair. The order in which the bytes become visible (a
/// [`DataOrder`]) can depend on the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Arrival {
    /// The peer's send delivers the data to the memory of a receive.
    Send,
    /// The peer's RDMA write delivers the data to memory that this process has exposed to the peer.
    Write,
    /// An RDMA read of this queue pair delivers the data to local memory.
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
