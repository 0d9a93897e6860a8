//! Connections for unit tests.

use crate::{Rdma, RdmaBuilder};

/// Connects two ends on softroce with the settings of `configure`. Returns the connecting and the
/// accepting end.
pub(crate) async fn pair(configure: impl Fn(RdmaBuilder) -> RdmaBuilder) -> (Rdma, Rdma) {
    let builder = || configure(RdmaBuilder::default().device("softroce0"));
    let mut listener = builder().bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_address().unwrap();
    let (client, server) = tokio::join!(builder().connect(address), listener.accept());
    (client.unwrap(), server.unwrap())
}
