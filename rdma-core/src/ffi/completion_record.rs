//! Copies of completions, which can be stored and delivered later.

use ibverbs_sys as sys;

use crate::completion::{CompletionTag, WorkCompletion};

/// A copy of a completion, with the additional fields that an extended queue reported. A record is
/// stored when one thread polls a completion that another thread waits for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CompletionRecord {
    pub(crate) completion: WorkCompletion,
    pub(crate) details: CompletionDetails,
}

/// The fields that only a completion of an extended completion queue has. A field is `None` if the
/// queue was created without the field.
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

/// Returns the immediate data of a completion, in network byte order. The value is meaningful only
/// if the flags of the completion say that it has immediate data.
#[inline]
pub(crate) fn raw_immediate(completion: &sys::ibv_wc) -> u32 {
    // SAFETY: both variants of this union are plain 32-bit numbers.
    unsafe { completion.__bindgen_anon_1.imm_data }
}

/// Returns the remote key that the received message invalidated. The value is meaningful only if
/// the flags of the completion say that the message invalidated a key.
#[inline]
pub(crate) fn raw_invalidated_key(completion: &sys::ibv_wc) -> u32 {
    // SAFETY: both variants of this union are plain 32-bit numbers.
    unsafe { completion.__bindgen_anon_1.invalidated_rkey }
}

/// Returns a completion with all fields zero, for initialisation.
pub(crate) fn empty_completion() -> sys::ibv_wc {
    // SAFETY: all-zero bytes are a valid value of this plain C struct.
    unsafe { std::mem::zeroed() }
}
