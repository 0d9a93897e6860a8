//! Measures latency while messages of another size are sent on a second queue pair. One thread posts on
//! both queue pairs and polls their completion queues.

use std::time::Instant;

use rdma_core::{
    AccessFlags, Buffer, ExposedMemory, FrozenBuffer, QueuePair, QueuePairBuilder, ReceiveQueue,
    SendQueue, SendRequest, WorkCompletion,
};

use super::Connection;
use super::completions::Completions;
use super::connection::entries;
use super::peer::Peer;
use super::receives::Receives;
use super::send::foreign;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::recorder::Recorder;
use crate::session::{Measured, Role};
use crate::settings::Settings;
use crate::statistics::{Bandwidth, Bulk};

/// The second queue pair, on which the client sends messages while a latency test uses the first one.
#[derive(Debug)]
pub(super) struct Beside {
    queue_pair: QueuePair,
    /// The size of a message in bytes.
    size: usize,
    /// Number of requests that the client keeps outstanding, or of receives that the server keeps
    /// posted.
    depth: usize,
}

impl Beside {
    /// Returns the numbers of requests and of receives that this process posts at once on the second
    /// queue pair. Both are 0 if the test has no second queue pair.
    pub(super) fn depths(role: Role, plan: &Plan, settings: &Settings) -> (usize, usize) {
        let (requests, receives) = settings.beside_depths();
        match (plan.beside, role) {
            (None, _) => (0, 0),
            (Some(_), Role::Client) => (requests, 0),
            (Some(_), Role::Server) => (0, receives),
        }
    }

    /// Creates and connects the second queue pair. Returns `None` if `plan` has no messages for a
    /// second queue pair. `builder` has the options of the first queue pair.
    pub(super) fn connect(
        role: Role,
        builder: &QueuePairBuilder,
        (plan, settings): (&Plan, &Settings),
        control: &mut Control,
    ) -> Result<Option<Self>> {
        let Some(size) = plan.beside else {
            return Ok(None);
        };
        let (requests, receives) = Self::depths(role, plan, settings);
        let builder = builder
            .clone()
            .send_requests(entries(requests.max(1))?)
            .receive_requests(entries(receives.max(1))?);
        let peer = Peer::connect(&builder, &[], (plan, settings), control)?;
        let queue_pair = peer.queue_pairs.into_iter().next();
        let queue_pair = queue_pair
            .ok_or_else(|| Error::Protocol("no queue pair beside the first was made".into()))?;
        Ok(Some(Self {
            queue_pair,
            size,
            depth: requests.max(receives),
        }))
    }
}

/// Measures the round trips of messages of `size` bytes on the first queue pair. Meanwhile the client
/// keeps sending messages on the second queue pair, and the server receives them.
pub(super) fn latency(
    connection: &Connection,
    beside: &Beside,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    let exchange = Exchange::new(connection, size)?;
    match connection.role {
        Role::Client => ask(connection, beside, exchange, control),
        Role::Server => answer(connection, beside, exchange, control),
    }
}

/// Runs the client, which sends the messages of the latency test and those of the second queue pair.
/// The bandwidth counts only messages of the second queue pair that completed before the last answer,
/// because later messages do not compete with the latency test.
fn ask(
    connection: &Connection,
    beside: &Beside,
    mut exchange: Exchange,
    control: &mut Control,
) -> Result<Measured> {
    let mut stream = Stream::new(connection, beside)?;
    let mut room = [WorkCompletion::default(); Completions::BATCH];
    control.barrier()?;
    let mut watch = control.watch(false)?;
    let begun = Instant::now();
    stream.fill()?;
    while exchange.has_more() || !exchange.is_due() {
        if exchange.is_due() {
            exchange.post()?;
        }
        // Only the latency test counts as progress: otherwise the many messages on the second queue
        // pair would hide that the latency test is stalled.
        let mut progress = false;
        let count = connection.sends.poll(&mut room)?;
        for completion in &room[..count] {
            if stream.has(completion) {
                stream.complete(completion);
            } else {
                exchange.sent(completion)?;
                progress = true;
            }
        }
        stream.fill()?;
        let count = connection.receives.poll(&mut room)?;
        for completion in &room[..count] {
            exchange.received(completion)?;
            progress = true;
        }
        if progress {
            watch.busy();
        } else {
            watch.idle()?;
        }
    }
    let bandwidth = Bandwidth::over(stream.completed, begun.elapsed());
    while stream.queue.in_flight() > 0 {
        let count = connection.sends.wait(&mut room, &mut watch)?;
        for completion in &room[..count] {
            stream.complete(completion);
        }
    }
    let size = beside.size;
    Measured::beside(&exchange.recorder, Bulk { size, bandwidth })
}

/// Runs the server, which answers the messages of the latency test and receives the messages of the
/// second queue pair until the client has finished. The bandwidth is measured from the first message
/// of the second queue pair to the last.
fn answer(
    connection: &Connection,
    beside: &Beside,
    mut exchange: Exchange,
    control: &mut Control,
) -> Result<Measured> {
    let mut sink = Sink::new(connection, beside)?;
    let mut room = [WorkCompletion::default(); Completions::BATCH];
    let mut first = None;
    let mut last = Instant::now();
    control.barrier()?;
    let mut watch = control.watch(true)?;
    let mut ended = false;
    loop {
        let sent = connection.sends.poll(&mut room)?;
        for completion in &room[..sent] {
            exchange.sent(completion)?;
        }
        let received = connection.receives.poll(&mut room)?;
        for completion in &room[..received] {
            if sink.has(completion) {
                sink.turn(completion)?;
                last = Instant::now();
                first.get_or_insert(last);
            } else {
                exchange.received(completion)?;
            }
        }
        if exchange.is_due() && exchange.has_more() {
            exchange.post()?;
        }
        if sent + received > 0 {
            watch.busy();
        } else if ended {
            // No completion has arrived since the client finished.
            break;
        } else {
            ended = watch.idle()?;
        }
    }
    let bandwidth = Bandwidth::over(sink.received, last - first.unwrap_or(last));
    let size = beside.size;
    Measured::beside(&exchange.recorder, Bulk { size, bandwidth })
}

/// This process's side of the latency test, in which client and server send messages alternately.
struct Exchange {
    sends: SendQueue<Buffer>,
    receives: Receives,
    /// The memory of the message; `None` while the message is being sent.
    message: Option<Buffer>,
    /// Set if this process is the next to send a message.
    turn: bool,
    inline: bool,
    /// Set if the peer decides how many messages are sent.
    endless: bool,
    recorder: Recorder,
}

impl Exchange {
    fn new(connection: &Connection, size: usize) -> Result<Self> {
        Ok(Self {
            sends: connection.queue_pair().send_queue(),
            receives: Receives::post(connection, size)?,
            message: Some(connection.message(size)?),
            turn: connection.role == Role::Client,
            inline: size <= connection.inline,
            endless: connection.ends_with_peer(),
            recorder: Recorder::new(connection.plan.length),
        })
    }

    /// Returns whether this process can post a message: this process is the next to send, and its
    /// previous message was sent.
    #[inline]
    fn is_due(&self) -> bool {
        self.turn && self.message.is_some()
    }

    /// Returns whether this process must send another message.
    #[inline]
    fn has_more(&self) -> bool {
        self.endless || self.recorder.more()
    }

    #[inline]
    fn post(&mut self) -> Result<()> {
        let message = self.message.take().ok_or_else(foreign)?;
        self.turn = false;
        self.recorder.stamp();
        let request = SendRequest::send(message);
        let request = if self.inline {
            request.inline()
        } else {
            request
        };
        let posted = self.sends.post(request);
        posted.map_err(rdma_core::Error::from)?;
        Ok(())
    }

    #[inline]
    fn sent(&mut self, completion: &WorkCompletion) -> Result<()> {
        let message = self.sends.complete(completion).next();
        self.message = Some(message.ok_or_else(foreign)?);
        Ok(())
    }

    #[inline]
    fn received(&mut self, completion: &WorkCompletion) -> Result<()> {
        self.turn = true;
        self.receives.turn(completion)
    }
}

/// The sender of the messages on the second queue pair. Every request is signaled.
struct Stream {
    queue: SendQueue<FrozenBuffer>,
    message: FrozenBuffer,
    depth: usize,
    completed: usize,
}

impl Stream {
    fn new(connection: &Connection, beside: &Beside) -> Result<Self> {
        Ok(Self {
            queue: beside.queue_pair.send_queue(),
            message: connection.message(beside.size)?.freeze(),
            depth: beside.depth,
            completed: 0,
        })
    }

    #[inline]
    fn has(&self, completion: &WorkCompletion) -> bool {
        completion.queue_pair() == self.queue.queue_pair()
    }

    /// Posts requests until [`depth`](Self::depth) are outstanding.
    #[inline]
    fn fill(&mut self) -> Result<()> {
        while self.queue.in_flight() < self.depth {
            let request = SendRequest::send(self.message.clone());
            let posted = self.queue.post(request);
            posted.map_err(rdma_core::Error::from)?;
        }
        Ok(())
    }

    #[inline]
    fn complete(&mut self, completion: &WorkCompletion) {
        self.completed += self.queue.complete(completion).count();
    }
}

/// The receiver of the messages on the second queue pair.
struct Sink {
    queue: ReceiveQueue<ExposedMemory>,
    received: usize,
}

impl Sink {
    /// Creates the receiver and posts its first receives, all with the same memory.
    fn new(connection: &Connection, beside: &Beside) -> Result<Self> {
        let mut queue = beside.queue_pair.receive_queue();
        let memory = connection.message(beside.size)?;
        let memory = memory.expose(AccessFlags::LOCAL_WRITE)?;
        for _ in 0..beside.depth {
            let posted = queue.post(memory.clone());
            posted.map_err(rdma_core::Error::from)?;
        }
        Ok(Self { queue, received: 0 })
    }

    #[inline]
    fn has(&self, completion: &WorkCompletion) -> bool {
        completion.queue_pair() == self.queue.queue_pair()
    }

    /// Takes the memory of a completed receive, and posts another receive with this memory.
    #[inline]
    fn turn(&mut self, completion: &WorkCompletion) -> Result<()> {
        let memory = self.queue.complete(completion).ok_or_else(foreign)?;
        let posted = self.queue.post(memory);
        posted.map_err(rdma_core::Error::from)?;
        self.received += 1;
        Ok(())
    }
}
