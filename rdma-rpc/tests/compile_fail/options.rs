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
    #[rpc(id = "one")]
    async fn text(&self) -> Result<(), ()>;
}

#[rdma_rpc::service(format = Postcard)]
trait Unknown {
    async fn method(&self) -> Result<(), ()>;
}

fn main() {}
