//! Modifying a queue pair, with a diagnosis where that is refused.

use super::diagnosis::Facts;
use super::{Modification, QueuePairState, RefusedModification};
use crate::error::{Error, Result};
use crate::ffi::QueuePairHandle;

/// Modifies the queue pair.
///
/// Nothing is checked before: what the specification forbids a device may allow. What a device
/// refuses is looked into afterwards.
///
/// # Errors
///
/// [`Error::RefusedModification`], and [`Error::InUse`] for a change to RESET by a thread that is
/// polling the queue pair's completions.
pub(crate) fn modify(handle: &QueuePairHandle, wanted: &Modification) -> Result<()> {
    if wanted.state() == Some(QueuePairState::Reset) {
        // The driver removes the completions, and waits for this thread's lock to do so.
        handle.refuse_within_poll()?;
    }
    let mut attributes = wanted.to_raw()?;
    let Err(errno) = handle.apply(&mut attributes, wanted.mask()) else {
        return Ok(());
    };
    let facts = Facts::of(handle);
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
