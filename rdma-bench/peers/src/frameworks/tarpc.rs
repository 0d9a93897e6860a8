//! tarpc with bincode.

use ::tarpc::client::Config;
use ::tarpc::context;
use ::tarpc::serde_transport::{self, Transport};
use ::tarpc::server::{BaseChannel, Channel};
use ::tarpc::tokio_serde::formats::Bincode;
use ::tarpc::tokio_util::codec::{Framed, LengthDelimitedCodec};
use anyhow::ensure;
use futures_util::StreamExt;
use tokio::net::TcpStream;

use crate::connection;
use crate::load::{Load, Measured};

/// The tarpc service that is measured.
#[::tarpc::service]
trait Bench {
    /// Returns `bytes` unchanged.
    async fn echo(bytes: Vec<u8>) -> Vec<u8>;
}

#[derive(Clone)]
struct Served;

impl Bench for Served {
    async fn echo(self, _: context::Context, bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }
}

/// Returns tarpc's transport over the connection `stream`, with bincode as its format. `I` is the
/// type of received messages, `O` the type of sent messages.
fn transport<I, O>(stream: TcpStream) -> Transport<TcpStream, I, O, Bincode<I, O>>
where
    I: for<'de> ::tarpc::serde::Deserialize<'de>,
    O: ::tarpc::serde::Serialize,
{
    let framed = Framed::new(stream, LengthDelimitedCodec::new());
    serde_transport::new(framed, Bincode::default())
}

pub(super) async fn serve(port: u16) -> anyhow::Result<()> {
    connection::serve(port, async |stream| {
        let channel = BaseChannel::with_defaults(transport(stream));
        let handled = channel.execute(Served.serve());
        handled
            .for_each(async |response| {
                tokio::spawn(response);
            })
            .await;
        Ok(())
    })
    .await
}

/// Connects to the server `target` and measures tarpc calls with the load `load`.
pub(super) async fn measure(load: &Load, target: (&str, u16)) -> anyhow::Result<Measured> {
    let stream = connection::open(target).await?;
    let client = BenchClient::new(Config::default(), transport(stream)).spawn();
    let call = async || {
        let bytes = vec![0; load.size];
        let response = client.echo(context::current(), bytes).await?;
        ensure!(response.len() == load.size, "wrong response length");
        Ok(())
    };
    load.calls(&call).await
}
