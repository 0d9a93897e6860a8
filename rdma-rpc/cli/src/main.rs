//! The command `rdma-rpc`, which lists, calls and monitors the methods of a running server. The
//! server must offer [reflection](rdma_rpc::Server::reflection).

#![forbid(unsafe_code)]

mod call;
mod format;
mod list;
mod ping;
mod transcode;
mod watch;

use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand};
use rdma_rpc::{Client, Metadata};

/// Lists, calls and monitors the methods of a running rdma-rpc server.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Time limit of each call, in milliseconds.
    #[arg(long, global = true, default_value_t = 10_000)]
    deadline: u64,
    /// Metadata of the requests, also sent as credentials of the connection: `name=value`.
    #[arg(long = "metadata", global = true, value_name = "NAME=VALUE")]
    metadata: Vec<String>,
    #[command(subcommand)]
    command: Command,
}

/// Subcommand of `rdma-rpc`.
#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the methods of a server with their types.
    List {
        /// Address of the server: `rdma://host:port` or `tcp://host:port`.
        address: String,
        /// Also prints the structs and enums.
        #[arg(long)]
        types: bool,
    },
    /// Calls a method, and prints its result as JSON.
    Call {
        /// Address of the server.
        address: String,
        /// Name of the method, for example `Store.get`.
        method: String,
        /// Arguments as JSON: the value of a single argument, or an array of several arguments.
        #[arg(default_value = "null")]
        arguments: String,
    },
    /// Measures the round-trip time of calls, and prints quantiles and a histogram.
    Ping {
        /// Address of the server.
        address: String,
        /// Number of calls.
        #[arg(long, default_value_t = 1000)]
        count: u64,
    },
    /// Prints the number and the rate of calls of each method periodically.
    Watch {
        /// Address of the server.
        address: String,
        /// Time between two outputs, in milliseconds.
        #[arg(long, default_value_t = 1000)]
        interval: u64,
        /// Number of outputs; unlimited by default.
        #[arg(long)]
        count: Option<u64>,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut metadata = Metadata::default();
    for pair in &arguments.metadata {
        let (name, value) = pair.split_once('=').context("metadata is NAME=VALUE")?;
        metadata = metadata.with(name, value);
    }
    let connect = async |address: &str| {
        let builder = Client::builder()
            .deadline(Duration::from_millis(arguments.deadline))
            .credentials(metadata.clone());
        let connecting = builder.connect(address).await;
        let client = connecting.with_context(|| format!("connecting to {address}"))?;
        anyhow::Ok(client.with_metadata(metadata.clone()))
    };
    match arguments.command {
        Command::List { address, types } => list::run(connect(&address).await?, types).await,
        Command::Call {
            address,
            method,
            arguments,
        } => call::run(connect(&address).await?, &method, &arguments).await,
        Command::Ping { address, count } => ping::run(connect(&address).await?, count).await,
        Command::Watch {
            address,
            interval,
            count,
        } => {
            let interval = Duration::from_millis(interval);
            watch::run(connect(&address).await?, interval, count).await
        }
    }
}
