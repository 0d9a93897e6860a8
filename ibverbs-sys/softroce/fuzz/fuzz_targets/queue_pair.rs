//! Queue pairs in arbitrary states: transitions, requests, timeouts and packets in any order, with
//! the rules of the simulation.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| softroce::fuzz::queue_pair(bytes));
