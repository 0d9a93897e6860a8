//! Memory that is leased to peers through a window.

use std::sync::Arc;

use super::window_bounds;
use super::{AccessFlags, Buffer, MemoryWindow, RemoteMemory, VolatileSlice, WindowType};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::ffi::{Lease, Phase};
use crate::queue_pair::SendRequest;
use crate::refused::Refused;

/// Memory that peers reach through a memory window: granted, and taken back, by requests of a queue
/// pair, without a registration.
///
/// 1. [`Buffer::lease`] pairs the memory with a window. From then on it is no slice.
/// 2. [`Self::bind`] is the request that grants: [`Self::remote`] tells the peer the key.
/// 3. [`Self::unbind`] is the request that takes back, or the peer gives back by
///    [`SendRequest::send_with_invalidate`]. A peer that comes later gets a remote access error.
/// 4. [`Self::finish`] gives buffer and window; or [`Self::bind`] begins anew, with another key.
///
/// The state at the device is known once a request's completion has been given to its queue
/// (`complete`); that a peer gave the memory back is known once the completion of the receive has
/// been given to its queue. So `finish` cannot return memory that a peer still reaches: not when
/// completions are lost, shown twice or shown late, and not when this is dropped or forgotten.
/// [`Self::revoke`] ends the lease in any case, by freeing the window.
///
/// ```
/// use rdma_core::{AccessFlags, WindowType};
/// # use rdma_core::{ConnectOptions, Context, QueuePair, SendQueue, SendRequest, WorkCompletion};
/// # let context = Context::open_default()?;
/// # let domain = context.protection_domain()?;
/// # let (left, right) = (domain.queue_pair().build()?, domain.queue_pair().build()?);
/// # let (to_right, to_left) = (right.endpoint(), left.endpoint());
/// # let options = ConnectOptions::default();
/// # let (queue_pair, _right) = (left.connect(&to_right, &options)?, right.connect(&to_left, &options)?);
/// # fn succeed(queue_pair: &QueuePair, queue: &mut SendQueue<()>) -> rdma_core::Result<()> {
/// #     let mut room = [WorkCompletion::default()];
/// #     loop {
/// #         if let [completion] = queue_pair.send_completions().poll(&mut room)? {
/// #             completion.result().unwrap();
/// #             queue.complete(completion);
/// #             return Ok(());
/// #         }
/// #     }
/// # }
/// let memory = domain.registration().access(AccessFlags::WINDOW_BIND).allocate(4096)?;
/// let window = domain.memory_window(WindowType::Two)?;
/// let lease = memory.lease(window, AccessFlags::REMOTE_WRITE)?;
///
/// let mut queue = queue_pair.send_queue::<()>();
/// queue.post_inline(lease.bind()?)?;
/// succeed(&queue_pair, &mut queue)?;
/// let token = lease.remote().expect("it is bound");
/// // The peer gets the token, writes, and is done.
/// queue.post_inline(lease.unbind()?)?;
/// succeed(&queue_pair, &mut queue)?;
/// let (memory, window) = lease.finish().expect("no peer reaches it");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// While it is leased, the memory is no slice:
///
/// ```compile_fail,E0608
/// # fn example(lease: rdma_core::WindowLease) {
/// println!("{}", lease[0]);
/// # }
/// ```
///
/// # What it relies on
///
/// On a device that keeps to what it grants. Keys are guessable, and a window's come again after 256
/// bindings: a peer that kept an old one so long gets in again. A device that does not check the
/// bounds of windows, as that of Soft-RoCE in Linux 6.1, gives leases of whole registrations only.
#[derive(Debug)]
pub struct WindowLease {
    lease: Arc<Lease>,
}

/// The name of a lease in errors.
const LEASED: &str = "leased memory";

/// State of a window: the memory that peers can reach through it. See [`WindowLease::state`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeaseState {
    /// Nothing.
    Free,
    /// Nothing yet, or the memory: the request that binds has not completed.
    Binding,
    /// The memory.
    Bound,
    /// The memory still, or nothing: the request that ends the binding has not completed.
    Ending,
    /// Nobody knows, since a request failed or was lost. [`WindowLease::revoke`] makes sure.
    Unknown,
}

impl Buffer {
    /// Pairs the memory with a window, through which peers are to do what `access` says. Nothing is
    /// granted yet.
    ///
    /// The first lease of a part of a registration tries, with two queue pairs of its own in the same
    /// context, whether the device checks the bounds of windows of this type; the outcome holds while
    /// the device is open.
    ///
    /// # Errors
    ///
    /// Buffer and window, with [`Error::InvalidArgument`] if the buffer is empty, not registered with
    /// [`AccessFlags::WINDOW_BIND`], or of another protection domain than the window, or if `access`
    /// says more than remote rights and [`AccessFlags::ZERO_BASED`]. For a part of a registration,
    /// also [`Error::Unsupported`] if the device lets peers reach the rest of it through the window, or
    /// the error that kept this from being tried.
    pub fn lease(
        self,
        window: MemoryWindow,
        access: AccessFlags,
    ) -> Result<WindowLease, Refused<(Self, MemoryWindow)>> {
        let checked = check(&self, &window, access).and_then(|()| check_bounds(&self, &window));
        match checked {
            Ok(()) => Ok(WindowLease::of_any_part(self, window, access)),
            Err(error) => Err(Refused::new((self, window), error)),
        }
    }
}

/// Refuses a part of a registration where peers would reach the rest of it through the window.
fn check_bounds(buffer: &Buffer, window: &MemoryWindow) -> Result<()> {
    let region = buffer.span().region();
    if buffer.len() == region.memory().len() {
        return Ok(());
    }
    let context = Context::of(region.domain().context());
    if window_bounds::are_checked(&context, window.kind())? {
        return Ok(());
    }
    Err(Error::Unsupported {
        what: "memory windows that end before their registrations do: lease a whole one",
        device: context.name().to_owned(),
    })
}

fn check(buffer: &Buffer, window: &MemoryWindow, access: AccessFlags) -> Result<()> {
    let what = "memory to lease";
    if buffer.is_empty() {
        return Err(Error::invalid(what, "0 bytes cannot be bound to"));
    }
    if !buffer.access().contains(AccessFlags::WINDOW_BIND) {
        let reason = "it was not registered with AccessFlags::WINDOW_BIND";
        return Err(Error::invalid(what, reason));
    }
    let domain = buffer.span().region().domain();
    if !domain.is_same(window.handle().domain()) {
        let reason = "its window is of another protection domain";
        return Err(Error::invalid(what, reason));
    }
    if !(AccessFlags::REMOTE | AccessFlags::ZERO_BASED).contains(access) {
        let reason = format!("{access} is more than remote rights");
        return Err(Error::invalid("access through a window", reason));
    }
    Ok(())
}

impl WindowLease {
    /// Pairs any part of a registration with a window: the caller has checked the arguments, and that
    /// the device keeps to the part's bounds or that nobody looks at the rest.
    pub(super) fn of_any_part(buffer: Buffer, window: MemoryWindow, access: AccessFlags) -> Self {
        let lease = Lease::new(window.into_handle(), buffer.into_span(), access);
        Self { lease }
    }

    /// Returns the request that binds the window, and so grants the memory to peers. For
    /// [`SendQueue::post_inline`](crate::SendQueue::post_inline) and its like, of a connected queue
    /// pair of the same protection domain; of the peer's end, if the window is of type 2.
    ///
    /// If the request is dropped and not posted, nothing has happened.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] unless the lease is [free](LeaseState::Free).
    #[doc(alias = "ibv_bind_mw")]
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn bind(&self) -> Result<SendRequest<()>> {
        let change = self.lease.bind().ok_or_else(|| self.in_use())?;
        Ok(SendRequest::of_window(change))
    }

    /// Returns the request that ends the binding: of a window of type 2 it invalidates the key, of
    /// one of type 1 it binds to nothing. As [`Self::bind`].
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] unless the lease is [bound](LeaseState::Bound).
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn unbind(&self) -> Result<SendRequest<()>> {
        let change = self.lease.unbind().ok_or_else(|| self.in_use())?;
        Ok(SendRequest::of_window(change))
    }

    /// Returns the address, length and key that a peer needs to access the memory; `None` if peers
    /// cannot reach it. For a window of type 2 they are known as soon as [`Self::bind`] was called:
    /// a message behind that request, in the same queue, may carry them.
    pub fn remote(&self) -> Option<RemoteMemory> {
        let is_known = match self.lease.phase() {
            Phase::Bound => true,
            Phase::Binding => self.kind() == WindowType::Two,
            Phase::Free | Phase::Ending | Phase::Unknown => false,
        };
        is_known.then(|| RemoteMemory {
            address: self.lease.address(),
            len: self.len() as u64,
            rkey: self.lease.key(),
        })
    }

    /// Returns the state of the window, as far as it is known.
    pub fn state(&self) -> LeaseState {
        match self.lease.phase() {
            Phase::Free => LeaseState::Free,
            Phase::Binding => LeaseState::Binding,
            Phase::Bound => LeaseState::Bound,
            Phase::Ending => LeaseState::Ending,
            Phase::Unknown => LeaseState::Unknown,
        }
    }

    /// Returns a view of the bytes, to read and write them by copies and atomics.
    pub fn volatile(&self) -> VolatileSlice<'_> {
        VolatileSlice::new(self.lease.memory(), 0..self.len())
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.lease.memory().len()
    }

    /// Always returns `false`: leased memory is never empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the access that the window gives to peers.
    pub fn access(&self) -> AccessFlags {
        self.lease.access()
    }

    /// Returns the type of the window.
    pub fn kind(&self) -> WindowType {
        self.lease.window().kind()
    }

    /// Returns the C object of the window, valid for as long as this.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_mw {
        self.lease.window().as_raw()
    }

    /// Returns the memory as a slice again, and the window, once the lease is
    /// [free](LeaseState::Free).
    ///
    /// # Errors
    ///
    /// The lease, if peers may still reach the memory.
    pub fn finish(self) -> Result<(Buffer, MemoryWindow), Self> {
        match self.lease.finish() {
            Ok((window, span)) => Ok((Buffer::new(span), MemoryWindow::of(window))),
            Err(lease) => Err(Self { lease }),
        }
    }

    /// Frees the window, which ends the grant at the device, whatever state it is in; the memory.
    ///
    /// # Errors
    ///
    /// The lease, with [`Error::InUse`] while a request of it is in flight, or with the device's
    /// error.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn revoke(self) -> Result<Buffer, Refused<Self>> {
        let holder = "a request that binds or unbinds it";
        match self.lease.revoke() {
            Ok(span) => Ok(Buffer::new(span)),
            Err((lease, error)) => {
                let error = error.unwrap_or_else(|| Error::in_use(LEASED, holder));
                Err(Refused::new(Self { lease }, error))
            }
        }
    }

    #[cold]
    fn in_use(&self) -> Error {
        let holder = match self.lease.phase() {
            Phase::Free => "nobody: the window is not bound",
            Phase::Binding => "a request that binds the window",
            Phase::Bound => "peers, to whom the window grants it",
            Phase::Ending => "a request that ends the window's binding",
            Phase::Unknown => "a window whose requests failed",
        };
        Error::in_use(LEASED, holder)
    }
}
