//! Pairs of connected queue pairs of one process, and waits with time limits.
//!
//! The device is the one that `RDMA_DEVICE` selects, otherwise softroce.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod program;

pub(crate) mod held;

use std::thread;
use std::time::{Duration, Instant};

use rdma_core::device::DeviceSelector;
use rdma_core::memory::Scatter;
use rdma_core::{
    AccessFlags, Buffer, CompletionQueue, ConnectOptions, Context, Endpoint, Error, ExposedMemory,
    ProtectionDomain, QueuePair, QueuePairBuilder, QueuePairState, ReceiveQueue, SendQueue,
    SendRequest, WorkCompletion,
};

/// Maximum time until an event that must happen, enough for an emulated machine under load.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Opens the device under test.
#[track_caller]
pub(crate) fn context() -> Context {
    let selector = DeviceSelector::from_environment().expect("a selector");
    let selector = selector.unwrap_or_else(|| "=softroce0".parse().expect("a selector"));
    match Context::open_selected(&selector) {
        Ok(context) => context,
        Err(error) => panic!("{error}"),
    }
}

/// Returns whether the device under test is softroce, which supports all operations that a software
/// device can support.
pub(crate) fn is_softroce() -> bool {
    context().device().is_emulated()
}

/// Returns the value, or `None` if the device does not support the operation. Panics on any other
/// error, and if the device is softroce.
#[track_caller]
pub(crate) fn where_supported<T, E: Into<Error>>(result: Result<T, E>) -> Option<T> {
    match result.map_err(Into::into) {
        Ok(thing) => Some(thing),
        Err(error) => {
            assert!(error.is_unsupported(), "{error}");
            assert!(!is_softroce(), "{error}");
            eprintln!("not on this device: {error}");
            None
        }
    }
}

/// Two queue pairs of one protection domain, connected to each other, each with a completion queue
/// of its own.
pub(crate) struct Pair {
    pub(crate) domain: ProtectionDomain,
    pub(crate) left: QueuePair,
    pub(crate) right: QueuePair,
}

impl Pair {
    #[track_caller]
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder, &ConnectOptions::default())
    }

    /// Creates a pair with the same settings on both sides.
    #[track_caller]
    pub(crate) fn with(
        configure: impl Fn(QueuePairBuilder) -> QueuePairBuilder,
        options: &ConnectOptions,
    ) -> Self {
        let domain = context().protection_domain().unwrap();
        Self::in_domain(&domain, configure, options)
    }

    #[track_caller]
    pub(crate) fn in_domain(
        domain: &ProtectionDomain,
        configure: impl Fn(QueuePairBuilder) -> QueuePairBuilder,
        options: &ConnectOptions,
    ) -> Self {
        let left = configure(domain.queue_pair()).build().unwrap();
        let right = configure(domain.queue_pair()).build().unwrap();
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        Self {
            domain: domain.clone(),
            left: left.connect(&to_right, options).unwrap(),
            right: right.connect(&to_left, options).unwrap(),
        }
    }

    /// Sends eight bytes from left to right, and checks that they arrive.
    #[track_caller]
    pub(crate) fn check(&self) {
        let mut receives = self.right.receive_queue();
        receives.post(self.domain.allocate(8).unwrap()).unwrap();
        let mut sends = self.left.send_queue();
        sends
            .post(SendRequest::send(pattern(&self.domain, 8, 1)))
            .unwrap();
        let sent = succeed(self.left.send_completions());
        assert_eq!(sends.complete(&sent).count(), 1);
        let received = receive(&self.right, &mut receives);
        assert_eq!(received.1[..], bytes(8, 1));
    }
}

/// Returns connection settings with which requests to a silent peer soon fail.
pub(crate) fn impatient() -> ConnectOptions {
    ConnectOptions::default()
        .ack_timeout_exponent(10)
        .retries(1)
}

/// Returns a copy of `endpoint` with a queue pair number that is not in use.
pub(crate) fn nobody(endpoint: Endpoint) -> Endpoint {
    Endpoint {
        queue_pair: 0x00ff_fff0,
        ..endpoint
    }
}

/// Returns `len` bytes that depend on `seed` and on their index.
pub(crate) fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed)
        .collect()
}

/// Allocates a buffer with the bytes of [`bytes`].
#[track_caller]
pub(crate) fn pattern(domain: &ProtectionDomain, len: usize, seed: u8) -> Buffer {
    let mut buffer = domain.allocate(len).unwrap();
    buffer.copy_from_slice(&bytes(len, seed));
    buffer
}

/// Allocates zeroed memory that peers can access with these rights.
#[track_caller]
pub(crate) fn exposed(domain: &ProtectionDomain, len: usize, access: AccessFlags) -> ExposedMemory {
    expose(domain.allocate(len).unwrap(), access)
}

/// Exposes a buffer to peers.
#[track_caller]
pub(crate) fn expose(buffer: Buffer, access: AccessFlags) -> ExposedMemory {
    buffer.expose(access).unwrap()
}

/// Repeats `attempt` until it returns a value. Panics if that takes too long.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + MAX_WAIT;
    loop {
        if let Some(outcome) = attempt() {
            return outcome;
        }
        assert!(Instant::now() < deadline, "{what}: not within {MAX_WAIT:?}");
        thread::yield_now();
    }
}

/// Waits for the next completion, whatever its status.
#[track_caller]
pub(crate) fn completion(queue: &CompletionQueue) -> WorkCompletion {
    eventually("a completion", || {
        let mut room = [WorkCompletion::default()];
        queue.poll(&mut room).unwrap().first().copied()
    })
}

/// Waits for the next completion, which must be a success.
#[track_caller]
pub(crate) fn succeed(queue: &CompletionQueue) -> WorkCompletion {
    let completion = completion(queue);
    if let Err(error) = completion.result() {
        panic!("{error}");
    }
    completion
}

/// Posts a request and waits for its success. Returns its memory.
#[track_caller]
pub(crate) fn carry_out<T: rdma_core::memory::Gather + 'static>(
    pair: &QueuePair,
    queue: &mut SendQueue<T>,
    request: SendRequest<T>,
) -> T {
    queue.post(request).unwrap();
    let completion = succeed(pair.send_completions());
    let mut retired = queue.complete(&completion);
    retired.next().expect("the memory of the request")
}

/// Waits for the next message. Returns its completion and memory.
#[track_caller]
pub(crate) fn receive<T: Scatter>(
    pair: &QueuePair,
    queue: &mut ReceiveQueue<T>,
) -> (WorkCompletion, T) {
    let completion = succeed(pair.receive_completions());
    let memory = queue.complete(&completion);
    (completion, memory.expect("the memory of the receive"))
}

/// Waits until the queue pair is in the error state.
#[track_caller]
pub(crate) fn until_failed(pair: &QueuePair) {
    eventually("the error state", || {
        (pair.state().unwrap() == QueuePairState::Error).then_some(())
    });
}
