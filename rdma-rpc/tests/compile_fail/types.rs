struct Opaque;

#[rdma_rpc::service]
trait Wrong {
    async fn method(&self, value: Opaque) -> Result<(), ()>;
}

fn main() {}
