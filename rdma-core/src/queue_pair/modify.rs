//! Modification of a queue pair, with a diagnosis if the device refuses it.

use super::diagnosis::QueriedValues;
use super::{Modification, QueuePairState, RefusedModification};
use crate::error::{Error, Result};
use crate::ffi::QueuePairHandle;

/// Applies the modification `wanted` to the queue pair. If the device refuses the modification, the
/// error lists the mistakes in the modification.
///
/// The function does not check the attributes before the call, because a device may allow
/// modifications that the specification forbids. Only after a refusal, the function determines
/// which attributes are wrong.
///
/// # Errors
///
/// [`Error::RefusedModification`] if the device refuses the modification. [`Error::InUse`] for a
/// change to RESET by a thread that is polling the queue pair's completions.
pub(crate) fn modify(handle: &QueuePairHandle, wanted: &Modification) -> Result<()> {
    if wanted.state() == Some(QueuePairState::Reset) {
        // At a change to RESET the driver removes the queue pair's completions from the completion
        // queue, and takes the lock of the completion queue to do so. A thread that is polling the
        // queue already holds that lock.
        handle.refuse_within_poll()?;
    }
    let mut attributes = wanted.to_raw()?;
    let Err(errno) = handle.apply(&mut attributes, wanted.mask()) else {
        return Ok(());
    };
    let facts = QueriedValues::of(handle);
    Err(Error::RefusedModification(Box::new(RefusedModification {
        queue_pair: handle.describe(),
        kind: handle.kind(),
        from: facts.state(),
        to: wanted.state(),
        mask: wanted.mask(),
        errno,
        flaws: facts.flaws(wanted, errno),
    })))
}
