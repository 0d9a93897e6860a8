#![forbid(unsafe_code)]

use std::time::Duration;

use crate::proto::Time;

/// Moderation of completion events (`ibv_modify_cq(3)`): several completions share one event, so
/// that a program is woken less often. An armed completion queue raises its event after `count`
/// completions, or when `period` has passed since the first of these completions. If `count` or
/// `period` is zero, each completion raises an event immediately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Number of completions after which the completion queue raises its event, even if `period`
    /// has not passed.
    pub count: u16,
    /// Maximum time from the first completion to the event, even if there are fewer than `count`
    /// completions.
    pub period: Duration,
}

/// State of a completion event that [`Moderation`] delays: the number of completions since the last
/// event, and the time at which the event is due.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DelayedEvent {
    count: u16,
    /// Time at which the event must be raised even if there are fewer completions. `None` if no
    /// event is delayed.
    pub(super) due: Option<Time>,
}

/// Decision of [`Moderation`] after a completion: the completion queue raises its event now, or
/// later together with other completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventTiming {
    Raise,
    /// The event is delayed. For the first delayed completion, contains the time at which the event
    /// must be raised, so that the caller sets a timer. `None` for later completions.
    WaitUntil(Option<Time>),
}

impl Moderation {
    /// Counts a completion, and returns whether the completion event must be raised now or later.
    /// `held` is the state of the delayed event. `now` is the time of the completion. The caller
    /// must ensure that the program has requested an event for this completion.
    pub(super) fn count_completion(self, held: &mut DelayedEvent, now: Time) -> EventTiming {
        held.count = held.count.saturating_add(1);
        if self.period.is_zero() || held.count >= self.count {
            *held = DelayedEvent::default();
            return EventTiming::Raise;
        }
        if held.due.is_some() {
            return EventTiming::WaitUntil(None);
        }
        held.due = Some(now + self.period);
        EventTiming::WaitUntil(held.due)
    }
}
