//! The memory that receives the result of an atomic operation.

use super::Buffer;
use super::gather::{Elements, Gather, Scatter, sealed};
use crate::error::{Error, Result};
use crate::protection_domain::ProtectionDomain;

/// Eight bytes of registered memory for the result of a compare-and-swap or a fetch-and-add. The
/// result is the value that was in the peer's memory before the operation.
///
/// An `AtomicResult` is `Send` and `Sync`, like a [`Buffer`].
///
/// ```
/// # use rdma_core::{AccessFlags, ConnectOptions, Context, SendRequest, WorkCompletion};
/// # use rdma_core::memory::AtomicResult;
/// # let context = Context::open("softroce0")?;
/// # let domain = context.protection_domain()?;
/// # let (left, right) = (domain.queue_pair().build()?, domain.queue_pair().build()?);
/// # let (to_right, to_left) = (right.endpoint(), left.endpoint());
/// # let _right = right.connect(&to_left, &ConnectOptions::default())?;
/// # let left = left.connect(&to_right, &ConnectOptions::default())?;
/// # let counter = domain.allocate(8)?.expose(AccessFlags::REMOTE_ATOMIC)?;
/// let mut queue = left.send_queue();
/// let result = AtomicResult::new(&domain)?;
/// queue.post(SendRequest::fetch_and_add(result, counter.remote(), 5))?;
/// # let mut room = [WorkCompletion::default()];
/// # let completion = loop {
/// #     if let [completion] = left.send_completions().poll(&mut room)? { break *completion }
/// # };
/// completion.result()?;
/// let result = queue.complete(&completion).next();
/// assert_eq!(result.map(|result| result.value()), Some(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AtomicResult(Buffer);

impl AtomicResult {
    /// The size of an atomic operation's result in bytes.
    const SIZE: usize = size_of::<u64>();

    /// Allocates and registers memory for the result of one atomic operation. To place several
    /// results in one registration, convert parts of a larger [`Buffer`] with [`Self::try_from`].
    ///
    /// # Errors
    ///
    /// The errors of [`ProtectionDomain::allocate`].
    pub fn new(domain: &ProtectionDomain) -> Result<Self> {
        domain.allocate(Self::SIZE).map(Self)
    }

    /// Returns the value that was in the peer's memory before the atomic operation. The returned
    /// value is valid once the atomic operation has completed.
    #[inline]
    pub fn value(&self) -> u64 {
        self.0
            .first_chunk()
            .map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }

    /// Returns the underlying buffer of eight bytes, for example to use it for other requests.
    pub fn into_buffer(self) -> Buffer {
        self.0
    }
}

impl TryFrom<Buffer> for AtomicResult {
    type Error = Error;

    /// Converts a buffer of exactly eight bytes to memory for the result of one atomic operation.
    /// Returns an error for a buffer of any other size.
    fn try_from(buffer: Buffer) -> Result<Self> {
        if buffer.len() != Self::SIZE {
            let reason = format!("{} bytes, and an atomic brings 8", buffer.len());
            return Err(Error::invalid("memory of an atomic", reason));
        }
        Ok(Self(buffer))
    }
}

impl sealed::Sealed for AtomicResult {}

impl Gather for AtomicResult {
    #[inline]
    fn gather(&self, elements: &mut Elements<'_>) {
        elements.push(&self.0);
    }
}

impl Scatter for AtomicResult {}
