#![forbid(unsafe_code)]

use std::time::Duration;

use crate::proto::Time;

/// Moderation of completion events. An armed completion queue raises its event after `count` completions, or when
/// `period` has passed since the first of them. If `count` or `period` is zero, each completion raises an event at
/// once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Number of completions after which the completion queue raises its event.
    pub count: u16,
    /// Maximum time from the first completion to the event.
    pub period: Duration,
}

/// State of a delayed event: the completions since the last event, and the time limit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    count: u16,
    /// Time at which the event must be raised even if there are fewer completions. `None` if no event is delayed.
    pub(super) due: Option<Time>,
}

/// Decision whether a completion raises an event now or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Raise,
    /// The event is delayed. For the first delayed completion, contains the time at which the event must be raised.
    WaitUntil(Option<Time>),
}

impl Moderation {
    /// Counts a completion of an armed queue. Decides whether the completion event is raised now or delayed.
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
