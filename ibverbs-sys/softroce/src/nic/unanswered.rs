/// Received messages whose acknowledgement is delayed, so that a message of the program can carry it.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    /// Number of messages that arrived since the last acknowledgement.
    messages: u32,
    /// Number of receive attempts since the last message.
    looks: u32,
}

/// Minimum number of received messages at which the acknowledgements are not delayed any more.
const MESSAGES: u32 = 16;

/// Average number of received messages of a queue pair at which the acknowledgements are not delayed any more. With fewer, the
/// messages of many queue pairs would need about as many acknowledgements.
const OF_EACH: u32 = 4;

/// Number of received messages at which the acknowledgements are not delayed any more, however many queue pairs received them.
const MOST: u32 = 256;

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

    /// Returns whether the acknowledgements of the received messages may be delayed further. `queue_pairs` is the number of
    /// queue pairs that received them.
    #[inline]
    pub(super) fn may_wait(&self, queue_pairs: usize) -> bool {
        let messages = (queue_pairs as u32).saturating_mul(OF_EACH);
        self.messages < messages.clamp(MESSAGES, MOST) && self.looks < LOOKS
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
            assert!(unanswered.may_wait(1));
        }
        unanswered.looked(1);
        assert!(!unanswered.may_wait(1));
        assert!(unanswered.may_wait(5));
        unanswered.looked(4);
        assert!(!unanswered.may_wait(5));
        unanswered.looked(235);
        assert!(unanswered.may_wait(100));
        unanswered.looked(1);
        assert!(!unanswered.may_wait(100));
        unanswered.answered();
        assert!(unanswered.may_wait(1));

        for _ in 0..3 {
            unanswered.looked(1);
            for _ in 1..LOOKS {
                unanswered.looked(0);
                assert!(unanswered.may_wait(1));
            }
        }
        unanswered.looked(0);
        assert!(!unanswered.may_wait(100));
    }
}
