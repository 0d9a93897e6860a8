//! Messages by which the two ends lend memory to each other and return it: requests, offers,
//! returns and releases. A lease is the access of one end to memory of the other end.

use std::alloc::Layout;
use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use rdma_core::memory::MemoryWindow;
use rdma_core::{AccessFlags, RemoteMemory};
use tokio::time::timeout;

use super::Connection;
use super::frame::Kind;
use super::leases::LentRegion;
use super::messages::Payload;
use super::replies::Reply;
use super::send_state::{AWAITED, NotAccepted};
use super::windows::EndedAccess;
use crate::error::{Error, Result};
use crate::memory::{GrantedMemory, LocalMr, RemoteMr};
use crate::observe::report_failed_end;
use crate::reserve::GrantState;

impl Connection {
    /// Requests memory with the size and alignment of `layout` from the peer, and waits for the
    /// reply. Returns the region that the peer has lent.
    pub(crate) async fn request_remote(&self, layout: Layout) -> Result<RemoteMr> {
        let limit = self.settings.response_timeout;
        let (size, align) = (layout.size() as u64, layout.align() as u64);
        let wait_for_reply = pin!(async {
            let mut pending = self.replies.register(None);
            let id = pending.id;
            self.send_control_frame(Kind::Request { id, size, align })
                .await?;
            let reply = pending.wait().await;
            let reply = reply.unwrap_or_else(|| Err(self.end_reason()));
            // The peer may have lent the memory before the connection ended.
            reply.map_err(Error::of_posted)
        });
        match in_time("the reply to a request for memory", limit, wait_for_reply).await? {
            Reply::Granted(region) => {
                let memory = region.token();
                if memory.len != size || !memory.address.is_multiple_of(align) {
                    self.fail_for_violation("memory of another size or alignment than requested");
                    return Err(self.end_reason());
                }
                Ok(region)
            }
            Reply::Refused(reason) => Err(Error::Refused {
                what: "a request for memory",
                reason: reason.to_string().into(),
            }),
            Reply::Read(_) => {
                self.fail_for_violation("a reply of the wrong kind");
                Err(self.end_reason())
            }
        }
    }

    /// Lends `region`, memory of the application, to the peer, and sends the peer an offer with the
    /// address and key of the memory. Waits until the peer's device has acknowledged the offer.
    pub(crate) async fn offer(&self, region: LocalMr) -> Result<()> {
        let credit = self.data_credit().await?;
        let (lease, memory) = self
            .leases
            .lend(region, None, None, &self.device)
            .map_err(|(_, error)| Error::from(error))?;
        // The peer cannot end a lease that it does not know, so this end must end the lease.
        let unsent = EndUnlessSent {
            connection: self,
            lease,
        };
        let kind = Kind::Offer { lease, memory };
        let number = self
            .submit_frame_when_possible(kind, Payload::Nothing, None, AWAITED)
            .await?;
        mem::forget(unsent);
        credit.spend();
        self.operation(number, None).await?;
        Ok(())
    }

    /// Lends `region` to the peer for a call of [`Rdma::reserve`](crate::Rdma::reserve), and waits
    /// until the device permits the access. Sends no message to the peer. `reservation` is the
    /// state of that call. When the peer gives the memory back, the memory is stored there.
    pub(crate) async fn lend_for(
        &self,
        region: LocalMr,
        reservation: &Arc<GrantState>,
    ) -> Result<Loan> {
        self.check_open()?;
        let access = self.leases.access() & AccessFlags::REMOTE;
        let uses_windows = self.settings.exclusive_grants
            && !access.is_empty()
            && self.device.enforces_windows().await;
        let region = region
            .into_parts()
            .map_err(|(_, error)| Error::from(error))?;
        let window = match uses_windows && region.allows_windows() {
            true => self.unbound_window(),
            false => None,
        };
        let is_exclusive = window.is_some();
        let reservation = Some(Arc::clone(reservation));
        let (lease, memory) = if let Some(window) = window {
            let limit = self.settings.response_timeout;
            let pending = self.windows.pair(region, access, window)?;
            let binding = pin!(self.bind_window(pending));
            let (region, memory) =
                in_time("the binding of a memory window", limit, binding).await?;
            let region = LentRegion::Windowed(region);
            let lease = self.leases.insert(region, None, reservation, &self.device);
            (lease, memory)
        } else {
            let region = region.into_region();
            let lent = self.leases.lend(region, None, reservation, &self.device);
            lent.map_err(|(_, error)| Error::from(error))?
        };
        Ok(Loan {
            lease,
            memory,
            is_exclusive,
        })
    }

    /// Returns a memory window for lending memory to the peer. The window is not bound to memory.
    /// The second value is the number of times that the window was bound before, because windows
    /// are replaced after a maximum number of bindings. Returns `None` if the device has no further
    /// windows.
    fn unbound_window(&self) -> Option<(MemoryWindow, u16)> {
        let window = self.windows.unbound_window(self.device.protection_domain());
        window
            .inspect_err(
                |error| tracing::warn!(parent: &self.span, %error, "a grant is not exclusive"),
            )
            .ok()
    }

    /// Lends `region` to the peer with at most the access rights in `allowed`. Returns the id of
    /// the lease (the peer's permission to access the memory), and the address, length and key of
    /// the memory. The state `reservation` marks the lease as not offered, so the peer cannot give
    /// the memory back: only this end ends the lease. On an error, returns `region`.
    pub(crate) fn lend_with(
        &self,
        region: LocalMr,
        allowed: AccessFlags,
        reservation: &Arc<GrantState>,
    ) -> Result<(u64, RemoteMemory), (LocalMr, Error)> {
        if let Err(error) = self.check_open() {
            return Err((region, error));
        }
        let reservation = Some(Arc::clone(reservation));
        let lent = self
            .leases
            .lend_with(region, allowed, None, reservation, &self.device);
        lent.map_err(|(region, error)| (region, error.into()))
    }

    /// Offers memory of [`Rdma::reserve`](crate::Rdma::reserve) to the peer, and waits until the
    /// peer's device has acknowledged the message. `lease` is the id of the lease, the peer's right
    /// of access. Fails if the lease has ended or the memory was offered before.
    pub(crate) async fn offer_lease(
        &self,
        lease: u64,
        memory: RemoteMemory,
        reservation: &GrantState,
    ) -> Result<()> {
        let credit = self.data_credit().await?;
        if !self.leases.is_open(lease) {
            return Err(Error::LeaseEnded);
        }
        // Set before the offer is sent: a peer that has received the offer must be notified when
        // the lease ends.
        if !reservation.begin_offer() {
            return Err(Error::invalid(
                "memory of a reservation",
                "it was already offered",
            ));
        }
        let unsent = WithdrawUnlessSent {
            connection: self,
            lease,
            reservation,
        };
        let kind = Kind::Offer { lease, memory };
        let attempt = || {
            reservation.send_offer(|| {
                // The lease may have ended before `begin_offer`, or while the offer waited for
                // room. In both cases the peer would be notified of the end before the offer.
                if !self.leases.is_open(lease) {
                    return Err(NotAccepted::Refused(Box::new(Error::LeaseEnded)));
                }
                self.submit_frame(kind, &mut Payload::Nothing, None, AWAITED)
            })
        };
        let number = match attempt() {
            Ok(number) => number,
            Err(first) => self.retry(first, attempt).await?,
        };
        mem::forget(unsent);
        credit.spend();
        self.operation(number, None).await.map(drop)
    }

    /// Ends a lease of memory that this end has lent: ends the peer's access at the device, and
    /// returns the memory. `is_offered` states that the peer knows of the lease, so the peer is
    /// notified. Returns `None` if the peer has already ended the lease.
    pub(crate) fn end_lease(
        &self,
        lease: u64,
        is_offered: bool,
    ) -> Option<Result<LocalMr, rdma_core::Error>> {
        let ended = self.leases.remove(lease, is_offered)?.region.end();
        if is_offered {
            self.send_control(Kind::Revoke { lease });
        }
        Some(ended)
    }

    /// Begins to end the peer's access to lent memory. The caller passes the returned value to
    /// [`Self::finish_end`], which waits until the access has ended. `is_offered` is `true` if the
    /// peer knows of the lease and must be notified. Returns `None` if the peer has already ended
    /// the lease.
    pub(crate) fn begin_end_lease(&self, lease: u64, is_offered: bool) -> Option<EndedAccess> {
        let ended = self.begin_end(self.leases.remove(lease, is_offered)?.region);
        if is_offered {
            self.send_control(Kind::Revoke { lease });
        }
        Some(ended)
    }

    /// Returns the number of leases that this end has ended, and for which the peer has not yet
    /// sent a message that gives the memory back.
    #[cfg(test)]
    pub(crate) fn revoked_leases(&self) -> usize {
        self.leases.revoked()
    }

    /// Returns the number of bytes and regions that this end lends on this connection because the
    /// peer has requested memory.
    pub(crate) fn granted_memory(&self) -> GrantedMemory {
        self.leases.granted()
    }

    /// Ends the leases of requested memory that have expired. Later operations of the peer on this
    /// memory fail.
    pub(super) fn end_expired_leases(&self) {
        while let Some(lease) = self.leases.take_expired(Instant::now()) {
            // After an error the device may still access the memory, so the memory is not freed.
            if let Some(Err(error)) = self.end_lease(lease, true) {
                self.fail(error.into());
            }
        }
    }

    /// Returns the time at which the next lease of requested memory expires, or `None` if no lease
    /// expires.
    pub(super) fn next_lease_expiry(&self) -> Option<Instant> {
        self.leases.next_expiry()
    }

    /// Returns `region` to the peer, which has lent this memory. Waits until the peer's device has
    /// acknowledged the message.
    pub(crate) async fn give_back(&self, region: RemoteMr) -> Result<()> {
        let foreign = || Error::invalid("remote memory", "it was not lent on this connection");
        if region.lease_on(self).is_none() {
            return Err(foreign());
        }
        let credit = self.control_credit().await?;
        let Some(lease) = region.lease_on(self) else {
            return Err(foreign());
        };
        let kind = Kind::Return { lease };
        // If this future is dropped before the message is accepted, dropping the region releases
        // the lease.
        let number = self
            .submit_frame_when_possible(kind, Payload::Nothing, None, AWAITED)
            .await?;
        region.forget_lease();
        credit.spend();
        self.operation(number, None).await?;
        Ok(())
    }

    /// Queues a message that releases the lease `lease`, by which the peer has lent memory to this
    /// end. The peer can then free the memory. Returns without waiting.
    pub(crate) fn release_remote(&self, lease: u64) {
        self.send_control(Kind::Release { lease });
    }

    /// Waits for memory that the peer offers, and returns the region. Also records that the peer
    /// gets back the credit that the offer has used.
    pub(crate) async fn receive_offer(&self) -> Result<RemoteMr> {
        let region = self
            .wait(self.offers.waiters(), || self.offers.pop())
            .await?;
        self.owe_data_credit();
        Ok(region)
    }

    /// Waits until the peer returns memory that this end has lent, and returns the region to the
    /// application.
    pub(crate) async fn receive_returned(&self) -> Result<LocalMr> {
        let (region, charge) = self
            .wait(&self.returned_arrived, || self.returned.pop())
            .await?;
        let was_requested = usize::from(charge.is_some());
        (self.returned_requests).fetch_sub(was_requested, Ordering::Relaxed);
        Ok(region)
    }
}

/// Memory that [`Rdma::reserve`](crate::Rdma::reserve) has lent to the peer, with the id of its
/// lease.
pub(crate) struct Loan {
    /// Id of the lease.
    pub(crate) lease: u64,
    pub(crate) memory: RemoteMemory,
    /// Set if the key of the memory is valid only on this connection.
    pub(crate) is_exclusive: bool,
}

/// Guard of a message that offers memory to the peer. If the guard is dropped before the message
/// was sent, the peer's access to the memory ends, and the memory is dropped.
struct EndUnlessSent<'c> {
    connection: &'c Connection,
    lease: u64,
}

impl Drop for EndUnlessSent<'_> {
    fn drop(&mut self) {
        let lease = self.connection.leases.remove(self.lease, false);
        if let Some(Err(error)) = lease.map(|lease| lease.region.end()) {
            report_failed_end(&self.connection.device, &error);
        }
    }
}

/// Guard while this end offers reserved memory ([`Rdma::reserve`](crate::Rdma::reserve)) to the
/// peer by a message. If the guard is dropped before the message was sent, the state of the memory
/// changes back to "not offered".
struct WithdrawUnlessSent<'c> {
    connection: &'c Connection,
    lease: u64,
    reservation: &'c GrantState,
}

impl Drop for WithdrawUnlessSent<'_> {
    fn drop(&mut self) {
        let forget = || self.connection.leases.forget_revoked(self.lease);
        self.reservation.withdraw_offer(forget);
    }
}

/// Waits for the future `work`, and returns its result. If `work` takes longer than `limit`, fails
/// with [`Error::Timeout`], whose text names the operation `what`.
async fn in_time<T>(
    what: &'static str,
    limit: Duration,
    mut work: Pin<&mut impl Future<Output = Result<T>>>,
) -> Result<T> {
    // Work that completes at the first poll needs no timer.
    let first = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx)));
    if let Poll::Ready(outcome) = first.await {
        return outcome;
    }
    timeout(limit, work)
        .await
        .unwrap_or(Err(Error::Timeout { what, limit }))
}
