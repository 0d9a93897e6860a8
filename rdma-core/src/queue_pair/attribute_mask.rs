//! Sets of queue pair attributes, as bit masks.

use std::fmt;

use ibverbs_sys::ibv_qp_attr_mask as raw;

bitflags::bitflags! {
    /// A set of queue pair attributes. Each attribute is one bit of the mask that `ibv_modify_qp`
    /// and `ibv_query_qp` take.
    #[doc(alias = "ibv_qp_attr_mask")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct AttributeMask: u32 {
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the state of the
        /// queue pair, such as RTS.
        #[doc(alias = "IBV_QP_STATE")]
        const STATE = raw::IBV_QP_STATE.0;
        /// Mask bit that makes `ibv_modify_qp` read the current state that the caller assumes for
        /// the queue pair. The device refuses the modification if the queue pair is in another
        /// state.
        #[doc(alias = "IBV_QP_CUR_STATE")]
        const CURRENT_STATE = raw::IBV_QP_CUR_STATE.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the setting for the
        /// drain event. If the setting is on, the device reports an asynchronous event when the
        /// send queue has drained.
        #[doc(alias = "IBV_QP_EN_SQD_ASYNC_NOTIFY")]
        const NOTIFY_DRAINED = raw::IBV_QP_EN_SQD_ASYNC_NOTIFY.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the remote access
        /// rights: the operations that the peer may perform through the queue pair.
        #[doc(alias = "IBV_QP_ACCESS_FLAGS")]
        const ACCESS = raw::IBV_QP_ACCESS_FLAGS.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the index of the
        /// partition key in the port's P_Key table.
        #[doc(alias = "IBV_QP_PKEY_INDEX")]
        const PKEY_INDEX = raw::IBV_QP_PKEY_INDEX.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the number of the
        /// local port.
        #[doc(alias = "IBV_QP_PORT")]
        const PORT = raw::IBV_QP_PORT.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the queue key
        /// (Q_Key), which received datagrams must contain.
        #[doc(alias = "IBV_QP_QKEY")]
        const QKEY = raw::IBV_QP_QKEY.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the address vector
        /// (addresses and routing parameters) of the primary path to the peer.
        #[doc(alias = "IBV_QP_AV")]
        const ADDRESS = raw::IBV_QP_AV.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the path MTU, the
        /// maximum payload of a packet.
        #[doc(alias = "IBV_QP_PATH_MTU")]
        const PATH_MTU = raw::IBV_QP_PATH_MTU.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the acknowledgement
        /// timeout, after which the device retransmits a request.
        #[doc(alias = "IBV_QP_TIMEOUT")]
        const ACK_TIMEOUT = raw::IBV_QP_TIMEOUT.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the maximum number
        /// of retransmissions of a request that the peer does not acknowledge.
        #[doc(alias = "IBV_QP_RETRY_CNT")]
        const RETRIES = raw::IBV_QP_RETRY_CNT.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the maximum number
        /// of retries after receiver-not-ready (RNR) responses.
        #[doc(alias = "IBV_QP_RNR_RETRY")]
        const RNR_RETRIES = raw::IBV_QP_RNR_RETRY.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the sequence number
        /// (PSN) of the first packet to receive.
        #[doc(alias = "IBV_QP_RQ_PSN")]
        const RECEIVE_SEQUENCE = raw::IBV_QP_RQ_PSN.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the maximum number
        /// of outstanding RDMA reads and atomics of this queue pair.
        #[doc(alias = "IBV_QP_MAX_QP_RD_ATOMIC")]
        const OUTGOING_READS = raw::IBV_QP_MAX_QP_RD_ATOMIC.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the alternate path
        /// to the peer, which the device uses when the primary path fails.
        #[doc(alias = "IBV_QP_ALT_PATH")]
        const ALTERNATE_PATH = raw::IBV_QP_ALT_PATH.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the minimum time
        /// that the peer waits before a retry after a receiver-not-ready (RNR) response.
        #[doc(alias = "IBV_QP_MIN_RNR_TIMER")]
        const MIN_RNR_TIMER = raw::IBV_QP_MIN_RNR_TIMER.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the sequence number
        /// (PSN) of the first packet to send.
        #[doc(alias = "IBV_QP_SQ_PSN")]
        const SEND_SEQUENCE = raw::IBV_QP_SQ_PSN.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the maximum number
        /// of RDMA reads and atomics that this queue pair executes for the peer at the same time.
        #[doc(alias = "IBV_QP_MAX_DEST_RD_ATOMIC")]
        const INCOMING_READS = raw::IBV_QP_MAX_DEST_RD_ATOMIC.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the path migration
        /// state. Path migration is the change of a connection to the alternate path.
        #[doc(alias = "IBV_QP_PATH_MIG_STATE")]
        const MIGRATION = raw::IBV_QP_PATH_MIG_STATE.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the capacities of
        /// the send and receive queues, such as the maximum number of outstanding requests.
        #[doc(alias = "IBV_QP_CAP")]
        const CAPACITIES = raw::IBV_QP_CAP.0;
        /// Mask bit that makes `ibv_modify_qp` set, and `ibv_query_qp` return, the queue pair
        /// number of the peer.
        #[doc(alias = "IBV_QP_DEST_QPN")]
        const DESTINATION = raw::IBV_QP_DEST_QPN.0;
        /// Mask bit that makes `ibv_modify_qp` set the maximum send rate in kilobits per second.
        /// libibverbs refuses to query this attribute.
        #[doc(alias = "IBV_QP_RATE_LIMIT")]
        const RATE_LIMIT = raw::IBV_QP_RATE_LIMIT.0;
        // Permits bits that only later versions of the header define.
        const _ = !0;
    }
}

impl AttributeMask {
    /// Returns the set of all queue pair attributes that this crate knows.
    pub fn known() -> Self {
        NAMES
            .iter()
            .fold(Self::empty(), |all, (attribute, _)| all | *attribute)
    }

    /// Returns an iterator over the attributes in this set. Each item is a set with one attribute.
    /// The last item contains all bits for which this crate has no name, if there are such bits.
    pub fn each(self) -> impl Iterator<Item = Self> {
        let known = NAMES.iter().map(|&(attribute, _)| attribute);
        let unknown = self - Self::known();
        known
            .filter(move |&attribute| self.contains(attribute))
            .chain((!unknown.is_empty()).then_some(unknown))
    }
}

/// Every attribute that this crate knows, paired with the C name of the mask bit.
const NAMES: [(AttributeMask, &str); 22] = [
    (AttributeMask::STATE, "IBV_QP_STATE"),
    (AttributeMask::CURRENT_STATE, "IBV_QP_CUR_STATE"),
    (AttributeMask::NOTIFY_DRAINED, "IBV_QP_EN_SQD_ASYNC_NOTIFY"),
    (AttributeMask::ACCESS, "IBV_QP_ACCESS_FLAGS"),
    (AttributeMask::PKEY_INDEX, "IBV_QP_PKEY_INDEX"),
    (AttributeMask::PORT, "IBV_QP_PORT"),
    (AttributeMask::QKEY, "IBV_QP_QKEY"),
    (AttributeMask::ADDRESS, "IBV_QP_AV"),
    (AttributeMask::PATH_MTU, "IBV_QP_PATH_MTU"),
    (AttributeMask::ACK_TIMEOUT, "IBV_QP_TIMEOUT"),
    (AttributeMask::RETRIES, "IBV_QP_RETRY_CNT"),
    (AttributeMask::RNR_RETRIES, "IBV_QP_RNR_RETRY"),
    (AttributeMask::RECEIVE_SEQUENCE, "IBV_QP_RQ_PSN"),
    (AttributeMask::OUTGOING_READS, "IBV_QP_MAX_QP_RD_ATOMIC"),
    (AttributeMask::ALTERNATE_PATH, "IBV_QP_ALT_PATH"),
    (AttributeMask::MIN_RNR_TIMER, "IBV_QP_MIN_RNR_TIMER"),
    (AttributeMask::SEND_SEQUENCE, "IBV_QP_SQ_PSN"),
    (AttributeMask::INCOMING_READS, "IBV_QP_MAX_DEST_RD_ATOMIC"),
    (AttributeMask::MIGRATION, "IBV_QP_PATH_MIG_STATE"),
    (AttributeMask::CAPACITIES, "IBV_QP_CAP"),
    (AttributeMask::DESTINATION, "IBV_QP_DEST_QPN"),
    (AttributeMask::RATE_LIMIT, "IBV_QP_RATE_LIMIT"),
];

/// Formats the set as the C names of its attributes, joined by `|`.
impl fmt::Display for AttributeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for attribute in self.each() {
            if !first {
                f.write_str(" | ")?;
            }
            first = false;
            match NAMES.iter().find(|(named, _)| *named == attribute) {
                Some((_, name)) => f.write_str(name)?,
                None => write!(f, "{:#x}", attribute.bits())?,
            }
        }
        if first {
            f.write_str("nothing")
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_called_as_in_c() {
        assert_eq!(AttributeMask::empty().to_string(), "nothing");
        let mask = AttributeMask::STATE | AttributeMask::QKEY;
        assert_eq!(mask.to_string(), "IBV_QP_STATE | IBV_QP_QKEY");
        let unknown = AttributeMask::PORT | AttributeMask::from_bits_retain(1 << 22);
        assert_eq!(unknown.to_string(), "IBV_QP_PORT | 0x400000");
        assert_eq!(unknown.each().count(), 2);
    }

    #[test]
    fn every_attribute_is_known_once() {
        assert_eq!(AttributeMask::known().bits().count_ones(), 22);
        for (attribute, _) in NAMES {
            assert!(attribute.bits().is_power_of_two());
        }
    }
}
