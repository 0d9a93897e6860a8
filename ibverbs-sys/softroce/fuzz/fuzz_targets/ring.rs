//! The ring of a link: whatever a peer writes into the shared memory, no thread is kept, and nothing that is received is
//! longer than it may be or comes after the end.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| softroce::fuzz::ring(bytes));
