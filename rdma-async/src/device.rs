//! [`RdmaDevice`]: an open RDMA device that many connections share.

use std::alloc::Layout;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rdma_core::memory::{SharedFrozenBuffer, StableMemory, StableMemoryMut, WindowType};
use rdma_core::{Context, ProtectionDomain, Refused};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use crate::builder::RdmaBuilder;
use crate::error::{Error, Result};
use crate::memory::{
    GrantedMemory, Ledger, LocalMr, LocalMrWriteAccess, Pool, PoolOptions, PoolStatistics,
    SharedLocalMr, has_windows,
};
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
///     // Every connection of the device can use its memory.
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

/// Clones of one `RdmaDevice` are equal. Values of separate open calls differ, even for one device.
impl PartialEq for RdmaDevice {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for RdmaDevice {}

/// State of an open device, which all clones of its [`RdmaDevice`] share.
struct Shared {
    shards: Mutex<Vec<Arc<Shard>>>,
    pool: Arc<Pool>,
    ledger: Arc<Ledger>,
    #[cfg(feature = "metrics")]
    metrics: Arc<crate::observe::Metrics>,
    /// Result of [`RdmaDevice::enforces_windows`].
    enforces_windows: OnceLock<bool>,
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

    /// Opens the RDMA device with the name `name`, for example `mlx5_0`.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if there is no such device or it cannot be opened.
    #[doc(alias = "ibv_open_device")]
    pub fn open(name: &str) -> Result<Self> {
        Self::new(&Context::open(name)?)
    }

    /// Creates a device from a verbs context that the program has opened.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if no protection domain can be created.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn new(context: &Context) -> Result<Self> {
        Self::with_pool(context, &PoolOptions::default())
    }

    /// Creates a device from an open verbs context, with options for the pool of registered memory,
    /// such as a limit.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::new`]. [`Error::InvalidArgument`] if the low
    /// [watermark](PoolOptions::kept_watermarks) exceeds the high one.
    pub fn with_pool(context: &Context, options: &PoolOptions) -> Result<Self> {
        options.check()?;
        let domain = context.protection_domain()?;
        Ok(Self {
            shared: Arc::new(Shared {
                shards: Mutex::default(),
                pool: Pool::new(&domain, options),
                ledger: Arc::default(),
                #[cfg(feature = "metrics")]
                metrics: Arc::new(crate::observe::Metrics::of(context.name())),
                enforces_windows: OnceLock::new(),
                domain,
            }),
        })
    }

    /// Returns a builder, by which connections, listeners and datagram sockets on this device are
    /// created.
    pub fn builder(&self) -> RdmaBuilder {
        RdmaBuilder::default().on(self)
    }

    /// Returns the verbs context of the device, for example to query its attributes and ports.
    pub fn context(&self) -> &Context {
        self.shared.domain.context()
    }

    /// Returns the protection domain to which all queue pairs and memory regions of the device
    /// belong.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.shared.domain
    }

    /// Returns whether the device enforces the limits of memory windows of type 2. Such a window
    /// gives access only to its bytes, and only through the queue pair that has bound the window.
    /// The first call tests the device, on a thread for blocking tasks.
    pub(crate) async fn enforces_windows(&self) -> bool {
        if let Some(known) = self.shared.enforces_windows.get() {
            return *known;
        }
        let context = self.context().clone();
        let test = move || {
            Ok::<_, rdma_core::Error>(
                has_windows(&context)
                    && context.enforces_window_bounds(WindowType::Two)?
                    && context.enforces_window_owner()?,
            )
        };
        // Each caller tests, so that no caller waits for the future of another one, which may not
        // be polled. An error is not kept: a later test may succeed.
        match spawn_blocking(test).await {
            Ok(Ok(tested)) => *self.shared.enforces_windows.get_or_init(|| tested),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the memory windows of the device could not be tested, and are not used");
                false
            }
            Err(_) => false,
        }
    }

    /// Allocates zeroed, registered memory that every connection of the device can use. If
    /// possible, uses the memory of a dropped region again, which is already registered.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a size of 0. [`Error::PoolFull`] if the limit of the device's
    /// memory is reached. [`Error::Verbs`] if memory cannot be registered.
    #[doc(alias = "ibv_reg_mr")]
    pub fn alloc_local_mr(&self, layout: Layout) -> Result<LocalMr> {
        let mut region = self.alloc_local_mr_stale(layout)?;
        region.as_mut_slice().fill(0);
        Ok(region)
    }

    /// Allocates registered memory without zeroing it, for programs that overwrite it. The memory
    /// can contain data of an earlier region.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a size of 0. [`Error::PoolFull`] if the limit of the device's
    /// memory is reached. [`Error::Verbs`] if memory cannot be registered.
    pub fn alloc_local_mr_stale(&self, layout: Layout) -> Result<LocalMr> {
        check_size(layout)?;
        let (memory, lender) = self.shared.pool.take(layout)?;
        Ok(LocalMr::new(memory, 0..layout.size(), Some(lender)))
    }

    /// Allocates memory like [`Self::alloc_local_mr`], after waiting until the
    /// [limit](PoolOptions::limit) of the device's memory allows it. Tasks get memory in the order
    /// in which they began to wait.
    ///
    /// ```
    /// use std::alloc::Layout;
    ///
    /// use rdma_async::{PoolOptions, RdmaDevice};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), rdma_async::Error> {
    /// let context = rdma_core::Context::open_default()?;
    /// let device = RdmaDevice::with_pool(&context, &PoolOptions::default().limit(8192))?;
    /// let layout = Layout::new::<[u8; 4096]>();
    /// let (first, _second) = (device.alloc_local_mr(layout)?, device.alloc_local_mr(layout)?);
    /// assert!(device.alloc_local_mr(layout).is_err());
    /// let (third, ()) = tokio::join!(device.alloc_local_mr_when_free(layout), async { drop(first) });
    /// assert_eq!(device.pool_statistics().in_use, 8192);
    /// # drop(third);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a size of 0. [`Error::PoolFull`] for a region above the
    /// limit. [`Error::Verbs`] if memory cannot be registered.
    #[doc(alias = "ibv_reg_mr")]
    pub async fn alloc_local_mr_when_free(&self, layout: Layout) -> Result<LocalMr> {
        check_size(layout)?;
        let (memory, lender) = self.shared.pool.take_when_free(layout).await?;
        let mut region = LocalMr::new(memory, 0..layout.size(), Some(lender));
        region.as_mut_slice().fill(0);
        Ok(region)
    }

    /// Registers memory of the program, without copying it. Every connection of the device can use
    /// the region. [`LocalMr::into_owner`] gives the owner back.
    ///
    /// The region keeps the owner. Dropping the region deregisters the memory, and then drops the
    /// owner. If an operation is using the memory, both happen when the operation has completed.
    /// The memory does not count towards the [limit](PoolOptions::limit) of the pool.
    ///
    /// ```
    /// # use rdma_async::{LocalMrReadAccess, RdmaBuilder};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), rdma_async::Error> {
    /// # let device = rdma_async::RdmaDevice::open_default()?;
    /// # let mut listener = device.builder().bind("127.0.0.1:0").await?;
    /// # let address = listener.local_address()?;
    /// # let (client, server) =
    /// #     tokio::try_join!(device.builder().connect(address), listener.accept())?;
    /// let message = b"memory of the program".to_vec();
    /// let region = device.register(message).map_err(|(_, error)| error)?;
    /// client.send(&region).await?;
    /// assert_eq!(server.receive().await?.as_slice(), b"memory of the program");
    /// let message: Vec<u8> = region.into_owner().map_err(|(_, error)| error)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Every error is returned together with the owner. [`Error::Verbs`] for 0 bytes, or if the
    /// memory cannot be registered.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<O: StableMemoryMut>(&self, owner: O) -> Result<LocalMr, (O, Error)> {
        let registered = self.shared.domain.register(owner);
        registered.map(LocalMr::from).map_err(refused)
    }

    /// Registers memory of the program, such as `Arc<[u8]>`, for reading, without copying the
    /// memory. The region can be cloned, and other code can read the memory at the same time. On an
    /// error, returns both the error and the owner of the memory. A
    /// [`RegistrationCache`](crate::RegistrationCache) keeps such regions for later operations.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::register`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_shared<O: StableMemory>(&self, owner: O) -> Result<SharedLocalMr, (O, Error)> {
        let frozen = self.shared.domain.register_shared(owner);
        let memory = SharedFrozenBuffer::new(frozen.map_err(refused)?);
        Ok(SharedLocalMr::new(memory.expect("the only clone")))
    }

    /// Returns the statistics of the device's registered memory, such as the bytes in use and the
    /// limit.
    pub fn pool_statistics(&self) -> PoolStatistics {
        self.shared.pool.statistics()
    }

    /// Frees memory of dropped regions until at most `kept` bytes stay registered for their next
    /// use, for example after a period of high use. Returns the number of freed bytes.
    ///
    /// Large regions are freed first. Small regions (less than 64 KiB, or less than 2 MiB in huge
    /// pages) are parts of larger registrations. Such a registration ends when all its regions are
    /// freed.
    ///
    /// ```
    /// use std::alloc::Layout;
    ///
    /// let device = rdma_async::RdmaDevice::open_default()?;
    /// drop(device.alloc_local_mr(Layout::new::<[u8; 1 << 20]>())?);
    /// assert_eq!(device.trim_pool(0), 1 << 20);
    /// assert_eq!(device.pool_statistics().kept, 0);
    /// # Ok::<(), rdma_async::Error>(())
    /// ```
    #[doc(alias = "ibv_dereg_mr")]
    pub fn trim_pool(&self, kept: usize) -> usize {
        self.shared.pool.trim(kept)
    }

    /// Returns the amount of memory that all peers on the host with the address `peer` have
    /// requested and hold, over all connections of this device. Includes the memory into which
    /// these peers write long pieces of streams.
    pub fn granted_memory(&self, peer: IpAddr) -> GrantedMemory {
        self.shared.ledger.granted(peer)
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.shared.ledger
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn metrics(&self) -> &Arc<crate::observe::Metrics> {
        &self.shared.metrics
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// Returns the shard for connections on the current runtime with the settings in `profile`. A
    /// shard consists of a completion queue, a receive queue and the task that polls them. Starts
    /// the shard if it does not exist yet.
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

/// Converts the error of a failed registration to the error of this crate. Also returns the owner
/// of the memory, so that the caller can give the owner back to the program.
fn refused<O>(refused: Refused<O>) -> (O, Error) {
    (refused.value, refused.error.into())
}

fn check_size(layout: Layout) -> Result<()> {
    match layout.size() {
        0 => Err(Error::invalid(
            "memory region",
            "0 bytes cannot be registered",
        )),
        _ => Ok(()),
    }
}
