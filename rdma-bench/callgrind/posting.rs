//! Posts and polls one request after the other between two queue pairs of this process, in one
//! thread, as `posting.c` does in C, over rdma-core. `cargo xtask callgrind` counts the
//! instructions of both.
//!
//! ```text
//! posting send|write|read|atomic|idle COUNT [owned|scope|raw|concurrent|inline|uc|ud|srq]
//! ```
//!
//! Between posting and polling the program rests, so that polls find a completion at once. The
//! instructions of the rests are not counted.

use std::env;
use std::error::Error;
use std::mem::ManuallyDrop;
use std::process::ExitCode;
use std::time::Duration;

use rdma_core::{
    AccessFlags, AddressVector, Buffer, BufferSliceMut, CompletionQueue, ConcurrentReceiveQueue,
    ConcurrentSendQueue, ConnectOptions, Context, DatagramHeader, DatagramOptions, Destination,
    ProtectionDomain, QueuePair, RawElements, RawSendRequest, ReceiveQueue, RemoteMemory,
    SendQueue, SendRequest, SharedReceiveQueue, Transport, WorkCompletion, raw_receive_request,
};

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

/// The bytes of a message, and the requests that a queue has room for.
const SIZE: usize = 8;
const DEPTH: u32 = 16;

/// The key of the datagram queue pairs.
const QKEY: u32 = 0x1234_5678;

/// Duration of a rest, in microseconds.
const REST: u32 = 200;

/// Ample for a request.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Operation of the posted requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Send,
    Write,
    Read,
    Atomic,
    /// Nothing: an empty queue is polled.
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
    let done = Ends::new(way).and_then(|ends| {
        let Ends { one, other, .. } = &ends;
        match way {
            "owned" | "uc" => {
                let (sends, receives) = (one.send_queue(), other.receive_queue());
                run(&ends, Owned { sends, receives }, operation, count)
            }
            "concurrent" => {
                let sends = one.concurrent_send_queue();
                let receives = other.concurrent_receive_queue();
                run(&ends, Concurrent { sends, receives }, operation, count)
            }
            "srq" => {
                let receives = ends.shared.clone().ok_or("no shared receive queue")?;
                let sends = one.send_queue();
                run(&ends, Shared { sends, receives }, operation, count)
            }
            "inline" => inline(&ends, operation, count),
            "ud" => datagrams(&ends, operation, count),
            "scope" => scope(&ends, operation, count),
            "raw" => raw(&ends, operation, count),
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

/// Two queue pairs that are connected to each other, each with a completion queue.
struct Ends {
    domain: ProtectionDomain,
    one: QueuePair,
    other: QueuePair,
    /// The shared queue that the receives of both are posted to, if there is one.
    shared: Option<SharedReceiveQueue<Buffer>>,
}

impl Ends {
    /// Makes two ends for a way to post.
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

fn run(ends: &Ends, way: impl Way, operation: Operation, count: usize) -> Result {
    match operation {
        Operation::Idle => poll_in_vain(ends.one.send_completions(), count),
        Operation::Send => messages(ends, way, count),
        Operation::Write => one_sided(ends, way, SendRequest::write, count),
        Operation::Read => one_sided(ends, way, SendRequest::read, count),
        Operation::Atomic => one_sided(ends, way, add_one, count),
    }
}

#[inline(always)]
fn add_one(memory: Buffer, remote: RemoteMemory) -> SendRequest<Buffer> {
    SendRequest::fetch_and_add(memory, remote, 1)
}

/// Lets the device's own thread carry out what was posted.
#[inline(never)]
fn rest() {
    unsafe extern "C" {
        /// Of the C library, whose instructions are not the program's.
        fn usleep(microseconds: u32) -> i32;
    }
    // SAFETY: it takes any number below a million.
    unsafe { usleep(REST) };
}

/// Polls until there is a completion.
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
fn poll_in_vain(queue: &CompletionQueue, count: usize) -> Result {
    let mut room = [WorkCompletion::default()];
    for _ in 0..count {
        if !queue.poll(&mut room)?.is_empty() {
            return Err(foreign());
        }
    }
    Ok(())
}

#[cold]
fn foreign() -> Box<dyn Error> {
    "a completion of a request that was not posted".into()
}

/// A way to post, which keeps the memory of requests until they have completed.
trait Way {
    fn post(&mut self, request: SendRequest<Buffer>) -> Result;
    fn sent(&mut self, completion: &WorkCompletion) -> Option<Buffer>;
    fn post_receive(&mut self, memory: Buffer) -> Result;
    fn received(&mut self, completion: &WorkCompletion) -> Option<Buffer>;
}

/// Through queues with one owner.
struct Owned {
    sends: SendQueue<Buffer>,
    receives: ReceiveQueue<Buffer>,
}

impl Way for Owned {
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

/// Through queues that any number of threads can post to.
struct Concurrent {
    sends: ConcurrentSendQueue<Buffer>,
    receives: ConcurrentReceiveQueue<Buffer>,
}

impl Way for Concurrent {
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

/// Receives from a shared receive queue.
struct Shared {
    sends: SendQueue<Buffer>,
    receives: SharedReceiveQueue<Buffer>,
}

impl Way for Shared {
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

/// Sends and writes of data that is copied when it is posted.
#[inline(never)]
fn inline(ends: &Ends, operation: Operation, count: usize) -> Result {
    let Ends {
        domain, one, other, ..
    } = ends;
    if operation == Operation::Idle {
        return poll_in_vain(one.send_completions(), count);
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
            space = receives.complete(received).ok_or_else(foreign)?;
        } else {
            sends
                .post_inline(SendRequest::write(&data, remote))
                .map_err(|refused| refused.error)?;
            rest();
        }
        let sent = wait(one.send_completions(), &mut room)?;
        sent.result()?;
        if sends.complete(sent).next().is_some() || sends.in_flight() > 0 {
            return Err(foreign());
        }
    }
    Ok(())
}

/// Messages by datagrams.
#[inline(never)]
fn datagrams(ends: &Ends, operation: Operation, count: usize) -> Result {
    let Ends {
        domain, one, other, ..
    } = ends;
    if operation == Operation::Idle {
        return poll_in_vain(one.send_completions(), count);
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
        message = sends.complete(sent).next().ok_or_else(foreign)?;
        let received = wait(other.receive_completions(), &mut room)?;
        received.result()?;
        space = receives.complete(received).ok_or_else(foreign)?;
    }
    Ok(())
}

/// Messages, each of which takes a receive of the other end.
#[inline(never)]
fn messages(ends: &Ends, mut way: impl Way, count: usize) -> Result {
    let Ends {
        domain, one, other, ..
    } = ends;
    let (here, there) = (one.send_completions(), other.receive_completions());
    let (mut message, mut space) = (domain.allocate(SIZE)?, domain.allocate(SIZE)?);
    let mut room = [WorkCompletion::default()];
    for _ in 0..count {
        way.post_receive(space)?;
        way.post(SendRequest::send(message))?;
        rest();
        let sent = wait(here, &mut room)?;
        sent.result()?;
        message = way.sent(sent).ok_or_else(foreign)?;
        let received = wait(there, &mut room)?;
        received.result()?;
        space = way.received(received).ok_or_else(foreign)?;
    }
    Ok(())
}

/// Requests of which the other end's program knows nothing.
#[inline(never)]
fn one_sided(
    ends: &Ends,
    mut way: impl Way,
    request: impl Fn(Buffer, RemoteMemory) -> SendRequest<Buffer>,
    count: usize,
) -> Result {
    let Ends { domain, one, .. } = ends;
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
        memory = way.sent(completion).ok_or_else(foreign)?;
    }
    Ok(())
}

/// In scopes, with borrowed memory.
fn scope(ends: &Ends, operation: Operation, count: usize) -> Result {
    match operation {
        Operation::Idle => poll_in_vain(ends.one.send_completions(), count),
        Operation::Send => scoped_messages(ends, count),
        Operation::Write => scoped(
            ends,
            |memory, remote| SendRequest::write(memory, remote),
            count,
        ),
        Operation::Read => scoped(
            ends,
            |memory, remote| SendRequest::read(memory, remote),
            count,
        ),
        Operation::Atomic => scoped(
            ends,
            |memory, remote| SendRequest::fetch_and_add(memory, remote, 1),
            count,
        ),
    }
}

/// Messages, as [`messages`] are.
#[inline(never)]
fn scoped_messages(ends: &Ends, count: usize) -> Result {
    let Ends {
        domain, one, other, ..
    } = ends;
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

/// Requests, as those of [`one_sided`] are.
#[inline(never)]
fn scoped(
    ends: &Ends,
    request: impl for<'m> Fn(BufferSliceMut<'m>, RemoteMemory) -> SendRequest<BufferSliceMut<'m>>,
    count: usize,
) -> Result {
    let Ends { domain, one, .. } = ends;
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

/// By the C structs, with the memory and the ids in this function's care.
#[inline(never)]
fn raw(ends: &Ends, operation: Operation, count: usize) -> Result {
    let Ends {
        domain, one, other, ..
    } = ends;
    if operation == Operation::Idle {
        return poll_in_vain(one.send_completions(), count);
    }
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let target = domain.allocate(SIZE)?.expose(access)?;
    let remote = target.remote();
    // Never freed: where the loop ends by a failure, requests may be in flight.
    let message = ManuallyDrop::new(domain.allocate(SIZE)?);
    let space = ManuallyDrop::new(domain.allocate(SIZE)?);
    let (from, to) = (RawElements::of(&*message)?, RawElements::of(&*space)?);
    let mut room = [WorkCompletion::default()];
    for id in 0..count as u64 {
        if operation == Operation::Send {
            let mut receive = raw_receive_request(id, &to);
            // SAFETY: the list is one request, whose element is there; the memory is neither touched nor
            // freed; no id is one of a queue's.
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
        // SAFETY: as above.
        unsafe { one.post_send_raw(send.as_raw())? };
        rest();
        let sent = wait(one.send_completions(), &mut room)?;
        sent.result()?;
        if sent.id() != id {
            return Err(foreign());
        }
        if operation == Operation::Send {
            let received = wait(other.receive_completions(), &mut room)?;
            received.result()?;
            if received.id() != id {
                return Err(foreign());
            }
        }
    }
    Ok(())
}
