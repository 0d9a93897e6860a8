//! A client: for all messages of a server, the client sends only valid messages, and every call
//! ends.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| rdma_rpc::fuzz::client(bytes));
