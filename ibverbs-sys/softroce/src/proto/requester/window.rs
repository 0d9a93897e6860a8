use crate::proto::Sequence;

/// How many packets may be on the way: one more for each window that got through, half after a loss.
///
/// The specification knows no such window, because InfiniBand loses nothing. A socket's buffer does, and a
/// requester that goes back over all that it sent would fill it again and again.
#[derive(Clone, Debug)]
pub(super) struct Window {
    limit: u32,
    size: u32,
    gained: u32,
    /// Losses before this number was reached belong to the one that was answered already.
    recovered: Option<Sequence>,
}

/// A smaller window would only make the loss of a lone packet harder to notice.
const SMALLEST: u32 = 4;

impl Window {
    /// A window that is open to `limit` packets.
    pub(super) fn new(limit: u32) -> Self {
        // More would come too near to half of all sequence numbers.
        let limit = limit.clamp(1, 1 << 20);
        Self {
            limit,
            size: limit,
            gained: 0,
            recovered: None,
        }
    }

    /// How many packets may be on the way now.
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// How many packets a read request may ask for: several fit into the window.
    pub(super) fn read_batch(&self) -> u32 {
        (self.limit / 4).clamp(1, 32)
    }

    /// After how many packets an acknowledgement is asked for.
    pub(super) fn acknowledge_every(&self) -> u32 {
        (self.size / 4).clamp(1, 32)
    }

    /// `packets` got through; the next of which nothing is known is `oldest`.
    pub(super) fn progress(&mut self, packets: u32, oldest: Sequence) {
        if self.recovered.is_some_and(|end| oldest.distance(end) >= 0) {
            self.recovered = None;
        }
        if self.size < self.limit {
            self.gained += packets;
            while self.gained >= self.size && self.size < self.limit {
                self.gained -= self.size;
                self.size += 1;
            }
        } else {
            self.gained = 0;
        }
    }

    /// Something was lost of the packets before `sent`.
    pub(super) fn loss(&mut self, sent: Sequence) {
        if self.recovered.is_none() {
            self.size = (self.size / 2).max(SMALLEST.min(self.limit));
            self.gained = 0;
            self.recovered = Some(sent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Window;
    use crate::proto::Sequence;

    #[test]
    fn halves_once_for_all_losses_of_a_window_and_grows_again() {
        let mut window = Window::new(64);
        window.loss(Sequence::new(100));
        window.loss(Sequence::new(100));
        assert_eq!(window.size(), 32);
        window.progress(10, Sequence::new(50));
        window.loss(Sequence::new(120));
        assert_eq!(window.size(), 32);
        window.progress(50, Sequence::new(100));
        assert_eq!(window.size(), 33);
        window.loss(Sequence::new(130));
        assert_eq!(window.size(), 16);
        window.progress(1_000_000, Sequence::new(130));
        assert_eq!(window.size(), 64);
    }

    #[test]
    fn stays_open() {
        let mut window = Window::new(64);
        for sequence in 0..20 {
            window.progress(0, Sequence::new(sequence));
            window.loss(Sequence::new(sequence));
        }
        assert_eq!(window.size(), 4);
        let mut window = Window::new(0);
        window.loss(Sequence::new(1));
        assert_eq!(window.size(), 1);
        assert_eq!(window.read_batch(), 1);
        assert_eq!(window.acknowledge_every(), 1);
    }
}
