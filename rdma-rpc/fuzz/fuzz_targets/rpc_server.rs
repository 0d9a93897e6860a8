//! Checks that a server serves its other clients, limits the calls of the peer, sends only valid
//! messages, and frees all resources of the peer, for any messages of the peer.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| rdma_rpc::fuzz::server(bytes));
