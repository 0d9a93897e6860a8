//! The state of a lease (memory that peers access through a memory window), which changes
//! atomically.

/// The phase of a lease (memory that peers access through a memory window), which determines
/// whether peers have access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Peers cannot access the memory.
    Free,
    /// Peers may have access: the request that binds the window has not completed.
    Binding,
    /// Peers can access the memory.
    Bound,
    /// Peers may still have access: the request that ends the binding has not completed.
    Ending,
    /// Peers may have access. The state of the window is unknown because a request failed, or was
    /// dropped with its queue.
    Unknown,
}

/// The state of a lease, packed into one word: the phase, the low byte of the window's key (the
/// tag), and the generation, which counts how often a window with this number was leased or bound.
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
