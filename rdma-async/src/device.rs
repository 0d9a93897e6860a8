//! Devices that are opened once and shared by all connections.

use std::alloc::Layout;
use std::sync::Arc;

use parking_lot::Mutex;
use rdma_core::{Context, ProtectionDomain};
use tokio::runtime::Handle;

use crate::builder::RdmaBuilder;
use crate::error::{Error, Result};
use crate::memory::{LocalMr, LocalMrWriteAccess, Pool};
use crate::shard::{Profile, Shard};

/// An open device, with what all its connections share: a protection domain, registered memory, and for
/// each runtime one completion queue, one shared receive queue and one task.
///
/// A program opens a device once and makes every connection and listener from it. Clones are the same
/// device; the last of clones, connections and memory closes it.
///
/// ```
/// use std::alloc::Layout;
///
/// use rdma_async::RdmaDevice;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), rdma_async::Error> {
/// let device = RdmaDevice::open_default()?;
/// let mut listener = device.builder().bind("127.0.0.1:0").await?;
/// let address = listener.local_address()?;
/// let clients = async {
///     let first = device.builder().connect(address).await?;
///     let second = device.builder().connect(address).await?;
///     // Memory of the device is for every connection of it.
///     let message = device.alloc_local_mr(Layout::new::<[u8; 8]>())?;
///     first.send(&message).await?;
///     second.send(&message).await
/// };
/// let servers = async {
///     let (first, second) = (listener.accept().await?, listener.accept().await?);
///     first.receive().await?;
///     second.receive().await
/// };
/// tokio::try_join!(clients, servers)?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_context")]
#[derive(Debug, Clone)]
pub struct RdmaDevice {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    shards: Mutex<Vec<Arc<Shard>>>,
    pool: Arc<Pool>,
    domain: ProtectionDomain,
}

impl RdmaDevice {
    /// Opens the device that `RDMA_DEVICE` selects, or the first with a usable port.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if there is no such device or it cannot be opened.
    #[doc(alias = "ibv_open_device")]
    pub fn open_default() -> Result<Self> {
        Self::new(&Context::open_default()?)
    }

    /// Opens the device of a name.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if there is no such device or it cannot be opened.
    #[doc(alias = "ibv_open_device")]
    pub fn open(name: &str) -> Result<Self> {
        Self::new(&Context::open(name)?)
    }

    /// Makes a device of a context that is open already.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device has no protection domain left.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn new(context: &Context) -> Result<Self> {
        let domain = context.protection_domain()?;
        Ok(Self {
            shared: Arc::new(Shared {
                shards: Mutex::default(),
                pool: Arc::new(Pool::new(&domain)),
                domain,
            }),
        })
    }

    /// Returns the settings of connections and listeners to be, of this device.
    pub fn builder(&self) -> RdmaBuilder {
        RdmaBuilder::default().on(self)
    }

    /// Returns the context underneath.
    pub fn context(&self) -> &Context {
        self.shared.domain.context()
    }

    /// Returns the protection domain of the connections and their memory.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.shared.domain
    }

    /// Allocates registered memory, zeroed, that every connection of the device can use. Memory that was
    /// dropped is used again.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a size of 0, [`Error::Verbs`] if it cannot be registered.
    #[doc(alias = "ibv_reg_mr")]
    pub fn alloc_local_mr(&self, layout: Layout) -> Result<LocalMr> {
        let mut region = self.alloc_local_mr_stale(layout)?;
        region.as_mut_slice().fill(0);
        Ok(region)
    }

    /// Allocates registered memory that holds what its last use left: for programs that overwrite it
    /// anyway.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::alloc_local_mr`].
    pub fn alloc_local_mr_stale(&self, layout: Layout) -> Result<LocalMr> {
        if layout.size() == 0 {
            return Err(Error::invalid(
                "memory region",
                "0 bytes cannot be registered",
            ));
        }
        let (memory, lender) = self.shared.pool.take(layout)?;
        Ok(LocalMr::new(memory, 0..layout.size(), lender))
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// Returns the shard of the current runtime, which is made if there is none.
    pub(crate) fn shard(&self, profile: Profile) -> Result<Arc<Shard>> {
        let runtime = Handle::current().id();
        let mut shards = self.shared.shards.lock();
        if let Some(shard) = shards.iter().find(|shard| shard.serves(runtime, profile)) {
            return Ok(Arc::clone(shard));
        }
        // Those of runtimes that are gone.
        shards.retain(|shard| !shard.has_ended());
        let shard = Shard::start(&self.shared.domain, profile)?;
        shards.push(Arc::clone(&shard));
        Ok(shard)
    }
}
