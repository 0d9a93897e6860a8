#![forbid(unsafe_code)]

use std::time::Duration;

use crate::proto::Time;

/// Moderation of completion events: an armed completion queue raises its event after `count` completions, or when `period` has
/// passed since the first of them. If either is zero, each event is raised at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Number of completions after which the event is raised.
    pub count: u16,
    /// Maximum delay of the event after the first completion.
    pub period: Duration,
}

/// State of a delayed event: the completions for which it will be raised.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    count: u16,
    /// Time at which the event is raised at the latest.
    pub(super) due: Option<Time>,
}

/// Decision of the moderation about the event of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Raise,
    /// The event is delayed. If this completion is the first that is delayed, contains the time at which the event must be
    /// raised.
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
