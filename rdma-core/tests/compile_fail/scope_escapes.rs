//! A scope does not outlive its closure.

use std::time::Duration;

use rdma_core::{QueuePair, Scope};

fn example(pair: &QueuePair) {
    let mut kept: Option<&Scope<'_, '_>> = None;
    let _ = pair.scope(Duration::from_secs(1), |scope| kept = Some(scope));
    drop(kept);
}

fn main() {}
