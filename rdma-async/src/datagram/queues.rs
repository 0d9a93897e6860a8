//! [`Queues`]: the queues of a datagram socket, polled by the tasks that wait.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use rdma_core::address::{DatagramHeader, Destination};
use rdma_core::memory::{ReadClaim, WriteClaim};
use rdma_core::{
    CompletionChannel, CompletionQueue, Gid, ProtectionDomain, ReceiveQueue, SendQueue,
    SendRequest, WorkCompletion,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::coop::consume_budget;

use super::DatagramAddress;
use crate::error::{Error, Result};
use crate::memory::{LocalMr, PieceLender};

/// Maximum number of completions that one poll takes from the completion queue: enough for a large
/// burst, and small enough for an array on the stack.
const POLL_BATCH: usize = 32;

/// Send queue, receive queue and completion queue of one datagram socket, shared by the tasks that
/// use the socket.
#[derive(Debug)]
pub(super) struct Queues {
    inner: Mutex<Inner>,
    channel: AsyncFd<CompletionChannel>,
    /// Notified after one task has handled completions, to wake the other waiting tasks.
    progress: Notify,
}

#[derive(Debug)]
struct Inner {
    completions: CompletionQueue,
    sends: SendQueue<ReadClaim>,
    receives: ReceiveQueue<WriteClaim>,
    lender: Arc<PieceLender>,
    /// Number of datagrams that were posted to the device.
    posted: u64,
    /// Number of datagrams that the device has sent, in the order in which they were posted.
    sent: u64,
    arrived: VecDeque<Arrived>,
    failure: Option<Error>,
}

/// A datagram that has arrived at the socket and that the program has not yet received.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) region: LocalMr,
    /// Address of the sender, without its Q_Key.
    pub(super) source: DatagramAddress,
    pub(super) immediate: Option<u32>,
}

/// Creates a completion queue with `entries` entries and its completion channel. Returns both. The
/// channel is registered with the current tokio runtime, so that tasks can wait for its events.
pub(super) fn completions(
    domain: &ProtectionDomain,
    entries: u32,
) -> Result<(CompletionQueue, AsyncFd<CompletionChannel>)> {
    let context = domain.context();
    let channel = context.completion_channel()?;
    let completions = context
        .completion_queue(entries)
        .channel(&channel)
        .build()?;
    // The replacement of `new` is unsafe because a type may return a different descriptor in each
    // call, or a descriptor that it does not own. A channel always returns its own descriptor,
    // which is open until the channel is dropped.
    #[expect(
        deprecated,
        reason = "the replacement is unsafe for types unlike this one"
    )]
    let channel =
        AsyncFd::new(channel).map_err(|source| Error::tcp("waiting for", "completions", source))?;
    Ok((completions, channel))
}

/// Posts `count` receives to `queue`, a new receive queue, and returns the queue. `lender` is the
/// pool from which each receive takes its memory.
pub(super) fn with_receives(
    mut queue: ReceiveQueue<WriteClaim>,
    lender: &PieceLender,
    count: u32,
) -> Result<ReceiveQueue<WriteClaim>> {
    for _ in 0..count {
        post_receive(&mut queue, lender)?;
    }
    Ok(queue)
}

/// Posts a receive to `queue`, into which another datagram can arrive. `lender` is the pool from
/// which the receive takes its memory.
fn post_receive(queue: &mut ReceiveQueue<WriteClaim>, lender: &PieceLender) -> Result<()> {
    let Ok(memory) = lender.take()?.into_claim(..) else {
        unreachable!("memory from the pool is unclaimed");
    };
    queue.post(memory).map_err(|refused| refused.error.into())
}

impl Queues {
    pub(super) fn new(
        completions: CompletionQueue,
        channel: AsyncFd<CompletionChannel>,
        sends: SendQueue<ReadClaim>,
        receives: ReceiveQueue<WriteClaim>,
        lender: Arc<PieceLender>,
    ) -> Self {
        Self {
            inner: Mutex::new(Inner {
                completions,
                sends,
                receives,
                lender,
                posted: 0,
                sent: 0,
                arrived: VecDeque::new(),
                failure: None,
            }),
            channel,
            progress: Notify::new(),
        }
    }

    /// Posts a datagram, after waiting for room in the send queue, and waits until the device has
    /// sent the datagram.
    pub(super) async fn send(
        &self,
        message: ReadClaim,
        to: &Destination,
        immediate: Option<u32>,
    ) -> Result<()> {
        let mut message = Some(message);
        let post = |inner: &mut Inner| inner.post(&mut message, to, immediate).transpose();
        let number = self.wait_for(post).await?;
        self.wait_for(|inner| (inner.sent >= number).then_some(Ok(())))
            .await
    }

    /// Waits for the next datagram, and returns the datagram. Posts another receive, so that a
    /// further datagram can arrive.
    pub(super) async fn receive(&self) -> Result<Arrived> {
        self.wait_for(|inner| {
            let arrived = inner.arrived.pop_front()?;
            match post_receive(&mut inner.receives, &inner.lender) {
                Ok(()) => Some(Ok(arrived)),
                Err(error) => {
                    // The datagram must not be lost: the next call returns it.
                    inner.arrived.push_front(arrived);
                    Some(Err(error))
                }
            }
        })
        .await
    }

    /// Calls `attempt` until it returns a value, and returns this value. Between two calls, waits
    /// until this task or another task has handled completions. This task also handles the
    /// completions of other tasks, and wakes these tasks. Fails if an operation of the socket has
    /// failed.
    async fn wait_for<T>(
        &self,
        mut attempt: impl FnMut(&mut Inner) -> Option<Result<T>>,
    ) -> Result<T> {
        // Lets other tasks run even if every attempt returns a value immediately.
        consume_budget().await;
        loop {
            let mut progress = pin!(self.progress.notified());
            // Must register before the poll: another task may handle a completion right after it.
            progress.as_mut().enable();
            if let Some(outcome) = self.attempt(&mut attempt) {
                return outcome;
            }
            tokio::select! {
                ready = self.channel.readable() => {
                    let mut ready = ready.map_err(|source| {
                        Error::tcp("waiting for", "completions", source)
                    })?;
                    // There must be no await before the next poll: if this future were dropped
                    // after it took the event, no other task would handle the completion.
                    while self.channel.get_ref().next_event()?.is_some() {}
                    ready.clear_ready();
                }
                () = progress => {}
            }
        }
    }

    /// Handles the completions in the queue, and then calls `attempt`. If there were completions,
    /// wakes the other waiting tasks. Returns the value of `attempt`, or an error of the socket.
    /// Returns `None` if the task must wait: the next completion then causes an event on the
    /// channel.
    fn attempt<T>(
        &self,
        attempt: &mut impl FnMut(&mut Inner) -> Option<Result<T>>,
    ) -> Option<Result<T>> {
        let mut inner = self.inner.lock();
        let mut is_armed = false;
        loop {
            match inner.poll() {
                Ok(0) => {}
                Ok(_) => self.progress.notify_waiters(),
                Err(error) => return Some(Err(error)),
            }
            if let Some(outcome) = attempt(&mut inner) {
                return Some(outcome);
            }
            if let Some(error) = &inner.failure {
                return Some(Err(error.clone()));
            }
            if is_armed {
                return None;
            }
            if let Err(error) = inner.completions.request_notification() {
                return Some(Err(error.into()));
            }
            is_armed = true;
        }
    }
}

impl Inner {
    /// Takes all completions from the completion queue, and handles each completion. Returns the
    /// number of completions.
    fn poll(&mut self) -> Result<usize> {
        let mut buffer = [WorkCompletion::default(); POLL_BATCH];
        let mut handled = 0;
        loop {
            let completions = self.completions.poll(&mut buffer)?;
            let found = completions.len();
            for completion in completions {
                self.handle(completion);
            }
            handled += found;
            if found < POLL_BATCH {
                return Ok(handled);
            }
        }
    }

    /// Handles a completion: stores the datagram of a receive, or counts a datagram as sent. Stores
    /// the first error, with which all later operations fail.
    fn handle(&mut self, completion: &WorkCompletion) {
        if let Err(error) = completion.result() {
            self.failure.get_or_insert(error.into());
        }
        if let Some(memory) = self.receives.complete(completion) {
            if completion.result().is_ok() {
                self.arrive(completion, memory);
            }
            return;
        }
        let ended = self.sends.complete(completion).count() as u64;
        if completion.result().is_ok() {
            self.sent += ended;
        }
    }

    /// Stores a received datagram until the program receives it. `completion` states the length and
    /// the source. `memory` contains the global route header, followed by the datagram.
    fn arrive(&mut self, completion: &WorkCompletion, memory: WriteClaim) {
        let gid = match completion.has_global_route() {
            true => DatagramHeader::parse(&memory).map_or(Gid::default(), |header| header.source()),
            false => Gid::default(),
        };
        let Ok(memory) = memory.into_shared() else {
            unreachable!("the claim of a posted receive is the only reference to its memory");
        };
        let range = DatagramHeader::LEN..completion.len().max(DatagramHeader::LEN);
        self.arrived.push_back(Arrived {
            region: LocalMr::new(memory, range, Some(Arc::clone(&self.lender))),
            source: DatagramAddress {
                gid,
                lid: completion.source_lid(),
                queue_pair: completion.source_queue_pair(),
                queue_key: 0,
            },
            immediate: completion.immediate(),
        });
    }

    /// Posts a datagram to the device. Returns its number: the number of datagrams that the socket
    /// has posted so far, including this datagram. Datagrams complete in order. Returns `None` if
    /// the send queue is full.
    fn post(
        &mut self,
        message: &mut Option<ReadClaim>,
        to: &Destination,
        immediate: Option<u32>,
    ) -> Result<Option<u64>> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        let Some(memory) = message.take() else {
            unreachable!("a datagram is posted once");
        };
        let request = match immediate {
            None => SendRequest::send(memory),
            Some(immediate) => SendRequest::send_with_immediate(memory, immediate),
        };
        match self.sends.post(request.to(to)) {
            Ok(()) => {
                self.posted += 1;
                Ok(Some(self.posted))
            }
            Err(refused) => match refused.error {
                rdma_core::Error::QueueFull { .. } => {
                    *message = Some(refused.memory);
                    Ok(None)
                }
                error => Err(error.into()),
            },
        }
    }
}
