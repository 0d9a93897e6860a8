//! Packets with the manufacturer's opcodes between two connected queue pairs: they change no memory
//! and complete no request.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| softroce::fuzz::manufacturer(bytes));
