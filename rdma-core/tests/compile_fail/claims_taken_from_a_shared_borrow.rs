//! A write claim needs an exclusive borrow of the shared buffer.

use std::sync::Arc;

use rdma_core::{memory::{SharedBuffer, WriteClaim}, Result};

fn example(shared: Arc<SharedBuffer>) -> Result<WriteClaim> {
    shared.try_write(..8)
}

fn main() {}
