//! Checks that a client sends only valid messages and that every call ends, for any messages of the
//! server.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| rdma_rpc::fuzz::client(bytes));
