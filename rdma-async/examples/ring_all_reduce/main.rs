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
use rdma_async::RdmaDevice;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::ring::Ring;
use crate::vector::Vector;

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
    /// Address to listen at for the previous rank.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
}

#[tokio::main]
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
    let device = RdmaDevice::open_default()?;
    // Long enough for many processes on a busy machine.
    let builder = device.builder().connect_timeout(Duration::from_secs(60));
    let mut listener = builder.clone().bind(&options.listen).await?;
    println!("listening at {}", listener.local_address()?);
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let next = input.next_line().await?;
    let next = next.context("standard input has no address of the next rank")?;

    let connecting = builder.connect(next.trim());
    let (next, previous) = tokio::try_join!(connecting, listener.accept())?;
    let ring = Ring {
        rank,
        ranks,
        next,
        previous,
    };
    let mut vector = Vector::of_rank(&device, rank, ranks, options.elements)?;
    let begun = Instant::now();
    ring.reduce(&mut vector).await?;
    let took = begun.elapsed();
    vector.check(ranks)?;
    println!("{} elements are right, after {took:.1?}", options.elements);
    Ok(())
}
