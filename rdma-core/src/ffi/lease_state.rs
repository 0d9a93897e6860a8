//! The state of a lease, which changes as a whole.

/// What a peer can reach through the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Nothing.
    Free,
    /// Nothing yet or the memory already: the binding is in a request that has not completed.
    Binding,
    /// The memory.
    Bound,
    /// The memory still or nothing any more: the end is in a request that has not completed.
    Ending,
    /// Nobody knows: a request failed, or was lost with its queue.
    Unknown,
}

/// The state of a lease, in one word: the phase, the varying part of the window's key, and how often
/// a window of this number was leased or bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) tag: u8,
    pub(super) generation: u64,
}

impl Default for State {
    fn default() -> Self {
        Self::from_bits(0)
    }
}

impl State {
    pub(super) fn to_bits(self) -> u64 {
        self.generation << 16 | u64::from(self.tag) << 8 | self.phase as u64
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        let phase = match bits as u8 {
            0 => Phase::Free,
            1 => Phase::Binding,
            2 => Phase::Bound,
            3 => Phase::Ending,
            _ => Phase::Unknown,
        };
        Self {
            phase,
            tag: (bits >> 8) as u8,
            generation: bits >> 16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_fit_into_a_word() {
        for phase in [
            Phase::Free,
            Phase::Binding,
            Phase::Bound,
            Phase::Ending,
            Phase::Unknown,
        ] {
            let state = State {
                phase,
                tag: 0xa5,
                generation: (1 << 48) - 1,
            };
            assert_eq!(State::from_bits(state.to_bits()), state);
        }
    }
}
