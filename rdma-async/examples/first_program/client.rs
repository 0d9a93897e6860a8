use rdma_async::{LocalMrWriteAccess, RdmaBuilder};
use std::{
    alloc::Layout,
    io::Write,
    net::{Ipv4Addr, SocketAddrV4},
};

async fn client(addr: SocketAddrV4) -> Result<(), Box<dyn std::error::Error>> {
    let layout = Layout::new::<[u8; 8]>();
    let rdma = RdmaBuilder::default().connect(addr).await?;
    // 分配远程内存区域
    let mut rmr = rdma.request_remote_mr(layout).await?;
    // 分配本地内存区域
    let mut lmr = rdma.alloc_local_mr(layout)?;
    // 写入数据到本地内存
    lmr.as_mut_slice().write(&[1_u8; 8])?;
    // 将本地内存的数据写入远程内存
    rdma.write(&lmr.get(4..8).unwrap(), &mut rmr.get_mut(4..8).unwrap())
        .await?;
    // 发送远程内存区域的元数据到服务器
    rdma.send_remote_mr(rmr).await?;
    Ok(())
}

#[tokio::main]
async fn main() {
    let addr = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 1), 8080);
    tokio::spawn(async move { server(addr).await.unwrap() });
    tokio::time::sleep(tokio::time::Duration::from_secs(1)).await;
    client(addr).await.unwrap();
}
