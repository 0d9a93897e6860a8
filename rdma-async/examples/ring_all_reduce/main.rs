//! Adds the vectors of several processes (all-reduce). The processes form a ring, in which each
//! passes partial sums to the next.
//!
//! ```text
//! ring_all_reduce --rank 0 --ranks 4
//! ```
//!
//! Each process prints the address at which it listens, and reads the address of the next rank from
//! standard input. With N ranks, each vector is divided into N chunks. In each of N - 1 steps, each
//! rank sends one chunk to the next rank and adds the chunk that it receives to its own. Each rank
//! then has one complete chunk. In N - 1 more steps, the ranks pass the complete chunks around the
//! ring. Chunks are sent in pieces; each piece is a message, which the receiver reads from the
//! sender's memory.

mod ring;
mod vector;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser;
use rdma_async::{Rdma, RdmaBuilder, RdmaDevice};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::sleep;

use crate::ring::Ring;
use crate::vector::Vector;

/// Time limit of connecting, long enough even if many processes start on a busy machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Adds the vectors of several processes.
#[derive(Debug, Parser)]
struct Options {
    /// Rank of this process, from 0.
    #[arg(long)]
    rank: usize,
    /// Number of processes.
    #[arg(long)]
    ranks: usize,
    /// Number of elements of the vector.
    #[arg(long, default_value_t = 1 << 20)]
    elements: usize,
    /// Maximum number of elements of a piece.
    #[arg(long, default_value_t = 1 << 16)]
    piece: usize,
    /// Number of reductions, one after the other. The printed time is the mean without the first.
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Address to listen at for the previous rank.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
    /// Address of the next rank, instead of reading it from standard input.
    #[arg(long)]
    next: Option<String>,
}

// The processes of a host share its processors.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match reduce(&Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ring_all_reduce: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn reduce(options: &Options) -> anyhow::Result<()> {
    let (rank, ranks) = (options.rank, options.ranks);
    anyhow::ensure!(rank < ranks, "rank {rank} is not below {ranks}");
    anyhow::ensure!(options.rounds > 0, "--rounds must not be 0");
    anyhow::ensure!(options.piece > 0, "--piece must not be 0");
    let device = RdmaDevice::open_default()?;
    let builder = device.builder().connect_timeout(CONNECT_TIMEOUT);
    let mut listener = builder.clone().bind(&options.listen).await?;
    println!("listening at {}", listener.local_address()?);
    let next = match &options.next {
        Some(next) => next.clone(),
        None => {
            let mut input = BufReader::new(tokio::io::stdin()).lines();
            let line = input.next_line().await?;
            line.context("standard input has no address of the next rank")?
        }
    };
    let connecting = connect(&builder, next.trim());
    let (next, previous) = tokio::try_join!(connecting, listener.accept())?;
    let ring = Ring {
        rank,
        ranks,
        next,
        previous,
    };
    let mut vector = Vector::of_rank(&device, rank, ranks, options.elements, options.piece)?;
    let mut begun = Instant::now();
    for round in 0..options.rounds {
        if round == 1 {
            begun = Instant::now();
        }
        ring.reduce(&mut vector).await?;
    }
    let took = begun.elapsed() / options.rounds.saturating_sub(1).max(1);
    vector.check(ranks, options.rounds)?;
    let millis = took.as_secs_f64() * 1e3;
    println!(
        "{} elements are right, after {millis:.3} ms",
        options.elements
    );
    Ok(())
}

/// Connects to a process that may not yet listen: repeats the attempt for at most
/// [`CONNECT_TIMEOUT`].
async fn connect(builder: &RdmaBuilder, address: &str) -> rdma_async::Result<Rdma> {
    let latest = Instant::now() + CONNECT_TIMEOUT;
    loop {
        match builder.clone().connect(address).await {
            Err(_) if Instant::now() < latest => sleep(Duration::from_millis(10)).await,
            outcome => return outcome,
        }
    }
}
