//! The ring of a link: for all bytes that a peer writes into the shared memory, no thread is
//! blocked, and no received record is longer than allowed or comes after the end.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| softroce::fuzz::ring(bytes));
