/// Received messages whose acknowledgement is delayed, so that a message of the program can carry it.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    /// Number of messages that arrived since the last acknowledgement.
    messages: u32,
    /// Number of receive attempts since the last message.
    looks: u32,
}

/// Number of received messages at which the acknowledgement is not delayed any more.
const MESSAGES: u32 = 16;

/// Number of receive attempts without a message at which the acknowledgement is not delayed any more.
const LOOKS: u32 = 4;

impl Unanswered {
    /// Records a receive attempt in which `came` messages arrived.
    #[inline]
    pub(super) fn looked(&mut self, came: usize) {
        if came == 0 {
            self.looks += 1;
        } else {
            self.messages += came as u32;
            self.looks = 0;
        }
    }

    /// Returns whether the acknowledgement of the received messages may be delayed further.
    #[inline]
    pub(super) fn may_wait(&self) -> bool {
        self.messages < MESSAGES && self.looks < LOOKS
    }

    /// Records that all messages are acknowledged.
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
