/// Counts of the received messages whose acknowledgement is delayed. The next message of the
/// program to the sender can then include the acknowledgement. The counts limit the delay.
#[derive(Debug, Default)]
pub(super) struct UnacknowledgedMessages {
    /// Number of messages that arrived since the last acknowledgement.
    messages: u32,
    /// Number of consecutive attempts to receive that found no message, since the last message
    /// arrived.
    attempts: u32,
}

/// Minimum number of received messages at which the delayed acknowledgements are sent. With a lower
/// number, there would be more separate acknowledgements. With a higher number, the sender would
/// wait longer.
const MIN_MESSAGES: u32 = 16;

/// Number of received messages for each acknowledgement, on average, when many queue pairs receive.
/// All delayed acknowledgements are sent after this number of messages, multiplied by the number of
/// queue pairs. [`MIN_MESSAGES`] and [`MAX_MESSAGES`] limit the product. With a lower number, many
/// queue pairs would cause about one acknowledgement for each message.
const PER_QUEUE_PAIR: u32 = 4;

/// Maximum number of received messages, of all queue pairs together, whose acknowledgements are
/// delayed. Without this limit, the delay would grow with the number of queue pairs.
const MAX_MESSAGES: u32 = 256;

/// Number of consecutive receive attempts without a message after which the delayed
/// acknowledgements are sent. The program then probably does not soon send a message that could
/// include the acknowledgements.
const MAX_EMPTY: u32 = 4;

impl UnacknowledgedMessages {
    /// Records that an attempt to receive returned `messages` messages. The recorded numbers
    /// determine when the delayed acknowledgements must be sent.
    #[inline]
    pub(super) fn attempted(&mut self, messages: usize) {
        if messages == 0 {
            self.attempts += 1;
        } else {
            self.messages += messages as u32;
            self.attempts = 0;
        }
    }

    /// Returns whether the acknowledgements of the received messages may be delayed further.
    /// `queue_pairs` is the number of queue pairs that received the messages. If the result is
    /// `false`, the caller must send the acknowledgements now.
    #[inline]
    pub(super) fn may_wait(&self, queue_pairs: usize) -> bool {
        let messages = (queue_pairs as u32).saturating_mul(PER_QUEUE_PAIR);
        self.messages < messages.clamp(MIN_MESSAGES, MAX_MESSAGES) && self.attempts < MAX_EMPTY
    }

    /// Records that all received messages have been acknowledged: the count of unacknowledged
    /// messages restarts at 0.
    #[inline]
    pub(super) fn acknowledged(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_are_delayed_for_a_few_attempts_and_messages() {
        let mut unanswered = UnacknowledgedMessages::default();
        for _ in 1..MIN_MESSAGES {
            unanswered.attempted(1);
            assert!(unanswered.may_wait(1));
        }
        unanswered.attempted(1);
        assert!(!unanswered.may_wait(1));
        assert!(unanswered.may_wait(5));
        unanswered.attempted(4);
        assert!(!unanswered.may_wait(5));
        unanswered.attempted(235);
        assert!(unanswered.may_wait(100));
        unanswered.attempted(1);
        assert!(!unanswered.may_wait(100));
        unanswered.acknowledged();
        assert!(unanswered.may_wait(1));

        for _ in 0..3 {
            unanswered.attempted(1);
            for _ in 1..MAX_EMPTY {
                unanswered.attempted(0);
                assert!(unanswered.may_wait(1));
            }
        }
        unanswered.attempted(0);
        assert!(!unanswered.may_wait(100));
    }
}
