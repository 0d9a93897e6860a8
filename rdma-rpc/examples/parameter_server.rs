//! A parameter server: an embedding table whose rows are distributed over several servers.
//!
//! A trainer requests the rows of its samples, which the servers write into the trainer's memory.
//! The trainer then sends gradients, which the servers read from the trainer's memory. This trainer
//! fits the rows to known vectors.
//!
//! ```text
//! cargo run -p rdma-rpc --example parameter_server -- serve rdma://0.0.0.0:7471
//! cargo run -p rdma-rpc --example parameter_server -- train rdma://10.77.0.1:7471 rdma://10.77.0.2:7471
//! ```

use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::{env, process};

use rdma_rpc::{Bulk, Context, Server};

/// Number of rows of the table that each server stores.
const ROWS: usize = 1000;
/// Number of values in a row: the dimension of an embedding.
const WIDTH: usize = 64;

/// Length of a row in bytes.
const ROW: usize = WIDTH * size_of::<f32>();

/// Number of rows that a training step requests from each server.
const BATCH: usize = 256;
/// Number of training steps: enough for the loss to become nearly zero.
const STEPS: usize = 60;

#[rdma_rpc::service]
trait Table {
    /// Writes the rows with the numbers `rows` into the caller's memory `into`, in sequence.
    async fn lookup(&self, cx: &Context, rows: Vec<u32>, into: Bulk) -> Result<(), String>;
    /// Subtracts a gradient, multiplied by the learning rate `rate`, from each of the rows. The
    /// caller's memory `gradients` contains the gradients in sequence.
    async fn update(&self, rows: Vec<u32>, gradients: Bulk, rate: f32) -> Result<(), String>;
}

/// Rows of the table that one server stores, initially zero.
struct Shard(Mutex<Vec<[f32; WIDTH]>>);

fn text(error: impl Error) -> String {
    error.to_string()
}

/// Decodes the values of rows from `bytes`, which contain little-endian numbers.
fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> {
    let words = bytes.chunks_exact(size_of::<f32>());
    words.map(|word| word.try_into().map_or(0.0, f32::from_le_bytes))
}

/// Encodes the values of rows as little-endian numbers into `bytes`.
fn put_numbers(bytes: &mut [u8], numbers: impl IntoIterator<Item = f32>) {
    for (word, number) in bytes.chunks_exact_mut(size_of::<f32>()).zip(numbers) {
        word.copy_from_slice(&number.to_le_bytes());
    }
}

/// Returns an error if a requested row does not exist, or if the bulk does not have the length of
/// the rows.
fn check(rows: &[u32], bulk: &Bulk) -> Result<(), String> {
    match rows.iter().find(|row| **row as usize >= ROWS) {
        Some(row) => Err(format!("there is no row {row}")),
        None if rows.len() * ROW != bulk.len() => {
            Err("the memory must have the length of the rows".to_owned())
        }
        None => Ok(()),
    }
}

impl Table for Shard {
    async fn lookup(&self, cx: &Context, rows: Vec<u32>, into: Bulk) -> Result<(), String> {
        check(&rows, &into)?;
        let mut memory = cx.bulk_memory(into.len()).map_err(text)?;
        {
            let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let values = rows.iter().flat_map(|row| table[*row as usize]);
            put_numbers(&mut memory, values);
        }
        into.write(0, memory).await.0.map_err(text)
    }

    async fn update(&self, rows: Vec<u32>, gradients: Bulk, rate: f32) -> Result<(), String> {
        check(&rows, &gradients)?;
        let gradients = gradients.read(..).await.map_err(text)?;
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (row, gradient) in rows.iter().zip(gradients.chunks_exact(ROW)) {
            for (value, gradient) in table[*row as usize].iter_mut().zip(numbers(gradient)) {
                *value -= rate * gradient;
            }
        }
        Ok(())
    }
}

async fn serve(address: &str) -> Result<(), Box<dyn Error>> {
    let shard = Shard(Mutex::new(vec![[0.0; WIDTH]; ROWS]));
    let server = Server::new(TableServer::new(shard)).listen(address).await?;
    println!("serving at {}", server.address());
    tokio::signal::ctrl_c().await?;
    server.shutdown().await;
    Ok(())
}

/// Returns the value that the training should reach for an element of the table: an arbitrary known
/// number between -1 and 1.
fn target(shard: usize, row: u32, column: usize) -> f32 {
    ((shard * 31 + row as usize * 7 + column) % 17) as f32 / 8.0 - 1.0
}

/// Performs a training step with the rows `rows` of one server, whose index is `shard`: requests
/// the rows and sends their gradients. Returns the loss (mean squared error).
async fn step(table: &TableClient, shard: usize, rows: Vec<u32>) -> Result<f64, Box<dyn Error>> {
    let room = Bulk::writable(table.client().bulk_memory(rows.len() * ROW)?);
    table.lookup(rows.clone(), room.clone()).await?;
    // After the answer, the memory is available again and is used for the gradients.
    let mut memory = room
        .into_memory()
        .map_err(|_| "a call is still lending the memory")?;
    let targets = rows
        .iter()
        .flat_map(|row| (0..WIDTH).map(move |column| target(shard, *row, column)));
    let gradients: Vec<f32> = numbers(&memory)
        .zip(targets)
        .map(|(value, target)| value - target)
        .collect();
    put_numbers(&mut memory, gradients.iter().copied());
    table.update(rows, memory.into(), 0.5).await?;
    let squares = gradients
        .iter()
        .map(|gradient| f64::from(*gradient).powi(2));
    Ok(squares.sum::<f64>() / gradients.len() as f64)
}

async fn train(addresses: &[&str]) -> Result<(), Box<dyn Error>> {
    let mut tables = Vec::new();
    for address in addresses {
        tables.push(TableClient::connect(*address).await?);
    }
    let (mut first, mut last) = (None, 0.0);
    for number in 0..STEPS {
        let mut losses = Vec::new();
        for (shard, table) in tables.iter().enumerate() {
            let row = |sample: usize| ((number * BATCH + sample * 3) % ROWS) as u32;
            losses.push(step(table, shard, (0..BATCH).map(row).collect()).await?);
        }
        last = losses.iter().sum::<f64>() / losses.len() as f64;
        first.get_or_insert(last);
    }
    println!(
        "the loss fell from {:.4} to {last:.4}",
        first.unwrap_or(last)
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &arguments[..] {
        ["serve", address] => serve(address).await,
        ["train", addresses @ ..] if !addresses.is_empty() => train(addresses).await,
        _ => {
            eprintln!("usage: parameter_server [serve ADDRESS | train ADDRESS...]");
            process::exit(2);
        }
    }
}
