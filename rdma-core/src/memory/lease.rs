//! Memory that peers access through a memory window.

use std::sync::Arc;

use super::window_bounds;
use super::{AccessFlags, Buffer, MemoryWindow, RemoteMemory, VolatileSlice, WindowType};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::ffi::{Lease, Phase};
use crate::queue_pair::SendRequest;
use crate::refused::Refused;

/// Memory that peers access through a memory window: a remote key that one work request binds to
/// the memory and another work request invalidates. Granting and revoking the access needs no new
/// registration.
///
/// 1. [`Buffer::lease`] pairs the memory with a window. From then on the memory cannot be accessed
///    as a slice.
/// 2. [`Self::bind`] returns a request that grants the access. The program must post the request.
///    [`Self::remote`] returns the key for the peer.
/// 3. [`Self::unbind`] returns a request that revokes the access. The program must post this
///    request. Alternatively the peer ends the access by [`SendRequest::send_with_invalidate`]. A
///    later access of a peer fails with a remote access error.
/// 4. [`Self::finish`] returns the buffer and the window. Alternatively [`Self::bind`] grants the
///    access again, with another key.
///
/// The state of the lease becomes [`LeaseState::Bound`] or [`LeaseState::Free`] when the program
/// passes the completion of the bind or unbind request to the queue of that request (`complete`).
/// If the peer invalidates the window, the state becomes `Free` when the program passes the
/// completion of the receive to the receive queue. [`Self::finish`] therefore never returns memory
/// that a peer can still access, even if completions are lost, passed twice or passed late, or if
/// this value is dropped or forgotten. [`Self::revoke`] ends the lease even if the state is
/// unknown, by deallocating the window.
///
/// ```
/// use rdma_core::AccessFlags;
/// use rdma_core::memory::WindowType;
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
/// // The program sends the token to the peer, and the peer writes.
/// queue.post_inline(lease.unbind()?)?;
/// succeed(&queue_pair, &mut queue)?;
/// let (memory, window) = lease.finish().expect("no peer reaches it");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// While the memory is leased, the program cannot access the memory as a slice:
///
/// ```compile_fail,E0608
/// # fn example(lease: rdma_core::memory::WindowLease) {
/// println!("{}", lease[0]);
/// # }
/// ```
///
/// # Requirements on the device
///
/// The device must enforce the bounds and rights of a window. Peers can guess keys, and the keys of
/// a window repeat after 256 bindings: a peer that still has an old key then regains access. Some
/// devices, such as Soft-RoCE in Linux 6.1, do not check the bounds of windows. On such a device
/// only whole registrations can be leased.
#[derive(Debug)]
pub struct WindowLease {
    lease: Arc<Lease>,
}

/// The name that error messages use for leased memory.
const LEASED: &str = "leased memory";

/// The state of the memory window of a [`WindowLease`]. Peers can access the leased memory only
/// while the window is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeaseState {
    /// The window is not bound: peers cannot access the memory.
    Free,
    /// The bind request has not completed: peers may or may not have access.
    Binding,
    /// The window is bound: peers can access the memory.
    Bound,
    /// The unbind request has not completed: peers may or may not have access.
    Ending,
    /// The state is unknown, because a request failed or its completion was lost.
    /// [`WindowLease::revoke`] ends all access of peers.
    Unknown,
}

impl Buffer {
    /// Pairs this buffer with a memory window, a remote key that will give peers the rights in
    /// `access` to the buffer. Peers have no access until the program posts the request from
    /// [`WindowLease::bind`].
    ///
    /// If the buffer is only a part of a registration, the device must check the bounds of windows
    /// of this type. The first such call for each open device and window type tests the device with
    /// temporary queue pairs. Later calls use the stored result of the test.
    ///
    /// # Errors
    ///
    /// Returns buffer and window, with one of these errors:
    ///
    /// - [`Error::InvalidArgument`] if the buffer is empty, was not registered with
    ///   [`AccessFlags::WINDOW_BIND`], or belongs to another protection domain than the window.
    ///   Also [`Error::InvalidArgument`] if `access` contains flags other than remote rights and
    ///   [`AccessFlags::ZERO_BASED`].
    /// - [`Error::Unsupported`] if the buffer is a part of a registration and the window would give
    ///   peers access to the rest of the registration.
    /// - The error that prevented the test of the device, if the buffer is a part of a
    ///   registration.
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

/// Returns an error if the window would let peers access memory outside of `buffer`. The window
/// does so if `buffer` is only a part of a registration and the device does not check the bounds of
/// windows.
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
    /// Creates a lease of `buffer`: peers can access `buffer` through `window` once the window is
    /// bound. The caller must have checked the arguments as [`Buffer::lease`] does. If `buffer` is
    /// a part of a registration, the device must enforce the bounds of the window, or the rest of
    /// the registration must not be in use.
    pub(super) fn of_any_part(buffer: Buffer, window: MemoryWindow, access: AccessFlags) -> Self {
        let lease = Lease::new(window.into_handle(), buffer.into_span(), access);
        Self { lease }
    }

    /// Returns a request that binds the window, which grants peers access to the memory. The
    /// program must post the request with [`SendQueue::post_inline`](crate::SendQueue::post_inline)
    /// or a similar method to a connected queue pair of the same protection domain. For a window of
    /// type 2 the queue pair must be connected to the peer that will access the memory.
    ///
    /// Dropping the request without posting it has no effect.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if the window is not in the state [`LeaseState::Free`].
    #[doc(alias = "ibv_bind_mw")]
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn bind(&self) -> Result<SendRequest<()>> {
        let change = self.lease.bind().ok_or_else(|| self.in_use())?;
        Ok(SendRequest::of_window(change))
    }

    /// Returns a request that ends the access of peers. The request invalidates the key of a type 2
    /// window, or binds a type 1 window to zero bytes. The program must post the request in the
    /// same way as the request from [`Self::bind`]. Peers may have access until the request has
    /// completed.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if the window is not in the state [`LeaseState::Bound`].
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn unbind(&self) -> Result<SendRequest<()>> {
        let change = self.lease.unbind().ok_or_else(|| self.in_use())?;
        Ok(SendRequest::of_window(change))
    }

    /// Returns the address, length and key that a peer needs to access the memory, or `None` if
    /// peers have no access. For a window of type 2 the method returns the values as soon as
    /// [`Self::bind`] has been called. The program may therefore send the values in a message that
    /// it posts after the bind request to the same queue.
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

    /// Returns the state of the window that this process has recorded. For example, the state is
    /// [`LeaseState::Binding`] until the program has passed the completion of the bind request to
    /// the queue of that request.
    pub fn state(&self) -> LeaseState {
        match self.lease.phase() {
            Phase::Free => LeaseState::Free,
            Phase::Binding => LeaseState::Binding,
            Phase::Bound => LeaseState::Bound,
            Phase::Ending => LeaseState::Ending,
            Phase::Unknown => LeaseState::Unknown,
        }
    }

    /// Returns a view of the memory, through which this process reads and writes the bytes by
    /// copies and atomics.
    pub fn volatile(&self) -> VolatileSlice<'_> {
        VolatileSlice::new(self.lease.memory(), 0..self.len())
    }

    /// Returns the length of the memory in bytes.
    pub fn len(&self) -> usize {
        self.lease.memory().len()
    }

    /// Always returns `false`: leased memory is never empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the access rights that the window grants to peers.
    pub fn access(&self) -> AccessFlags {
        self.lease.access()
    }

    /// Returns the type of the window.
    pub fn kind(&self) -> WindowType {
        self.lease.window().kind()
    }

    /// Returns the underlying `ibv_mw` of the memory window. The pointer is valid as long as this
    /// [`WindowLease`] exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_mw {
        self.lease.window().as_raw()
    }

    /// Ends the lease if the window is not bound ([`LeaseState::Free`]), and returns the memory and
    /// the window. The memory is then accessible as a slice.
    ///
    /// # Errors
    ///
    /// Returns the lease if peers may still access the memory.
    pub fn finish(self) -> Result<(Buffer, MemoryWindow), Self> {
        match self.lease.finish() {
            Ok((window, span)) => Ok((Buffer::new(span), MemoryWindow::of(window))),
            Err(lease) => Err(Self { lease }),
        }
    }

    /// Ends the lease by deallocating the window, and returns the memory. Peers then have no
    /// access. The method also works if the window is bound or in the state
    /// [`LeaseState::Unknown`].
    ///
    /// # Errors
    ///
    /// Returns the lease, with [`Error::InUse`] while a bind or unbind request is in flight, or
    /// with the error of `ibv_dealloc_mw`.
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
