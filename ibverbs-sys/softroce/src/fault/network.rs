use std::time::Duration;

/// Faults that are injected into sent packets. Each probability is from 0 to 1, and is drawn
/// separately for every packet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NetworkFaults {
    /// Probability that a sent packet is dropped.
    pub loss: f64,
    /// Probability that a packet is sent twice.
    pub duplicate: f64,
    /// Probability that a packet is held back until one to three later packets were sent, for at
    /// most a millisecond.
    pub reorder: f64,
    /// Probability that one bit between BTH and ICRC is flipped.
    pub corrupt: f64,
    /// Time for which every packet is held back before it is sent, as if the network were slower.
    pub latency: Duration,
    /// Seed of the random numbers. The same faults and the same sequence of packets give the same
    /// results.
    pub seed: u64,
}

impl NetworkFaults {
    /// Returns whether at least one fault of packets is configured.
    pub(super) fn any(&self) -> bool {
        self.latency > Duration::ZERO
            || [self.loss, self.duplicate, self.reorder, self.corrupt]
                .iter()
                .any(|&part| part > 0.0)
    }
}

/// Faults that the random generator has selected for one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PacketFaults {
    /// Set if the packet is dropped.
    pub(crate) lost: bool,
    /// Set if the packet is sent twice.
    pub(crate) doubled: bool,
    /// Index of the flipped bit, counted from the packet's first byte; `None` if no bit is flipped.
    pub(crate) flipped: Option<usize>,
    /// Number of later packets that are sent before the packet.
    pub(crate) overtaken: u8,
}

/// Random number generator that selects the faults of each packet, with the configured
/// probabilities. The same seed gives the same faults.
#[derive(Debug)]
pub(crate) struct FaultGenerator {
    faults: NetworkFaults,
    state: u64,
}

impl FaultGenerator {
    pub(crate) fn new(faults: NetworkFaults) -> Self {
        Self {
            faults,
            state: faults.seed,
        }
    }

    pub(super) fn faults(&self) -> NetworkFaults {
        self.faults
    }

    /// Selects the faults of the next packet, which has `len` bytes. Always draws the same number
    /// of random numbers, so that a change of the probability of one fault does not affect the
    /// other faults.
    pub(crate) fn packet_faults(&mut self, len: usize) -> PacketFaults {
        let lost = self.draw(self.faults.loss);
        let doubled = self.draw(self.faults.duplicate);
        let reordered = self.draw(self.faults.reorder);
        let corrupted = self.draw(self.faults.corrupt);
        let (overtaken, bit) = (self.next(), self.next());
        PacketFaults {
            lost,
            doubled,
            flipped: (corrupted && len > 0).then(|| (bit % (len as u64 * 8)) as usize),
            overtaken: if reordered {
                1 + (overtaken % 3) as u8
            } else {
                0
            },
        }
    }

    fn draw(&mut self, part: f64) -> bool {
        // A double has a mantissa of 53 bits, so `drawn` is from 0 to just below 1.
        let drawn = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        drawn < part
    }

    /// Returns the next random number, by SplitMix64 (Steele, Lea, Flood: Fast splittable
    /// pseudorandom number generators, 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw_all(faults: NetworkFaults) -> Vec<PacketFaults> {
        let mut generator = FaultGenerator::new(faults);
        (0..10_000).map(|_| generator.packet_faults(100)).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_faults() {
        let faults = NetworkFaults {
            loss: 0.1,
            duplicate: 0.2,
            reorder: 0.3,
            corrupt: 0.4,
            seed: 7,
            ..NetworkFaults::default()
        };
        assert_eq!(draw_all(faults), draw_all(faults));
        assert_ne!(
            draw_all(faults),
            draw_all(NetworkFaults { seed: 8, ..faults })
        );
        let lost = |faults| {
            draw_all(faults)
                .iter()
                .map(|packet_faults| packet_faults.lost)
                .collect::<Vec<_>>()
        };
        let alone = NetworkFaults {
            loss: 0.1,
            seed: 7,
            ..NetworkFaults::default()
        };
        assert_eq!(lost(faults), lost(alone));
    }

    #[test]
    fn faults_occur_with_the_configured_probability() {
        let faults = NetworkFaults {
            loss: 0.1,
            duplicate: 1.0,
            reorder: 0.5,
            corrupt: 0.0,
            ..NetworkFaults::default()
        };
        let draw_all = draw_all(faults);
        let count = |what: fn(&PacketFaults) -> bool| {
            draw_all
                .iter()
                .filter(|packet_faults| what(packet_faults))
                .count()
        };
        // The seed is fixed, so these numbers are the same in each run. The numbers are within nine
        // standard deviations of the mean.
        assert!((730..1270).contains(&count(|packet_faults| packet_faults.lost)));
        assert_eq!(count(|packet_faults| packet_faults.doubled), 10_000);
        assert!((4550..5450).contains(&count(|packet_faults| packet_faults.overtaken > 0)));
        assert_eq!(count(|packet_faults| packet_faults.overtaken > 3), 0);
        assert_eq!(count(|packet_faults| packet_faults.flipped.is_some()), 0);
    }

    #[test]
    fn a_flipped_bit_is_in_the_packet() {
        let mut generator = FaultGenerator::new(NetworkFaults {
            corrupt: 1.0,
            ..NetworkFaults::default()
        });
        assert!((0..1000).all(|_| {
            generator
                .packet_faults(2)
                .flipped
                .is_some_and(|bit| bit < 16)
        }));
        assert_eq!(generator.packet_faults(0).flipped, None);
    }
}
