//! A completion that was copied from the device.

use ibverbs_sys as sys;

use crate::completion::{CompletionTag, WorkCompletion};

/// A completion, and what an extended queue told beside it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CompletionRecord {
    pub(crate) completion: WorkCompletion,
    pub(crate) details: CompletionDetails,
}

/// What a plain completion has no place for; `None` where it was not asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CompletionDetails {
    pub(crate) source_lid: Option<u32>,
    pub(crate) timestamp: Option<u64>,
    pub(crate) wall_clock: Option<u64>,
    pub(crate) vlan: Option<u16>,
    pub(crate) flow_tag: Option<u32>,
    pub(crate) tag: Option<CompletionTag>,
}

impl From<&WorkCompletion> for CompletionRecord {
    fn from(completion: &WorkCompletion) -> Self {
        Self {
            completion: *completion,
            details: CompletionDetails::default(),
        }
    }
}

/// The immediate data of a completion that has some, in network byte order.
#[inline]
pub(crate) fn raw_immediate(completion: &sys::ibv_wc) -> u32 {
    // SAFETY: both variants of this union are plain 32-bit numbers.
    unsafe { completion.__bindgen_anon_1.imm_data }
}

/// The key that a completion's message invalidated, if it did.
#[inline]
pub(crate) fn raw_invalidated_key(completion: &sys::ibv_wc) -> u32 {
    // SAFETY: as above.
    unsafe { completion.__bindgen_anon_1.invalidated_rkey }
}

/// A completion of nothing, as room to poll into.
pub(crate) fn empty_completion() -> sys::ibv_wc {
    // SAFETY: all-zero bytes are a valid value of this plain C struct.
    unsafe { std::mem::zeroed() }
}
