//! Traits of axum, tonic, hyper and futures for [`RdmaStream`](crate::RdmaStream) and its
//! listener, each behind a feature.

#[cfg(feature = "axum")]
mod axum_listener {
    use std::io;
    use std::net::SocketAddr;
    use std::time::Duration;

    use tokio::time::sleep;

    use crate::listener::RdmaListener;
    use crate::stream::RdmaStream;

    /// Pause after an error of accepting, such as too many open files. Long enough that a lasting
    /// error does not occupy a processor.
    const RETRY_DELAY: Duration = Duration::from_millis(100);

    impl axum::serve::Listener for RdmaListener {
        type Io = RdmaStream;
        type Addr = SocketAddr;

        /// Waits for the next peer, and returns its stream and its address. If accepting fails,
        /// logs the error, and tries again after a pause.
        async fn accept(&mut self) -> (RdmaStream, SocketAddr) {
            loop {
                match self.accept_stream().await {
                    Ok(accepted) => return accepted,
                    Err(error) => {
                        tracing::error!(%error, "no connection could be accepted");
                        sleep(RETRY_DELAY).await;
                    }
                }
            }
        }

        fn local_addr(&self) -> io::Result<SocketAddr> {
            Ok(self.local_address()?)
        }
    }
}

#[cfg(feature = "tonic")]
mod tonic_connection {
    use tonic::transport::server::{Connected, TcpConnectInfo};

    use crate::stream::RdmaStream;

    impl Connected for RdmaStream {
        /// The addresses of the stream's TCP connection, which [`tonic::Request::remote_addr`] and
        /// [`tonic::Request::local_addr`] return.
        type ConnectInfo = TcpConnectInfo;

        fn connect_info(&self) -> TcpConnectInfo {
            TcpConnectInfo {
                local_addr: Some(self.local_address()),
                remote_addr: Some(self.peer_address()),
            }
        }
    }
}

#[cfg(feature = "hyper")]
pub use self::connector::{Connecting, RdmaConnector};

#[cfg(feature = "hyper")]
mod connector {
    use std::fmt;
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http::Uri;
    use hyper_util::client::legacy::connect::{Connected, Connection};
    use hyper_util::rt::TokioIo;
    use tower_service::Service;

    use crate::builder::RdmaBuilder;
    use crate::error::{Error, Result};
    use crate::stream::RdmaStream;

    /// Connector for HTTP and gRPC clients: hyper's `Client` and tonic's `Endpoint`. Connects to
    /// the host and TCP port of the URI. The default port is 80.
    ///
    /// ```
    /// use hyper_util::client::legacy::Client;
    /// use hyper_util::rt::TokioExecutor;
    /// use rdma_async::RdmaConnector;
    ///
    /// # type Body = String;
    /// let connector = RdmaConnector::default();
    /// let client: Client<_, Body> = Client::builder(TokioExecutor::new()).build(connector);
    /// ```
    #[derive(Debug, Clone, Default)]
    pub struct RdmaConnector {
        builder: RdmaBuilder,
    }

    impl RdmaConnector {
        /// Creates a connector whose connections have the settings of `builder`. With
        /// [`RdmaBuilder::on`], the connections share the memory and queues of one device.
        pub fn new(builder: RdmaBuilder) -> Self {
            Self { builder }
        }
    }

    /// Future of a connection attempt of [`RdmaConnector`], which resolves to the connection as a
    /// stream of bytes.
    pub struct Connecting(Pin<Box<dyn Future<Output = Result<RdmaStream>> + Send>>);

    impl fmt::Debug for Connecting {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Connecting").finish_non_exhaustive()
        }
    }

    impl Future for Connecting {
        type Output = Result<TokioIo<RdmaStream>>;

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
            self.0
                .as_mut()
                .poll(cx)
                .map(|outcome| outcome.map(TokioIo::new))
        }
    }

    impl Service<Uri> for RdmaConnector {
        type Response = TokioIo<RdmaStream>;
        type Error = Error;
        type Future = Connecting;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, uri: Uri) -> Connecting {
            let builder = self.builder.clone();
            Connecting(Box::pin(async move {
                let host = uri.host().ok_or_else(|| {
                    Error::invalid("URI to connect to", format!("{uri} has no host"))
                })?;
                // An IPv6 address is written in brackets.
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let port = uri.port_u16().unwrap_or(80);
                Ok(builder.connect((host, port)).await?.into_stream())
            }))
        }
    }

    impl Connection for RdmaStream {
        fn connected(&self) -> Connected {
            Connected::new()
        }
    }
}

#[cfg(feature = "futures-io")]
mod futures_io {
    use std::io::{self, IoSlice};
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use futures_util::io::{AsyncRead, AsyncWrite};
    use tokio::io::ReadBuf;

    use crate::stream::RdmaStream;

    impl AsyncRead for RdmaStream {
        fn poll_read(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            let mut buf = ReadBuf::new(buf);
            ready!(tokio::io::AsyncRead::poll_read(self, cx, &mut buf))?;
            Poll::Ready(Ok(buf.filled().len()))
        }
    }

    impl AsyncWrite for RdmaStream {
        fn poll_write(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            tokio::io::AsyncWrite::poll_write(self, cx, buf)
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            tokio::io::AsyncWrite::poll_write_vectored(self, cx, bufs)
        }

        fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            tokio::io::AsyncWrite::poll_flush(self, cx)
        }

        fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            tokio::io::AsyncWrite::poll_shutdown(self, cx)
        }
    }
}
