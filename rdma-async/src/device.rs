//! [`RdmaDevice`]: an open RDMA device that many connections share.

use std::alloc::Layout;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rdma_core::{Context, ProtectionDomain};
use tokio::runtime::Handle;

use crate::builder::RdmaBuilder;
use crate::error::{Error, Result};
use crate::memory::{LocalMr, LocalMrWriteAccess, Pool};
use crate::shard::{Profile, Shard};

/// An open device with the resources that its connections share: a protection domain, registered
/// memory, and for each runtime one completion queue, one shared receive queue and one task.
///
/// A program opens a device once and creates every connection and listener from it. Clones refer to
/// the same device, which is closed when all clones, connections and memory regions are dropped.
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
#[derive(Clone)]
pub struct RdmaDevice {
    shared: Arc<Shared>,
}

impl fmt::Debug for RdmaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaDevice")
            .field("name", &self.context().name())
            .finish_non_exhaustive()
    }
}

/// Clones of a device are equal, and differ from the same device that was opened again.
impl PartialEq for RdmaDevice {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for RdmaDevice {}

struct Shared {
    shards: Mutex<Vec<Arc<Shard>>>,
    pool: Arc<Pool>,
    domain: ProtectionDomain,
}

impl RdmaDevice {
    /// Opens the device that the environment variable `RDMA_DEVICE` names, or else the first device
    /// with a usable port.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if there is no such device or it cannot be opened.
    #[doc(alias = "ibv_open_device")]
    pub fn open_default() -> Result<Self> {
        Self::new(&Context::open_default()?)
    }

    /// Opens the device with this name.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if there is no such device or it cannot be opened.
    #[doc(alias = "ibv_open_device")]
    pub fn open(name: &str) -> Result<Self> {
        Self::new(&Context::open(name)?)
    }

    /// Creates a device from an open context.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if no protection domain can be created.
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

    /// Returns a builder of connections and listeners on this device.
    pub fn builder(&self) -> RdmaBuilder {
        RdmaBuilder::default().on(self)
    }

    /// Returns the verbs context of the device.
    pub fn context(&self) -> &Context {
        self.shared.domain.context()
    }

    /// Returns the protection domain of the connections and their memory.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.shared.domain
    }

    /// Allocates zeroed, registered memory that every connection of the device can use. Memory of
    /// dropped regions is reused.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a size of 0, [`Error::Verbs`] if memory cannot be registered.
    #[doc(alias = "ibv_reg_mr")]
    pub fn alloc_local_mr(&self, layout: Layout) -> Result<LocalMr> {
        let mut region = self.alloc_local_mr_stale(layout)?;
        region.as_mut_slice().fill(0);
        Ok(region)
    }

    /// Allocates registered memory without zeroing it, for programs that overwrite it. The memory can
    /// contain data of an earlier region.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a size of 0, [`Error::Verbs`] if memory cannot be registered.
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

    /// Returns the shard (shared queues and task) of the current runtime and this profile. Starts a
    /// shard if none exists.
    pub(crate) fn shard(&self, profile: Profile) -> Result<Arc<Shard>> {
        let runtime = Handle::current().id();
        let mut shards = self.shared.shards.lock();
        if let Some(shard) = shards.iter().find(|shard| shard.serves(runtime, profile)) {
            return Ok(Arc::clone(shard));
        }
        // Removes the shards of runtimes that have ended.
        shards.retain(|shard| !shard.has_ended());
        let shard = Shard::start(&self.shared.domain, profile)?;
        shards.push(Arc::clone(&shard));
        Ok(shard)
    }
}
