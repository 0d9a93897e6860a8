//! Allocates the memory of messages, and the memory that peers may access.

use rdma_core::{AccessFlags, Buffer, ExposedMemory, HostMemory, ProtectionDomain, RemoteMemory};

use crate::error::Result;
use crate::plan::{Memory, Plan};

/// Size of a cache line in bytes. Memory of different queue pairs begins at multiples of this size, so
/// that no cache line belongs to two queue pairs.
const LINE: usize = 64;

/// Allocates and registers memory, and writes to all of it, as perftest does: otherwise all of its
/// pages may be the kernel's one zero page, which is faster to read than other memory.
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

/// Returns the distance in bytes between the starts of two adjacent messages of up to `size` bytes.
pub(super) fn stride(plan: &Plan, size: usize) -> usize {
    match plan.regions {
        // Adjacent messages share cache lines, so that the caches hold many messages.
        Some(_) => size,
        None => size.next_multiple_of(LINE),
    }
}

/// Allocates the memory that peers may access. Without regions in `plan`, it has a place (memory for
/// one message) for each queue pair. With regions, it has [`Plan::PLACES`] places, which are divided
/// about equally among the regions.
pub(super) fn expose(
    domain: &ProtectionDomain,
    plan: &Plan,
    access: AccessFlags,
) -> Result<Vec<ExposedMemory>> {
    let (count, places) = match plan.regions {
        Some(count) => (count, Plan::PLACES),
        None => (1, plan.queue_pairs),
    };
    let stride = stride(plan, plan.largest());
    let mut rest = allocate(domain, plan.memory, places * stride)?;
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

/// Returns the memory of every message in this process's regions: `size` bytes at each multiple of
/// `stride`.
pub(super) fn places(
    regions: &[ExposedMemory],
    stride: usize,
    size: usize,
) -> Result<Vec<ExposedMemory>> {
    let mut places = Vec::new();
    for region in regions {
        for place in 0..region.len() / stride {
            places.push(region.slice(place * stride..place * stride + size)?);
        }
    }
    Ok(places)
}

/// Returns the memory of every message in a peer's regions: `size` bytes at each multiple of `stride`.
pub(super) fn remote_places(
    regions: &[RemoteMemory],
    stride: usize,
    size: usize,
) -> Result<Vec<RemoteMemory>> {
    let mut places = Vec::new();
    for region in regions {
        let count = usize::try_from(region.len).unwrap_or(0) / stride;
        for place in 0..count {
            places.push(region.slice(place * stride..place * stride + size)?);
        }
    }
    Ok(places)
}
