//! Checks that calls with small fixed-size requests and responses, and with short byte strings, do
//! not allocate at the client or the server. This test is a separate program, because other tests
//! also allocate.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{client, listen};
use rdma_rpc::{Address, Context, Payload, Server};

/// Allocator that counts allocations.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to the system allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of this function, which is that of the system
        // allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[rdma_rpc::service]
trait Fixed {
    async fn echo(&self, cx: &Context, bytes: [u8; 32]) -> Result<[u8; 32], u32>;
    #[rpc(raw)]
    async fn raw(&self, bytes: Payload) -> Result<Payload, u32>;
}

struct Same;

impl Fixed for Same {
    async fn echo(&self, _: &Context, bytes: [u8; 32]) -> Result<[u8; 32], u32> {
        Ok(bytes)
    }

    async fn raw(&self, bytes: Payload) -> Result<Payload, u32> {
        Ok(bytes)
    }
}

/// Number of counted rounds of three calls.
const CALLS: usize = 800;

async fn calls(client: &FixedClient, count: usize) {
    for _ in 0..count {
        assert_eq!(client.echo([7; 32]).await.unwrap(), [7; 32]);
        for len in [32, 64] {
            let bytes = &[7_u8; 64][..len];
            assert_eq!(&client.raw(bytes).await.unwrap()[..], bytes);
        }
    }
}

/// Returns the numbers of allocations of sequential calls, and of 16 concurrent calls.
async fn count(address: Address) -> (usize, usize) {
    let server = listen(Server::new(FixedServer::new(Same)), address).await;
    let connecting = client().connect(server.address());
    let client = FixedClient::new(common::within("connecting", connecting).await.unwrap());
    // The first calls allocate the buffers.
    calls(&client, 400).await;
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    calls(&client, CALLS).await;
    let alone = ALLOCATIONS.load(Ordering::Relaxed) - before;
    let together = async |count| {
        let callers: [_; 16] = std::array::from_fn(|_| calls(&client, count / 16));
        futures_util::future::join_all(callers).await;
    };
    together(400).await;
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    together(CALLS).await;
    let together = ALLOCATIONS.load(Ordering::Relaxed) - before;
    (alone, together)
}

/// Maximum number of allocations that calls do not cause: the list of concurrent calls, and buffers
/// that grow when messages accumulate on a slow machine.
const OTHERS: usize = 8;

#[test]
fn a_call_allocates_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for (transport, address) in [
        ("rdma", common::rdma()),
        ("tcp", common::tcp()),
        ("memory", common::memory()),
    ] {
        let (alone, together) = runtime.block_on(count(address));
        println!("{transport}: {alone} allocations for {CALLS} rounds, {together} at 16 at a time");
        assert!(alone <= OTHERS, "{transport}: {alone}");
        assert!(together <= OTHERS, "{transport}: {together}");
    }
}
