use std::ops::Range;

use crate::proto::State;

use super::requester::{PeerWindow, WindowState};
use super::scenario::Scenario;
use super::schedule::{Ending, Kind};

/// Range of the random number of requests that each simulated requester posts after its queue pair
/// was reset and connected again. A few requests suffice to detect packets that were sent before
/// the reset.
const REQUESTS_AFTER_RESET: Range<u64> = 5..20;

impl Scenario<'_> {
    /// Resets the reliable queue pairs, connects them again with other sequence numbers, and runs
    /// more requests. Requires that all queue pairs are in the error state. Packets and requests
    /// from before the reset must have no effect.
    pub(super) fn reset_and_rerun(&mut self) -> Result<(), String> {
        self.life += 1;
        let mut revived = Vec::new();
        for r in 0..self.requesters.len() {
            let connection = &self.schedule.connections[self.requesters[r].connection];
            // Connections that the network has cut are not connected again.
            if connection.kind == Kind::Reliable && connection.ending != Some(Ending::Cut) {
                revived.push(r);
            }
        }
        for &r in &revived {
            self.world.enter(self.requesters[r].place, State::Reset);
        }
        for &r in &revived {
            self.restart(r);
        }
        for &r in &revived {
            let place = self.requesters[r].place;
            if let Some(pool) = self.roles[&place].pool {
                self.pools[pool].stopped = false;
                for _ in 0..self.pools[pool].depth {
                    self.refill(pool);
                }
            }
        }
        for &r in &revived {
            self.post_requests(r)?;
        }
        self.run_until_idle()?;
        self.finish(&revived)
    }

    fn restart(&mut self, r: usize) {
        let requester = &mut self.requesters[r];
        let number = requester.connection;
        let memory = self.world.memory(requester.target.node);
        requester.target.adopt_content(memory);
        requester.windows.clear();
        if requester.random.percent(50) {
            requester.windows.push(PeerWindow {
                state: WindowState::Free,
                key: memory.allocate_window(),
                range: 0..0,
            });
        }
        let Range { start, end } = REQUESTS_AFTER_RESET;
        requester.remaining = requester.random.range(start, end) as u32;
        requester.undone.clear();
        requester.expected.clear();
        requester.ended = None;
        requester.resting = false;
        // After the reset, the schedule makes no request fail.
        requester.spoiled = true;
        self.broken[number] = false;
        let (place, side) = (requester.place, requester.side);
        let partner = requester.partner.unwrap_or(r);
        let peer = self.requesters[partner].place;
        if let Some(role) = self.roles.get_mut(&place) {
            role.raised.clear();
            role.flushed_shared = 0;
        }
        self.set_up(number, side, [place, peer]);
    }
}
