//! Tests of bulk memory in arguments and results.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{connect, listen, over_every_transport, within};
use futures_util::FutureExt;
use parking_lot::Mutex;
use rdma_rpc::{
    Address, Bulk, BulkError, BulkMemory, CallError, Context, Error, Server, ServerHandle,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

over_every_transport! {
    bytes_of_every_length_are_echoed;
    the_handler_writes_into_the_memory_of_the_caller;
    parts_are_scattered_and_gathered;
    bulks_may_be_anywhere_in_a_value;
    memory_is_lent_by_one_call_at_a_time;
    the_memory_of_an_expired_call_is_available_again;
    the_memory_of_a_dropped_call_is_available_again;
    a_deadline_during_a_transfer_affects_no_other_call;
    a_bulk_cannot_be_accessed_after_its_call;
    accesses_by_tasks_of_the_handler_end_before_the_answer;
    parts_outside_the_bulk_and_writes_without_permission_are_refused;
    a_bulk_above_the_limit_is_refused;
    the_memory_of_a_result_is_freed_when_the_caller_drops_it;
    the_lease_of_a_result_has_a_time_limit;
    a_result_can_be_read_during_the_shutdown_of_the_server;
    a_bulk_that_the_caller_keeps_delays_a_shutdown_by_the_grace_period_only;
    a_transfer_whose_future_is_not_polled_delays_no_other_transfer;
    calls_proceed_during_a_long_transfer;
    a_transfer_reports_its_progress;
    bulks_of_the_peer_cannot_be_sent;
    the_end_of_the_connection_ends_transfers;
}

#[derive(Debug, Serialize, Deserialize)]
struct Page {
    title: String,
    images: Vec<(u32, Bulk)>,
    cover: Option<Bulk>,
}

#[rdma_rpc::service]
trait Pages {
    async fn echo(&self, cx: &Context, bulk: Bulk) -> Result<Bulk, String>;
    /// Writes `first` plus the offset to each byte of the caller's memory.
    async fn fill(&self, cx: &Context, first: u8, into: Bulk) -> Result<u64, String>;
    /// Reads `parts` in one transfer, and returns their concatenated bytes.
    async fn pick(&self, bulk: Bulk, parts: Vec<(u64, u64)>) -> Result<Vec<u8>, String>;
    /// Writes the bytes with even and with odd offsets as parts in reverse order.
    async fn weave(&self, into: Bulk) -> Result<(), String>;
    /// Returns the sums of all images.
    async fn sums(&self, page: Page) -> Result<Vec<u64>, String>;
    /// Returns a page with `count` images of `len` bytes.
    async fn page(&self, count: u32, len: u64) -> Result<Page, String>;
    /// Waits for the test, and then reads.
    async fn wait(&self, bulk: Bulk) -> Result<(), String>;
    /// Reads and writes the whole bulk repeatedly.
    async fn churn(&self, cx: &Context, bulk: Bulk) -> Result<(), String>;
    /// Passes the bulk to the test.
    async fn keep(&self, bulk: Bulk) -> Result<(), String>;
    /// Spawns a task that writes repeatedly, and returns.
    async fn leave(&self, cx: &Context, bulk: Bulk) -> Result<(), String>;
    /// Returns memory that the test also refers to.
    async fn give(&self, cx: &Context, len: u64) -> Result<Bulk, String>;
    /// Reads the whole bulk, and returns its length.
    async fn measure(&self, bulk: Bulk) -> Result<u64, String>;
    async fn add(&self, left: u64, right: u64) -> Result<u64, String>;
    #[rpc(oneway)]
    async fn note(&self, bulk: Bulk);
}

#[derive(Default)]
struct State {
    begun: Notify,
    go: Notify,
    kept: Mutex<Option<Bulk>>,
    task: Mutex<Option<tokio::task::JoinHandle<Error>>>,
}

struct Shared(Arc<State>);

fn text(error: Error) -> String {
    format!("{error}")
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

impl Pages for Shared {
    async fn echo(&self, _: &Context, bulk: Bulk) -> Result<Bulk, String> {
        Ok(bulk.read(..).await.map_err(text)?.into())
    }

    async fn fill(&self, cx: &Context, first: u8, into: Bulk) -> Result<u64, String> {
        let mut memory = cx.bulk_memory(into.len()).map_err(text)?;
        for (at, byte) in memory.iter_mut().enumerate() {
            *byte = (at as u8).wrapping_add(first);
        }
        let (written, _) = into.write(0, memory).await;
        written.map_err(text)?;
        Ok(into.transferred())
    }

    async fn pick(&self, bulk: Bulk, parts: Vec<(u64, u64)>) -> Result<Vec<u8>, String> {
        let parts = parts
            .iter()
            .map(|&(at, len)| (at as usize, BulkMemory::from(vec![0; len as usize])));
        let (outcome, memories) = bulk.read_into(parts).await;
        outcome.map_err(text)?;
        Ok(memories
            .into_iter()
            .flat_map(BulkMemory::into_vec)
            .collect())
    }

    async fn weave(&self, into: Bulk) -> Result<(), String> {
        let parts = (0..into.len()).rev().map(|at| (at, vec![at as u8].into()));
        into.write_from(parts).await.0.map_err(text)
    }

    async fn sums(&self, page: Page) -> Result<Vec<u64>, String> {
        let mut sums = Vec::new();
        let images = page.images.into_iter().map(|(_, image)| image);
        for image in images.chain(page.cover) {
            let bytes = image.read(..).await.map_err(text)?;
            sums.push(bytes.iter().copied().map(u64::from).sum());
        }
        Ok(sums)
    }

    async fn page(&self, count: u32, len: u64) -> Result<Page, String> {
        let image = |number| (number, vec![number as u8; len as usize].into());
        Ok(Page {
            title: "a page".to_owned(),
            images: (0..count).map(image).collect(),
            cover: None,
        })
    }

    async fn wait(&self, bulk: Bulk) -> Result<(), String> {
        self.0.begun.notify_one();
        self.0.go.notified().await;
        bulk.read(..).await.map(drop).map_err(text)
    }

    async fn churn(&self, cx: &Context, bulk: Bulk) -> Result<(), String> {
        let mut memory = cx.bulk_memory(bulk.len()).map_err(text)?;
        self.0.begun.notify_one();
        loop {
            let (outcome, mut memories) = bulk.read_into([(0, memory)]).await;
            outcome.map_err(text)?;
            let (outcome, back) = bulk.write(0, memories.pop().unwrap()).await;
            outcome.map_err(text)?;
            memory = back;
        }
    }

    async fn keep(&self, bulk: Bulk) -> Result<(), String> {
        *self.0.kept.lock() = Some(bulk);
        Ok(())
    }

    async fn leave(&self, cx: &Context, bulk: Bulk) -> Result<(), String> {
        let mut memory = cx.bulk_memory(bulk.len()).map_err(text)?;
        memory.fill(7);
        let task = tokio::spawn(async move {
            loop {
                let (outcome, back) = bulk.write(0, memory).await;
                memory = back;
                if let Err(error) = outcome {
                    return error;
                }
            }
        });
        *self.0.task.lock() = Some(task);
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(())
    }

    async fn give(&self, cx: &Context, len: u64) -> Result<Bulk, String> {
        let mut memory = cx.bulk_memory(len as usize).map_err(text)?;
        memory.copy_from_slice(&pattern(len as usize));
        let bulk = Bulk::from(memory);
        *self.0.kept.lock() = Some(bulk.clone());
        Ok(bulk)
    }

    async fn measure(&self, bulk: Bulk) -> Result<u64, String> {
        let bytes = bulk.read(..).await.map_err(text)?;
        Ok(bytes.len() as u64)
    }

    async fn add(&self, left: u64, right: u64) -> Result<u64, String> {
        Ok(left + right)
    }

    async fn note(&self, bulk: Bulk) {
        *self.0.kept.lock() = Some(bulk);
    }
}

async fn serve(
    address: Address,
    settings: impl FnOnce(Server) -> Server,
) -> (ServerHandle, PagesClient, Arc<State>) {
    let state = Arc::new(State::default());
    let server = Server::new(PagesServer::new(Shared(Arc::clone(&state))));
    let server = listen(settings(server), address).await;
    let client = PagesClient::new(connect(&server).await);
    (server, client, state)
}

/// Returns memory of the connection that contains the test pattern.
fn filled(client: &PagesClient, len: usize) -> BulkMemory {
    let mut memory = client.client().bulk_memory(len).unwrap();
    assert!(memory.iter().all(|&byte| byte == 0));
    memory.copy_from_slice(&pattern(len));
    memory
}

fn mine(bulk: Bulk) -> BulkMemory {
    bulk.into_memory().expect("the memory is back")
}

/// Waits until the memory of a bulk is available again.
async fn back(bulk: Bulk) -> BulkMemory {
    let mut bulk = Some(bulk);
    within("the end of the lease", async {
        loop {
            match bulk.take().unwrap().into_memory() {
                Ok(memory) => return memory,
                Err(lent) => bulk = Some(lent),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
}

async fn assert_adds(client: &PagesClient) {
    let sum = within("a sum", client.add(1, 2)).await;
    assert_eq!(sum.expect("the connection is usable"), 3);
}

fn bulk_error<T: std::fmt::Debug>(outcome: Result<T, CallError<String>>) -> BulkError {
    match outcome.unwrap_err() {
        CallError::Rpc(Error::Bulk(error)) => error,
        other => panic!("{other:?}"),
    }
}

async fn bytes_of_every_length_are_echoed(address: Address) {
    let (_server, client, _) = serve(address, |server| server).await;
    for len in [0, 1, 100, 4096, 65_535, 65_536, 65_537, 1 << 20] {
        for is_registered in [true, false] {
            let memory = match is_registered {
                true => filled(&client, len),
                false => pattern(len).into(),
            };
            let bulk = Bulk::from(memory);
            let echoed = within("the echo", client.echo(bulk.clone())).await.unwrap();
            assert_eq!((echoed.len(), echoed.is_writable()), (len, false));
            let bytes = within("reading", echoed.read(..)).await.unwrap();
            assert!(*bytes == pattern(len), "{len} bytes");
            assert_eq!(*mine(bulk), pattern(len));
        }
    }
}

async fn the_handler_writes_into_the_memory_of_the_caller(address: Address) {
    let (_server, client, _) = serve(address, |server| server).await;
    for len in [0, 5, 200_000] {
        for is_registered in [true, false] {
            let memory = match is_registered {
                true => filled(&client, len),
                false => pattern(len).into(),
            };
            let bulk = Bulk::writable(memory);
            let written = within("filling", client.fill(9, bulk.clone())).await;
            assert_eq!(written.unwrap(), len as u64);
            let expected: Vec<u8> = (0..len).map(|at| (at as u8).wrapping_add(9)).collect();
            assert!(*mine(bulk) == expected);
        }
    }
}

async fn parts_are_scattered_and_gathered(address: Address) {
    let (_server, client, _) = serve(address, |server| server).await;
    let bulk = Bulk::from(filled(&client, 300_000));
    let parts = vec![(299_999, 1), (7, 3), (0, 0), (100_000, 150_000)];
    let picked = client.pick(bulk.clone(), parts.clone());
    let picked = within("picking", picked).await.unwrap();
    let whole = pattern(300_000);
    let expected: Vec<u8> = parts
        .iter()
        .flat_map(|&(at, len)| &whole[at as usize..(at + len) as usize])
        .copied()
        .collect();
    assert!(picked == expected);

    let into = Bulk::writable(filled(&client, 100));
    within("weaving", client.weave(into.clone())).await.unwrap();
    assert_eq!(*mine(into), (0..100).collect::<Vec<u8>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bytes_of_an_argument_are_not_sent_in_messages_over_rdma() {
    const LEN: usize = 1 << 20;
    const MESSAGE: usize = 8 << 10;
    let limited = |server: Server| server.message_limit(MESSAGE);
    let (server, _, _) = serve(common::rdma(), limited).await;
    let connecting = common::client()
        .message_limit(MESSAGE)
        .connect(server.address());
    let client = PagesClient::new(within("connecting", connecting).await.unwrap());
    assert_adds(&client).await;
    // The only message of each call is its request, which is far shorter than the bulk.
    let before = client.client().sent();
    let page = Page {
        title: "a page".to_owned(),
        images: vec![(7, filled(&client, LEN).into())],
        cover: None,
    };
    let sums = within("adding up", client.sums(page)).await.unwrap();
    let expected = pattern(LEN).iter().copied().map(u64::from).sum::<u64>();
    assert_eq!(sums, [expected]);
    let into = Bulk::writable(filled(&client, LEN));
    let written = within("filling", client.fill(9, into.clone())).await;
    assert_eq!(written.unwrap(), LEN as u64);
    let sent = client.client().sent();
    assert_eq!(sent.frames - before.frames, 2);
    assert_eq!(sent.messages - before.messages, 2);
    let expected: Vec<u8> = (0..LEN).map(|at| (at as u8).wrapping_add(9)).collect();
    assert!(*mine(into) == expected);
}

/// Makes `calls` concurrent calls that each read a bulk of `len` bytes over RDMA. Returns the
/// highest number of bytes of registered memory that the server has used.
async fn highest_memory(calls: usize, len: usize) -> usize {
    let name = std::env::var("RDMA_DEVICE").unwrap_or_else(|_| "softroce0".to_owned());
    let device = rdma_async::RdmaDevice::open(&name);
    let device = device.expect("the device can be used");
    let transport = common::transport().on(&device);
    let server = Server::new(PagesServer::new(Shared(Arc::default())));
    let server = server.transport(transport).listen(common::rdma()).await;
    let server = server.expect("the device can be used");
    let client = PagesClient::new(connect(&server).await);
    let call = async || {
        let bulk = Bulk::from(client.client().bulk_memory(len).unwrap());
        within("the call", client.measure(bulk)).await.unwrap()
    };
    let lengths = futures_util::future::join_all((0..calls).map(|_| call())).await;
    assert_eq!(lengths, vec![len as u64; calls]);
    device.pool_statistics().highest
}

#[tokio::test]
async fn reads_that_wait_for_other_transfers_hold_no_memory() {
    let highest = highest_memory(16, 1 << 20).await;
    assert!((1 << 20..8 << 20).contains(&highest), "{highest} bytes");
    // Longer than a turn of a transfer. Together, these reads exceed the limit of 64 MiB.
    let highest = highest_memory(24, 8 << 20).await;
    assert!((8 << 20..128 << 20).contains(&highest), "{highest} bytes");
}

async fn bulks_may_be_anywhere_in_a_value(address: Address) {
    let (_server, client, _) = serve(address, |server| server).await;
    let same = Bulk::from(vec![3; 10]);
    let images = (0..20).map(|number| (number, vec![1; number as usize].into()));
    let page = Page {
        title: "t".repeat(5000),
        images: images.chain([(20, same.clone())]).collect(),
        // One request contains the same bulk twice.
        cover: Some(same),
    };
    let sums = within("adding up", client.sums(page)).await.unwrap();
    assert_eq!(sums, (0..20).chain([30, 30]).collect::<Vec<u64>>());

    let page = within("the page", client.page(12, 70_000)).await.unwrap();
    assert_eq!((page.title.as_str(), page.images.len()), ("a page", 12));
    let mut reads = Vec::new();
    for (number, image) in page.images {
        reads.push(tokio::spawn(async move {
            let bytes = image.read(..).await.unwrap();
            assert!(bytes.len() == 70_000 && bytes.iter().all(|&byte| byte == number as u8));
        }));
    }
    for read in reads {
        within("reading at the same time", read).await.unwrap();
    }
}

async fn memory_is_lent_by_one_call_at_a_time(address: Address) {
    let (_server, client, state) = serve(address, |server| server).await;
    let bulk = Bulk::from(filled(&client, 1000));
    let call = {
        let (client, bulk) = (client.clone(), bulk.clone());
        tokio::spawn(async move { client.wait(bulk).await })
    };
    within("the call", state.begun.notified()).await;
    let bulk = bulk.into_memory().expect_err("a call lends it");
    let second = within("the second call", client.echo(bulk.clone())).await;
    assert_eq!(bulk_error(second), BulkError::InUse);
    let own = bulk.read(..).await.unwrap_err();
    assert!(matches!(own, Error::Bulk(BulkError::InUse)), "{own}");
    state.go.notify_one();
    within("the call", call).await.unwrap().unwrap();
    assert_eq!(*mine(bulk.clone()), pattern(1000));
    let taken = within("a call without memory", client.echo(bulk)).await;
    assert_eq!(bulk_error(taken), BulkError::InUse);
    assert_adds(&client).await;
}

async fn the_memory_of_an_expired_call_is_available_again(address: Address) {
    let (_server, client, state) = serve(address, |server| server).await;
    let bulk = Bulk::writable(filled(&client, 100_000));
    let late = client.with_deadline(Duration::from_millis(50));
    let outcome = within("the late call", late.wait(bulk.clone())).await;
    let is_late = matches!(outcome, Err(CallError::Rpc(Error::DeadlineExceeded { .. })));
    assert!(is_late, "{outcome:?}");
    // The lease ends before the call returns.
    assert_eq!(*mine(bulk), pattern(100_000));
    within("the handler", state.begun.notified()).await;
    state.go.notify_one();
    assert_adds(&client).await;
}

async fn the_memory_of_a_dropped_call_is_available_again(address: Address) {
    let (_server, client, state) = serve(address, |server| server).await;
    let bulk = Bulk::writable(filled(&client, 100_000));
    let call = {
        let (client, bulk) = (client.clone(), bulk.clone());
        tokio::spawn(async move { client.churn(bulk).await })
    };
    within("the call", state.begun.notified()).await;
    call.abort();
    let memory = back(bulk).await;
    assert_eq!(memory.len(), 100_000);
    assert_adds(&client).await;
}

async fn a_deadline_during_a_transfer_affects_no_other_call(address: Address) {
    let (_server, client, _) = serve(address, |server| server).await;
    for millis in [5, 20, 60] {
        let bulk = Bulk::writable(filled(&client, 1 << 20));
        let late = client.with_deadline(Duration::from_millis(millis));
        let outcome = within("the late call", late.churn(bulk.clone())).await;
        let is_late = matches!(outcome, Err(CallError::Rpc(Error::DeadlineExceeded { .. })));
        assert!(is_late, "{outcome:?}");
        assert_eq!(mine(bulk).len(), 1 << 20);
        assert_adds(&client).await;
    }
}

async fn a_bulk_cannot_be_accessed_after_its_call(address: Address) {
    let (_server, client, state) = serve(address, |server| server).await;
    let bulk = Bulk::writable(filled(&client, 1000));
    within("keeping", client.keep(bulk.clone())).await.unwrap();
    let memory = mine(bulk);
    let kept = state.kept.lock().take().unwrap();
    let read = within("reading late", kept.read(..)).await.unwrap_err();
    let written = within("writing late", kept.write(0, vec![9; 10].into())).await;
    for error in [read, written.0.unwrap_err()] {
        assert!(matches!(error, Error::Bulk(BulkError::Ended)), "{error}");
    }
    assert_eq!(*memory, pattern(1000));
    assert_adds(&client).await;
}

async fn accesses_by_tasks_of_the_handler_end_before_the_answer(address: Address) {
    let (_server, client, state) = serve(address, |server| server).await;
    let bulk = Bulk::writable(filled(&client, 500_000));
    within("leaving", client.leave(bulk.clone())).await.unwrap();
    let mut memory = mine(bulk);
    // From here on, no task writes to the memory.
    memory.fill(1);
    let task = state.task.lock().take().unwrap();
    let error = within("the task", task).await.unwrap();
    assert!(matches!(error, Error::Bulk(BulkError::Ended)), "{error}");
    assert!(memory.iter().all(|&byte| byte == 1));
    assert_adds(&client).await;
}

async fn parts_outside_the_bulk_and_writes_without_permission_are_refused(address: Address) {
    let (_server, client, _) = serve(address, |server| server).await;
    let bulk = Bulk::from(filled(&client, 10));
    for part in [(0, 11), (10, 1), (11, 0), (u64::MAX, 1)] {
        let picked = within("picking", client.pick(bulk.clone(), vec![part])).await;
        let reason = picked.unwrap_err().service().unwrap();
        assert!(reason.contains("exceed its 10 bytes"), "{reason}");
    }
    let written = within("writing", client.weave(bulk.clone())).await;
    let reason = written.unwrap_err().service().unwrap();
    assert!(reason.contains("not made it writable"), "{reason}");
    let noted = within("a one-way call", client.note(bulk.clone())).await;
    assert!(matches!(noted, Err(Error::Encode(_))), "{noted:?}");
    assert_eq!(*mine(bulk), pattern(10));
    assert_adds(&client).await;
}

async fn a_bulk_above_the_limit_is_refused(address: Address) {
    let (server, client, _) = serve(address, |server| server.bulk_limit(1000)).await;
    let call = within("a long bulk", client.keep(vec![0; 1001].into())).await;
    let refused = call.unwrap_err().rpc().unwrap();
    assert!(matches!(refused, Error::BadRequest { .. }), "{refused}");
    within("a short one", client.keep(vec![0; 1000].into()))
        .await
        .unwrap();

    let strict = common::client().bulk_limit(1000).connect(server.address());
    let strict = PagesClient::new(within("connecting", strict).await.unwrap());
    let call = within("a long result", strict.give(1001)).await;
    let refused = call.unwrap_err().rpc().unwrap();
    assert!(matches!(refused, Error::Decode(_)), "{refused}");
    within("a short one", strict.give(1000)).await.unwrap();
}

async fn the_memory_of_a_result_is_freed_when_the_caller_drops_it(address: Address) {
    let (_server, client, state) = serve(address, |server| server).await;
    let given = within("the result", client.give(100_000)).await.unwrap();
    let own = state.kept.lock().take().unwrap();
    let own = own.into_memory().expect_err("the caller has it");
    let copy = given.clone();
    drop(given);
    // Parts can be read as long as a clone exists.
    let part = within("reading", copy.read(50_000..50_010)).await.unwrap();
    assert_eq!(*part, pattern(100_000)[50_000..50_010]);
    drop(copy);
    assert_eq!(*back(own).await, pattern(100_000));
    assert_adds(&client).await;
}

async fn the_lease_of_a_result_has_a_time_limit(address: Address) {
    let limit = Duration::from_millis(50);
    let (_server, client, state) = serve(address, |server| server.bulk_lease(limit)).await;
    let given = within("the result", client.give(1000)).await.unwrap();
    let own = state.kept.lock().take().unwrap();
    assert_eq!(*back(own).await, pattern(1000));
    let read = within("reading late", given.read(..)).await.unwrap_err();
    assert!(matches!(read, Error::Bulk(BulkError::Ended)), "{read}");
    assert_adds(&client).await;
}

async fn a_result_can_be_read_during_the_shutdown_of_the_server(address: Address) {
    let (server, client, _) = serve(address, |server| server.grace(common::LIMIT)).await;
    let given = within("the result", client.give(100_000)).await.unwrap();
    let shutdown = tokio::spawn(server.shutdown());
    let refused = async {
        while client.add(1, 2).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    within("the shutdown", refused).await;
    // The server has no running call, and only the bulk delays the end of the shutdown.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let bytes = within("reading", given.read(..)).await.unwrap();
    assert!(*bytes == pattern(100_000));
    assert!(!shutdown.is_finished());
    drop(given);
    within("the end of the server", shutdown).await.unwrap();
}

async fn a_bulk_that_the_caller_keeps_delays_a_shutdown_by_the_grace_period_only(address: Address) {
    let short = |server: Server| server.grace(Duration::from_millis(100));
    let (server, client, _) = serve(address, short).await;
    let given = within("the result", client.give(100_000)).await.unwrap();
    within("the end of the server", server.shutdown()).await;
    let read = within("reading", given.read(..)).await;
    read.expect_err("the connection has ended");
}

async fn a_transfer_whose_future_is_not_polled_delays_no_other_transfer(address: Address) {
    const LEN: usize = 2 << 20;
    let (_server, client, _) = serve(address, |server| server).await;
    let given = within("the result", client.give(LEN as u64)).await.unwrap();
    let mut reads: Vec<_> = (0..6).map(|_| Box::pin(given.read(..))).collect();
    // A read may end at its first poll.
    reads.retain_mut(|read| read.now_or_never().is_none());
    for read in reads.iter_mut().take(2) {
        within("the read", read).await.unwrap();
    }
    let last = within("the last read", given.read(..)).await.unwrap();
    assert!(*last == pattern(LEN));
}

async fn calls_proceed_during_a_long_transfer(address: Address) {
    const WHOLE: usize = 8 << 20;
    let (_server, client, _) = serve(address, |server| server).await;
    // The number of calls during a transfer depends on the machine.
    within("calls beside transfers", async {
        let mut beside = 0;
        while beside < 5 {
            let given = client.give(WHOLE as u64).await.unwrap();
            let reading = {
                let given = given.clone();
                tokio::spawn(async move { given.read(..).await })
            };
            while !reading.is_finished() {
                assert_adds(&client).await;
                beside += usize::from((1..WHOLE as u64).contains(&given.transferred()));
            }
            let bytes = reading.await.unwrap().unwrap();
            assert!(*bytes == pattern(WHOLE));
        }
    })
    .await;
}

async fn a_transfer_reports_its_progress(address: Address) {
    let (_server, client, _) = serve(address, |server| server).await;
    let given = within("the result", client.give(300_000)).await.unwrap();
    assert_eq!(given.transferred(), 0);
    within("a part", given.read(..1000)).await.unwrap();
    assert_eq!(given.transferred(), 1000);
    within("the rest", given.read(1000..)).await.unwrap();
    assert_eq!(given.transferred(), 300_000);
}

async fn bulks_of_the_peer_cannot_be_sent(address: Address) {
    let (_server, client, _) = serve(address, |server| server).await;
    let given = within("the result", client.give(1000)).await.unwrap();
    let passed = within("passing it on", client.keep(given)).await;
    assert_eq!(bulk_error(passed), BulkError::Foreign);
    assert_adds(&client).await;
}

async fn the_end_of_the_connection_ends_transfers(address: Address) {
    let (server, client, state) = serve(address, |server| server.grace(Duration::ZERO)).await;
    let given = within("the result", client.give(1 << 20)).await.unwrap();
    let bulk = Bulk::writable(filled(&client, 1 << 20));
    let call = {
        let (client, bulk) = (client.clone(), bulk.clone());
        tokio::spawn(async move { client.churn(bulk).await })
    };
    within("the call", state.begun.notified()).await;
    within("the end of the server", server.shutdown()).await;
    let outcome = within("the call", call).await.unwrap();
    assert!(matches!(outcome, Err(CallError::Rpc(_))), "{outcome:?}");
    assert_eq!(mine(bulk).len(), 1 << 20);
    within("the end", client.client().ended()).await;
    let read = within("reading", given.read(..)).await;
    read.expect_err("the connection has ended");
    // The memory of the server is available again, too.
    let own = state.kept.lock().take().unwrap();
    back(own).await;
}
