//! Handshakes: whatever other processes send to the listener, with whatever descriptors, the process goes on, keeps its
//! limits, and keeps nothing of those who are gone.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| softroce::fuzz::handshake(bytes));
