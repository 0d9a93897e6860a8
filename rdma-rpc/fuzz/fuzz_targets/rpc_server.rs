//! A server: for all messages of a peer, the server serves its other clients, runs no more calls of
//! the peer than it may, sends only valid messages, and keeps nothing of the peer.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| rdma_rpc::fuzz::server(bytes));
