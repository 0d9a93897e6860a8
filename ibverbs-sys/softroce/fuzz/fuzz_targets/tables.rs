//! A peer's tables of queue pairs and memory: for all their contents, this process copies only
//! inside of mappings.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| softroce::fuzz::tables(bytes));
