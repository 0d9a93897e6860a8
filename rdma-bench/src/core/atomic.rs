//! Atomics: fetch-and-add and compare-and-swap of eight bytes.

use rdma_core::{RemoteMemory, Scatter, SendRequest, WorkCompletion};

use super::Connection;
use super::pump::pump;
use super::send::foreign;
use crate::control::Control;
use crate::error::Result;
use crate::recorder::Recorder;
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

/// One atomic after the other.
pub(super) fn latency(connection: &Connection, control: &mut Control) -> Result<Measured> {
    let verb = connection.plan.test.verb;
    let (_, remote) = connection.windows(SIZE)?;
    let mut sends = connection.queue_pair.send_queue();
    let mut memory = connection.domain.allocate(SIZE)?;
    let mut recorder = Recorder::new(connection.plan.length);
    let mut room = [WorkCompletion::default()];
    control.barrier()?;
    let mut watch = control.watch(false)?;
    while recorder.more() {
        recorder.stamp();
        let request = request(verb, memory, remote);
        sends.post(request).map_err(rdma_core::Error::from)?;
        connection.sends.wait(&mut room, &mut watch)?;
        memory = sends.complete(&room[0]).next().ok_or_else(foreign)?;
    }
    Measured::latency(&recorder, 1)
}

/// Atomics on one word.
pub(super) fn bandwidth(connection: &Connection, control: &mut Control) -> Result<Measured> {
    let verb = connection.plan.test.verb;
    let (_, remote) = connection.windows(SIZE)?;
    let memory = connection.scratch(SIZE)?;
    pump(connection, control, || {
        request(verb, memory.clone(), remote)
    })
}
