#![forbid(unsafe_code)]

use std::time::Duration;

use crate::proto::Time;

/// When an armed completion queue raises its event: at once, or when `count` completions have come
/// or `period` has passed since the first of them. Either being zero means at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Completions for an event.
    pub count: u16,
    /// Time for an event.
    pub period: Duration,
}

/// The completions that wait for their event.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    count: u16,
    /// When the event is raised however few there are.
    pub(super) due: Option<Time>,
}

/// What a completion means for the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Raise,
    /// Not later than this, if it is the first that waits.
    WaitUntil(Option<Time>),
}

impl Moderation {
    /// A completion came that raises an event.
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
