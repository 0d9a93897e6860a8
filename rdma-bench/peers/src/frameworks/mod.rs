//! The RPC frameworks that are compared with rdma-rpc.

mod capnp;
mod tarpc;
mod tcp;
pub(crate) mod tonic;

use anyhow::bail;
use clap::ValueEnum;

use crate::Test;
use crate::connection;
use crate::load::{Load, Measured};

/// An RPC framework to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Framework {
    /// No framework: messages of a fixed length on a TCP connection of tokio.
    Tcp,
    /// gRPC by tonic, with messages of prost.
    Tonic,
    /// tarpc with bincode.
    Tarpc,
    /// Cap'n Proto's RPC.
    Capnp,
}

/// Accepts a client on `port`, and serves its calls with `framework` until the client ends the
/// measurement.
pub(crate) async fn serve(framework: Framework, port: u16) -> anyhow::Result<()> {
    match framework {
        Framework::Tcp => tcp::serve(port).await,
        Framework::Tonic => tonic::serve(port).await,
        Framework::Tarpc => tarpc::serve(port).await,
        Framework::Capnp => capnp::serve(port).await,
    }
}

/// Connects to the server and puts a load on it over `framework`: calls, or the items of a stream.
/// Returns the measured rate.
pub(crate) async fn measure(
    framework: Framework,
    test: Test,
    load: &Load,
    target: (&str, u16),
) -> anyhow::Result<Measured> {
    let _control = connection::control(target).await?;
    match (framework, test) {
        (Framework::Tonic, Test::Items) => tonic::items(load, target).await,
        (_, Test::Items) => bail!("only tonic is measured with streams of items"),
        (Framework::Tcp, Test::Rate) => tcp::rate(load, target).await,
        (Framework::Tcp, Test::Latency) => tcp::measure(load, target).await,
        (Framework::Tonic, _) => tonic::measure(load, target).await,
        (Framework::Tarpc, _) => tarpc::measure(load, target).await,
        (Framework::Capnp, _) => capnp::measure(load, target).await,
    }
}
