//! Fuzz targets for the parts of the device that receive data from other processes.
//!
//! Each function takes the bytes of one input, and panics if an invariant is violated. The targets
//! in `fuzz/` call the functions with inputs of libFuzzer, and the tests here with a few fixed
//! inputs.
#![forbid(unsafe_code)]

mod input;

pub(crate) use input::Input;

pub use crate::proto::fuzz::{manufacturer, queue_pair};
pub use crate::same_host::fuzz::{handshake, ring, tables};

#[cfg(all(test, not(loom)))]
mod tests {
    /// Returns fixed inputs of different kinds for tests of the fuzz targets: empty, one byte
    /// repeated, counting bytes, and pseudo-random bytes.
    fn inputs() -> impl Iterator<Item = Vec<u8>> {
        let same = [0, 1, 0x55, 0xff].map(|byte| vec![byte; 300]);
        let counting = (0..=255).cycle().take(600).collect();
        let random = (1..40_u32).map(|seed| {
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            (0..seed * 30).map(|_| next()).collect()
        });
        [Vec::new(), counting].into_iter().chain(same).chain(random)
    }

    #[test]
    fn handshakes_of_fixed_inputs() {
        inputs().for_each(|bytes| super::handshake(&bytes));
    }

    #[test]
    fn rings_of_fixed_inputs() {
        inputs().for_each(|bytes| super::ring(&bytes));
    }

    #[test]
    fn tables_of_fixed_inputs() {
        inputs().for_each(|bytes| super::tables(&bytes));
    }

    #[test]
    fn manufacturer_packets_of_fixed_inputs() {
        inputs().for_each(|bytes| super::manufacturer(&bytes));
    }

    #[test]
    fn queue_pairs_of_fixed_inputs() {
        inputs().for_each(|bytes| super::queue_pair(&bytes));
    }
}
