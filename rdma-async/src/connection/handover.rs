//! Memory that one end lends to the other: requests, offers, returns and releases of leases.

use std::alloc::Layout;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_core::{AccessFlags, RemoteMemory};
use tokio::time::timeout;

use super::Connection;
use super::frame::Kind;
use super::messages::Payload;
use super::replies::Reply;
use super::send_state::{AWAITED, NotAccepted};
use crate::error::{Error, Result};
use crate::memory::{GrantedMemory, LocalMr, RemoteMr};
use crate::reserve::GrantState;

impl Connection {
    /// Requests memory from the peer, and waits until the peer has lent it.
    pub(crate) async fn request_remote(&self, layout: Layout) -> Result<RemoteMr> {
        let limit = self.settings.response_timeout;
        let (size, align) = (layout.size() as u64, layout.align() as u64);
        let reply = async {
            let mut question = self.replies.ask(None);
            let id = question.id;
            self.send_control_frame(Kind::Request { id, size, align })
                .await?;
            let answer = question.answer().await;
            let answer = answer.unwrap_or_else(|| Err(self.ended()));
            // The peer may have lent the memory.
            answer.map_err(Error::of_posted)
        };
        match in_time("the peer's answer to a request for memory", limit, reply).await? {
            Reply::Granted(region) => {
                let memory = region.token();
                if memory.len != size || !memory.address.is_multiple_of(align) {
                    self.violation("other memory than it was asked for");
                    return Err(self.ended());
                }
                Ok(region)
            }
            Reply::Refused(reason) => Err(Error::Refused {
                what: "a request for memory",
                reason: reason.to_string().into(),
            }),
            Reply::Read(_) => {
                self.violation("the answer to another question");
                Err(self.ended())
            }
        }
    }

    /// Lends memory of the application to the peer.
    pub(crate) async fn offer(&self, region: LocalMr) -> Result<()> {
        let credit = self.data_credit().await?;
        let (lease, memory) = self
            .leases
            .lend(region, None, None, &self.device)
            .map_err(|(_, error)| Error::from(error))?;
        // The peer cannot end a lease that was not sent to it.
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

    /// Lends memory for a reservation, without sending anything to the peer.
    pub(crate) fn lend_for(
        &self,
        region: LocalMr,
        reservation: &Arc<GrantState>,
    ) -> Result<(u64, RemoteMemory)> {
        self.checked()?;
        let lent = self
            .leases
            .lend(region, None, Some(Arc::clone(reservation)), &self.device);
        lent.map_err(|(_, error)| error.into())
    }

    /// Lends memory with only those of the peer's access rights that are in `allowed`, without
    /// sending anything to the peer. On an error, returns the region.
    pub(crate) fn lend_with(
        &self,
        region: LocalMr,
        allowed: AccessFlags,
        reservation: &Arc<GrantState>,
    ) -> Result<(u64, RemoteMemory), (LocalMr, Error)> {
        if let Err(error) = self.checked() {
            return Err((region, error));
        }
        let reservation = Some(Arc::clone(reservation));
        let lent = self
            .leases
            .lend_with(region, allowed, None, reservation, &self.device);
        lent.map_err(|(region, error)| (region, error.into()))
    }

    /// Offers the memory of a reservation to the peer.
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
        // Set before the offer is sent: a peer that has the offer must learn of the end.
        if !reservation.begin_offer() {
            return Err(Error::invalid(
                "memory of a reservation",
                "it was offered before",
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
                // The reservation may have ended before it knew of the offer, or while the offer
                // waited for room: the peer would learn of the end before the offer.
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

    /// Ends the access of a lease at the device, and tells the peer if the memory was offered.
    /// Returns `None` if the peer has ended the lease before.
    pub(crate) fn end_lease(
        &self,
        lease: u64,
        is_offered: bool,
    ) -> Option<Result<LocalMr, rdma_core::Error>> {
        let ended = self.leases.end(lease, is_offered)?;
        if is_offered {
            self.send_control(Kind::Revoke { lease });
        }
        Some(ended)
    }

    /// Returns the number of leases that this end has ended, and that the peer has not returned
    /// since.
    #[cfg(test)]
    pub(crate) fn revoked_leases(&self) -> usize {
        self.leases.revoked()
    }

    /// Returns the memory that the peer holds because it requested it.
    pub(crate) fn granted_memory(&self) -> GrantedMemory {
        self.leases.granted()
    }

    /// Ends the leases of requested memory whose time limit has passed. The peer's operations on
    /// them then fail.
    pub(super) fn end_overdue_leases(&self) {
        while let Some(lease) = self.leases.next_overdue(Instant::now()) {
            // On an error the device may still access the memory, which is then not freed.
            if let Some(Err(error)) = self.end_lease(lease, true) {
                self.fail(error.into());
            }
        }
    }

    /// Returns the time at which the next lease of requested memory ends.
    pub(super) fn next_lease_end(&self) -> Option<Instant> {
        self.leases.next_end()
    }

    /// Returns memory to the peer that lent it.
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
        // Until the message is accepted, dropping the region releases the lease.
        let number = self
            .submit_frame_when_possible(kind, Payload::Nothing, None, AWAITED)
            .await?;
        region.forget_lease();
        credit.spend();
        self.operation(number, None).await?;
        Ok(())
    }

    /// Sends the release of a lease to the peer, without waiting.
    pub(crate) fn release_remote(&self, lease: u64) {
        self.send_control(Kind::Release { lease });
    }

    /// Waits for memory that the peer lends.
    pub(crate) async fn receive_offer(&self) -> Result<RemoteMr> {
        let region = self
            .wait(self.offers.waiters(), || self.offers.pop())
            .await?;
        self.taken();
        Ok(region)
    }

    /// Waits for memory that the peer returns.
    pub(crate) async fn receive_returned(&self) -> Result<LocalMr> {
        self.wait(&self.returned_arrived, || self.returned.pop())
            .await
    }
}

/// Guard that ends the lease of an offer unless the offer was sent.
struct EndUnlessSent<'c> {
    connection: &'c Connection,
    lease: u64,
}

impl Drop for EndUnlessSent<'_> {
    fn drop(&mut self) {
        drop(self.connection.leases.end(self.lease, false));
    }
}

/// Guard that withdraws the offer of a reservation unless the offer was sent.
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

async fn in_time<T>(
    what: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    timeout(limit, work)
        .await
        .unwrap_or(Err(Error::Timeout { what, limit }))
}
