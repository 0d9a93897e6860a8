#[rdma_rpc::service]
trait Wrong {
    #[rpc(id = 7)]
    async fn first(&self) -> Result<(), ()>;
    #[rpc(id = 7)]
    async fn second(&self) -> Result<(), ()>;
}

fn main() {}
