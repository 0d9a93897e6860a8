//! [`ExposedRegion`]: a region of local memory that the peer may access.

use std::ops::Range;
use std::sync::Arc;

use rdma_core::memory::SharedBuffer;
use rdma_core::{AccessFlags, Buffer, ExposedMemory};

use crate::memory::{LocalMr, PieceLender, RegionParts};

/// Part of a local buffer that the peer may access. The part has a memory registration of its own,
/// so that deregistering the part ends the peer's access. Also keeps the other parts of the buffer,
/// so that all parts can be joined again when the access ends.
#[derive(Debug)]
pub(super) struct ExposedRegion {
    memory: ExposedMemory,
    /// Part of the registered buffer after the region, kept until the parts are joined again.
    tail: Option<Buffer>,
    /// Part of the registered buffer before the region.
    lead: Option<Buffer>,
    lender: Option<Arc<PieceLender>>,
}

impl ExposedRegion {
    /// Registers `region` so that the peer may access it with the rights in `access`. Fails, and
    /// returns the region with the error, if an operation is using the region or the device cannot
    /// register it.
    pub(super) fn new(
        region: LocalMr,
        access: AccessFlags,
    ) -> Result<Self, (LocalMr, rdma_core::Error)> {
        let RegionParts {
            buffer,
            range,
            lender,
        } = region.into_parts()?;
        let (lead, memory, tail) = split_around(buffer, range);
        match memory.expose(access) {
            Ok(memory) => Ok(Self {
                memory,
                tail,
                lead,
                lender,
            }),
            Err(refused) => Err((join_parts(lead, refused.value, tail, lender), refused.error)),
        }
    }

    /// Returns the memory of the region, which the peer may access at any moment.
    pub(super) fn memory(&self) -> &ExposedMemory {
        &self.memory
    }

    /// Ends the peer's access to this region by deregistering its memory, and returns the memory.
    pub(super) fn end(self) -> Result<LocalMr, rdma_core::Error> {
        let Self {
            memory,
            tail,
            lead,
            lender,
        } = self;
        match memory.revoke() {
            Ok(memory) => Ok(join_parts(lead, memory, tail, lender)),
            // The device may still access the memory. Dropping the error does not free such memory.
            Err(refused) => Err(refused.error),
        }
    }
}

/// Splits `buffer` into three parts: before, in and after `range`. The first and the last part are
/// `None` if they are empty. The middle part can then be registered separately, so that the peer
/// can access only these bytes.
pub(super) fn split_around(
    buffer: Buffer,
    range: Range<usize>,
) -> (Option<Buffer>, Buffer, Option<Buffer>) {
    let len = buffer.len();
    let (buffer, tail) = match range.end {
        end if end == len => (buffer, None),
        end => {
            let (buffer, tail) = buffer.split_at(end);
            (buffer, Some(tail))
        }
    };
    match range.start {
        0 => (None, buffer, tail),
        start => {
            let (lead, buffer) = buffer.split_at(start);
            (Some(lead), buffer, tail)
        }
    }
}

/// Joins the three parts of a buffer that [`split_around`] has split. Returns a region that
/// contains the bytes of the middle part, `memory`, and owns the whole buffer.
pub(super) fn join_parts(
    lead: Option<Buffer>,
    memory: Buffer,
    tail: Option<Buffer>,
    lender: Option<Arc<PieceLender>>,
) -> LocalMr {
    let start = lead.as_ref().map_or(0, |lead| lead.len());
    let range = start..start + memory.len();
    let adjacent = "parts of one buffer are adjacent";
    let whole = match lead {
        Some(lead) => lead.join(memory).expect(adjacent),
        None => memory,
    };
    let whole = match tail {
        Some(tail) => whole.join(tail).expect(adjacent),
        None => whole,
    };
    LocalMr::new(SharedBuffer::new(whole), range, lender)
}
