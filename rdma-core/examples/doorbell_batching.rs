//! Posts many requests with one call of the driver. The program writes the pieces of a message to
//! the peer's memory, first one by one and then in batches, and prints both times.
//!
//! Only the last request of each batch is signaled: its completion completes all before it.
//!
//! ```sh
//! cargo run -p rdma-core --example doorbell_batching -- 100000
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use rdma_core::{
    AccessFlags, ConnectOptions, Context, ExposedMemory, FrozenBuffer, QueuePair, RemoteMemory,
    SendQueue, SendRequest, WorkCompletion,
};

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

/// Length of a piece in bytes, and number of pieces per ring of the doorbell.
const PIECE: usize = 64;
const BATCH: usize = 32;

fn main() -> Result {
    let count = std::env::args()
        .nth(1)
        .map_or(Ok(50_000), |it| it.parse())?;
    let outcome = compare(count)?;
    assert_eq!(outcome.written[0], outcome.written[1]);
    println!("{}", outcome.described());
    Ok(())
}

/// Times of the same requests, posted in both ways.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) requests: usize,
    pub(crate) one_by_one: Duration,
    pub(crate) batched: Duration,
    /// Contents of the peer's memory after each way.
    pub(crate) written: [Vec<u8>; 2],
}

impl Outcome {
    pub(crate) fn described(&self) -> String {
        let rate = |time: Duration| self.requests as f64 / time.as_secs_f64() / 1e6;
        format!(
            "{} writes of {PIECE} bytes: {:.3} million in a second one by one, {:.3} in batches of {BATCH}",
            self.requests,
            rate(self.one_by_one),
            rate(self.batched),
        )
    }
}

/// Writes the pieces of a message again and again. `requests` is their total number, rounded up to
/// whole batches.
pub(crate) fn compare(requests: usize) -> Result<Outcome> {
    let context = Context::open_default()?;
    let domain = context.protection_domain()?;
    let builder = || domain.queue_pair().send_requests(2 * BATCH as u32);
    let (here, there) = (builder().build()?, builder().build()?);
    let (to_here, to_there) = (here.endpoint(), there.endpoint());
    let options = ConnectOptions::default();
    let here = here.connect(&to_there, &options)?;
    let _there = there.connect(&to_here, &options)?;

    // The message, which many requests may send from, and its destination.
    let mut message = domain.allocate(BATCH * PIECE)?;
    for (index, piece) in message.chunks_mut(PIECE).enumerate() {
        piece.fill(index as u8 + 1);
    }
    let message = message.freeze();
    let target = domain.allocate(BATCH * PIECE)?;
    let target = target.expose(AccessFlags::REMOTE_WRITE)?;

    let mut queue = here.send_queue();
    let batches = requests.div_ceil(BATCH);
    let start = Instant::now();
    for _ in 0..batches {
        for request in pieces(&message, target.remote()) {
            queue.post(request?)?;
        }
        complete(&here, &mut queue)?;
    }
    let one_by_one = start.elapsed();
    let first = content(&target)?;

    target.write_at(0, &[0; BATCH * PIECE])?;
    let start = Instant::now();
    for _ in 0..batches {
        let mut batch = queue.batch();
        for request in pieces(&message, target.remote()) {
            batch.push(request?)?;
        }
        batch.post().map_err(rdma_core::Error::from)?;
        complete(&here, &mut queue)?;
    }
    let batched = start.elapsed();
    Ok(Outcome {
        requests: batches * BATCH,
        one_by_one,
        batched,
        written: [first, content(&target)?],
    })
}

/// Returns the requests for all pieces, of which the last one is signaled.
fn pieces(
    message: &FrozenBuffer,
    target: RemoteMemory,
) -> impl Iterator<Item = rdma_core::Result<SendRequest<FrozenBuffer>>> {
    (0..BATCH).map(move |index| {
        let range = index * PIECE..(index + 1) * PIECE;
        let request = SendRequest::write(message.slice(range.clone())?, target.slice(range)?);
        Ok(if index + 1 < BATCH {
            request.unsignaled()
        } else {
            request
        })
    })
}

/// Waits until all requests in flight have completed.
fn complete(pair: &QueuePair, queue: &mut SendQueue<FrozenBuffer>) -> Result {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut room = [WorkCompletion::default(); 4];
    while queue.in_flight() > 0 {
        for completion in pair.send_completions().poll(&mut room)? {
            completion.result()?;
            drop(queue.complete(completion));
        }
        if Instant::now() > deadline {
            return Err("the requests did not complete".into());
        }
    }
    Ok(())
}

fn content(memory: &ExposedMemory) -> Result<Vec<u8>> {
    let mut content = vec![0; memory.len()];
    memory.read_at(0, &mut content)?;
    Ok(content)
}
