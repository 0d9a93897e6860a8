//! Messages of a peer: every message is refused, or is the same after it was encoded again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| rdma_rpc::fuzz::frames(bytes));
