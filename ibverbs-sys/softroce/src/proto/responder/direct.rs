use super::message::{Progress, Refusal, Trailer, local, withdraw};
use super::{MAX_ANNOUNCED, Responder};
use crate::proto::direct::readable;
use crate::proto::endpoint::Endpoint;
use crate::proto::{
    AccessFlags, Answer, CompletionStatus, Counter, Host, Misplaced, Part, Payload, Place, Remote,
    SendOperation, Work,
};

/// Why a part is not taken.
enum Stop {
    /// The sender's own memory: it does not get here.
    Sender(CompletionStatus),
    Refused(Refusal),
}

impl<T: Into<Refusal>> From<T> for Stop {
    fn from(refusal: T) -> Self {
        Self::Refused(refusal.into())
    }
}

const SENDER: Stop = Stop::Sender(CompletionStatus::LocalProtection);

impl Responder {
    /// Returns whether the part is the next one expected, and nothing else is to be transmitted before it.
    #[inline]
    pub(in crate::proto) fn expects(&self, part: &Part<'_>) -> bool {
        self.expected == part.sequence && self.end.is_none() && self.resources.is_idle()
    }

    /// Takes a part of a reliable service.
    pub(in crate::proto) fn take<H: Host>(
        &mut self,
        part: &Part<'_>,
        endpoint: &Endpoint,
        host: &mut H,
        sender: &mut H,
    ) -> Answer {
        self.refused = false;
        self.refusal = None;
        let refusal = match self.execute(part, endpoint, host, sender) {
            Ok(()) => return Answer::Done,
            Err(Stop::Sender(status)) => return Answer::Failed(status),
            Err(Stop::Refused(refusal)) => refusal,
        };
        if refusal == Refusal::NotReady {
            host.count(Counter::SentRnr, 1);
            return Answer::NotReady {
                timer: endpoint.attributes.min_rnr_timer,
            };
        }
        if let Refusal::Later { again, .. } = refusal {
            return Answer::Later { again };
        }
        self.refuse(refusal, endpoint, host);
        Answer::Failed(CompletionStatus::RemoteInvalidRequest)
    }

    /// Takes a part of an unreliable connection. The status is that of an error of this side's.
    pub(in crate::proto) fn take_unreliable<H: Host>(
        &mut self,
        part: &Part<'_>,
        endpoint: &Endpoint,
        host: &mut H,
        sender: &mut H,
    ) -> Result<Answer, CompletionStatus> {
        if part.starts {
            // The one before did not end.
            self.message.drop_packets();
            self.skipping = false;
        } else if self.skipping {
            if let Err(status) = readable(part, sender) {
                return Ok(Answer::Failed(status));
            }
            self.expected = self.expected + part.packets;
            return Ok(Answer::Done);
        }
        let done = self.message(part, endpoint, host, sender);
        if let Err(Stop::Sender(status)) = done {
            return Ok(Answer::Failed(status));
        }
        self.expected = self.expected + part.packets;
        match done {
            Err(Stop::Refused(Refusal::Receive(status))) => Err(status),
            Err(_) => {
                host.count(Counter::ReceiveDropped, 1);
                self.message.drop_packets();
                self.skipping = true;
                Ok(Answer::Done)
            }
            Ok(()) => Ok(Answer::Done),
        }
    }

    fn execute<H: Host>(
        &mut self,
        part: &Part<'_>,
        endpoint: &Endpoint,
        host: &mut H,
        sender: &mut H,
    ) -> Result<(), Stop> {
        match part.request.operation {
            SendOperation::Send { .. } | SendOperation::Write { .. } => {
                self.message(part, endpoint, host, sender)?;
            }
            _ if self.message.is_under_way() => return Err(Refusal::Invalid.into()),
            SendOperation::Read { remote } => {
                return self.read_directly(part, remote, endpoint, host, sender);
            }
            _ => return self.atomic_directly(part, endpoint, host, sender),
        }
        self.done(part);
        Ok(())
    }

    /// Notes that the part was executed.
    fn done(&mut self, part: &Part<'_>) {
        self.expected = self.expected + part.packets;
        self.message_sequence += u32::from(part.ends);
    }

    /// Takes a part of a send or a write.
    fn message<H: Host>(
        &mut self,
        part: &Part<'_>,
        endpoint: &Endpoint,
        host: &mut H,
        sender: &H,
    ) -> Result<(), Stop> {
        if part.starts == self.message.is_under_way() {
            return Err(Refusal::Invalid.into());
        }
        match (&part.request.operation, self.message.progress) {
            (SendOperation::Send { .. }, Progress::None) => self.send(part, 0, host, sender)?,
            (SendOperation::Send { .. }, Progress::Send { received }) => {
                self.send(part, received, host, sender)?;
            }
            (&SendOperation::Write { remote, immediate }, progress @ Progress::None)
            | (&SendOperation::Write { remote, immediate }, progress @ Progress::Write { .. }) => {
                if matches!(progress, Progress::None) {
                    self.announce(part, remote, endpoint, host, sender)?;
                }
                self.write(part, remote, immediate, endpoint, host, sender)?;
            }
            _ => return Err(Refusal::Invalid.into()),
        }
        if part.ends {
            self.message.progress = Progress::None;
        }
        Ok(())
    }

    fn send<H: Host>(
        &mut self,
        part: &Part<'_>,
        received: u32,
        host: &mut H,
        sender: &H,
    ) -> Result<(), Stop> {
        let SendOperation::Send {
            immediate,
            invalidate,
        } = part.request.operation
        else {
            return Err(Refusal::Invalid.into());
        };
        // A message that cannot be gathered takes no receive.
        if part.starts || self.message.receive.is_none() {
            readable(part, sender).map_err(Stop::Sender)?;
        }
        self.message.take_receive(None, host)?;
        let Some(receive) = &self.message.receive else {
            return Err(Refusal::NotReady.into());
        };
        if let Some(key) = invalidate.filter(|_| part.ends) {
            withdraw(key, host)?;
        }
        let total = received + part.length;
        self.message.progress = Progress::Send { received: total };
        if u64::from(total) > receive.request.length || total > MAX_ANNOUNCED {
            return Err(Refusal::Receive(CompletionStatus::LocalLength).into());
        }
        if part.length > 0 {
            let place = Place::Local(&receive.request.segments, received);
            sender
                .carry(&part.request.payload, part.offset, part.length, host, place)
                .map_err(|fault| match fault {
                    Misplaced::Here => SENDER,
                    Misplaced::There => local(crate::proto::LocalFault::Protection).into(),
                })?;
        }
        if part.ends {
            if let Some(key) = invalidate {
                host.invalidate_remote(key)?;
            }
            let trailer = Trailer {
                immediate,
                invalidated: invalidate,
                solicited: part.request.solicited,
            };
            self.message.complete(Work::Receive, total, trailer, host);
        }
        Ok(())
    }

    /// Looks whether the peer may write what a message begins with, if that is more than is written now.
    fn announce<H: Host>(
        &mut self,
        part: &Part<'_>,
        remote: Remote,
        endpoint: &Endpoint,
        host: &H,
        sender: &H,
    ) -> Result<(), Stop> {
        let allowed = (endpoint.attributes.access).contains(AccessFlags::REMOTE_WRITE);
        let immediate = matches!(
            part.request.operation,
            SendOperation::Write {
                immediate: Some(_),
                ..
            }
        );
        if allowed && part.ends && !immediate {
            // The copy looks at the same.
            return Ok(());
        }
        readable(part, sender).map_err(Stop::Sender)?;
        if !allowed {
            return Err(Refusal::Invalid.into());
        }
        let length = part.request.length;
        host.check_remote(
            remote.key,
            remote.address,
            length,
            AccessFlags::REMOTE_WRITE,
        )?;
        Ok(())
    }

    fn write<H: Host>(
        &mut self,
        part: &Part<'_>,
        remote: Remote,
        immediate: Option<[u8; 4]>,
        endpoint: &Endpoint,
        host: &mut H,
        sender: &H,
    ) -> Result<(), Stop> {
        let immediate = immediate.filter(|_| part.ends);
        let mut ready = Ok(());
        if immediate.is_some() {
            if !part.starts {
                readable(part, sender).map_err(Stop::Sender)?;
            }
            ready = self.message.take_receive(None, host);
        }
        // Of packets the last one alone would find no receive.
        let length = match ready {
            Ok(()) => part.length,
            Err(_) => part.packets.saturating_sub(1) * endpoint.mtu(),
        };
        let total = part.offset + part.length;
        if length > 0 {
            let address = remote.address.checked_add(u64::from(part.offset));
            let place = Place::Remote(Remote {
                address: address.ok_or(Refusal::Access)?,
                key: remote.key,
            });
            let payload = &part.request.payload;
            sender
                .carry(payload, part.offset, length, host, place)
                .map_err(|fault| match fault {
                    Misplaced::Here => SENDER,
                    Misplaced::There => Refusal::Access.into(),
                })?;
        }
        ready?;
        self.message.progress = Progress::Write {
            remote,
            length: part.request.length,
            written: total,
        };
        if immediate.is_some() {
            let trailer = Trailer {
                immediate,
                invalidated: None,
                solicited: part.request.solicited,
            };
            let work = Work::ReceiveWithImmediate;
            self.message.complete(work, total, trailer, host);
        }
        Ok(())
    }

    fn read_directly<H: Host>(
        &mut self,
        part: &Part<'_>,
        remote: Remote,
        endpoint: &Endpoint,
        host: &H,
        sender: &H,
    ) -> Result<(), Stop> {
        let attributes = &endpoint.attributes;
        let Payload::Gathered(list) = &part.request.payload else {
            return Err(Refusal::Invalid.into());
        };
        if !attributes.access.contains(AccessFlags::REMOTE_READ) || attributes.max_accepted == 0 {
            return Err(Refusal::Invalid.into());
        }
        let fetched = if part.length > 0 {
            let from = Remote {
                address: remote.address.wrapping_add(u64::from(part.offset)),
                key: remote.key,
            };
            sender.fetch(list, part.offset, part.length, host, from)
        } else {
            Ok(())
        };
        if fetched == Err(Misplaced::There) {
            return Err(Refusal::Access.into());
        }
        self.done(part);
        fetched.map_err(|_| SENDER)
    }

    fn atomic_directly<H: Host>(
        &mut self,
        part: &Part<'_>,
        endpoint: &Endpoint,
        host: &H,
        sender: &H,
    ) -> Result<(), Stop> {
        let attributes = &endpoint.attributes;
        let (SendOperation::CompareSwap { remote, .. } | SendOperation::FetchAdd { remote, .. }) =
            part.request.operation
        else {
            return Err(Refusal::Invalid.into());
        };
        let Payload::Gathered(list) = &part.request.payload else {
            return Err(Refusal::Invalid.into());
        };
        if !attributes.access.contains(AccessFlags::REMOTE_ATOMIC)
            || !remote.address.is_multiple_of(8)
            || attributes.max_accepted == 0
        {
            return Err(Refusal::Invalid.into());
        }
        let original = match part.request.operation {
            SendOperation::CompareSwap { compare, swap, .. } => {
                host.compare_swap(remote.key, remote.address, compare, swap)?
            }
            SendOperation::FetchAdd { add, .. } => {
                host.fetch_add(remote.key, remote.address, add)?
            }
            _ => return Err(Refusal::Invalid.into()),
        };
        self.done(part);
        sender
            .scatter(list, 0, &original.to_ne_bytes())
            .map_err(|_| SENDER)
    }
}
