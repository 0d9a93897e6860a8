#![forbid(unsafe_code)]

use std::time::Duration;

use crate::proto::Time;

/// Moderation of completion events: an armed completion queue raises its event after `count` completions, or when `period` has
/// passed since the first of them. If either is zero, each event is raised at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Number of completions per event.
    pub count: u16,
    /// Maximum delay of an event.
    pub period: Duration,
}

/// Completions whose event is being delayed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    count: u16,
    /// Time at which the event is raised at the latest.
    pub(super) due: Option<Time>,
}

/// Effect of a completion on the delayed event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Raise,
    /// The event is delayed. Contains the deadline if this completion is the first that waits.
    WaitUntil(Option<Time>),
}

impl Moderation {
    /// Counts a completion that raises an event. Decides whether the event is raised now or delayed.
    pub(super) fn judge(self, held: &mut Held, now: Time) -> Verdict {
        held.count = held.count.saturating_add(1);
        if self.period.is_zero() || held.count >= self.count {
            *held = Held::default();
            return Verdict::Raise;
        }
        if held.due.is_some() {
            return Verdict::WaitUntil(None);
        }
        held.due = Some(now + self.period);
        Verdict::WaitUntil(held.due)
    }
}
