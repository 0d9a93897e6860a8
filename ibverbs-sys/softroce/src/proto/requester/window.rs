use crate::proto::Sequence;

/// How many packets may be on the way: soon as many as the attributes allow, half after a loss, and one more
/// for each window that got through since.
///
/// The specification knows no such window, because InfiniBand loses nothing. A socket's buffer does, and a
/// requester that goes back over all that it sent would fill it again and again.
#[derive(Clone, Debug)]
pub(super) struct Window {
    limit: u32,
    size: u32,
    /// Below it the window grows with each packet.
    threshold: u32,
    gained: u32,
    /// Losses before this number was reached belong to the one that was answered already.
    recovered: Option<Sequence>,
    /// Size and threshold before that loss.
    before: (u32, u32),
}

/// What a buffer of the smallest usual size takes at once.
const FIRST: u32 = 16;

/// Bytes that a response may have.
const RESPONSE: u32 = 32 << 10;

/// A smaller window would only make the loss of a lone packet harder to notice.
const SMALLEST: u32 = 4;

impl Window {
    /// A window that opens to `limit` packets.
    pub(super) fn new(limit: u32) -> Self {
        // More would come too near to half of all sequence numbers.
        let limit = limit.clamp(1, 1 << 20);
        Self {
            limit,
            size: limit.min(FIRST),
            threshold: limit,
            gained: 0,
            recovered: None,
            before: (0, 0),
        }
    }

    /// How many packets may be on the way now.
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// Whether packets with `covers` numbers may go behind so many that are on the way: some may in any case.
    pub(super) fn has_room(&self, on_the_way: u32, covers: u32) -> bool {
        on_the_way == 0 || on_the_way + covers <= self.size
    }

    /// How many packets may go behind so many that are on the way.
    pub(super) fn room(&self, on_the_way: u32) -> u32 {
        self.size.saturating_sub(on_the_way)
    }

    /// How many packets of `mtu` bytes a read request may ask for: two requests fit into the window, and
    /// one response into a buffer of the smallest usual size.
    pub(super) fn read_batch(&self, mtu: u32) -> u32 {
        (self.limit / 2).min(RESPONSE / mtu).clamp(1, 32)
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
        let fast = packets.min(self.threshold.saturating_sub(self.size));
        self.size += fast;
        self.gained += packets - fast;
        while self.gained >= self.size && self.size < self.limit {
            self.gained -= self.size;
            self.size += 1;
        }
        if self.size == self.limit {
            self.gained = 0;
        }
    }

    /// Something was lost of the packets before `sent`.
    pub(super) fn loss(&mut self, sent: Sequence) {
        if self.recovered.is_none() {
            self.silence(sent);
        }
    }

    /// Nothing was heard of the packets before `sent`: what was sent since the last loss is lost, too.
    pub(super) fn silence(&mut self, sent: Sequence) {
        self.before = (self.size, self.threshold);
        self.size = (self.size / 2).max(SMALLEST.min(self.limit));
        self.threshold = self.size;
        self.gained = 0;
        self.recovered = Some(sent);
    }

    /// The peer has packets that were taken for lost and have not gone again: it was slow, and nothing was lost.
    pub(super) fn not_lost(&mut self) {
        if self.recovered.take().is_some() {
            (self.size, self.threshold) = self.before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Window;
    use crate::proto::Sequence;

    fn open() -> Window {
        let mut window = Window::new(64);
        window.progress(48, Sequence::new(48));
        assert_eq!(window.size(), 64);
        window
    }

    #[test]
    fn opens_with_what_gets_through() {
        let mut window = Window::new(64);
        assert_eq!(window.size(), 16);
        window.progress(16, Sequence::new(16));
        assert_eq!(window.size(), 32);
        window.progress(1000, Sequence::new(1016));
        assert_eq!(window.size(), 64);
    }

    #[test]
    fn halves_once_for_all_losses_of_a_window_and_grows_again() {
        let mut window = open();
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
    fn is_as_it_was_when_nothing_was_lost() {
        let mut window = open();
        window.loss(Sequence::new(100));
        window.progress(10, Sequence::new(60));
        window.not_lost();
        assert_eq!(window.size(), 64);
        // What was lost before is of no account any more.
        window.loss(Sequence::new(130));
        window.progress(32, Sequence::new(130));
        window.not_lost();
        assert_eq!(window.size(), 33);
    }

    #[test]
    fn halves_at_each_silence() {
        let mut window = open();
        for size in [32, 16, 8, 4, 4] {
            window.silence(Sequence::new(100));
            assert_eq!(window.size(), size);
        }
    }

    #[test]
    fn stays_open() {
        let mut window = Window::new(0);
        window.loss(Sequence::new(1));
        assert_eq!(window.size(), 1);
        assert_eq!(window.read_batch(256), 1);
        let batches = [256, 1024, 2048, 4096].map(|mtu| Window::new(512).read_batch(mtu));
        assert_eq!(batches, [32, 32, 16, 8]);
        assert_eq!(window.acknowledge_every(), 1);
    }
}
