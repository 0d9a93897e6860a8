//! rdma-async
