#![allow(unused_imports)]

use rdma_rpc::{Payload, Sender};

#[rdma_rpc::service]
trait Wrong {
    #[rpc(onway)]
    async fn misspelt(&self);
    #[rpc(oneway)]
    async fn with_result(&self) -> Result<(), ()>;
    #[rpc(oneway)]
    async fn with_stream(&self, items: Sender<u32>);
    #[rpc(raw)]
    async fn two_values(&self, first: Payload, second: Payload) -> Result<Payload, ()>;
    #[rpc(raw)]
    async fn raw_stream(&self, bytes: Payload, items: Sender<u32>) -> Result<Payload, ()>;
    #[rpc(raw, oneway)]
    async fn raw_one_way(&self, bytes: Payload);
    #[rpc(raw)]
    async fn raw_nothing(&self) -> Result<Payload, ()>;
    #[rpc(service::raw)]
    async fn path(&self) -> Result<(), ()>;
    #[rpc(id = 0x1_0000_0000)]
    async fn above(&self) -> Result<(), ()>;
    #[rpc(id = "one")]
    async fn text(&self) -> Result<(), ()>;
}

#[rdma_rpc::service(format = Postcard)]
trait Unknown {
    async fn method(&self) -> Result<(), ()>;
}

#[rdma_rpc::service(codec: Postcard)]
trait Colon {
    async fn method(&self) -> Result<(), ()>;
}

#[rdma_rpc::service(codec = Postcard codec = Postcard)]
trait NoComma {
    async fn method(&self) -> Result<(), ()>;
}

fn main() {}
