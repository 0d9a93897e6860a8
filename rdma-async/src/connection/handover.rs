//! Messages by which the two ends lend memory to each other and return it: requests, offers,
//! returns and releases. A lease is the access of one end to memory of the other end.

use std::alloc::Layout;
use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use rdma_core::memory::MemoryWindow;
use rdma_core::{AccessFlags, RemoteMemory};
use tokio::time::timeout;

use super::Connection;
use super::frame::Kind;
use super::leases::{LentRegion, ReturnTo};
use super::messages::Payload;
use super::replies::Reply;
use super::send_state::{AWAITED, NotAccepted};
use super::windows::{EndedAccess, Windows};
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
            let credit = self.control_credit().await?;
            let mut pending = self
                .replies
                .register_limited("a request for memory", None)?;
            let id = pending.id;
            let kind = Kind::Request { id, size, align };
            let number = {
                let mut unsent = pending.remove_unless_sent();
                let submitted =
                    self.submit_frame_when_possible(kind, Payload::Nothing, None, AWAITED);
                let number = submitted.await?;
                unsent.is_sent = true;
                number
            };
            credit.spend();
            self.operation(number, None).await?;
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
            .lend(region, None, &self.device)
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
    /// until the device permits the access. Sends no message to the peer.
    pub(crate) async fn lend_for(&self, region: LocalMr) -> Result<Loan> {
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
        let (lease, memory) = if let Some(window) = window {
            let limit = self.settings.response_timeout;
            let pending = Windows::pair(&self.windows, region, access, window)?;
            let binding = pin!(self.bind_window(pending));
            let (region, memory) =
                in_time("the binding of a memory window", limit, binding).await?;
            let region = LentRegion::Windowed(region);
            let lease = self
                .leases
                .insert(region, None, ReturnTo::Unoffered, &self.device);
            (lease, memory)
        } else {
            let region = region.into_region();
            let lent = self
                .leases
                .lend_unoffered(region, AccessFlags::all(), &self.device);
            lent.map_err(|(_, error)| Error::from(error))?
        };
        Ok(Loan {
            lease,
            memory,
            is_exclusive,
        })
    }

    /// Returns an unbound memory window, by which memory can be lent to the peer, and the number of
    /// times that the window was bound before. The caller needs this number because a window is
    /// replaced after a maximum number of bindings. Returns `None` if the device has no further
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
    /// the memory. The peer cannot give the memory back: only this end ends the lease. On an error,
    /// returns `region`.
    pub(crate) fn lend_with(
        &self,
        region: LocalMr,
        allowed: AccessFlags,
    ) -> Result<(u64, RemoteMemory), (LocalMr, Error)> {
        if let Err(error) = self.check_open() {
            return Err((region, error));
        }
        let lent = self.leases.lend_unoffered(region, allowed, &self.device);
        lent.map_err(|(region, error)| (region, error.into()))
    }

    /// Offers memory of [`Rdma::reserve`](crate::Rdma::reserve) to the peer, and waits until the
    /// peer's device has acknowledged the message. `lease` is the id of the lease (the peer's
    /// permission to access the memory). When the peer gives the memory back, the memory is stored
    /// in `reservation`. Fails if the lease has ended or the memory was offered before.
    pub(crate) async fn offer_lease(
        &self,
        lease: u64,
        memory: RemoteMemory,
        reservation: &Arc<GrantState>,
    ) -> Result<()> {
        let credit = self.data_credit().await?;
        // Recorded before the offer is sent: a peer that has received the offer must be notified
        // when the lease ends.
        self.leases.set_offered(lease, reservation)?;
        let unsent = WithdrawUnlessSent {
            connection: self,
            lease,
        };
        let kind = Kind::Offer { lease, memory };
        let attempt = || {
            reservation.send_in_order(|| {
                // The lease may have ended while the offer waited for room. The peer would then be
                // notified of the end before the offer.
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

    /// Ends the peer's access to memory of this end, and returns the memory. `lease` is the id of
    /// the lease (the peer's permission to access the memory). Notifies the peer if a message had
    /// offered the lease to the peer. Returns `None` if the peer has already ended the lease.
    pub(crate) fn end_lease(&self, lease: u64) -> Option<Result<LocalMr, rdma_core::Error>> {
        let removed = self.leases.remove(lease)?;
        let ended = removed.region.end();
        self.send_end_of_lease(lease, &removed.return_to);
        Some(ended)
    }

    /// Begins to end the peer's access to memory of this end. `lease` is the id of the lease (the
    /// peer's permission to access the memory). The caller must pass the returned value to
    /// [`Self::finish_end`], which waits until the access has ended. Notifies the peer if a message
    /// had offered the lease to the peer. Returns `None` if the peer has already ended the lease.
    pub(crate) fn begin_end_lease(&self, lease: u64) -> Option<EndedAccess<&Windows>> {
        let removed = self.leases.remove(lease)?;
        let ended = self.begin_end(removed.region, &*self.windows);
        self.send_end_of_lease(lease, &removed.return_to);
        Some(ended)
    }

    /// Notifies the peer that the lease `lease` (the peer's permission to access memory of this
    /// end) has ended. `return_to` is the receiver of the memory when the peer gives the memory
    /// back. Sends nothing for [`ReturnTo::Unoffered`], because no message has offered such a lease
    /// to the peer.
    fn send_end_of_lease(&self, lease: u64, return_to: &ReturnTo) {
        let send = || self.send_control(Kind::Revoke { lease });
        match return_to {
            ReturnTo::Unoffered => {}
            ReturnTo::Application => send(),
            ReturnTo::Reservation(reservation) => reservation.send_in_order(send),
        }
    }

    /// Returns the number of leases that this end has ended and the peer has not yet confirmed. The
    /// peer confirms the end by a message that gives the memory back.
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
            if let Some(Err(error)) = self.end_lease(lease) {
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
    /// gets back the credit (permission to send a message) that the offer has used.
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
        let returned = &self.returned;
        self.wait(returned.waiters(), || returned.pop()).await
    }
}

/// Memory that [`Rdma::reserve`](crate::Rdma::reserve) has lent to the peer, with the id of the
/// lease (the peer's permission to access the memory).
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
        let lease = self.connection.leases.remove_unsent(self.lease);
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
}

impl Drop for WithdrawUnlessSent<'_> {
    fn drop(&mut self) {
        self.connection.leases.withdraw_offer(self.lease);
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
