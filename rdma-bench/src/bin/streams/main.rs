//! Measures streams of bytes between two processes, over RDMA and over TCP, with the same program.
//!
//! Without a host, `streams` is the server, which serves one measurement. The client prints the
//! result as a line of JSON.

#![forbid(unsafe_code)]

mod transfer;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use rdma_async::{CompletionMode, RdmaDevice};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

use self::transfer::{Stream, measure, serve};

/// Measures streams of bytes between two processes, over RDMA or over TCP.
#[derive(Debug, Clone, Parser)]
struct CommandLine {
    /// Quantity to measure.
    #[arg(value_enum)]
    what: Quantity,
    /// Protocol of the streams.
    #[arg(long, value_enum)]
    by: Protocol,
    /// Number of bytes of a write.
    #[arg(short = 's', long)]
    size: usize,
    /// Number of further streams, which stay idle.
    #[arg(long, default_value_t = 0)]
    idle: usize,
    /// Port of the server.
    #[arg(short = 'p', long)]
    port: u16,
    /// Approximate duration of the measurement.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 500)]
    time: u64,
    /// Address of the server.
    host: Option<std::net::IpAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Quantity {
    /// Writes per second, until the server has read everything.
    Bandwidth,
    /// Round trip of one write and its echo.
    Latency,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Protocol {
    Rdma,
    Tcp,
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    match run(&line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("streams: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(line: &CommandLine) -> anyhow::Result<()> {
    anyhow::ensure!(line.size > 0, "the size must be at least 1 byte");
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let time = Duration::from_millis(line.time);
    runtime.block_on(async {
        match line.host {
            None => {
                let mut streams = accept(line).await?;
                serve(&mut streams[0], line.what, line.size).await
            }
            Some(host) => {
                let mut streams = connect(line, SocketAddr::new(host, line.port)).await?;
                let document = measure(&mut streams[0], line.what, line.size, time).await?;
                println!("{document}");
                Ok(())
            }
        }
    })
}

/// Accepts all streams of a client: the measured stream and the idle streams, whose number is in
/// the command line `line`. Returns the measured stream first.
async fn accept(line: &CommandLine) -> anyhow::Result<Vec<Stream>> {
    let address = SocketAddr::new([0, 0, 0, 0].into(), line.port);
    let mut streams: Vec<Stream> = Vec::new();
    match line.by {
        Protocol::Rdma => {
            let builder = RdmaDevice::open_default()?.builder();
            let mut listener = builder
                .completion(CompletionMode::Busy)
                .bind(address)
                .await?;
            for _ in 0..=line.idle {
                streams.push(Box::pin(listener.accept().await?.into_stream()));
            }
        }
        Protocol::Tcp => {
            let listener = TcpListener::bind(address).await?;
            for _ in 0..=line.idle {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                streams.push(Box::pin(stream));
            }
        }
    }
    Ok(streams)
}

/// Connects all streams to the server: the measured stream and the idle streams. Returns the
/// measured stream first.
async fn connect(line: &CommandLine, server: SocketAddr) -> anyhow::Result<Vec<Stream>> {
    let mut streams: Vec<Stream> = Vec::new();
    match line.by {
        Protocol::Rdma => {
            let device = RdmaDevice::open_default()?;
            for _ in 0..=line.idle {
                let builder = device.builder().completion(CompletionMode::Busy);
                let rdma = builder.connect(server).await?;
                streams.push(Box::pin(rdma.into_stream()));
            }
        }
        Protocol::Tcp => {
            for _ in 0..=line.idle {
                let stream = TcpStream::connect(server).await?;
                stream.set_nodelay(true)?;
                streams.push(Box::pin(stream));
            }
        }
    }
    Ok(streams)
}
