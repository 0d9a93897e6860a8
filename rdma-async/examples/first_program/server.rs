use rdma_async::{LocalMrReadAccess, RdmaBuilder};
use std::net::{Ipv4Addr, SocketAddrV4};
use tokio::runtime::Runtime;

#[tokio::main]
async fn server(addr: SocketAddrV4) -> Result<(), Box<dyn std::error::Error>> {
    let rdma = RdmaBuilder::default().listen(addr).await?;
    // 接收客户端发送的内存区域
    let lmr = rdma.receive_local_mr().await?;
    // 读取数据
    let data = lmr.as_slice();
    println!("Received data: {:?}", data);
    Ok(())
}
