//! Checks that every message is refused, or is unchanged after it was decoded and encoded again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| rdma_rpc::fuzz::frames(bytes));
