//! Packets from the middle of a message: of one length, and with one header but for their numbers. They are made in one go, and
//! taken in one go.

use super::{Arrival, Host, Path, QueuePair, Service, State, Time};
use crate::wire;

/// Packets from the middle of a message, that go next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The way that they go.
    pub path: Path,
    /// The queue pair that they are for.
    pub destination: u32,
    /// The bytes of each, from BTH to pad.
    pub length: usize,
    /// How many may go: two or more.
    pub count: usize,
}

impl QueuePair {
    /// What [`poll_transmit`](Self::poll_transmit) has next, if that is several packets of one kind.
    pub fn next_run(&self, host: &impl Host) -> Option<Run> {
        let sends = matches!(
            self.endpoint.state,
            State::ReadyToSend | State::SendQueueDrained
        );
        let is_plain = self.endpoint.service == Service::ReliableConnection;
        if !sends || !is_plain || !self.responder.is_silent() {
            return None;
        }
        let path = self.endpoint.attributes.path?;
        self.requester.next_run(&self.endpoint, path, host)
    }

    /// Writes the packets of a [run](Self::next_run), or the first `count` of them, each to the front of one of so many equal parts of
    /// `out`, from BTH to pad. False: that cannot be; then [`poll_transmit`](Self::poll_transmit) says why.
    pub fn write_run(
        &mut self,
        count: usize,
        now: Time,
        host: &mut impl Host,
        out: &mut [u8],
    ) -> bool {
        self.passed = 0;
        (self.requester).write_run(count as u32, now, &self.endpoint, host, out)
    }

    /// Takes packets that came in a row, as [`receive`](Self::receive) takes each.
    pub fn receive_run(
        &mut self,
        now: Time,
        arrival: &Arrival,
        run: &wire::Run<'_>,
        host: &mut impl Host,
    ) {
        if run.count() == 1 || !self.take_run(run, host) {
            for packet in run.packets() {
                self.receive(now, arrival, &packet, host);
            }
        }
    }

    /// Takes all of a run, if nothing is to be said of any of them but that it came. False: nothing was done.
    fn take_run(&mut self, run: &wire::Run<'_>, host: &mut impl Host) -> bool {
        let bth = &run.first().header.bth;
        let takes = matches!(
            self.endpoint.state,
            State::ReadyToReceive
                | State::ReadyToSend
                | State::SendQueueDrained
                | State::SendQueueError
        );
        takes
            && self.endpoint.is_reliable()
            && self.endpoint.is_addressed(run.first())
            && self.endpoint.is_of_partition(bth.partition_key)
            && self.responder.receive_run(&self.endpoint, run, host)
    }
}

#[cfg(test)]
mod tests;
