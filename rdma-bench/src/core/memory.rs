//! Allocates the memory of messages, and the memory that peers may access.

use rdma_core::memory::HostMemory;
use rdma_core::{AccessFlags, Buffer, ExposedMemory, ProtectionDomain, RemoteMemory};

use crate::error::Result;
use crate::plan::{Memory, Plan};

/// Size of a cache line in bytes. The memory of each queue pair begins at a multiple of this size,
/// so that two queue pairs never access the same cache line.
const CACHE_LINE: usize = 64;

/// Allocates and registers `size` bytes of memory of the kind `kind`, and writes to all of the
/// memory, as perftest does. Otherwise, the kernel could use a single page of zeros for all pages.
/// Reading such a page is faster than reading other memory.
pub(super) fn allocate(domain: &ProtectionDomain, kind: Memory, size: usize) -> Result<Buffer> {
    let mut memory = match kind {
        Memory::Device => domain.allocate(size)?,
        Memory::Malloc => {
            let memory = HostMemory::zeroed(size)?;
            domain.register(memory)?
        }
    };
    for (place, byte) in memory.iter_mut().enumerate() {
        *byte = (place % 251) as u8 + 1;
    }
    Ok(memory)
}

/// Returns the distance, in bytes, between the starts of two successive messages in a memory region
/// of the test `plan`. `size` is the maximum message size.
pub(super) fn stride(plan: &Plan, size: usize) -> usize {
    match plan.regions {
        // Adjacent messages share cache lines, so that the caches hold many messages.
        Some(_) => size,
        None => size.next_multiple_of(CACHE_LINE),
    }
}

/// Allocates the memory that peers may access with the rights `access`. If [`Plan::regions`] is a
/// number, allocates this number of regions, which together have room for [`Plan::REGION_MESSAGES`]
/// messages, evenly distributed. Otherwise, allocates one region with room for one message of each
/// queue pair.
pub(super) fn expose(
    domain: &ProtectionDomain,
    plan: &Plan,
    access: AccessFlags,
) -> Result<Vec<ExposedMemory>> {
    let (count, messages) = match plan.regions {
        Some(count) => (count, Plan::REGION_MESSAGES),
        None => (1, plan.queue_pairs),
    };
    let stride = stride(plan, plan.max_size());
    let mut rest = allocate(domain, plan.memory, messages * stride)?;
    let mut regions = Vec::new();
    for left in (2..=count).rev() {
        let here = (rest.len() / stride).div_ceil(left);
        let (region, behind) = rest.split_at(here * stride);
        regions.push(region.expose(access)?);
        rest = behind;
    }
    regions.push(rest.expose(access)?);
    Ok(regions)
}

/// Divides `regions`, the memory regions of this process, into pieces of `stride` bytes, one for
/// each message. Returns the first `size` bytes of each piece, which hold a message.
pub(super) fn messages(
    regions: &[ExposedMemory],
    stride: usize,
    size: usize,
) -> Result<Vec<ExposedMemory>> {
    let mut messages = Vec::new();
    for region in regions {
        for place in 0..region.len() / stride {
            messages.push(region.slice(place * stride..place * stride + size)?);
        }
    }
    Ok(messages)
}

/// Divides `regions`, the memory regions of a peer, into messages of `size` bytes, and returns the
/// memory of each message. In a region, a message begins at each multiple of `stride` bytes.
pub(super) fn remote_messages(
    regions: &[RemoteMemory],
    stride: usize,
    size: usize,
) -> Result<Vec<RemoteMemory>> {
    let mut messages = Vec::new();
    for region in regions {
        let count = usize::try_from(region.len).unwrap_or(0) / stride;
        for place in 0..count {
            messages.push(region.slice(place * stride..place * stride + size)?);
        }
    }
    Ok(messages)
}
