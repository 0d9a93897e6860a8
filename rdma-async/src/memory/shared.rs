//! [`SharedLocalMr`]: registered memory of the program that operations only read.

use std::ops::Range;

use rdma_core::memory::{SharedBuffer, SharedFrozenBuffer};

use super::local::{LocalMrReadAccess, sealed, subrange};
use crate::error::{Error, Result};

/// Registered memory of the program that never changes, created by [`RdmaDevice::register_shared`]
/// or by a [`RegistrationCache`]. Neither the program nor an operation can write to it. Clones and
/// parts share the memory.
///
/// Operations take the region by reference, as the source of sends and writes. The memory is
/// deregistered when the last clone has been dropped and the last operation on it has completed.
///
/// ```
/// # use std::sync::Arc;
/// # use rdma_async::LocalMrReadAccess;
/// # #[tokio::main]
/// # async fn main() -> Result<(), rdma_async::Error> {
/// # let device = rdma_async::RdmaDevice::open_default()?;
/// # let mut listener = device.builder().bind("127.0.0.1:0").await?;
/// # let address = listener.local_address()?;
/// # let (client, server) =
/// #     tokio::try_join!(device.builder().connect(address), listener.accept())?;
/// let table: Arc<[u8]> = Arc::from([7; 1000]);
/// let region = device.register_shared(Arc::clone(&table)).map_err(|(_, error)| error)?;
/// let row = region.get(100..200).expect("a part");
/// tokio::try_join!(client.send(&row), client.send(&row))?;
/// assert_eq!(server.receive().await?.as_slice(), &table[100..200]);
/// # Ok(())
/// # }
/// ```
///
/// [`RdmaDevice::register_shared`]: crate::RdmaDevice::register_shared
/// [`RegistrationCache`]: crate::RegistrationCache
#[derive(Debug, Clone)]
pub struct SharedLocalMr {
    memory: SharedFrozenBuffer,
    range: Range<usize>,
}

impl SharedLocalMr {
    pub(crate) fn new(memory: SharedFrozenBuffer) -> Self {
        let range = 0..memory.as_shared().len();
        Self { memory, range }
    }

    /// Returns a region that consists of the bytes `range` of this region. Both regions share one
    /// memory and one registration. Returns `None` if `range` exceeds this region.
    #[must_use]
    pub fn get(&self, range: Range<usize>) -> Option<Self> {
        let range = subrange(&self.range, &range)?;
        let memory = self.memory.clone();
        Some(Self { memory, range })
    }

    /// Deregisters the memory, and returns the owner that the program registered.
    ///
    /// # Errors
    ///
    /// Every error is returned together with the region. [`rdma_core::Error::InUse`] while an
    /// operation is using the memory, or if another clone or part of the region exists.
    /// [`Error::InvalidArgument`] if the memory is not owned by an `O`. Otherwise the error of
    /// `ibv_dereg_mr`.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn into_owner<O: 'static>(self) -> Result<O, (Self, Error)> {
        let Self { memory, range } = self;
        let frozen = match memory.into_frozen() {
            Ok(frozen) => frozen,
            Err(memory) => {
                let error = rdma_core::Error::InUse {
                    object: "a shared memory region".into(),
                    holder: "a clone or an operation in flight",
                };
                return Err((Self { memory, range }, error.into()));
            }
        };
        frozen.into_owner().map_err(|refused| {
            let memory = SharedFrozenBuffer::new(refused.value).expect("the only clone");
            (Self { memory, range }, refused.error.into())
        })
    }
}

impl sealed::RegionAccess for SharedLocalMr {
    fn buffer_and_range(&self) -> (&SharedBuffer, Range<usize>) {
        (self.memory.as_shared(), self.range.clone())
    }
}

impl LocalMrReadAccess for SharedLocalMr {}
