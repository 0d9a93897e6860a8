//! Handling of received messages: data messages go to the application, and control messages are
//! handled here.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_core::memory::WriteClaim;
use rdma_core::{WorkCompletion, WorkOpcode};

use super::frame::{Credits, Frame, Kind};
use super::handler::Message;
use super::leases::EndedLease;
use super::rendezvous::IncomingMessage;
use super::replies::Reply;
use super::requests::Request;
use super::{Connection, HEADER_LEN};
use crate::error::Error;
use crate::memory::{LocalMr, RemoteMr};

impl Connection {
    /// Handles the completion of a receive with the memory `memory`: decodes the message, takes the
    /// credits (permissions to send) that its header returns, and delivers a data message to the
    /// application or handles a control message. Returns the memory, so that the caller posts it as
    /// a new receive, or `None` if the application gets the memory.
    pub(crate) fn handle_receive(
        &self,
        completion: &WorkCompletion,
        memory: WriteClaim,
    ) -> Option<WriteClaim> {
        if let Err(error) = completion.result() {
            if self.set_work_failure(error) {
                self.end_after_failure();
            }
            return Some(memory);
        }
        if completion.opcode() == WorkOpcode::ReceiveWriteImmediate {
            let immediate = completion.immediate().unwrap_or_default();
            if self.has_own_ring() {
                match self.accept_written(immediate) {
                    Some(piece) => self.deliver(IncomingMessage::InRing(piece)),
                    None => self.fail_for_violation(
                        "a piece of a stream in a slot that it may not use, or of an invalid length",
                    ),
                }
            } else if !self.write_immediates.push(immediate) {
                self.fail_for_violation("more writes with immediate data than it had credits for");
            }
            return Some(memory);
        }
        let len = completion.len();
        let Some(frame) = memory.get(..len).and_then(Frame::decode) else {
            self.fail_for_violation("an invalid message");
            return Some(memory);
        };
        let Credits { data, control } = frame.credits;
        if !self.data_credits.add(data) || !self.control_credits.add(control) {
            self.fail_for_violation("more credits than were in use");
            return Some(memory);
        }
        if control > 0 {
            self.flush_outbox();
        }
        if data > 0 {
            self.flush_outgoing();
        }
        match frame.kind {
            Kind::Data => {
                let Ok(memory) = memory.into_shared() else {
                    unreachable!("a posted receive's claim is its memory's only holder");
                };
                let lender = Some(Arc::clone(self.shard.receive_memory()));
                let region = LocalMr::new(memory, HEADER_LEN..len, lender);
                let immediate = completion.immediate();
                if let Some(left) = self.offer_to_handler(Message { region, immediate }) {
                    self.deliver(IncomingMessage::Message {
                        region: left.region,
                        immediate: left.immediate,
                    });
                }
                return None;
            }
            Kind::Rendezvous { memory: remote, .. } if remote.len == 0 => {
                self.fail_for_violation("a long message without bytes");
            }
            // An unauthenticated peer must not make this end allocate memory of a length that the
            // peer chooses.
            Kind::Rendezvous { .. } if self.withholds_memory.load(Ordering::Acquire) => {
                self.fail_for_violation("a long message before it was authenticated");
            }
            Kind::Rendezvous { id, memory: remote } => {
                let immediate = completion.immediate();
                self.deliver(IncomingMessage::Rendezvous {
                    id,
                    memory: remote,
                    immediate,
                });
            }
            Kind::Offer {
                lease,
                memory: remote,
            } => {
                let ended = self.borrowed.add(lease);
                let region = RemoteMr::new(remote, lease, self.weak.clone()).with_end_flag(ended);
                if !self.offers.push(region) {
                    self.fail_for_violation("more offers of memory than it had credits for");
                }
            }
            control => {
                let owed = self.owed_control.fetch_add(1, Ordering::Relaxed) + 1;
                if owed > u32::from(self.settings.depths().control) {
                    self.fail_for_violation("more control messages than it had credits for");
                    return Some(memory);
                }
                self.handle_control(control);
                self.return_credits();
            }
        }
        Some(memory)
    }

    /// Adds a message to the inbox, from which the application receives the message. Ends the
    /// connection if the inbox is full: the peer has then sent the message without a credit
    /// (permission to send).
    fn deliver(&self, message: IncomingMessage) {
        if !self.messages.push(message) {
            self.fail_for_violation("more messages than it had credits for");
        }
    }

    /// Performs the action that a control message of the peer requests or reports.
    fn handle_control(&self, control: Kind) {
        match control {
            Kind::Request { id, size, align } => self.queue_request(Request { id, size, align }),
            Kind::Grant { id, .. } if !self.replies.expects(id) => {
                self.fail_for_violation("memory that was not requested");
            }
            Kind::Grant { id, lease, memory } => {
                // If the requesting future was dropped, dropping the region releases the lease.
                let ended = self.borrowed.add(lease);
                let region = RemoteMr::new(memory, lease, self.weak.clone()).with_end_flag(ended);
                drop(self.replies.deliver(id, Reply::Granted(region)));
            }
            Kind::Refuse { id, reason } => drop(self.replies.deliver(id, Reply::Refused(reason))),
            Kind::RendezvousDone { id, read } => {
                let undelivered = self.replies.deliver(id, Reply::Read(read));
                // Wakes a task in `wait_until_delivered`, which waits until no memory is lent for a
                // rendezvous.
                let [room, _] = self.sender.waiters();
                room.wake();
                if let Some(outgoing) = self.outgoing.get() {
                    outgoing.waiters().wake();
                    if undelivered.is_err() && !read {
                        self.fail(Error::Refused {
                            what: "a part of a stream",
                            reason: "it could not read the memory".into(),
                        });
                    }
                }
            }
            Kind::Return { lease } => match self.end_lease_by_peer(lease) {
                Some(EndedLease::Memory(Ok(region), charge)) => {
                    self.returned.push(region, charge);
                }
                Some(EndedLease::Memory(Err(error), _)) => self.fail(error.into()),
                Some(EndedLease::ToReservation | EndedLease::Revoked) => {}
                None => self.fail_for_violation("the return of memory that was not lent"),
            },
            Kind::Release { lease } => match self.end_lease_by_peer(lease) {
                Some(EndedLease::Memory(Err(error), _)) => self.fail(error.into()),
                Some(_) => {}
                None => self.fail_for_violation("the release of memory that was not lent"),
            },
            Kind::Revoke { lease } => self.borrowed.mark_ended(lease),
            Kind::Close => self.close_notice.record_arrival(),
            Kind::Ring { memory } => self.record_peer_ring(memory),
            Kind::Returned { slots } => self.take_back_slots(slots),
            Kind::Credit | Kind::Data | Kind::Rendezvous { .. } | Kind::Offer { .. } => {}
        }
    }

    /// Ends the lease `lease` (the peer's right to access memory of this end), because the peer
    /// gives the memory back. Returns the outcome. Returns `None` if no lease with this id was
    /// offered to the peer, or if the peer has already ended the lease.
    fn end_lease_by_peer(&self, lease: u64) -> Option<EndedLease> {
        let begin_end = |region| self.begin_end(region, Arc::clone(&self.windows));
        self.leases.end_by_peer(lease, begin_end)
    }

    /// Ends the connection because the peer violated the protocol. `what` describes the violation:
    /// the text of the error is "the peer sent", followed by `what`.
    pub(super) fn fail_for_violation(&self, what: &str) {
        self.fail(Error::disconnected(format!("the peer sent {what}")));
    }
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use std::alloc::Layout;

    use crate::LocalMrReadAccess;
    use crate::testing::pair;

    #[tokio::test]
    async fn a_long_message_of_an_unauthenticated_peer_ends_the_connection() {
        let (client, server) = pair(|builder| builder).await;
        server.connection().withhold_memory();
        let message = |len| client.alloc_local_mr(Layout::array::<u8>(len).unwrap());
        client.send(&message(16).unwrap()).await.unwrap();
        assert_eq!(server.receive().await.unwrap().as_slice().len(), 16);
        let long = message(1 << 20).unwrap();
        let (sent, received) = tokio::join!(client.send(&long), server.receive());
        assert!(sent.is_err(), "{sent:?}");
        let reason = received.unwrap_err().to_string();
        assert!(reason.contains("before it was authenticated"), "{reason}");
        assert_eq!(server.device().pool_statistics().in_use, 0);
    }
}
