//! Runs: packets from the middle of a message, which have the same length and the same header
//! except for their sequence numbers. A run is written in one step, and received in one step.

use super::{Arrival, Host, Path, QueuePair, Service, State, Time};
use crate::wire;

/// Description of a run: consecutive middle packets of a message that can be sent next in one step.
/// The packets have the same length and the same destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Path of the packets.
    pub path: Path,
    /// Number of the destination queue pair.
    pub destination: u32,
    /// Length of each packet in bytes, from the BTH to the pad.
    pub length: usize,
    /// Number of packets that may be sent: two or more.
    pub count: usize,
}

impl QueuePair {
    /// Returns a description of the packets that [`poll_transmit`](Self::poll_transmit) would send
    /// next, if these packets can be sent in one step. The packets must be from the middle of a
    /// message, and have the same length. Returns `None` if the next packets cannot be sent in one
    /// step.
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

    /// Writes the first `count` packets of the [`Run`] that [`next_run`](Self::next_run) returned,
    /// each from the base transport header (BTH) to the padding. Each packet is written to the
    /// beginning of one of `count` equal parts of `out`. Returns `false` if the packets cannot be
    /// written. [`poll_transmit`](Self::poll_transmit) then reports the reason.
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

    /// Receives the packets of `run`, which are from the middle of a message and have the same
    /// length. Has the same effect as a call of [`receive`](Self::receive) for each packet.
    /// `arrival` has the addresses of the packets.
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

    /// Receives several packets of equal length in one step. The packets must be the next expected
    /// packets, and must continue a send or a write. Otherwise returns `false` and does nothing.
    /// The packets must then be received one by one.
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
