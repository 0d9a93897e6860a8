//! Handshakes: for all bytes and descriptors that other processes send to the listener, the process
//! continues, stays within its limits, and keeps nothing of processes that have ended.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| softroce::fuzz::handshake(bytes));
