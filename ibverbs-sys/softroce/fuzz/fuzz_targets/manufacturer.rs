//! Packets of the manufacturer's opcodes, between two queue pairs that are connected: they change no memory and end no request.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| softroce::fuzz::manufacturer(bytes));
