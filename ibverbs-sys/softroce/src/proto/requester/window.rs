use super::congestion::{Congestion, UNITS};
use super::pipe::Pipe;
use super::probe::Sample;
use crate::proto::{Sequence, Time};

/// Congestion window: the maximum number of packets in flight. The specification has no such
/// window, because InfiniBand links lose nothing. UDP sockets, however, drop packets when their
/// buffers are full.
///
/// - At first, the window grows quickly, by one packet for each acknowledged packet, up to a limit.
/// - A loss halves the window. The window then grows quickly again to the measured capacity of the
///   path, unless a full queue is the likely reason of the loss.
/// - Beyond this capacity, the window grows by one packet for each acknowledged window while
///   packets wait in a queue of the path, and quickly while no packet waits.
/// - After packets were lost because a queue of the path was full, [`Congestion`] determines how
///   the window changes.
///
/// The limit is the configured limit for paths of unknown capacity, plus the number of packets that
/// [fill](Pipe::fill) the path. The limit never exceeds a configured maximum.
#[derive(Clone, Debug)]
pub(super) struct Window {
    limit: u32,
    /// Limit of the window size on a path whose capacity is unknown.
    least: u32,
    /// Maximum of the limit of the window size, also on a path that can hold more packets.
    most: u32,
    pipe: Pipe,
    congestion: Congestion,
    size: u32,
    /// Window size below which the window grows by one for each acknowledged packet.
    threshold: u32,
    gained: u32,
    /// Part of the window size below one packet, in [units](UNITS).
    fraction: u64,
    /// Sequence number after the packets that were in flight at the last loss. Until all of them
    /// are acknowledged, further losses do not halve the window again.
    recovered: Option<Sequence>,
    /// Window size and threshold before the last loss, for [`undo_loss`](Self::undo_loss).
    before: (u32, u32),
}

/// Initial size of the window (limit on packets in flight), in packets. These packets fit into a
/// socket buffer of the smallest usual size.
const INITIAL_SIZE: u32 = 16;

/// Maximum length in bytes of the response to one read request packet. Such a response fits into
/// the smallest socket buffer that systems usually have.
const MAX_RESPONSE: u32 = 32 << 10;

/// Minimum size of the window (limit on packets in flight) after a loss, in packets. With a smaller
/// window, fewer packets would follow a lost packet, and the peer reports a loss only when a later
/// packet arrives.
const MIN_SIZE: u32 = 4;

impl Window {
    /// Creates a window (limit on packets in flight). While the capacity of the path is unknown,
    /// the size of the window is at most `limit` packets. If the path is measured to hold more
    /// packets, the window can grow to at most `most` packets.
    pub(super) fn new(limit: u32, most: u32) -> Self {
        // A larger window would come too close to half of the sequence space.
        let limit = limit.clamp(1, 1 << 20);
        Self {
            limit,
            least: limit,
            most: most.clamp(limit, 1 << 20),
            pipe: Pipe::default(),
            congestion: Congestion::default(),
            size: limit.min(INITIAL_SIZE),
            threshold: u32::MAX,
            gained: 0,
            fraction: 0,
            recovered: None,
            before: (0, 0),
        }
    }

    /// Returns the present size of the congestion window: the maximum number of packets in flight.
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// Returns the difference between the maximum size that the window can ever reach and its
    /// present size, in packets.
    pub(super) fn reserve(&self) -> u32 {
        self.most - self.size
    }

    /// Returns whether the window (limit on packets in flight) permits a packet with `covers`
    /// sequence numbers, while `unacknowledged` numbers are unacknowledged. The limit is in
    /// sequence numbers: a read request counts as the packets of its response. Always `true` if
    /// `unacknowledged` is 0.
    pub(super) fn has_room(&self, unacknowledged: u32, covers: u32) -> bool {
        unacknowledged == 0 || unacknowledged + covers <= self.size
    }

    /// Returns the number of packets that may still be sent, within the window (limit on packets in
    /// flight), while `unacknowledged` packets are unacknowledged.
    pub(super) fn room(&self, unacknowledged: u32) -> u32 {
        self.size.saturating_sub(unacknowledged)
    }

    /// Returns the maximum number of response packets for one read request packet, if the path MTU
    /// is `mtu` bytes. The packets of two such responses together do not exceed the limit on
    /// packets in flight. The packets of one response fit into a small socket buffer.
    pub(super) fn read_batch(&self, mtu: u32) -> u32 {
        (self.limit / 2).min(MAX_RESPONSE / mtu).clamp(1, 32)
    }

    /// Returns the number of packets after which the next packet must request an acknowledgement: a
    /// quarter of the window, at most 32, so that acknowledgements arrive before the window is
    /// full.
    pub(super) fn acknowledge_every(&self) -> u32 {
        (self.size / 4).clamp(1, 32)
    }

    /// Records that `packets` packets were acknowledged, and lets the window (limit on packets in
    /// flight) grow. `oldest` is the oldest sequence number that is still unanswered. Once `oldest`
    /// has passed the packets that were in flight at the last loss, a further loss can halve the
    /// window again.
    pub(super) fn progress(&mut self, packets: u32, oldest: Sequence) {
        if self.recovered.is_some_and(|end| oldest.distance(end) >= 0) {
            self.recovered = None;
        }
        let fast = packets.min(self.threshold.min(self.limit).saturating_sub(self.size));
        self.size += fast;
        self.gained += packets - fast;
        if self.size >= self.limit || self.congestion.knows_queue() {
            self.gained = 0;
        }
        while self.gained >= self.size && self.size < self.limit {
            self.gained -= self.size;
            self.size += 1;
        }
    }

    /// Adapts the maximum size of the window (limit on packets in flight) to the measured round
    /// trip `sample`. If the round trip time of a full queue of the path is known, also adapts the
    /// present size.
    pub(super) fn measured(&mut self, sample: &Sample, now: Time) {
        if self.most > self.least {
            self.pipe.measured(sample.time, sample.packets, now);
            self.limit = self.least.saturating_add(self.pipe.fill()).min(self.most);
            self.size = self.size.min(self.limit);
            self.congestion.measured(sample.time);
            match self.congestion.next_size(self.size, &self.pipe) {
                None if self.pipe.is_full() => {}
                None => self.threshold = self.threshold.max(self.limit),
                // The window still grows after a loss.
                Some(_) if self.size < self.threshold.min(self.limit) => {}
                Some(size) => {
                    let size = size + self.fraction;
                    self.fraction = size % UNITS;
                    let size = u32::try_from(size / UNITS).unwrap_or(u32::MAX);
                    self.size = size.max(MIN_SIZE).min(self.limit);
                    self.threshold = self.size;
                }
            }
        }
    }

    /// Records that a packet before `sent` was lost, and halves the window (limit on packets in
    /// flight). Losses among the packets that were in flight at the previous loss have no effect,
    /// because they have the same cause.
    pub(super) fn loss(&mut self, sent: Sequence) {
        if self.recovered.is_none() {
            self.timeout(sent);
        }
    }

    /// Records a loss, and halves the window (limit on packets in flight) in any case. In contrast,
    /// [`loss`](Self::loss) does nothing until the packets that were in flight at the previous loss
    /// are answered. Called after a timeout, and when a packet that was sent again was lost again.
    /// `sent` is the number of the next new packet.
    pub(super) fn timeout(&mut self, sent: Sequence) {
        self.before = (self.size, self.threshold);
        let capacity = match self.congestion.handle_loss(&self.pipe) {
            // The window is too large for the queue, and the capacity may be overestimated.
            true => 0,
            false => self.pipe.capacity(),
        };
        self.size = (self.size / 2).max(MIN_SIZE.min(self.limit));
        self.threshold = self.size.max(capacity);
        self.gained = 0;
        self.recovered = Some(sent);
    }

    /// Undoes the halving of the window (limit on packets in flight) by the last recorded loss.
    /// Called when packets that were considered lost are acknowledged without retransmission. The
    /// peer was only slow in this case.
    pub(super) fn undo_loss(&mut self) {
        if self.recovered.take().is_some() {
            (self.size, self.threshold) = self.before;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Sample, Window};
    use crate::proto::{Sequence, Time};

    fn open() -> Window {
        let mut window = Window::new(64, 64);
        window.progress(48, Sequence::new(48));
        assert_eq!(window.size(), 64);
        window
    }

    #[test]
    fn the_window_grows_with_each_acknowledged_packet() {
        let mut window = Window::new(64, 64);
        assert_eq!(window.size(), 16);
        window.progress(16, Sequence::new(16));
        assert_eq!(window.size(), 32);
        window.progress(1000, Sequence::new(1016));
        assert_eq!(window.size(), 64);
    }

    #[test]
    fn all_losses_within_a_window_halve_the_window_once() {
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
    fn a_window_that_was_halved_without_a_loss_is_restored() {
        let mut window = open();
        window.loss(Sequence::new(100));
        window.progress(10, Sequence::new(60));
        window.undo_loss();
        assert_eq!(window.size(), 64);
        // After the next loss, the window before the earlier loss must not be restored.
        window.loss(Sequence::new(130));
        window.progress(32, Sequence::new(130));
        window.undo_loss();
        assert_eq!(window.size(), 33);
    }

    #[test]
    fn the_window_exceeds_its_limit_on_a_path_of_higher_capacity() {
        let sample = Sample {
            time: Duration::from_millis(2),
            packets: 64,
        };
        for (most, size) in [(1000, 64 + 64 + 32), (100, 100), (64, 64)] {
            let mut window = Window::new(64, most);
            window.measured(&sample, Time::default());
            window.progress(1000, Sequence::new(1000));
            assert_eq!(window.size(), size);
        }
    }

    #[test]
    fn each_timeout_halves_the_window() {
        let mut window = open();
        for size in [32, 16, 8, 4, 4] {
            window.timeout(Sequence::new(100));
            assert_eq!(window.size(), size);
        }
    }

    #[test]
    fn the_window_never_closes() {
        let mut window = Window::new(0, 0);
        window.loss(Sequence::new(1));
        assert_eq!(window.size(), 1);
        assert_eq!(window.read_batch(256), 1);
        let batches = [256, 1024, 2048, 4096].map(|mtu| Window::new(512, 512).read_batch(mtu));
        assert_eq!(batches, [32, 32, 16, 8]);
        assert_eq!(window.acknowledge_every(), 1);
    }
}
