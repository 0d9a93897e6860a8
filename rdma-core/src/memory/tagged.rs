//! Memory of a request that is paired with a value of the program.

use super::gather::{Elements, Gather, Scatter, sealed};
use crate::error::Result;

/// Memory for a request together with a value that the program chooses. The device does not see the
/// value. The completion of the request gives back the memory and the value.
///
/// The value identifies the request for the program: for example a number, a waker, the sender of a
/// channel, or a `Weak` reference to a connection. (An `Arc` of a connection that owns the queue
/// would keep the connection alive until the request completes.) The program needs no separate
/// table from request ids to such values. `Tagged<T, V>` can be used as the memory type `T` of
/// every queue, for sends and receives.
///
/// ```
/// use rdma_core::Buffer;
/// use rdma_core::memory::Tagged;
/// # use rdma_core::{AccessFlags, ConnectOptions, Context, SendRequest, WorkCompletion};
/// # let context = Context::open_default()?;
/// # let domain = context.protection_domain()?;
/// # let prepared = domain.queue_pair().build()?;
/// # let endpoint = prepared.endpoint();
/// # let queue_pair = prepared.connect(&endpoint, &ConnectOptions::default())?;
/// # let peer = domain.allocate(8)?.expose(AccessFlags::REMOTE)?;
/// # let timeout = std::time::Duration::from_secs(5);
/// let mut sends = queue_pair.send_queue::<Tagged<Buffer, &'static str>>();
/// let write = Tagged::new(domain.allocate(8)?, "the header");
/// sends.post(SendRequest::write(write, peer.remote()))?;
/// let mut room = [WorkCompletion::default()];
/// for completion in queue_pair.send_completions().wait(&mut room, timeout)? {
///     for Tagged { memory, value } in sends.complete(completion) {
///         println!("{value}, {} bytes: {:?}", memory.len(), completion.status());
///     }
/// }
/// # Ok::<(), rdma_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "wr_id")]
pub struct Tagged<M, V> {
    /// The memory that the device reads or writes.
    pub memory: M,
    /// The program's value, which the device does not see.
    pub value: V,
}

impl<M, V> Tagged<M, V> {
    /// Pairs the memory for a request with a value by which the program recognizes the request at
    /// its completion.
    pub fn new(memory: M, value: V) -> Self {
        Self { memory, value }
    }
}

impl<M: sealed::Sealed, V> sealed::Sealed for Tagged<M, V> {}

impl<M: Gather, V: Send> Gather for Tagged<M, V> {
    #[inline]
    fn gather(&self, elements: &mut Elements<'_>) {
        self.memory.gather(elements);
    }
}

impl<M: Scatter, V: Send> Scatter for Tagged<M, V> {
    #[inline]
    fn scatter(&self, elements: &mut Elements<'_>) -> Result<()> {
        self.memory.scatter(elements)
    }
}
