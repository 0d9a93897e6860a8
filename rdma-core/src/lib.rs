//! rdma-core
