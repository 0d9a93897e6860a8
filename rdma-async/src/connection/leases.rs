//! Memory lent to the peer.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use rdma_core::{AccessFlags, Buffer, ExposedMemory, RemoteMemory, SharedBuffer};

use crate::error::Result;
use crate::memory::{LocalMr, Parts, PieceLender};

/// Number of regions that the peer can have by asking; each takes more of the device than its
/// bytes.
const REQUESTED_REGIONS: usize = 1 << 14;

/// The memory that the peer may access; each lease is a registration that ends at the device.
#[derive(Debug)]
pub(super) struct Leases {
    open: Mutex<Open>,
    access: AccessFlags,
}

#[derive(Debug, Default)]
struct Open {
    leases: HashMap<u64, Lease>,
    last: u32,
    /// Bytes and regions that were lent because the peer asked.
    requested: usize,
    requested_regions: usize,
}

impl Open {
    /// Returns an id that no lease has.
    fn next_id(&mut self) -> u64 {
        loop {
            self.last = self.last.wrapping_add(1);
            let id = u64::from(self.last);
            if !self.leases.contains_key(&id) {
                return id;
            }
        }
    }
}

#[derive(Debug)]
struct Lease {
    memory: ExposedMemory,
    /// Where the region is inside of its piece of memory.
    tail: Option<Buffer>,
    lead: Option<Buffer>,
    lender: Option<Arc<PieceLender>>,
    /// Bytes of the limit that the lease takes.
    requested: usize,
}

impl Leases {
    pub(super) fn new(access: AccessFlags) -> Self {
        Self {
            open: Mutex::default(),
            access,
        }
    }

    /// Returns whether `bytes` more at the peer's request stay below `limit`.
    pub(super) fn allows(&self, bytes: usize, limit: usize) -> bool {
        let open = self.open.lock();
        let sum = open.requested.checked_add(bytes);
        open.requested_regions < REQUESTED_REGIONS && sum.is_some_and(|sum| sum <= limit)
    }

    /// Lends a region; `requested` bytes of it count against the limit.
    pub(super) fn lend(
        &self,
        region: LocalMr,
        requested: usize,
    ) -> Result<(u64, RemoteMemory), (LocalMr, rdma_core::Error)> {
        let Parts {
            buffer,
            range,
            lender,
        } = region.into_parts()?;
        let (lead, memory, tail) = cut(buffer, range);
        match memory.expose(self.access) {
            Ok(memory) => {
                let remote = memory.remote();
                let mut open = self.open.lock();
                let id = open.next_id();
                open.requested += requested;
                open.requested_regions += usize::from(requested > 0);
                open.leases.insert(
                    id,
                    Lease {
                        memory,
                        tail,
                        lead,
                        lender,
                        requested,
                    },
                );
                Ok((id, remote))
            }
            Err(refused) => Err((paste(lead, refused.value, tail, lender), refused.error)),
        }
    }

    /// Ends a lease at the device and returns its memory; `None` if there is no such lease.
    pub(super) fn end(&self, id: u64) -> Option<Result<LocalMr, rdma_core::Error>> {
        let lease = {
            let mut open = self.open.lock();
            let lease = open.leases.remove(&id)?;
            open.requested -= lease.requested;
            open.requested_regions -= usize::from(lease.requested > 0);
            lease
        };
        let Lease {
            memory,
            tail,
            lead,
            lender,
            ..
        } = lease;
        Some(match memory.revoke() {
            Ok(memory) => Ok(paste(lead, memory, tail, lender)),
            // The device still has it: it is dropped, which frees nothing that the device can reach.
            Err(refused) => Err(refused.error),
        })
    }
}

/// Returns the part of `buffer` in `range`, and the parts before and behind it.
fn cut(buffer: Buffer, range: Range<usize>) -> (Option<Buffer>, Buffer, Option<Buffer>) {
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

/// Undoes [`cut`].
fn paste(
    lead: Option<Buffer>,
    memory: Buffer,
    tail: Option<Buffer>,
    lender: Option<Arc<PieceLender>>,
) -> LocalMr {
    let start = lead.as_ref().map_or(0, |lead| lead.len());
    let range = start..start + memory.len();
    let neighbours = "parts of one buffer are neighbours";
    let whole = match lead {
        Some(lead) => lead.join(memory).expect(neighbours),
        None => memory,
    };
    let whole = match tail {
        Some(tail) => whole.join(tail).expect(neighbours),
        None => whole,
    };
    LocalMr::new(SharedBuffer::new(whole), range, lender)
}
