//! The implementation of tower's `Service` for [`Client`].

use std::pin::Pin;
use std::task::{Context, Poll};

use tower_service::Service;

use super::{Client, Reply, Request, Route};
use crate::error::Error;

/// Use of a client as a [tower](https://docs.rs/tower) service. Tower's layers can limit, repeat
/// and distribute calls.
///
/// The service is always ready while the connection of the client is open: calls beyond the
/// [concurrency] of the connection wait in their futures. After the end of the connection,
/// `poll_ready` returns the reason as an error, so that `tower::balance` removes the service.
///
/// [concurrency]: crate::ClientBuilder::concurrency
///
/// ```
/// use std::time::Duration;
///
/// use rdma_rpc::{Address, Client, Postcard, Request, Server};
/// use tower::{ServiceBuilder, ServiceExt};
///
/// # #[rdma_rpc::service]
/// # trait Doubler {
/// #     async fn double(&self, number: u32) -> Result<u32, String>;
/// # }
/// # struct ByAddition;
/// # impl Doubler for ByAddition {
/// #     async fn double(&self, number: u32) -> Result<u32, String> {
/// #         Ok(number + number)
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let server = Server::new(DoublerServer::new(ByAddition)).listen(Address::memory()).await?;
/// let client = Client::connect(server.address()).await?;
/// let limited = ServiceBuilder::new()
///     .concurrency_limit(8)
///     .timeout(Duration::from_secs(1))
///     .service(client);
/// let request = Request::new::<Postcard, _>("Doubler.double", &4_u32)?;
/// let reply = limited.oneshot(request).await?;
/// assert_eq!(reply.decode::<Postcard, u32, String>()?, 8);
/// # Ok(())
/// # }
/// ```
impl Service<Request> for Client {
    type Response = Reply;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Reply, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match &self.route {
            Route::One(connection) => {
                Poll::Ready(connection.core.end().cloned().map_or(Ok(()), Err))
            }
            Route::Several(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let client = self.clone();
        Box::pin(async move { client.request(&request).await })
    }
}
