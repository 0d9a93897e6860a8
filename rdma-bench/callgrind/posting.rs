//! Posts and polls one request after the other between two queue pairs of this process, in one
//! thread, as `posting.c` does in C, over rdma-core. `cargo xtask callgrind` counts the
//! instructions of both.
//!
//! ```text
//! posting send|write|read|atomic|idle COUNT [owned|scope|raw|concurrent|inline|uc|ud|srq]
//! ```
//!
//! After posting, and after each poll that finds no completion, the program sleeps, so that the
//! device's thread has time to execute the requests. The instructions of the sleeps are not
//! counted.

use std::env;
use std::error::Error;
use std::mem::ManuallyDrop;
use std::process::ExitCode;
use std::time::Duration;

use rdma_core::address::{AddressVector, DatagramHeader, Destination};
use rdma_core::memory::BufferSliceMut;
use rdma_core::queue_pair::{
    ConcurrentReceiveQueue, ConcurrentSendQueue, RawElements, RawSendRequest, raw_receive_request,
};
use rdma_core::{
    AccessFlags, Buffer, CompletionQueue, ConnectOptions, Context, DatagramOptions,
    ProtectionDomain, QueuePair, ReceiveQueue, RemoteMemory, SendQueue, SendRequest,
    SharedReceiveQueue, Transport, WorkCompletion,
};

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

/// Size of a message in bytes, as in `posting.c`, so that both programs post equal requests.
const SIZE: usize = 8;
const DEPTH: u32 = 16;

/// The Q_Key of both datagram queue pairs and of all datagrams, so that the receiver accepts them.
const QKEY: u32 = 0x1234_5678;

/// Duration of one sleep in microseconds, during which the device executes posted requests. Long
/// enough that the next poll usually finds the completion.
const REST_MICROSECONDS: u32 = 200;

/// Time limit of a scope of rdma-core, in which requests borrow their memory. Much longer than a
/// request takes.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The operation whose instructions are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Send,
    Write,
    Read,
    Atomic,
    /// No operation: the program polls an empty completion queue.
    Idle,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (operation, count, way) = match arguments[..] {
        [operation, count] => (operation, count, "owned"),
        [operation, count, way] => (operation, count, way),
        _ => return usage(),
    };
    let operation = match operation {
        "send" => Operation::Send,
        "write" => Operation::Write,
        "read" => Operation::Read,
        "atomic" => Operation::Atomic,
        "idle" => Operation::Idle,
        _ => return usage(),
    };
    let Ok(count) = count.parse() else {
        return usage();
    };
    let done = ConnectedPair::new(way).and_then(|pair| {
        let ConnectedPair { one, other, .. } = &pair;
        match way {
            "owned" | "uc" => {
                let (sends, receives) = (one.send_queue(), other.receive_queue());
                run(&pair, Owned { sends, receives }, operation, count)
            }
            "concurrent" => {
                let sends = one.concurrent_send_queue();
                let receives = other.concurrent_receive_queue();
                run(&pair, Concurrent { sends, receives }, operation, count)
            }
            "srq" => {
                let receives = pair.shared.clone().ok_or("no shared receive queue")?;
                let sends = one.send_queue();
                run(&pair, Shared { sends, receives }, operation, count)
            }
            "inline" => inline(&pair, operation, count),
            "ud" => datagrams(&pair, operation, count),
            "scope" => scope(&pair, operation, count),
            "raw" => raw(&pair, operation, count),
            _ => Err(format!("no way to post is called {way}").into()),
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("posting: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: posting send|write|read|atomic|idle COUNT [owned|scope|raw|concurrent|inline|uc|ud|srq]"
    );
    ExitCode::from(2)
}

/// Two connected queue pairs of this process. Each has one completion queue for sends and receives.
struct ConnectedPair {
    domain: ProtectionDomain,
    one: QueuePair,
    other: QueuePair,
    /// The shared receive queue of both queue pairs; `None` unless the way to post is `srq`.
    shared: Option<SharedReceiveQueue<Buffer>>,
}

impl ConnectedPair {
    /// Creates and connects two queue pairs, which support the requests of `way`, the name of a way
    /// to post requests.
    fn new(way: &str) -> Result<Self> {
        let domain = Context::open_default()?.protection_domain()?;
        let shared = (way == "srq").then(|| domain.shared_receive_queue(DEPTH).build());
        let shared = shared.transpose()?;
        let make = || {
            let queue = domain.context().completion_queue(2 * DEPTH).build()?;
            let mut builder = domain.queue_pair().transport(match way {
                "uc" => Transport::UnreliableConnected,
                "ud" => Transport::Datagram,
                _ => Transport::ReliableConnected,
            });
            if way == "inline" {
                builder = builder.inline_data(SIZE as u32);
            }
            if let Some(shared) = &shared {
                builder = builder.shared_receive_queue(shared);
            }
            builder
                .send_completions(&queue)
                .receive_completions(&queue)
                .send_requests(DEPTH)
                .receive_requests(DEPTH)
                .elements(1)
                .build()
        };
        let (one, other) = (make()?, make()?);
        let (one, other) = if way == "ud" {
            let options = DatagramOptions::new(QKEY);
            (one.activate(&options)?, other.activate(&options)?)
        } else {
            let (to_one, to_other) = (one.endpoint(), other.endpoint());
            let options = ConnectOptions::default();
            let one = one.connect(&to_other, &options)?;
            (one, other.connect(&to_one, &options)?)
        };
        Ok(Self {
            domain,
            one,
            other,
            shared,
        })
    }
}

fn run(pair: &ConnectedPair, way: impl Poster, operation: Operation, count: usize) -> Result {
    match operation {
        Operation::Idle => poll_empty(pair.one.send_completions(), count),
        Operation::Send => messages(pair, way, count),
        Operation::Write => one_sided(pair, way, SendRequest::write, count),
        Operation::Read => one_sided(pair, way, SendRequest::read, count),
        Operation::Atomic => one_sided(pair, way, add_one, count),
    }
}

#[inline(always)]
fn add_one(memory: Buffer, remote: RemoteMemory) -> SendRequest<Buffer> {
    SendRequest::fetch_and_add(memory, remote, 1)
}

/// Sleeps for [`REST_MICROSECONDS`], during which the thread of the device executes the posted
/// requests.
#[inline(never)]
fn rest() {
    unsafe extern "C" {
        /// Sleeps. The instructions of this function, which belongs to the C library, are not
        /// counted as instructions of the program.
        fn usleep(microseconds: u32) -> i32;
    }
    // SAFETY: `usleep` takes any number below a million and accesses no memory.
    unsafe { usleep(REST_MICROSECONDS) };
}

/// Polls `queue` until there is a completion, and returns the completion.
#[inline(always)]
fn wait<'r>(
    queue: &CompletionQueue,
    room: &'r mut [WorkCompletion; 1],
) -> rdma_core::Result<&'r WorkCompletion> {
    while queue.poll(room)?.is_empty() {
        rest();
    }
    Ok(&room[0])
}

#[inline(never)]
fn poll_empty(queue: &CompletionQueue, count: usize) -> Result {
    let mut room = [WorkCompletion::default()];
    for _ in 0..count {
        if !queue.poll(&mut room)?.is_empty() {
            return Err(unposted());
        }
    }
    Ok(())
}

#[cold]
fn unposted() -> Box<dyn Error> {
    "a completion of a request that was not posted".into()
}

/// A way to post requests, whose instructions are counted. Owns the memory of each request from the
/// post to the completion.
trait Poster {
    fn post(&mut self, request: SendRequest<Buffer>) -> Result;
    fn sent(&mut self, completion: &WorkCompletion) -> Option<Buffer>;
    fn post_receive(&mut self, memory: Buffer) -> Result;
    fn received(&mut self, completion: &WorkCompletion) -> Option<Buffer>;
}

/// A [`Poster`] for the ways `owned` and `uc`: posts through queues that each have one owner. The
/// queues own the buffers of posted requests.
struct Owned {
    sends: SendQueue<Buffer>,
    receives: ReceiveQueue<Buffer>,
}

impl Poster for Owned {
    #[inline(always)]
    fn post(&mut self, request: SendRequest<Buffer>) -> Result {
        Ok(self.sends.post(request)?)
    }

    #[inline(always)]
    fn sent(&mut self, completion: &WorkCompletion) -> Option<Buffer> {
        self.sends.complete(completion).next()
    }

    #[inline(always)]
    fn post_receive(&mut self, memory: Buffer) -> Result {
        Ok(self.receives.post(memory)?)
    }

    #[inline(always)]
    fn received(&mut self, completion: &WorkCompletion) -> Option<Buffer> {
        self.receives.complete(completion)
    }
}

/// A [`Poster`] for the way `concurrent`: posts through queues that several threads can use at the
/// same time. The queues own the buffers of posted requests.
struct Concurrent {
    sends: ConcurrentSendQueue<Buffer>,
    receives: ConcurrentReceiveQueue<Buffer>,
}

impl Poster for Concurrent {
    #[inline(always)]
    fn post(&mut self, request: SendRequest<Buffer>) -> Result {
        let slot = self.sends.reserve().ok_or("no slot is free")?;
        Ok(self.sends.post(slot, request)?)
    }

    #[inline(always)]
    fn sent(&mut self, completion: &WorkCompletion) -> Option<Buffer> {
        let (slot, memory) = self.sends.complete(completion).next()?;
        self.sends.release(slot);
        Some(memory)
    }

    #[inline(always)]
    fn post_receive(&mut self, memory: Buffer) -> Result {
        Ok(self.receives.post(memory)?)
    }

    #[inline(always)]
    fn received(&mut self, completion: &WorkCompletion) -> Option<Buffer> {
        self.receives.complete(completion)
    }
}

/// A [`Poster`] for the way `srq`: posts sends through a queue that has one owner, and receives to
/// a shared receive queue. Both queues own the buffers of posted requests.
struct Shared {
    sends: SendQueue<Buffer>,
    receives: SharedReceiveQueue<Buffer>,
}

impl Poster for Shared {
    #[inline(always)]
    fn post(&mut self, request: SendRequest<Buffer>) -> Result {
        Ok(self.sends.post(request)?)
    }

    #[inline(always)]
    fn sent(&mut self, completion: &WorkCompletion) -> Option<Buffer> {
        self.sends.complete(completion).next()
    }

    #[inline(always)]
    fn post_receive(&mut self, memory: Buffer) -> Result {
        Ok(self.receives.post(memory)?)
    }

    #[inline(always)]
    fn received(&mut self, completion: &WorkCompletion) -> Option<Buffer> {
        self.receives.complete(completion)
    }
}

/// Performs `count` sends or writes, one after the other, whose data is copied when they are posted
/// (inline data).
#[inline(never)]
fn inline(pair: &ConnectedPair, operation: Operation, count: usize) -> Result {
    let ConnectedPair {
        domain, one, other, ..
    } = pair;
    if operation == Operation::Idle {
        return poll_empty(one.send_completions(), count);
    }
    let target = domain.allocate(SIZE)?.expose(AccessFlags::REMOTE_WRITE)?;
    let remote = target.remote();
    let (mut sends, mut receives) = (one.send_queue::<Buffer>(), other.receive_queue());
    let mut space = domain.allocate(SIZE)?;
    let (data, mut room) = ([7; SIZE], [WorkCompletion::default()]);
    for _ in 0..count {
        if operation == Operation::Send {
            receives.post(space)?;
            sends
                .post_inline(SendRequest::send(&data))
                .map_err(|refused| refused.error)?;
            rest();
            let received = wait(other.receive_completions(), &mut room)?;
            received.result()?;
            space = receives.complete(received).ok_or_else(unposted)?;
        } else {
            sends
                .post_inline(SendRequest::write(&data, remote))
                .map_err(|refused| refused.error)?;
            rest();
        }
        let sent = wait(one.send_completions(), &mut room)?;
        sent.result()?;
        if sends.complete(sent).next().is_some() || sends.in_flight() > 0 {
            return Err(unposted());
        }
    }
    Ok(())
}

/// Sends `count` datagrams (UD), one after the other. Each consumes a receive of the other queue
/// pair.
#[inline(never)]
fn datagrams(pair: &ConnectedPair, operation: Operation, count: usize) -> Result {
    let ConnectedPair {
        domain, one, other, ..
    } = pair;
    if operation == Operation::Idle {
        return poll_empty(one.send_completions(), count);
    }
    let here = other.address();
    let vector = AddressVector::new(here, here.gid, here.lid);
    let destination = Destination {
        handle: domain.address_handle(&vector)?,
        queue_pair: other.number(),
        qkey: QKEY,
    };
    let (mut sends, mut receives) = (one.send_queue(), other.receive_queue());
    let mut message = domain.allocate(SIZE)?;
    let mut space = domain.allocate(DatagramHeader::LEN + SIZE)?;
    let mut room = [WorkCompletion::default()];
    for _ in 0..count {
        receives.post(space)?;
        sends.post(SendRequest::send(message).to(&destination))?;
        rest();
        let sent = wait(one.send_completions(), &mut room)?;
        sent.result()?;
        message = sends.complete(sent).next().ok_or_else(unposted)?;
        let received = wait(other.receive_completions(), &mut room)?;
        received.result()?;
        space = receives.complete(received).ok_or_else(unposted)?;
    }
    Ok(())
}

/// Sends `count` messages, one after the other. Each consumes a receive of the other queue pair.
/// Posts the sends and the receives through `way`.
#[inline(never)]
fn messages(pair: &ConnectedPair, mut way: impl Poster, count: usize) -> Result {
    let ConnectedPair {
        domain, one, other, ..
    } = pair;
    let (here, there) = (one.send_completions(), other.receive_completions());
    let (mut message, mut space) = (domain.allocate(SIZE)?, domain.allocate(SIZE)?);
    let mut room = [WorkCompletion::default()];
    for _ in 0..count {
        way.post_receive(space)?;
        way.post(SendRequest::send(message))?;
        rest();
        let sent = wait(here, &mut room)?;
        sent.result()?;
        message = way.sent(sent).ok_or_else(unposted)?;
        let received = wait(there, &mut room)?;
        received.result()?;
        space = way.received(received).ok_or_else(unposted)?;
    }
    Ok(())
}

/// Performs `count` writes, reads or atomics (one-sided operations), one after the other. The
/// function `request` creates each request, which is posted through `way`.
#[inline(never)]
fn one_sided(
    pair: &ConnectedPair,
    mut way: impl Poster,
    request: impl Fn(Buffer, RemoteMemory) -> SendRequest<Buffer>,
    count: usize,
) -> Result {
    let ConnectedPair { domain, one, .. } = pair;
    let completions = one.send_completions();
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let target = domain.allocate(SIZE)?.expose(access)?;
    let remote = target.remote();
    let mut memory = domain.allocate(SIZE)?;
    let mut room = [WorkCompletion::default()];
    for _ in 0..count {
        way.post(request(memory, remote))?;
        rest();
        let completion = wait(completions, &mut room)?;
        completion.result()?;
        memory = way.sent(completion).ok_or_else(unposted)?;
    }
    Ok(())
}

/// Performs `count` operations, one after the other, that are posted in a scope of rdma-core, with
/// borrowed memory.
fn scope(pair: &ConnectedPair, operation: Operation, count: usize) -> Result {
    match operation {
        Operation::Idle => poll_empty(pair.one.send_completions(), count),
        Operation::Send => scoped_messages(pair, count),
        Operation::Write => scoped(pair, |memory, to| SendRequest::write(memory, to), count),
        Operation::Read => scoped(pair, |memory, from| SendRequest::read(memory, from), count),
        Operation::Atomic => scoped(
            pair,
            |memory, remote| SendRequest::fetch_and_add(memory, remote, 1),
            count,
        ),
    }
}

/// Sends messages as [`messages`] does, but posts them and their receives in scopes.
#[inline(never)]
fn scoped_messages(pair: &ConnectedPair, count: usize) -> Result {
    let ConnectedPair {
        domain, one, other, ..
    } = pair;
    let (mut message, mut space) = (domain.allocate(SIZE)?, domain.allocate(SIZE)?);
    let (message, space) = (message.as_slice_mut(), space.as_slice_mut());
    one.scope(MAX_WAIT, |here| {
        other.scope(MAX_WAIT, |there| -> rdma_core::Result<()> {
            let (mut message, mut space) = (message, space);
            for _ in 0..count {
                let receiving = there.post_receive(space)?;
                let sending = here.post(SendRequest::send(message))?;
                rest();
                message = sending.wait()?.memory;
                space = receiving.wait()?.memory;
            }
            Ok(())
        })
    })???;
    Ok(())
}

/// Performs one-sided operations as [`one_sided`] does, but posts them in a scope.
#[inline(never)]
fn scoped(
    pair: &ConnectedPair,
    request: impl for<'m> Fn(BufferSliceMut<'m>, RemoteMemory) -> SendRequest<BufferSliceMut<'m>>,
    count: usize,
) -> Result {
    let ConnectedPair { domain, one, .. } = pair;
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let target = domain.allocate(SIZE)?.expose(access)?;
    let remote = target.remote();
    let mut memory = domain.allocate(SIZE)?;
    let memory = memory.as_slice_mut();
    one.scope(MAX_WAIT, |scope| -> rdma_core::Result<()> {
        let mut memory = memory;
        for _ in 0..count {
            let pending = scope.post(request(memory, remote))?;
            rest();
            memory = pending.wait()?.memory;
        }
        Ok(())
    })??;
    Ok(())
}

/// Performs `count` operations, one after the other, that are posted as the C structs of
/// libibverbs. This function keeps the memory and chooses the ids.
#[inline(never)]
fn raw(pair: &ConnectedPair, operation: Operation, count: usize) -> Result {
    let ConnectedPair {
        domain, one, other, ..
    } = pair;
    if operation == Operation::Idle {
        return poll_empty(one.send_completions(), count);
    }
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let target = domain.allocate(SIZE)?.expose(access)?;
    let remote = target.remote();
    // Never freed: if the loop ends with an error, requests may be in flight.
    let message = ManuallyDrop::new(domain.allocate(SIZE)?);
    let space = ManuallyDrop::new(domain.allocate(SIZE)?);
    let (from, to) = (RawElements::of(&*message)?, RawElements::of(&*space)?);
    let mut room = [WorkCompletion::default()];
    for id in 0..count as u64 {
        if operation == Operation::Send {
            let mut receive = raw_receive_request(id, &to);
            // SAFETY: the list has one request, whose scatter/gather element is alive. The memory
            // is never freed, and is not accessed while the request is in flight. No queue object
            // posts on this queue pair, so the ids are this function's to choose.
            unsafe { other.post_receive_raw(&mut receive)? };
        }
        let mut send = match operation {
            Operation::Send | Operation::Idle => RawSendRequest::send(&from),
            Operation::Write => RawSendRequest::write(&from, remote),
            Operation::Read => RawSendRequest::read(&from, remote),
            Operation::Atomic => RawSendRequest::fetch_and_add(&from, remote, 1),
        }
        .id(id)
        .signaled();
        // SAFETY: as for the receive above.
        unsafe { one.post_send_raw(send.as_raw())? };
        rest();
        let sent = wait(one.send_completions(), &mut room)?;
        sent.result()?;
        if sent.id() != id {
            return Err(unposted());
        }
        if operation == Operation::Send {
            let received = wait(other.receive_completions(), &mut room)?;
            received.result()?;
            if received.id() != id {
                return Err(unposted());
            }
        }
    }
    Ok(())
}
