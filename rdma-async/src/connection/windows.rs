//! Memory that the peer accesses through a memory window of type 2.
//!
//! Such a window can be used only through the queue pair whose request has bound it, so its key
//! gives no access to other peers. A request of the connection's send queue binds the window.
//! Another request invalidates the window, if no earlier request is in flight: requests complete in
//! order, so a peer that does not acknowledge a message could otherwise delay the end of its
//! access. Deallocating the window ends the access in all other cases, also after the queue pair
//! has failed.

use std::mem;
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use rdma_core::memory::{MemoryWindow, WindowLease, WindowType};
use rdma_core::{
    AccessFlags, Buffer, Error as VerbsError, ProtectionDomain, RemoteMemory, SendRequest,
};
use tokio::sync::Notify;

use super::Connection;
use super::exposed::{join_parts, split_around};
use super::leases::LentRegion;
use super::send_state::NotAccepted;
use crate::device::RdmaDevice;
use crate::error::Result;
use crate::memory::{LocalMr, PieceLender, RegionParts};
use crate::observe::report_failed_end;

/// Maximum number of times that a memory window is bound. After this number of bindings, the keys
/// of a window repeat, and a peer that still has an old key would get access again.
const MAX_BINDINGS: u16 = 256;
/// Maximum number of unbound memory windows that a connection keeps for lending memory to the peer
/// later. Windows above this number are freed, and must be allocated again.
const MAX_FREE: usize = 16;

/// Region of local memory that the peer may access through a memory window. The other parts of the
/// original buffer are kept, and joined with the region again when the access ends.
#[derive(Debug)]
pub(super) struct WindowedRegion {
    lease: WindowLease,
    /// Number of times that the window was bound, including this time.
    bindings: u16,
    /// Part of the registered buffer after the region, kept until the parts are joined again.
    tail: Option<Buffer>,
    /// Part of the registered buffer before the region.
    lead: Option<Buffer>,
    lender: Option<Arc<PieceLender>>,
}

impl WindowedRegion {
    /// Returns the length in bytes of the region that the peer may access.
    pub(super) fn len(&self) -> usize {
        self.lease.len()
    }

    /// Ends the peer's access by deallocating the memory window, and returns the memory. On an
    /// error, returns both the error and the region. The error is [`VerbsError::InUse`] while a
    /// request is binding or invalidating the window.
    pub(super) fn end(self) -> Result<LocalMr, NotEnded> {
        let Self {
            lease,
            bindings,
            tail,
            lead,
            lender,
        } = self;
        match lease.revoke() {
            Ok(memory) => Ok(join_parts(lead, memory, tail, lender)),
            Err(refused) => {
                let region = Box::new(Self {
                    lease: refused.value,
                    bindings,
                    tail,
                    lead,
                    lender,
                });
                let error = refused.error;
                Err(NotEnded { region, error })
            }
        }
    }
}

/// Region to which the device failed to end the peer's access, with the error of the device.
#[derive(Debug)]
pub(super) struct NotEnded {
    region: Box<WindowedRegion>,
    pub(super) error: VerbsError,
}

impl NotEnded {
    /// Returns the region if a later attempt can end the peer's access: the error is
    /// [`VerbsError::InUse`], because a request in flight uses the memory window. Reports any other
    /// error and returns `None`. The memory is then not freed, because the device may still access
    /// the memory.
    fn into_region_in_use(self, device: &RdmaDevice) -> Option<Box<WindowedRegion>> {
        match self.error {
            VerbsError::InUse { .. } => Some(self.region),
            error => {
                report_failed_end(device, &error);
                None
            }
        }
    }
}

/// Memory windows of a connection, which give the peer access to memory. Contains windows that can
/// be used again, and regions that wait until a request in flight no longer uses their window.
#[derive(Debug)]
pub(crate) struct Windows {
    /// Unbound windows, each with the number of times that it was bound.
    free: Mutex<Vec<(MemoryWindow, u16)>>,
    /// Regions whose owner no longer waits for the request that binds or invalidates the window.
    /// The memory of these regions returns to its pool when the request has completed.
    abandoned: Mutex<Vec<WindowedRegion>>,
    /// Notification that wakes the control task, which ends the abandoned regions.
    control_wakeup: Arc<Notify>,
    device: RdmaDevice,
}

impl Windows {
    pub(super) fn new(control_wakeup: Arc<Notify>, device: RdmaDevice) -> Self {
        Self {
            device,
            free: Mutex::default(),
            abandoned: Mutex::default(),
            control_wakeup,
        }
    }

    /// Returns a memory window that is not bound, with the number of times that the window was
    /// bound before. The window is left from an earlier lease, or new. Fails if the device has no
    /// further windows.
    pub(super) fn unbound_window(
        &self,
        domain: &ProtectionDomain,
    ) -> Result<(MemoryWindow, u16), VerbsError> {
        let free = self.free.lock().pop();
        match free {
            Some(free) if free.1 < MAX_BINDINGS => Ok(free),
            // An old window still exists while a new one is allocated, so that their keys differ.
            _old => Ok((domain.memory_window(WindowType::Two)?, 0)),
        }
    }

    /// Combines `region` with an unbound memory window, by which the peer later gets the rights
    /// `access`. The window and its number of bindings come from [`Self::unbound_window`]. The peer
    /// has no access until [`Connection::bind_window`] binds the window.
    pub(super) fn pair(
        &self,
        region: RegionParts,
        access: AccessFlags,
        (window, bindings): (MemoryWindow, u16),
    ) -> Result<PendingWindow<&Self>, VerbsError> {
        let RegionParts {
            buffer,
            range,
            lender,
        } = region;
        let (lead, memory, tail) = split_around(buffer, range);
        match memory.lease(window, access) {
            Ok(lease) => Ok(PendingWindow {
                region: Some(Box::new(WindowedRegion {
                    lease,
                    bindings: bindings + 1,
                    tail,
                    lead,
                    lender,
                })),
                windows: self,
            }),
            Err(refused) => {
                let (memory, _window) = refused.value;
                drop(join_parts(lead, memory, tail, lender));
                Err(refused.error)
            }
        }
    }

    /// Ends the peer's access to a region, if it has not yet ended, and returns the memory. If a
    /// request has unbound the memory window, keeps the window for later use. Otherwise deallocates
    /// the window. On an error of the device, returns the region.
    fn end(&self, region: WindowedRegion) -> Result<LocalMr, NotEnded> {
        let WindowedRegion {
            lease,
            bindings,
            tail,
            lead,
            lender,
        } = region;
        match lease.finish() {
            Ok((memory, window)) => {
                self.keep(window, bindings);
                Ok(join_parts(lead, memory, tail, lender))
            }
            Err(lease) => WindowedRegion {
                lease,
                bindings,
                tail,
                lead,
                lender,
            }
            .end(),
        }
    }

    /// Keeps an unbound window, so that a later lease (access of the peer to memory) can bind the
    /// window again. Frees the window if [`MAX_FREE`] windows are kept. `bindings` is the number of
    /// times that the window was bound, which is limited.
    fn keep(&self, window: MemoryWindow, bindings: u16) {
        let mut free = self.free.lock();
        if free.len() < MAX_FREE {
            free.push((window, bindings));
        }
    }

    /// Ends the peer's access to abandoned regions, whose memory then returns to its pool. A region
    /// is abandoned if its future was dropped while a request was binding or invalidating the
    /// memory window. Returns `true` if such a request is still in flight: its region is kept, and
    /// the caller must call this function again later.
    pub(super) fn end_abandoned(&self) -> bool {
        let abandoned = mem::take(&mut *self.abandoned.lock());
        for region in abandoned {
            if let Err(refused) = self.end(region) {
                let in_use = refused.into_region_in_use(&self.device);
                self.abandoned.lock().extend(in_use.map(|region| *region));
            }
        }
        !self.abandoned.lock().is_empty()
    }
}

impl Drop for Windows {
    /// Returns the memory of abandoned regions to its pool. The futures that waited for these
    /// regions were dropped.
    fn drop(&mut self) {
        self.end_abandoned();
    }
}

/// Region of local memory while a request binds or invalidates its memory window. If this value is
/// dropped, the memory returns to its pool after the request has completed. `W` is a reference to
/// the windows of the connection, or an [`Arc`] if this value must outlive such a reference.
#[derive(Debug)]
pub(crate) struct PendingWindow<W: Deref<Target = Windows>> {
    /// `None` only within `end`, `into_region` and `drop`.
    region: Option<Box<WindowedRegion>>,
    windows: W,
}

impl<W: Deref<Target = Windows>> PendingWindow<W> {
    fn lease(&self) -> &WindowLease {
        let region = self.region.as_ref();
        &region
            .expect("the region is taken only when `self` is consumed")
            .lease
    }

    /// Converts this value to the region that the peer may access. Must be called only after the
    /// request that binds the window has completed.
    fn into_region(mut self) -> Box<WindowedRegion> {
        self.region
            .take()
            .expect("the region is taken only when `self` is consumed")
    }

    /// Ends the peer's access to the region, if the access has not already ended, and returns the
    /// memory. Does not wait: fails if the request that binds or invalidates the window is still in
    /// flight. The control task then frees the region later.
    fn end(mut self) -> Result<LocalMr, VerbsError> {
        let region = self.region.take();
        let region = region.expect("the region is taken only when `self` is consumed");
        self.windows.end(*region).map_err(|refused| {
            let error = refused.error.clone();
            // Dropping `self` then leaves the region to the control task.
            self.region = refused.into_region_in_use(&self.windows.device);
            error
        })
    }
}

impl<W: Deref<Target = Windows>> Drop for PendingWindow<W> {
    fn drop(&mut self) {
        if let Some(region) = self.region.take()
            && let Err(refused) = self.windows.end(*region)
            && let Some(region) = refused.into_region_in_use(&self.windows.device)
        {
            self.windows.abandoned.lock().push(*region);
            self.windows.control_wakeup.notify_one();
        }
    }
}

/// Outcome of ending the peer's access to a region: the access has ended, or a request in flight
/// will end it. [`Connection::finish_end`] waits for that request.
#[derive(Debug)]
pub(crate) enum EndedAccess<W: Deref<Target = Windows>> {
    /// The access has ended. Contains the memory, or the error of the device.
    Ended(Result<LocalMr, VerbsError>),
    /// The request with this number ends the access.
    Ending(PendingWindow<W>, u64),
}

impl Connection {
    /// Binds a memory window to its region, and waits until the peer can access the memory. Returns
    /// the region, and its address, length and key.
    pub(super) async fn bind_window(
        &self,
        pending: PendingWindow<&Windows>,
    ) -> Result<(Box<WindowedRegion>, RemoteMemory)> {
        let attempt = || self.submit_window(false, || pending.lease().bind());
        let request = match attempt() {
            Ok(request) => request,
            Err(first) => self.retry(first, attempt).await?,
        };
        let memory = pending.lease().remote();
        self.operation(request, None).await?;
        match memory {
            Some(memory) => Ok((pending.into_region(), memory)),
            None => {
                self.fail_for_violation("an invalidation of memory that was not lent");
                Err(self.end_reason())
            }
        }
    }

    /// Ends the peer's access to a region, or begins to end the access. If the region has a memory
    /// window and no request is in flight, submits a request that invalidates the window, and
    /// returns [`EndedAccess::Ending`]. Otherwise ends the access without a request, and returns
    /// [`EndedAccess::Ended`]: earlier requests could delay the invalidation. `windows` refers to
    /// the windows of this connection.
    pub(super) fn begin_end<W: Deref<Target = Windows>>(
        &self,
        region: LentRegion,
        windows: W,
    ) -> EndedAccess<W> {
        let region = match region {
            LentRegion::Windowed(region) if self.failure().is_none() => region,
            other => return EndedAccess::Ended(other.end()),
        };
        let pending = PendingWindow {
            region: Some(region),
            windows,
        };
        match self.submit_window(true, || pending.lease().unbind()) {
            Ok(request) => EndedAccess::Ending(pending, request),
            Err(_) => EndedAccess::Ended(pending.end()),
        }
    }

    /// Ends the peer's access to abandoned regions. A region is abandoned if its future was dropped
    /// while a request was binding or invalidating the memory window. Returns `true` if such a
    /// request is still in flight: the caller must then call this function again later.
    pub(super) fn end_abandoned_windows(&self) -> bool {
        self.windows.end_abandoned() && {
            self.shard.poll();
            self.windows.end_abandoned()
        }
    }

    /// Waits until the peer's access has ended, and returns the memory. `ended` is the value that
    /// [`Self::begin_end`] has returned. Fails if the device fails to end the access.
    pub(crate) async fn finish_end<W: Deref<Target = Windows>>(
        &self,
        ended: EndedAccess<W>,
    ) -> Result<LocalMr, VerbsError> {
        match ended {
            EndedAccess::Ended(region) => region,
            EndedAccess::Ending(pending, request) => {
                // If the request fails, `end` deallocates the window.
                let _outcome = self.operation(request, None).await;
                pending.end()
            }
        }
    }

    /// Submits a request that binds or invalidates a memory window, and returns the number of the
    /// request. `begin` creates the request. If `must_be_first` is set, fails while any earlier
    /// request is in flight.
    fn submit_window(
        &self,
        must_be_first: bool,
        begin: impl FnOnce() -> rdma_core::Result<SendRequest<()>>,
    ) -> Result<u64, NotAccepted> {
        let mut state = self.sender.lock();
        if must_be_first && !state.is_idle() {
            return Err(NotAccepted::Full);
        }
        match state.accept_window(begin) {
            Ok(accepted) => {
                self.sender.note_staged(&state);
                Ok(accepted.number)
            }
            Err(not_accepted) => {
                self.fail_if_closed(state, &not_accepted);
                Err(not_accepted)
            }
        }
    }
}
