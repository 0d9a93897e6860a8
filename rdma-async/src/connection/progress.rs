//! Handling of arrived messages: data goes to the application, control messages are answered here.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_core::memory::WriteClaim;
use rdma_core::{WorkCompletion, WorkOpcode};

use super::frame::{Credits, Frame, Kind};
use super::handler::Message;
use super::leases::Given;
use super::rendezvous::Incoming;
use super::replies::Reply;
use super::requests::Request;
use super::{Connection, HEADER_LEN};
use crate::error::Error;
use crate::memory::{LocalMr, RemoteMr};

impl Connection {
    /// Handles a completed receive. Returns its memory, to be posted again, unless the application
    /// keeps it.
    pub(crate) fn arrive(
        &self,
        completion: &WorkCompletion,
        memory: WriteClaim,
    ) -> Option<WriteClaim> {
        if let Err(error) = completion.result() {
            self.fail_with(error);
            return Some(memory);
        }
        if completion.opcode() == WorkOpcode::ReceiveWriteImmediate {
            let immediate = completion.immediate().unwrap_or_default();
            if !self.write_immediates.push(immediate) {
                self.violation("more writes with immediate than it had credits for");
            }
            return Some(memory);
        }
        let len = completion.len();
        let Some(frame) = memory.get(..len).and_then(Frame::decode) else {
            self.violation("a message that is none");
            return Some(memory);
        };
        let Credits { data, control } = frame.credits;
        if !self.data_credits.give(data) || !self.control_credits.give(control) {
            self.violation("more credits than it has receives");
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
                    self.deliver(Incoming::Message {
                        region: left.region,
                        immediate: left.immediate,
                    });
                }
                return None;
            }
            Kind::Rendezvous { memory: remote, .. } if remote.len == 0 => {
                self.violation("a message without bytes to be read");
            }
            // This end would allocate memory of the length that the peer states.
            Kind::Rendezvous { .. } if self.withholds_memory.load(Ordering::Acquire) => {
                self.violation("a long message before it had proved itself");
            }
            Kind::Rendezvous { id, memory: remote } => {
                let immediate = completion.immediate();
                self.deliver(Incoming::Rendezvous {
                    id,
                    memory: remote,
                    immediate,
                });
            }
            Kind::Offer {
                lease,
                memory: remote,
            } => {
                let ended = self.borrowed.begin(lease);
                let region = RemoteMr::new(remote, lease, self.itself.clone()).ending_with(ended);
                if !self.offers.push(region) {
                    self.violation("more memory offered than it had credits for");
                }
            }
            control => {
                let owed = self.owed_control.fetch_add(1, Ordering::Relaxed) + 1;
                if owed > u32::from(self.settings.depths().control) {
                    self.violation("more control messages than it had credits for");
                    return Some(memory);
                }
                self.handle(control);
                self.return_credits();
            }
        }
        Some(memory)
    }

    fn deliver(&self, message: Incoming) {
        if !self.messages.push(message) {
            self.violation("more messages than it had credits for");
        }
    }

    /// Handles a control message, which is addressed to the connection itself.
    fn handle(&self, control: Kind) {
        match control {
            Kind::Request { id, size, align } => self.queue_request(Request { id, size, align }),
            Kind::Grant { id, lease, memory } => {
                // If the future of the request was dropped, dropping the region releases it.
                let ended = self.borrowed.begin(lease);
                let region = RemoteMr::new(memory, lease, self.itself.clone()).ending_with(ended);
                drop(self.replies.answer(id, Reply::Granted(region)));
            }
            Kind::Refuse { id, reason } => drop(self.replies.answer(id, Reply::Refused(reason))),
            Kind::RendezvousDone { id, read } => {
                let untaken = self.replies.answer(id, Reply::Read(read));
                // Wakes a task in `settle`, which waits until the peer has everything.
                let [room, _] = self.sender.waiters();
                room.wake();
                if let Some(outgoing) = self.outgoing.get() {
                    outgoing.waiters().wake();
                    if untaken.is_err() && !read {
                        self.fail(Error::Refused {
                            what: "a part of a stream",
                            reason: "it could not read it".into(),
                        });
                    }
                }
            }
            Kind::Return { lease } => match self.leases.end_by_peer(lease) {
                Some(Given::Back(Ok(region))) => {
                    self.returned.push(region);
                    self.returned_arrived.wake();
                }
                Some(Given::Back(Err(error))) => self.fail(error.into()),
                Some(Given::ToReservation | Given::Revoked) => {}
                None => self.violation("memory given back that was not lent"),
            },
            Kind::Release { lease } => match self.leases.end_by_peer(lease) {
                Some(Given::Back(Err(error))) => self.fail(error.into()),
                Some(_) => {}
                None => self.violation("memory released that was not lent"),
            },
            Kind::Revoke { lease } => self.borrowed.end(lease),
            Kind::Close => self.farewell.arrive(),
            Kind::Credit | Kind::Data | Kind::Rendezvous { .. } | Kind::Offer { .. } => {}
        }
    }

    pub(super) fn violation(&self, what: &str) {
        self.fail(Error::disconnected(format!("the peer sent {what}")));
    }
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use std::alloc::Layout;

    use crate::{LocalMrReadAccess, RdmaBuilder};

    #[tokio::test]
    async fn a_long_message_of_a_peer_that_has_not_proved_itself_ends_the_connection() {
        let builder = || RdmaBuilder::default().device("softroce0");
        let mut listener = builder().bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_address().unwrap();
        let (client, server) = tokio::join!(builder().connect(address), listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap());
        server.connection().withhold_memory();
        let message = |len| client.alloc_local_mr(Layout::array::<u8>(len).unwrap());
        client.send(&message(16).unwrap()).await.unwrap();
        assert_eq!(server.receive().await.unwrap().as_slice().len(), 16);
        let long = message(1 << 20).unwrap();
        let (sent, received) = tokio::join!(client.send(&long), server.receive());
        assert!(sent.is_err(), "{sent:?}");
        let reason = received.unwrap_err().to_string();
        assert!(reason.contains("before it had proved itself"), "{reason}");
        assert_eq!(server.device().pool_statistics().in_use, 0);
    }
}
