//! Measures atomic operations over rdma-core: fetch-and-add and compare-and-swap of eight bytes.

use rdma_core::memory::Scatter;
use rdma_core::{RemoteMemory, SendRequest};

use super::Connection;
use super::posting::{run_bandwidth, run_latency};
use crate::control::Control;
use crate::error::Result;
use crate::session::Measured;
use crate::test::Verb;

const SIZE: usize = size_of::<u64>();

#[inline]
fn request<T: Scatter>(verb: Verb, memory: T, remote: RemoteMemory) -> SendRequest<T> {
    if verb == Verb::CompareAndSwap {
        SendRequest::compare_and_swap(memory, remote, 0, 0)
    } else {
        SendRequest::fetch_and_add(memory, remote, 1)
    }
}

/// Measures the latency of atomic operations of this process on memory of the peer. Posts each
/// operation when the previous operation has completed.
pub(super) fn latency(connection: &Connection, control: &mut Control) -> Result<Measured> {
    let verb = connection.plan.test.verb;
    let (_, remote) = connection.first_peer_memory(SIZE)?;
    run_latency(connection, SIZE, control, |memory| {
        request(verb, memory, remote)
    })
}

/// Measures the rate of atomic operations with many operations outstanding. Each queue pair uses
/// its own eight bytes of the peer's memory. `control` is the TCP connection on which client and
/// server coordinate the test.
pub(super) fn bandwidth(connection: &Connection, control: &mut Control) -> Result<Measured> {
    let verb = connection.plan.test.verb;
    let parts = connection.allocate_scratch(SIZE)?.into_iter();
    let requests = parts
        .zip(connection.peer_memories(SIZE)?)
        .map(|(memory, target)| move || request(verb, memory.clone(), target));
    run_bandwidth(connection, control, requests)
}
