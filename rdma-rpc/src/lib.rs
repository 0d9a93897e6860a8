//! rdma-rpc
