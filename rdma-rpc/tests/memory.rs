//! Checks that the memory that a peer can occupy at a server is within the limits in the book. This
//! test is a separate program, because it counts all allocated bytes.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::frames::{frame, message, request, settings};
use common::raw::Raw;
use common::{listen, tcp, within};
use rdma_rpc::{Receiver, Server, ServerHandle};

/// Allocator that counts the bytes in use and their maximum.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn count(size: usize) {
    let used = USED.fetch_add(size, Ordering::SeqCst) + size;
    MOST.fetch_max(used, Ordering::SeqCst);
}

// SAFETY: every call is forwarded to the system allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller upholds the contract of this function, which is that of the system
        // allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        USED.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[rdma_rpc::service]
trait Greedy {
    async fn echo(&self, text: String) -> Result<String, ()>;
    /// Receives no items.
    async fn starve(&self, numbers: Receiver<u64>) -> Result<u64, ()>;
    async fn wait(&self, text: String) -> Result<String, ()>;
    /// Returns a text of the maximum length.
    async fn long(&self) -> Result<String, ()>;
    #[rpc(oneway)]
    async fn note(&self, text: String);
}

struct Still;

impl Greedy for Still {
    async fn echo(&self, text: String) -> Result<String, ()> {
        Ok(text)
    }

    async fn starve(&self, _numbers: Receiver<u64>) -> Result<u64, ()> {
        std::future::pending().await
    }

    async fn wait(&self, _: String) -> Result<String, ()> {
        std::future::pending().await
    }

    async fn long(&self) -> Result<String, ()> {
        Ok("x".repeat(LONG))
    }

    async fn note(&self, _: String) {
        std::future::pending::<()>().await;
    }
}

/// Message limit in bytes.
const MESSAGE: usize = 1 << 20;

/// Length of a long argument or result in bytes.
const LONG: usize = MESSAGE - 100;

/// Maximum number of running calls of a connection.
const CALLS: u16 = 16;

/// Memory in bytes of the connections themselves, and of the peer, which runs in the same process.
/// The peer builds a message in up to five steps, and the server holds another copy before
/// decoding. These buffers grow by doubling.
const OTHERS: usize = 10 * MESSAGE;

/// Runs a peer. Checks that the memory in use never exceeds the initial value by more than `most`
/// bytes, and that all memory is free after the end of the peer.
async fn check(name: &str, most: usize, server: &ServerHandle, attack: impl AsyncFn(&mut Raw)) {
    let before = USED.load(Ordering::SeqCst);
    MOST.store(before, Ordering::SeqCst);
    let mut raw = Raw::connect(server).await;
    within("the settings", raw.say(&message(&[settings()]))).await;
    attack(&mut raw).await;
    drop(raw);
    let used = MOST.load(Ordering::SeqCst).saturating_sub(before);
    println!("{name}: {used} bytes of {most}");
    assert!(used <= most, "{name}: {used} bytes");
    within("the end of the connection", async {
        while USED.load(Ordering::SeqCst) > before + MESSAGE / 4 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Waits until the server has handled all earlier messages, by making a call.
async fn settle(raw: &mut Raw) {
    let last = message(&[request("Greedy.echo", (0, 0), b"\x01x")]);
    within("a call", raw.say(&last)).await;
    within("its answer", async {
        loop {
            let heard = raw.hear().await.expect("the connection does not end");
            if heard.ends_with(b"\x01x") {
                return;
            }
        }
    })
    .await;
}

/// Returns a request with a text of `len` bytes as its argument.
fn text(name: &str, id: (u32, u32), len: usize) -> Vec<u8> {
    let mut body = Vec::new();
    let mut left = len;
    while left >= 0x80 {
        body.push((left & 0x7f) as u8 | 0x80);
        left >>= 7;
    }
    body.push(left as u8);
    body.resize(body.len() + len, b'x');
    request(name, id, &body)
}

#[test]
fn the_memory_that_a_peer_occupies_is_limited() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = Server::new(GreedyServer::new(Still))
            .message_limit(MESSAGE)
            .concurrency(CALLS);
        let server = listen(server, tcp()).await;

        // The arguments of running calls.
        let calls = 2 * usize::from(CALLS) * MESSAGE;
        check("running calls", calls + OTHERS, &server, async |raw| {
            for round in 0..3 {
                for index in 1..CALLS.into() {
                    raw.say(&message(&[text("Greedy.wait", (index, round), LONG)]))
                        .await;
                    let one_way = text("Greedy.note", (u32::MAX, 0), LONG);
                    raw.say(&message(&[one_way])).await;
                }
            }
            settle(raw).await;
        })
        .await;

        // Stream items that the handler does not receive.
        let items = usize::from(CALLS) * (MESSAGE + (256 << 10));
        check("items", items + OTHERS, &server, async |raw| {
            for index in 1..CALLS.into() {
                raw.say(&message(&[request("Greedy.starve", (index, 0), b"")]))
                    .await;
                for sequence in 0_u32..2 {
                    let body = [&sequence.to_be_bytes()[..], &vec![1; 500 << 10]].concat();
                    raw.say(&message(&[frame(4, 1, 0, (index, 0), &body)]))
                        .await;
                }
            }
            settle(raw).await;
        })
        .await;

        // Answers that the peer receives slowly: 16 MiB, and the answers to the last message.
        let answers = (16 << 20) + usize::from(CALLS) * MESSAGE;
        check("answers", answers + OTHERS, &server, async |raw| {
            for round in 0..12 {
                let calls: Vec<_> = (0..CALLS.into())
                    .map(|index| request("Greedy.long", (index, round), b""))
                    .collect();
                raw.say(&message(&calls)).await;
            }
            for _ in 0..50 {
                let answer = within("an answer", raw.hear()).await;
                assert!(answer.is_some_and(|answer| answer.len() > LONG));
            }
        })
        .await;

        // Frames of calls that are not running.
        check("late frames", MESSAGE, &server, async |raw| {
            for generation in 0..3000_u32 {
                let index = 1 + generation % (u32::from(CALLS) - 1);
                let id = (index, generation.wrapping_mul(0x9e37_79b9));
                let frames = [
                    frame(7, 0, 0, id, b""),
                    frame(5, 0, 0, (id.0, id.1.wrapping_add(1)), &[0; 4]),
                    frame(6, 0, 0, id, &[0xff; 8]),
                    frame(4, 1, 0, id, &[0; 1000]),
                    text("Greedy.missing", (u32::MAX, 0), 500),
                ];
                raw.say(&message(&frames)).await;
            }
            settle(raw).await;
        })
        .await;

        // A message that is announced and does not arrive.
        check("an announced message", MESSAGE / 2, &server, async |raw| {
            let Raw::Tcp(stream) = raw else {
                panic!("a peer over TCP");
            };
            let begun = (MESSAGE as u32).to_be_bytes();
            let sending = tokio::io::AsyncWriteExt::write_all(stream, &begun);
            within("a length", sending).await.unwrap();
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    });
}
