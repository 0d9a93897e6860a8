//! Tests with peers that access bulk memory without permission: after the end of the lease, beyond
//! its length, without write permission, or with invented keys. The memory must not change, and
//! other clients must be served.

mod common;

use std::alloc::Layout;
use std::time::{Duration, Instant};

use common::frames::{frame, message, request, settings};
use common::raw::Raw;
use common::{connect, listen, over_every_transport, within};
use futures_util::FutureExt;
use rdma_async::{LocalMrReadAccess, LocalMrWriteAccess, RemoteMr};
use rdma_rpc::{Address, Bulk, BulkError, CallError, Context, Error, Server, ServerHandle};

over_every_transport! {
    @rdma_and_tcp
    a_peer_that_writes_after_its_answer_changes_nothing;
    a_peer_that_writes_after_the_deadline_changes_nothing;
    a_peer_that_writes_after_the_call_was_dropped_changes_nothing;
    frames_of_unknown_leases_are_ignored;
    the_leases_of_results_that_are_never_dropped_end;
    an_access_to_invented_memory_ends_only_its_connection;
    a_request_with_too_many_bulks_is_refused;
    a_bulk_that_occurs_twice_in_a_result_is_leased_until_both_are_dropped;
    a_result_that_cannot_be_decoded_is_released;
}

const LEN: usize = 10_000;

/// Time limit of the lease of a result.
const LEASE: Duration = Duration::from_millis(300);

#[rdma_rpc::service]
trait Store {
    async fn load(&self, into: Bulk) -> Result<(), String>;
    async fn give(&self, cx: &Context) -> Result<Bulk, String>;
    async fn take(&self, bulk: Bulk) -> Result<(), String>;
    async fn count(&self, bulks: Vec<Bulk>) -> Result<u32, String>;
    async fn pair(&self) -> Result<(Bulk, Bulk), String>;
    async fn mixed(&self) -> Result<(Bulk, bool), String>;
}

struct Stored;

impl Store for Stored {
    async fn load(&self, _: Bulk) -> Result<(), String> {
        Ok(())
    }

    async fn give(&self, cx: &Context) -> Result<Bulk, String> {
        let mut memory = cx.bulk_memory(LEN).map_err(|error| error.to_string())?;
        memory.fill(5);
        Ok(memory.into())
    }

    async fn take(&self, bulk: Bulk) -> Result<(), String> {
        let read = bulk.read(..).await;
        read.map(drop).map_err(|error| error.to_string())
    }

    async fn count(&self, bulks: Vec<Bulk>) -> Result<u32, String> {
        Ok(bulks.len() as u32)
    }

    async fn pair(&self) -> Result<(Bulk, Bulk), String> {
        let bulk = Bulk::from(vec![5; LEN]);
        Ok((bulk.clone(), bulk))
    }

    async fn mixed(&self) -> Result<(Bulk, bool), String> {
        Ok((Bulk::from(vec![5; LEN]), true))
    }
}

async fn serve(address: Address) -> (ServerHandle, StoreClient) {
    let server = Server::new(StoreServer::new(Stored)).bulk_lease(LEASE);
    let server = listen(server, address).await;
    let client = StoreClient::new(connect(&server).await);
    (server, client)
}

/// Returns a server that does not implement the protocol, and its client.
async fn raw_server(address: Address) -> (Raw, StoreClient) {
    let (raw, client) = Raw::accept(address).await;
    (raw, StoreClient::new(client))
}

/// Receives a request whose last argument is a bulk of the client.
async fn hear_request(raw: &mut Raw) -> ((u32, u32), [u8; 20]) {
    let message = within("the request", raw.hear()).await.unwrap();
    assert_eq!(message[4], 1, "a request: {message:x?}");
    let word = |at: usize| u32::from_be_bytes(*message[at..].first_chunk().unwrap());
    let token = *message.last_chunk().unwrap();
    ((word(12), word(16)), token)
}

/// Checks that the peer can no longer change the memory of a call that has ended.
async fn assert_refused(mut raw: Raw, token: [u8; 20]) {
    match &mut raw {
        Raw::Rdma(rdma) => {
            let mut remote = RemoteMr::from_token_bytes(&token);
            let layout = Layout::from_size_align(64, 8).unwrap();
            let mut local = rdma.alloc_local_mr(layout).unwrap();
            local.as_mut_slice().fill(0xee);
            let written = within("a write", rdma.write(&local, &mut remote)).await;
            let error = written.expect_err("the lease has ended");
            assert!(error.to_string().contains("remote access"), "{error}");
        }
        Raw::Tcp(_) => {
            // The first lease of the client has the ID 1.
            let piece = [&[0, 0, 0, 9][..], &[0; 8], &[0xee; 64]].concat();
            let write = message(&[frame(11, 0, 0, (0, 1), &piece)]);
            assert!(within("a write", raw.say(&write)).await);
            // Revocations may arrive before the answer.
            loop {
                let answer = within("the answer", raw.hear()).await.unwrap();
                if answer[4] == 12 {
                    assert_eq!(answer[6..8], [0, 1], "the lease has ended: {answer:x?}");
                    return;
                }
            }
        }
    }
}

fn lent(client: &StoreClient) -> Bulk {
    let mut memory = client.client().bulk_memory(LEN).unwrap();
    memory.fill(3);
    Bulk::writable(memory)
}

async fn a_peer_that_writes_after_its_answer_changes_nothing(address: Address) {
    let (mut raw, client) = raw_server(address).await;
    let bulk = lent(&client);
    let answering = async {
        let (id, token) = hear_request(&mut raw).await;
        assert!(raw.say(&message(&[frame(2, 1, 0, id, b"")])).await);
        token
    };
    let (outcome, token) = tokio::join!(client.load(bulk.clone()), answering);
    outcome.unwrap();
    let memory = bulk.into_memory().expect("the call has ended");
    assert_refused(raw, token).await;
    assert!(memory.iter().all(|&byte| byte == 3));
}

async fn a_peer_that_writes_after_the_deadline_changes_nothing(address: Address) {
    let (mut raw, client) = raw_server(address).await;
    let bulk = lent(&client);
    let late = client.with_deadline(Duration::from_millis(100));
    let (outcome, (_, token)) = tokio::join!(late.load(bulk.clone()), hear_request(&mut raw));
    let is_late = matches!(outcome, Err(CallError::Rpc(Error::DeadlineExceeded { .. })));
    assert!(is_late, "{outcome:?}");
    let memory = bulk.into_memory().expect("the call has ended");
    assert_refused(raw, token).await;
    assert!(memory.iter().all(|&byte| byte == 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_never_stops_writing_changes_nothing_after_the_call() {
    let (mut raw, client) = raw_server(common::rdma()).await;
    let bulk = lent(&client);
    // Writes from before the answer until the device refuses a write.
    let writing = async move {
        let (id, token) = hear_request(&mut raw).await;
        let mut remote = RemoteMr::from_token_bytes(&token);
        for count in 0_u32.. {
            let Raw::Rdma(rdma) = &mut raw else {
                panic!("a peer over RDMA");
            };
            let layout = Layout::from_size_align(64, 8).unwrap();
            let mut local = rdma.alloc_local_mr(layout).unwrap();
            local.as_mut_slice().fill(count as u8);
            if let Err(error) = rdma.write(&local, &mut remote).await {
                return (count, error.to_string());
            }
            if count == 10 {
                assert!(raw.say(&message(&[frame(2, 1, 0, id, b"")])).await);
            }
        }
        unreachable!("the numbers do not end")
    };
    let writing = tokio::spawn(writing);
    within("the call", client.load(bulk.clone())).await.unwrap();
    // The memory is the caller's alone from here on.
    let memory = bulk.into_memory().expect("the call has ended");
    let before = memory.to_vec();
    let (count, error) = within("the end of the writes", writing).await.unwrap();
    assert!(count > 10, "a write before the answer failed: {error}");
    assert!(error.contains("remote access"), "{error}");
    assert_ne!(before[..64], [3; 64], "the writes before the answer");
    assert_eq!(before, *memory);
}

async fn a_peer_that_writes_after_the_call_was_dropped_changes_nothing(address: Address) {
    let (mut raw, client) = raw_server(address).await;
    let bulk = lent(&client);
    let call = {
        let (client, bulk) = (client.clone(), bulk.clone());
        tokio::spawn(async move { client.load(bulk).await })
    };
    let (_, token) = hear_request(&mut raw).await;
    call.abort();
    let mut bulk = Some(bulk);
    let memory = within("the end of the lease", async {
        loop {
            match bulk.take().unwrap().into_memory() {
                Ok(memory) => return memory,
                Err(lent) => bulk = Some(lent),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let memory = memory.await;
    assert_refused(raw, token).await;
    assert!(memory.iter().all(|&byte| byte == 3));
}

async fn frames_of_unknown_leases_are_ignored(address: Address) {
    let (server, client) = serve(address).await;
    let mut raw = Raw::connect(&server).await;
    let frames = [
        frame(10, 0, 0, (7, 7), &[0; 16]),
        frame(11, 0, 0, (7, 7), &[0; 20]),
        frame(12, 0, 0, (7, 7), &[0; 20]),
        frame(13, 0, 0, (7, 7), &[]),
        frame(14, 0, 0, (7, 7), &[]),
    ];
    within("the frames", raw.say(&message(&frames))).await;
    // Answers to a read and a write, and a revocation of memory that the server does not know.
    let answers = within("the answers", raw.hear()).await.unwrap();
    assert_eq!(answers[2..4], [0, 3], "three frames: {answers:x?}");
    assert_eq!((answers[4], &answers[6..8]), (12, &[0, 1][..]));
    within("a call", client.give()).await.unwrap();
}

/// Reads the begin of the first result of a connection. Fails with the reason of a refusal.
async fn read_result(raw: &mut Raw, token: &[u8; 20]) -> Result<Vec<u8>, String> {
    if let Raw::Rdma(rdma) = raw {
        let remote = RemoteMr::from_token_bytes(token);
        let remote = remote.get(0..64).unwrap();
        let layout = Layout::from_size_align(64, 8).unwrap();
        let mut local = rdma.alloc_local_mr(layout).unwrap();
        let read = within("a read", rdma.read(&mut local, &remote)).await;
        read.map_err(|error| error.to_string())?;
        return Ok(local.as_slice().to_vec());
    }
    let read = [&[0, 0, 0, 9][..], &[0; 8], &[0, 0, 0, 64]].concat();
    let read = message(&[frame(10, 0, 0, (0, 1), &read)]);
    assert!(within("a read", raw.say(&read)).await);
    // The revocation may arrive before the answer.
    loop {
        let answer = within("the answer", raw.hear()).await.unwrap();
        match (answer[4], answer[7]) {
            (12, 0) => return Ok(answer[24..].to_vec()),
            (12, _) => return Err("the lease has ended".to_owned()),
            _ => assert_eq!(answer[4], 13, "{answer:x?}"),
        }
    }
}

async fn the_leases_of_results_that_are_never_dropped_end(address: Address) {
    let (server, client) = serve(address).await;
    // The peer reads the result before the end of the lease. On a loaded machine, the lease may
    // end before the read.
    let (mut raw, token) = within("a read", async {
        loop {
            let mut raw = Raw::connect(&server).await;
            let call = message(&[request("Store.give", (0, 0), b"")]);
            let begun = Instant::now();
            assert!(within("the call", raw.say(&call)).await);
            let answer = within("the answer", raw.hear()).await.unwrap();
            assert_eq!(answer[4], 2, "{answer:x?}");
            let token = *answer.last_chunk().unwrap();
            match read_result(&mut raw, &token).await {
                Ok(bytes) => {
                    assert_eq!(bytes, [5; 64]);
                    return (raw, token);
                }
                Err(error) => assert!(begun.elapsed() >= LEASE, "{error}"),
            }
        }
    })
    .await;
    // The peer does not answer the revocation.
    let revocation = within("the end of the lease", raw.hear()).await.unwrap();
    assert_eq!(revocation[4], 13, "{revocation:x?}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    let error = read_result(&mut raw, &token).await.unwrap_err();
    if let Raw::Rdma(_) = raw {
        assert!(error.contains("remote access"), "{error}");
    }
    within("a call", client.give()).await.unwrap();
}

async fn an_access_to_invented_memory_ends_only_its_connection(address: Address) {
    let is_rdma = address.to_string().starts_with("rdma");
    let (server, client) = serve(address).await;
    let mut raw = Raw::connect(&server).await;
    // A token: the lease ID, a length of 100, not writable, and over RDMA an invented key.
    let mut token = vec![1, 100, 0, 0];
    if is_rdma {
        token[3] = 1;
        token.extend([0x12; 8]);
        token.extend(100_u64.to_be_bytes());
        token.extend([0x34; 4]);
    }
    let call = message(&[request("Store.take", (0, 0), &token)]);
    assert!(within("the call", raw.say(&call)).await);
    if is_rdma {
        raw.farewell().await;
    } else {
        // The server requests the bytes, and receives another number of bytes.
        let read = within("the read", raw.hear()).await.unwrap();
        assert_eq!(read[4], 10, "{read:x?}");
        let answer = [&read[20..24], &[1; 99]].concat();
        let answer = message(&[frame(12, 0, 0, (0, 1), &answer)]);
        assert!(within("a wrong answer", raw.say(&answer)).await);
        let response = within("the response", raw.hear()).await.unwrap();
        assert_eq!((response[4], response[7] & 1), (2, 1), "{response:x?}");
    }
    within("a call", client.give()).await.unwrap();
}

async fn a_request_with_too_many_bulks_is_refused(address: Address) {
    let (server, client) = serve(address).await;
    let mut raw = Raw::connect(&server).await;
    for (count, expected) in [(0x0400_u16, 2), (0x0401, 3)] {
        // The number of bulks, and a token without memory for each.
        let mut body = vec![count as u8 | 0x80, (count >> 7) as u8];
        body.extend([1, 0, 0, 0].repeat(count.into()));
        let call = message(&[request("Store.count", (0, u32::from(count)), &body)]);
        assert!(within("the call", raw.say(&call)).await);
        let answer = within("the answer", raw.hear()).await.unwrap();
        assert_eq!(answer[4], expected, "{count} bulks: {answer:x?}");
    }
    let bulks = |count: u32| (0..count).map(|_| Bulk::from(vec![0; 8])).collect();
    // With this number of bulks, the first attempt to encode them ends early.
    let counted = within("a call", client.count(bulks(1024))).await;
    assert_eq!(counted.unwrap(), 1024);
    let error = within("a call", client.count(bulks(1025)))
        .await
        .unwrap_err();
    let refused = matches!(error, CallError::Rpc(Error::Bulk(BulkError::TooMany)));
    assert!(refused, "{error:?}");
}

async fn a_bulk_that_occurs_twice_in_a_result_is_leased_until_both_are_dropped(address: Address) {
    let (mut raw, client) = raw_server(address).await;
    // The lease ID 9, without memory.
    let token = [9, 0, 0, 0];
    let answering = async {
        let request = within("the request", raw.hear()).await.unwrap();
        let word = |at: usize| u32::from_be_bytes(*request[at..].first_chunk().unwrap());
        let response = frame(2, 1, 0, (word(12), word(16)), &[token, token].concat());
        assert!(raw.say(&message(&[response])).await);
    };
    let (pair, ()) = tokio::join!(client.pair(), answering);
    let (first, second) = pair.unwrap();
    drop(first);
    // The next frame is the request; no release precedes it.
    let next = client.clone();
    let call = tokio::spawn(async move { next.give().await });
    let request = within("the request", raw.hear()).await.unwrap();
    assert_eq!(request[4], 1, "{request:x?}");
    drop(second);
    let release = within("the release", raw.hear()).await.unwrap();
    assert_eq!((release[4], release[19]), (14, 9), "{release:x?}");
    call.abort();
}

async fn a_result_that_cannot_be_decoded_is_released(address: Address) {
    let (mut raw, client) = raw_server(address).await;
    let answering = async {
        let request = within("the request", raw.hear()).await.unwrap();
        let word = |at: usize| u32::from_be_bytes(*request[at..].first_chunk().unwrap());
        // A token of lease 9 that is truncated before the bool.
        let response = frame(2, 1, 0, (word(12), word(16)), &[9, 0, 0, 0, 77]);
        assert!(raw.say(&message(&[response])).await);
        let release = within("the release", raw.hear()).await.unwrap();
        assert_eq!((release[4], release[19]), (14, 9), "{release:x?}");
    };
    let (outcome, ()) = tokio::join!(client.mixed(), answering);
    let undecoded = matches!(outcome, Err(CallError::Rpc(Error::Decode(_))));
    assert!(undecoded, "{outcome:?}");
}

/// Returns a result of `Store.give` that the server `raw` sends: a writable bulk of `len` bytes.
async fn given(raw: &mut Raw, client: &StoreClient, len: u8) -> Bulk {
    let answering = async {
        let request = within("the request", raw.hear()).await.unwrap();
        let word = |at: usize| u32::from_be_bytes(*request[at..].first_chunk().unwrap());
        let response = frame(2, 1, 0, (word(12), word(16)), &[len, len, 1, 0]);
        assert!(raw.say(&message(&[response])).await);
    };
    let (bulk, ()) = tokio::join!(client.give(), answering);
    bulk.unwrap()
}

#[tokio::test]
async fn a_transfer_that_is_dropped_while_it_waits_for_other_transfers_ends() {
    let (mut raw, client) = raw_server(common::tcp()).await;
    // The server answers no read, so that two reads never complete.
    let mut reading = Vec::new();
    for len in [1, 2] {
        let bulk = given(&mut raw, &client, len).await;
        reading.push(tokio::spawn(async move { bulk.read(..).await }));
        let read = within("the read", raw.hear()).await.unwrap();
        assert_eq!(read[4], 10, "{read:x?}");
    }
    let bulk = given(&mut raw, &client, 3).await;
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    let read = bulk.read(..).now_or_never();
    assert!(read.is_none(), "{read:?}");
    let written = bulk.write(0, vec![0; 3].into()).now_or_never();
    assert!(written.is_none(), "{written:?}");
    // Far less than the time after which the connection ends for lack of an answer.
    let ending = async {
        while tasks() != before {
            tokio::task::yield_now().await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(10), ending).await;
    ended.expect("the tasks of the dropped transfers end");
    for reading in reading {
        reading.abort();
    }
}

#[tokio::test]
async fn a_bulk_that_is_longer_than_the_memory_of_the_machine_cannot_be_read() {
    let server = Server::new(StoreServer::new(Stored)).bulk_limit(usize::MAX);
    let server = listen(server, common::tcp()).await;
    let mut raw = Raw::connect(&server).await;
    // A bulk of 2^62 bytes with the lease ID 9.
    let token = [&[9][..], &[0x80; 8], &[0x40, 0, 0]].concat();
    let take = message(&[settings(), request("Store.take", (0, 0), &token)]);
    assert!(within("the call", raw.say(&take)).await);
    let answer = within("the answer", raw.hear()).await.unwrap();
    let text = String::from_utf8_lossy(&answer);
    assert!(text.contains("cannot be allocated"), "{text}");
    // The server has not ended.
    let client = StoreClient::new(connect(&server).await);
    within("a call", client.take(vec![0; LEN].into()))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_whose_call_was_cancelled_is_released() {
    let server = Server::new(StoreServer::new(Stored)).bulk_lease(Duration::from_secs(3600));
    let server = listen(server, common::tcp()).await;
    let mut raw = Raw::connect(&server).await;
    let call = message(&[request("Store.give", (0, 0), b"")]);
    assert!(within("the call", raw.say(&call)).await);
    let answer = within("the answer", raw.hear()).await.unwrap();
    assert_eq!(answer[4], 2, "{answer:x?}");
    // The cancellation and the answer are in flight at the same time.
    let cancel = message(&[frame(7, 0, 0, (0, 0), b"")]);
    assert!(within("the cancellation", raw.say(&cancel)).await);
    within("the end of the lease", async {
        loop {
            // A read of one byte of the connection's first lease.
            let read = [&[0, 0, 0, 9][..], &[0; 8], &[0, 0, 0, 1]].concat();
            assert!(raw.say(&message(&[frame(10, 0, 0, (0, 1), &read)])).await);
            let answer = raw.hear().await.unwrap();
            assert_eq!(answer[4], 12, "no revocation: {answer:x?}");
            if answer[7] == 1 {
                return;
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_receives_no_answers_of_its_client_is_disconnected() {
    let (mut raw, client) = raw_server(common::tcp()).await;
    // Each frame revokes a lease, which the client must answer.
    let revocations = message(&vec![frame(13, 0, 0, (7, 7), &[]); 200]);
    let mut said = 0;
    let flooding = async {
        while said < 64 << 20 && raw.say(&revocations).await {
            said += revocations.len();
        }
    };
    within("the end of the connection", flooding).await;
    assert!(said < 64 << 20, "the client holds its answers");
    let failure = within("the end", client.client().ended()).await;
    assert!(matches!(failure, Error::Protocol { .. }), "{failure:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accesses_beyond_a_lease_end_the_connection() {
    let (server, client) = serve(common::tcp()).await;
    let read = |at: u64, len: u32| {
        let numbers = [&[0; 4][..], &at.to_be_bytes(), &len.to_be_bytes()].concat();
        frame(10, 0, 0, (0, 1), &numbers)
    };
    let violations = [
        vec![read(0, LEN as u32 + 1)],
        vec![read(LEN as u64, 1)],
        vec![read(u64::MAX, 1)],
        vec![read(0, 65_537)],
        // A result is not writable.
        vec![frame(11, 0, 0, (0, 1), &[0; 20])],
    ];
    for frames in violations {
        let mut raw = Raw::connect(&server).await;
        let call = message(&[request("Store.give", (0, 0), b"")]);
        assert!(within("the call", raw.say(&call)).await);
        let answer = within("the answer", raw.hear()).await.unwrap();
        assert_eq!(answer[4], 2, "{answer:x?}");
        within("the frames", raw.say(&message(&frames))).await;
        let reason = raw.farewell().await.unwrap();
        assert!(reason.contains("without permission"), "{reason}");
    }
    within("a call", client.give()).await.unwrap();
}
