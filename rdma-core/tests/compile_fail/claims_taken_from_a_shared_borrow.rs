//! A claim for writing needs the whole shared buffer for itself.

use std::sync::Arc;

use rdma_core::{memory::{SharedBuffer, WriteClaim}, Result};

fn example(shared: Arc<SharedBuffer>) -> Result<WriteClaim> {
    shared.try_write(..8)
}

fn main() {}
