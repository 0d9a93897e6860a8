#[rdma_rpc::service]
trait Generic<T> {
    async fn method(&self) -> Result<(), ()>;
}

#[rdma_rpc::service]
trait Bounded
where
    Self: Clone,
{
    async fn method(&self) -> Result<(), ()>;
}

#[rdma_rpc::service]
trait Above: Clone {
    async fn method(&self) -> Result<(), ()>;
}

#[rdma_rpc::service]
struct NoTrait;

fn main() {}
