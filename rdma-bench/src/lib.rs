//! rdma-bench
