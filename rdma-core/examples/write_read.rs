//! Two queue pairs of one process: the first writes to memory of the other, reads it back,
//! compares.
//!
//! ```sh
//! cargo run -p rdma-core --example write_read
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use rdma_core::{
    AccessFlags, Buffer, ConnectOptions, Context, QueuePair, SendQueue, SendRequest, WorkCompletion,
};

fn main() -> Result<(), Box<dyn Error>> {
    let text = b"written by one queue pair, read back by the same";
    let back = write_and_read(text)?;
    assert_eq!(back, text);
    println!("{}", String::from_utf8_lossy(&back));
    Ok(())
}

/// Writes `text` to memory of the peer, and returns the bytes of a read of that memory.
pub(crate) fn write_and_read(text: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let context = Context::open_default()?;
    let domain = context.protection_domain()?;

    // Both ends exchange their addresses. Two processes do this over a socket, with the bytes of
    // `Endpoint::to_bytes`.
    let (here, there) = (domain.queue_pair().build()?, domain.queue_pair().build()?);
    let (to_here, to_there) = (here.endpoint(), there.endpoint());
    let options = ConnectOptions::default();
    let here = here.connect(&to_there, &options)?;
    let _there = there.connect(&to_here, &options)?;

    // The peer exposes memory, and sends the address and key of it: a `RemoteMemory`.
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let exposed = domain.allocate(text.len())?.expose(access)?;
    let remote = exposed.remote();

    // A buffer moves into the request and comes back with its completion, so that no code can
    // access it while the device uses it.
    let mut queue = here.send_queue();
    let mut source = domain.allocate(text.len())?;
    source.copy_from_slice(text);
    let mut buffer = carry_out(&here, &mut queue, SendRequest::write(source, remote))?;
    buffer.fill(0);
    let buffer = carry_out(&here, &mut queue, SendRequest::read(buffer, remote))?;

    // Access ends, and the exposed memory is a plain buffer again.
    let target = exposed.revoke()?;
    assert_eq!(*target, *text);
    Ok(buffer.to_vec())
}

/// Posts one request, waits for its completion, and returns the buffer.
fn carry_out(
    pair: &QueuePair,
    queue: &mut SendQueue<Buffer>,
    request: SendRequest<Buffer>,
) -> Result<Buffer, Box<dyn Error>> {
    queue.post(request)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut room = [WorkCompletion::default()];
    while Instant::now() < deadline {
        if let [completion] = pair.send_completions().poll(&mut room)? {
            completion.result()?;
            return queue.complete(completion).next().ok_or("not ours".into());
        }
    }
    Err("the request did not complete".into())
}
