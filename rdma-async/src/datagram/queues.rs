//! The queues of a datagram socket, which the waiting tasks poll.

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

use super::DatagramAddress;
use crate::error::{Error, Result};
use crate::memory::{LocalMr, PieceLender};

/// Number of completions that are taken from the queue at once.
const BATCH: usize = 32;

/// Queues of one socket.
#[derive(Debug)]
pub(super) struct Queues {
    inner: Mutex<Inner>,
    channel: AsyncFd<CompletionChannel>,
    /// Notified after completions were handled, for the tasks that did not handle them.
    progress: Notify,
}

#[derive(Debug)]
struct Inner {
    completions: CompletionQueue,
    sends: SendQueue<ReadClaim>,
    receives: ReceiveQueue<WriteClaim>,
    lender: Arc<PieceLender>,
    /// Numbers of datagrams that were handed to the device, and that it has sent. They are sent in
    /// order.
    posted: u64,
    sent: u64,
    arrived: VecDeque<Arrived>,
    failure: Option<Error>,
}

/// A datagram that has arrived.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) region: LocalMr,
    /// Address of the sender, without its Q_Key.
    pub(super) source: DatagramAddress,
    pub(super) immediate: Option<u32>,
}

/// Creates a completion queue with `entries`, and its channel, which is registered with the current
/// runtime.
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
    // The replacement of `new` is unsafe because a type may return a different descriptor each
    // time, or one that it does not own. A channel always returns its own descriptor, open while it
    // lives.
    #[expect(
        deprecated,
        reason = "the replacement is unsafe for types unlike this one"
    )]
    let channel =
        AsyncFd::new(channel).map_err(|source| Error::tcp("watching", "completions", source))?;
    Ok((completions, channel))
}

/// Returns a receive queue with `count` receives posted.
pub(super) fn filled(
    mut queue: ReceiveQueue<WriteClaim>,
    lender: &PieceLender,
    count: u32,
) -> Result<ReceiveQueue<WriteClaim>> {
    for _ in 0..count {
        post_receive(&mut queue, lender)?;
    }
    Ok(queue)
}

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

    /// Hands a datagram to the device once there is room, and waits until it was sent.
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

    /// Waits for the next datagram, and posts a receive in its place.
    pub(super) async fn receive(&self) -> Result<Arrived> {
        self.wait_for(|inner| {
            let arrived = inner.arrived.pop_front()?;
            match post_receive(&mut inner.receives, &inner.lender) {
                Ok(()) => Some(Ok(arrived)),
                Err(error) => {
                    // The datagram is not lost: the next call tries again.
                    inner.arrived.push_front(arrived);
                    Some(Err(error))
                }
            }
        })
        .await
    }

    /// Waits until `attempt` returns a value, and handles completions meanwhile.
    async fn wait_for<T>(
        &self,
        mut attempt: impl FnMut(&mut Inner) -> Option<Result<T>>,
    ) -> Result<T> {
        loop {
            let mut progress = pin!(self.progress.notified());
            // Registers now: another task may handle a completion after this one has polled.
            progress.as_mut().enable();
            if let Some(outcome) = self.attempt(&mut attempt) {
                return outcome;
            }
            tokio::select! {
                ready = self.channel.readable() => {
                    let mut ready = ready.map_err(|source| {
                        Error::tcp("waiting for", "completions", source)
                    })?;
                    // No await until the next poll: a task that is dropped here would keep a
                    // completion from the others.
                    while self.channel.get_ref().next_event()?.is_some() {}
                    ready.clear_ready();
                }
                () = progress => {}
            }
        }
    }

    /// Polls, and returns the result of `attempt`, or `None` if the task must wait: the next
    /// completion is then announced.
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
    /// Handles all completions, and returns their number.
    fn poll(&mut self) -> Result<usize> {
        let mut room = [WorkCompletion::default(); BATCH];
        let mut handled = 0;
        loop {
            let completions = self.completions.poll(&mut room)?;
            let found = completions.len();
            for completion in completions {
                self.handle(completion);
            }
            handled += found;
            if found < BATCH {
                return Ok(handled);
            }
        }
    }

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

    fn arrive(&mut self, completion: &WorkCompletion, memory: WriteClaim) {
        let gid = match completion.has_global_route() {
            true => DatagramHeader::parse(&memory).map_or(Gid::default(), |header| header.source()),
            false => Gid::default(),
        };
        let Ok(memory) = memory.into_shared() else {
            unreachable!("a posted receive's claim is its memory's only holder");
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

    /// Hands a datagram to the device, and returns its number, or `None` if the send queue is full.
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
