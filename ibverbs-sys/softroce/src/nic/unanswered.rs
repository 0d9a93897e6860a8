/// Messages that came and are not acknowledged yet: that waits a while for what the program has to say, with which it goes.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    /// Messages since the last answers.
    messages: u32,
    /// Looks since the last message.
    looks: u32,
}

/// Messages that wait at most.
const MESSAGES: u32 = 16;

/// Looks for which they wait at most while there are no others.
const LOOKS: u32 = 4;

impl Unanswered {
    /// Somebody looked, and so many came.
    #[inline]
    pub(super) fn looked(&mut self, came: usize) {
        if came == 0 {
            self.looks += 1;
        } else {
            self.messages += came as u32;
            self.looks = 0;
        }
    }

    /// Whether they may wait for longer.
    #[inline]
    pub(super) fn may_wait(&self) -> bool {
        self.messages < MESSAGES && self.looks < LOOKS
    }

    /// All are acknowledged.
    #[inline]
    pub(super) fn answered(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_wait_for_a_few_looks_and_not_where_many_come() {
        let mut unanswered = Unanswered::default();
        for _ in 1..MESSAGES {
            unanswered.looked(1);
            assert!(unanswered.may_wait());
        }
        unanswered.looked(1);
        assert!(!unanswered.may_wait());
        unanswered.answered();
        assert!(unanswered.may_wait());

        for _ in 0..3 {
            unanswered.looked(1);
            for _ in 1..LOOKS {
                unanswered.looked(0);
                assert!(unanswered.may_wait());
            }
        }
        unanswered.looked(0);
        assert!(!unanswered.may_wait());
    }
}
