//! Measures access to the memory of a peer: reads of published values, and grants of access for a
//! limited time.

use std::alloc::Layout;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rdma_async::{Published, PublishedReader, RdmaDevice};
use rdma_core::memory::WindowType;
use rdma_core::{AccessFlags, Context, QueuePair, SendQueue, SendRequest, WorkCompletion};
use serde_json::Value;

use crate::idle::{pairs, runtime};
use crate::operations::core_pair;
use crate::result::Samples;

/// Size in bytes of the value that the measured reads return.
const VALUE_SIZE: usize = 64;
/// Size in bytes of the memory to which a peer gets access, in measurements of granting access.
const GRANTED_SIZE: usize = 4096;
/// Number of operations that one sample measures together, so that the time to read the clock does
/// not matter.
const BATCH: usize = 500;
/// Time for which rdma-async lends memory to the peer. The time is so long that it never expires
/// during the measurement.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Measures the number of reads of [`VALUE_SIZE`] bytes of a peer's memory per second. The reads
/// are plain RDMA reads: the reader does not check that the bytes are a consistent value. Measures
/// for about `time`, and returns the result as JSON.
pub(crate) fn raw_reads(time: Duration) -> anyhow::Result<Value> {
    runtime()?.block_on(async {
        let ends = [RdmaDevice::open_default()?, RdmaDevice::open_default()?];
        let (client, _server) = pairs(&ends, 1).await?.pop().context("no connection")?;
        let layout = Layout::from_size_align(VALUE_SIZE, 8)?;
        let remote = client.request_remote_mr(layout).await?;
        let mut local = client.alloc_local_mr(layout)?;
        let mut samples = Samples::new(time);
        loop {
            let begun = Instant::now();
            for _ in 0..BATCH {
                client.read(&mut local, &remote).await?;
            }
            if samples.add(begun.elapsed(), BATCH) {
                return Ok(samples.rate());
            }
        }
    })
}

/// Measures the number of reads of a published value of [`VALUE_SIZE`] bytes per second. If
/// `updated` is set, another thread updates the value without pause. Measures for about `time`, and
/// returns the result as JSON.
pub(crate) fn published_reads(updated: bool, time: Duration) -> anyhow::Result<Value> {
    runtime()?.block_on(async {
        let ends = [RdmaDevice::open_default()?, RdmaDevice::open_default()?];
        let (client, _server) = pairs(&ends, 1).await?.pop().context("no connection")?;
        let mut value = ends[1].publish(VALUE_SIZE)?;
        value.update(&[7; VALUE_SIZE])?;
        let mut reader = PublishedReader::new(&client, value.token())?;
        let is_over = Arc::new(AtomicBool::new(!updated));
        let updating = {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || update(value, &is_over))
        };
        let mut samples = Samples::new(time);
        loop {
            let begun = Instant::now();
            for _ in 0..BATCH {
                ensure!(
                    reader.read().await?.len() == VALUE_SIZE,
                    "the value has another length"
                );
            }
            if samples.add(begun.elapsed(), BATCH) {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        ensure!(updating.join().is_ok(), "the updating thread panicked");
        Ok(samples.rate())
    })
}

/// Updates the published value `value` again and again, so that the reads of another thread meet
/// concurrent updates. Stops when that thread sets `is_over`, and returns `value`.
fn update(mut value: Published, is_over: &AtomicBool) -> Published {
    let mut number = 0_u8;
    while !is_over.load(Ordering::Relaxed) {
        number = number.wrapping_add(1);
        value
            .update(&[number; VALUE_SIZE])
            .expect("the value has room for it");
    }
    value
}

/// Measures the time to grant a peer access to [`GRANTED_SIZE`] bytes by
/// [`rdma_async::Rdma::reserve`] and to revoke the access, for about `time`. Returns the result as
/// JSON.
pub(crate) fn async_grant(time: Duration) -> anyhow::Result<Value> {
    runtime()?.block_on(async {
        let ends = [RdmaDevice::open_default()?, RdmaDevice::open_default()?];
        let (client, _server) = pairs(&ends, 1).await?.pop().context("no connection")?;
        let mut region = client.alloc_local_mr(Layout::from_size_align(GRANTED_SIZE, 8)?)?;
        let mut samples = Samples::new(time);
        loop {
            let begun = Instant::now();
            for _ in 0..BATCH {
                let reserved = client.reserve(region, TIME_LIMIT, |grant| ready(grant.token()));
                region = reserved.await?.region;
            }
            if samples.add(begun.elapsed(), BATCH) {
                return Ok(samples.time());
            }
        }
    })
}

/// Measures the time that rdma-core takes to grant a peer access to [`GRANTED_SIZE`] bytes and to
/// revoke the access. Binds a memory window of type 2, and invalidates the window. Measures for
/// about `time`, and returns the result as JSON.
pub(crate) fn core_grant(time: Duration) -> anyhow::Result<Value> {
    let domain = Context::open_default()?.protection_domain()?;
    let (left, _right) = core_pair(&domain)?;
    let window = domain.memory_window(WindowType::Two)?;
    let registration = domain.registration();
    let buffer = registration
        .access(AccessFlags::WINDOW_BIND)
        .allocate(GRANTED_SIZE)?;
    let lease = buffer
        .lease(window, AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE)
        .map_err(|refused| refused.error)?;
    let mut queue = left.send_queue::<()>();
    let mut samples = Samples::new(time);
    loop {
        let begun = Instant::now();
        for _ in 0..BATCH {
            perform(&left, &mut queue, lease.bind()?)?;
            perform(&left, &mut queue, lease.unbind()?)?;
        }
        if samples.add(begun.elapsed(), BATCH) {
            return Ok(samples.time());
        }
    }
}

/// Posts `request` to `queue`, the send queue of `queue_pair`, and polls until the request has
/// completed.
fn perform(
    queue_pair: &QueuePair,
    queue: &mut SendQueue<()>,
    request: SendRequest<()>,
) -> anyhow::Result<()> {
    let mut room = [WorkCompletion::default()];
    queue.post_inline(request)?;
    loop {
        if let [completion] = queue_pair.send_completions().poll(&mut room)? {
            completion.result()?;
            queue.complete(completion);
            return Ok(());
        }
    }
}
