use std::time::Duration;

use crate::proto::Time;

/// When one who polls, and shares memory with peers, looks at the sockets, too: to look at one is a system call, and takes longer
/// than a message through shared memory.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    looked: Time,
    /// For how long they are let be while nothing comes.
    calm: Duration,
}

/// The longest that they are let be by which nothing comes.
const CALM: Duration = Duration::from_micros(20);

/// The same where messages come through shared memory: those by the sockets shall not wait for the engine.
const BUSY: Duration = Duration::from_micros(100);

impl Sockets {
    /// Whether they are let be; `busy` if something came through shared memory.
    pub(super) fn rest(&self, now: Time, busy: bool) -> bool {
        let is_quiet = !self.calm.is_zero();
        now - self.looked < if busy && is_quiet { BUSY } else { self.calm }
    }

    /// They were looked at, and so many packets were there.
    pub(super) fn looked(&mut self, now: Time, received: usize) {
        self.looked = now;
        self.calm = match received {
            0 => (2 * self.calm).clamp(Duration::from_micros(1), CALM),
            _ => Duration::ZERO,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_let_be_while_nothing_comes_and_not_for_long() {
        let at = |micros: u64| Time::from_nanos(1000 * micros);
        let mut sockets = Sockets::default();
        assert!(!sockets.rest(at(1000), false));
        for _ in 0..10 {
            sockets.looked(at(1000), 0);
        }
        assert!(sockets.rest(at(1019), false) && !sockets.rest(at(1020), false));
        // However much comes by another way.
        assert!(sockets.rest(at(1099), true) && !sockets.rest(at(1100), true));
        sockets.looked(at(2000), 1);
        assert!(!sockets.rest(at(2000), false) && !sockets.rest(at(2000), true));
    }
}
