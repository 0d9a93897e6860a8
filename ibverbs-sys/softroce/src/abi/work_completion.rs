//! The conversion of completion queue entries to work completions of the C ABI.

use ibverbs_sys::{ibv_wc, ibv_wc__bindgen_ty_1, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};
use libc::c_uint;

use crate::completion::Entry;
use crate::proto::{CompletionOpcode, CompletionStatus, NetworkHeader};

/// Converts a completion queue entry to a work completion of the C ABI.
pub(super) fn of(entry: &Entry) -> ibv_wc {
    let completion = &entry.completion;
    ibv_wc {
        wr_id: completion.id,
        status: status(entry),
        opcode: opcode(entry),
        vendor_err: vendor_error(entry),
        byte_len: completion.length,
        __bindgen_anon_1: ibv_wc__bindgen_ty_1 {
            imm_data: immediate(entry),
        },
        qp_num: entry.queue_pair,
        src_qp: completion.source,
        wc_flags: flags(entry),
        pkey_index: entry.partition_index,
        slid: 0,
        sl: service_level(entry),
        dlid_path_bits: 0,
    }
}

/// Returns the status of a completion queue entry as an `ibv_wc_status`. The device and the C ABI
/// use the same status numbers.
pub(super) fn status(entry: &Entry) -> ibv_wc_status {
    ibv_wc_status(entry.completion.status as c_uint)
}

/// `IBV_WC_FLUSH` of newer headers: the opcode of a completed flush request.
const FLUSH: ibv_wc_opcode = ibv_wc_opcode(8);

/// Returns the opcode of a completion queue entry in the C ABI.
pub(super) fn opcode(entry: &Entry) -> ibv_wc_opcode {
    match entry.completion.opcode {
        CompletionOpcode::Send => ibv_wc_opcode::IBV_WC_SEND,
        CompletionOpcode::Write => ibv_wc_opcode::IBV_WC_RDMA_WRITE,
        CompletionOpcode::Read => ibv_wc_opcode::IBV_WC_RDMA_READ,
        CompletionOpcode::CompareSwap => ibv_wc_opcode::IBV_WC_COMP_SWAP,
        CompletionOpcode::FetchAdd => ibv_wc_opcode::IBV_WC_FETCH_ADD,
        CompletionOpcode::AtomicWrite => ibv_wc_opcode::IBV_WC_ATOMIC_WRITE,
        CompletionOpcode::Flush => FLUSH,
        CompletionOpcode::Bind => ibv_wc_opcode::IBV_WC_BIND_MW,
        CompletionOpcode::LocalInvalidate => ibv_wc_opcode::IBV_WC_LOCAL_INV,
        CompletionOpcode::Receive => ibv_wc_opcode::IBV_WC_RECV,
        CompletionOpcode::ReceiveWithImmediate => ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
    }
}

/// Returns the vendor error of a completion queue entry: the number of its status, or 0 for
/// success.
pub(super) fn vendor_error(entry: &Entry) -> u32 {
    match entry.completion.status {
        CompletionStatus::Success => 0,
        status => status as u32,
    }
}

/// Returns the flags of a work completion (`ibv_wc_flags`) for the entry of a completion queue. The
/// flags state whether the completion has a network header, immediate data or an invalidated key.
pub(super) fn flags(entry: &Entry) -> c_uint {
    let completion = &entry.completion;
    let flag = |is_set: bool, flag: ibv_wc_flags| if is_set { flag.0 } else { 0 };
    // All packets of RoCE have a network header. The kernel's Soft-RoCE sets the flag for every
    // received message, too.
    let is_received = completion.status == CompletionStatus::Success
        && matches!(
            completion.opcode,
            CompletionOpcode::Receive | CompletionOpcode::ReceiveWithImmediate
        );
    flag(is_received, ibv_wc_flags::IBV_WC_GRH)
        | flag(
            completion.immediate.is_some(),
            ibv_wc_flags::IBV_WC_WITH_IMM,
        )
        | flag(
            completion.invalidated.is_some(),
            ibv_wc_flags::IBV_WC_WITH_INV,
        )
}

/// Returns the `sl` field (service level) of a work completion for the entry of a completion queue.
/// RoCE has no service levels. As network cards do, this device stores the kind of the network
/// header of a datagram in the field (0: GRH, 1: IPv6, 2: IPv4). UCX reads the field.
pub(super) fn service_level(entry: &Entry) -> u8 {
    match entry.completion.network {
        None => 0,
        Some(NetworkHeader::Ipv6) => 1,
        Some(NetworkHeader::Ipv4) => 2,
    }
}

/// Returns the value of the work completion's union of `imm_data` and `invalidated_rkey`: immediate
/// data in network byte order, or an invalidated key in host byte order. Returns 0 if the entry has
/// no immediate data and no invalidated key.
pub(super) fn immediate(entry: &Entry) -> u32 {
    let completion = &entry.completion;
    completion
        .immediate
        .map(u32::from_ne_bytes)
        .or(completion.invalidated)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Completion;

    fn entry(opcode: CompletionOpcode) -> Entry {
        Entry {
            completion: Completion {
                length: 17,
                source: 5,
                ..Completion::new(9, CompletionStatus::Success, opcode)
            },
            queue_pair: 3,
            timestamp: 0,
            partition_index: 0,
        }
    }

    fn word(wc: &ibv_wc) -> u32 {
        // SAFETY: both members of the union are integers.
        unsafe { wc.__bindgen_anon_1.invalidated_rkey }
    }

    #[test]
    fn a_datagram_with_immediate_data_is_converted() {
        let mut entry = entry(CompletionOpcode::Receive);
        entry.completion.network = Some(NetworkHeader::Ipv4);
        entry.completion.immediate = Some([1, 2, 3, 4]);
        let wc = of(&entry);
        assert_eq!((wc.wr_id, wc.byte_len, wc.qp_num, wc.src_qp), (9, 17, 3, 5));
        assert_eq!(
            (wc.status, wc.opcode),
            (ibv_wc_status::IBV_WC_SUCCESS, ibv_wc_opcode::IBV_WC_RECV)
        );
        assert_eq!(wc.wc_flags, 1 | 2);
        assert_eq!(wc.sl, 2);
        entry.completion.network = Some(NetworkHeader::Ipv6);
        assert_eq!(of(&entry).sl, 1);
        assert_eq!(word(&wc).to_ne_bytes(), [1, 2, 3, 4]);
    }

    #[test]
    fn a_message_that_invalidated_a_key_is_converted() {
        let mut entry = entry(CompletionOpcode::Receive);
        entry.completion.invalidated = Some(0x1234_5678);
        let wc = of(&entry);
        let flags = ibv_wc_flags::IBV_WC_WITH_INV.0 | ibv_wc_flags::IBV_WC_GRH.0;
        assert_eq!((wc.wc_flags, wc.sl), (flags, 0));
        // The other fields of a failed receive are not valid.
        entry.completion.status = CompletionStatus::Flushed;
        assert_eq!(of(&entry).wc_flags & ibv_wc_flags::IBV_WC_GRH.0, 0);
        assert_eq!(word(&wc), 0x1234_5678);
    }

    #[test]
    fn statuses_agree_with_the_c_header() {
        for (ours, theirs) in [
            (
                CompletionStatus::LocalLength,
                ibv_wc_status::IBV_WC_LOC_LEN_ERR,
            ),
            (
                CompletionStatus::LocalQueuePairOperation,
                ibv_wc_status::IBV_WC_LOC_QP_OP_ERR,
            ),
            (
                CompletionStatus::LocalProtection,
                ibv_wc_status::IBV_WC_LOC_PROT_ERR,
            ),
            (
                CompletionStatus::Flushed,
                ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
            ),
            (
                CompletionStatus::MemoryWindowBind,
                ibv_wc_status::IBV_WC_MW_BIND_ERR,
            ),
            (
                CompletionStatus::BadResponse,
                ibv_wc_status::IBV_WC_BAD_RESP_ERR,
            ),
            (
                CompletionStatus::LocalAccess,
                ibv_wc_status::IBV_WC_LOC_ACCESS_ERR,
            ),
            (
                CompletionStatus::RemoteInvalidRequest,
                ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
            ),
            (
                CompletionStatus::RemoteAccess,
                ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
            ),
            (
                CompletionStatus::RemoteOperation,
                ibv_wc_status::IBV_WC_REM_OP_ERR,
            ),
            (
                CompletionStatus::RetryExceeded,
                ibv_wc_status::IBV_WC_RETRY_EXC_ERR,
            ),
            (
                CompletionStatus::RnrRetryExceeded,
                ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR,
            ),
            (
                CompletionStatus::RemoteAborted,
                ibv_wc_status::IBV_WC_REM_ABORT_ERR,
            ),
            (CompletionStatus::Fatal, ibv_wc_status::IBV_WC_FATAL_ERR),
            (
                CompletionStatus::ResponseTimeout,
                ibv_wc_status::IBV_WC_RESP_TIMEOUT_ERR,
            ),
            (CompletionStatus::General, ibv_wc_status::IBV_WC_GENERAL_ERR),
        ] {
            let mut entry = entry(CompletionOpcode::Send);
            entry.completion.status = ours;
            assert_eq!(of(&entry).status, theirs);
        }
    }
}
