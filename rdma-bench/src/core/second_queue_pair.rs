//! Measures latency while messages of another size are sent on a second queue pair (`--beside`).
//! One thread posts on both queue pairs and polls their completion queues.

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
use super::send::unposted;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::recorder::Recorder;
use crate::session::{Measured, Role};
use crate::settings::Settings;
use crate::statistics::{Bandwidth, Bulk};

/// This process's end of a second queue pair. While a latency test uses the first queue pair, the
/// client sends other messages on the second, so that the test measures the latency under load.
#[derive(Debug)]
pub(super) struct SecondQueuePair {
    queue_pair: QueuePair,
    /// The size of a message in bytes.
    size: usize,
    /// Number of requests that the client keeps outstanding, or of receives that the server keeps
    /// posted.
    depth: usize,
}

impl SecondQueuePair {
    /// Returns the number of sends and the number of receives that this process keeps posted on the
    /// second queue pair. The second queue pair loads the device during a latency test. Both
    /// numbers are 0 if the test has no second queue pair.
    pub(super) fn depths(role: Role, plan: &Plan, settings: &Settings) -> (usize, usize) {
        let (requests, receives) = settings.beside_depths();
        match (plan.beside, role) {
            (None, _) => (0, 0),
            (Some(_), Role::Client) => (requests, 0),
            (Some(_), Role::Server) => (0, receives),
        }
    }

    /// Creates and connects the second queue pair of a latency test, which carries other messages
    /// during the test. Both queue pairs are created with the options of `builder`. Returns `None`
    /// if the test of `plan` has no second queue pair.
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
        let queue_pair =
            queue_pair.ok_or_else(|| Error::Protocol("no second queue pair was created".into()))?;
        Ok(Some(Self {
            queue_pair,
            size,
            depth: requests.max(receives),
        }))
    }
}

/// Measures the round trips of messages of `size` bytes on the first queue pair. During the test,
/// the client keeps sending messages on the second queue pair, and the server receives them.
pub(super) fn latency(
    connection: &Connection,
    second: &SecondQueuePair,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    let exchange = Exchange::new(connection, size)?;
    match connection.role {
        Role::Client => run_client(connection, second, exchange, control),
        Role::Server => run_server(connection, second, exchange, control),
    }
}

/// Runs the client of a test of latency under load: measures the latency on the first queue pair,
/// and at the same time sends other messages on the second. Returns the latency, and the bandwidth
/// of the second queue pair. Only messages that completed before the last answer of the latency
/// test count, because later messages did not compete with that test.
fn run_client(
    connection: &Connection,
    second: &SecondQueuePair,
    mut exchange: Exchange,
    control: &mut Control,
) -> Result<Measured> {
    let mut sender = BulkSender::new(connection, second)?;
    let mut room = [WorkCompletion::default(); Completions::BATCH];
    control.barrier()?;
    let mut watch = control.watch(false)?;
    let begun = Instant::now();
    sender.fill()?;
    while exchange.has_more() || !exchange.can_post() {
        if exchange.can_post() {
            exchange.post()?;
        }
        // Only the latency test counts as progress: otherwise the many messages on the second queue
        // pair would hide that the latency test is stalled.
        let mut progress = false;
        let count = connection.sends.poll(&mut room)?;
        for completion in &room[..count] {
            if sender.has(completion) {
                sender.complete(completion);
            } else {
                exchange.sent(completion)?;
                progress = true;
            }
        }
        sender.fill()?;
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
    let bandwidth = Bandwidth::over(sender.completed, begun.elapsed());
    while sender.queue.in_flight() > 0 {
        let count = connection.sends.wait(&mut room, &mut watch)?;
        for completion in &room[..count] {
            sender.complete(completion);
        }
    }
    let size = second.size;
    Measured::beside(&exchange.recorder, 2, Bulk { size, bandwidth })
}

/// Runs the server of a test of latency under load: answers the messages of the latency test, and
/// receives the client's other messages on the second queue pair, until the client has finished.
/// Returns the latency, and the bandwidth of the second queue pair from its first message to its
/// last.
fn run_server(
    connection: &Connection,
    second: &SecondQueuePair,
    mut exchange: Exchange,
    control: &mut Control,
) -> Result<Measured> {
    let mut receiver = BulkReceiver::new(connection, second)?;
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
            if receiver.has(completion) {
                receiver.repost(completion)?;
                last = Instant::now();
                first.get_or_insert(last);
            } else {
                exchange.received(completion)?;
            }
        }
        if exchange.can_post() && exchange.has_more() {
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
    let bandwidth = Bandwidth::over(receiver.received, last - first.unwrap_or(last));
    let size = second.size;
    Measured::beside(&exchange.recorder, 2, Bulk { size, bandwidth })
}

/// This process's side of a latency test, in which the client and the server alternately send one
/// message each, beginning with the client.
struct Exchange {
    sends: SendQueue<Buffer>,
    receives: Receives,
    /// The memory of the message; `None` while the message is being sent.
    message: Option<Buffer>,
    /// Set if this process is the next to send a message.
    is_next: bool,
    inline: bool,
    /// Set if this process continues until the peer has finished.
    until_peer_finishes: bool,
    recorder: Recorder,
}

impl Exchange {
    fn new(connection: &Connection, size: usize) -> Result<Self> {
        Ok(Self {
            sends: connection.queue_pair().send_queue(),
            receives: Receives::post(connection, size)?,
            message: Some(connection.allocate_message(size)?),
            is_next: connection.role == Role::Client,
            inline: size <= connection.inline,
            until_peer_finishes: connection.ends_with_peer(),
            recorder: Recorder::new(connection.plan.length),
        })
    }

    /// Returns whether this process can post its message now. Two conditions must hold: this
    /// process is the next to send (the peer's message has arrived, or the client begins), and this
    /// process's previous message has been sent.
    #[inline]
    fn can_post(&self) -> bool {
        self.is_next && self.message.is_some()
    }

    /// Returns whether this process has another message to send in this test.
    #[inline]
    fn has_more(&self) -> bool {
        self.until_peer_finishes || self.recorder.needs_more()
    }

    #[inline]
    fn post(&mut self) -> Result<()> {
        let message = self.message.take().ok_or_else(unposted)?;
        self.is_next = false;
        self.recorder.record();
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
        self.message = Some(message.ok_or_else(unposted)?);
        Ok(())
    }

    #[inline]
    fn received(&mut self, completion: &WorkCompletion) -> Result<()> {
        self.is_next = true;
        self.receives.repost(completion)
    }
}

/// The client's end of the second queue pair, which loads the device during a latency test. Keeps
/// several sends of the same message outstanding, and counts the completed sends. Every send is
/// signaled.
struct BulkSender {
    queue: SendQueue<FrozenBuffer>,
    message: FrozenBuffer,
    depth: usize,
    completed: usize,
}

impl BulkSender {
    fn new(connection: &Connection, second: &SecondQueuePair) -> Result<Self> {
        Ok(Self {
            queue: second.queue_pair.send_queue(),
            message: connection.allocate_message(second.size)?.freeze(),
            depth: second.depth,
            completed: 0,
        })
    }

    #[inline]
    fn has(&self, completion: &WorkCompletion) -> bool {
        completion.queue_pair() == self.queue.queue_pair()
    }

    /// Posts sends until [`depth`](Self::depth) sends are outstanding, to load the device during a
    /// latency test.
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

/// The server's end of the second queue pair, on which messages arrive while a latency test uses
/// the first. Keeps receives posted, and counts the messages that have arrived.
struct BulkReceiver {
    queue: ReceiveQueue<ExposedMemory>,
    received: usize,
}

impl BulkReceiver {
    /// Creates the server's receiver for the messages that load the device during a latency test.
    /// The messages arrive on the queue pair of `second`, and the latency test uses another queue
    /// pair. All receives write to the same memory, because the test does not read the messages.
    fn new(connection: &Connection, second: &SecondQueuePair) -> Result<Self> {
        let mut queue = second.queue_pair.receive_queue();
        let memory = connection.allocate_message(second.size)?;
        let memory = memory.expose(AccessFlags::LOCAL_WRITE)?;
        for _ in 0..second.depth {
            let posted = queue.post(memory.clone());
            posted.map_err(rdma_core::Error::from)?;
        }
        Ok(Self { queue, received: 0 })
    }

    #[inline]
    fn has(&self, completion: &WorkCompletion) -> bool {
        completion.queue_pair() == self.queue.queue_pair()
    }

    /// Handles `completion`, the completion of a receive: counts the received message, and posts a
    /// receive with the same memory again.
    #[inline]
    fn repost(&mut self, completion: &WorkCompletion) -> Result<()> {
        let memory = self.queue.complete(completion).ok_or_else(unposted)?;
        let posted = self.queue.post(memory);
        posted.map_err(rdma_core::Error::from)?;
        self.received += 1;
        Ok(())
    }
}
