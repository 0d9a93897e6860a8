//! A peer's tables of queue pairs and memory: whatever is in them, what this process copies stays inside of mappings.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| softroce::fuzz::tables(bytes));
