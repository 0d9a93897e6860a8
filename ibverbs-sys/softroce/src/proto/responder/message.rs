use std::time::Duration;

use crate::proto::endpoint::Endpoint;
use crate::proto::{
    AccessFlags, Completion, CompletionStatus, Host, LocalFault, Misplaced, Partner,
    ReceiveRequest, Remote, RemoteFault, Segment, Withdrawal, Work,
};
use crate::wire::{Packet, Run};

/// The longest message that a peer may announce (IBTA 9.7.2).
pub(super) const MAX_ANNOUNCED: u32 = 1 << 31;

/// Why a packet of a message is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is no receive for it. Nothing has changed.
    NotReady,
    /// The key that the message invalidates is still in use. Nothing has changed, except that the message has taken a
    /// receive.
    Later { key: u32, again: Duration },
    /// The packet is out of place, has a wrong length, or is not allowed at all.
    Invalid,
    /// The request may not use the memory.
    Access,
    /// The receive cannot take it, which its completion tells.
    Receive(CompletionStatus),
}

impl From<RemoteFault> for Refusal {
    fn from(fault: RemoteFault) -> Self {
        match fault {
            RemoteFault::Access => Self::Access,
            RemoteFault::Invalid => Self::Invalid,
        }
    }
}

/// The message of sends or writes that is coming in, packet by packet.
#[derive(Debug, Default)]
pub(super) struct Message {
    pub(super) progress: Progress,
    /// The receive that it spends.
    pub(super) receive: Option<Receive>,
}

#[derive(Debug)]
pub(super) struct Receive {
    pub(super) request: ReceiveRequest,
    pub(super) xrc_srq: Option<u32>,
}

/// Fields of a message that come with its last packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trailer {
    pub(super) immediate: Option<[u8; 4]>,
    pub(super) invalidated: Option<u32>,
    pub(super) solicited: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Progress {
    /// Between messages.
    #[default]
    None,
    Send {
        received: u32,
    },
    Write {
        remote: Remote,
        length: u32,
        written: u32,
    },
}

impl Message {
    /// Returns whether a part of the message came, and more of it must come.
    pub(super) fn is_under_way(&self) -> bool {
        !matches!(self.progress, Progress::None)
    }

    /// Takes the next packet of a send or a write. True if that was the last.
    pub(super) fn accept(
        &mut self,
        endpoint: &Endpoint,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<bool, Refusal> {
        let opcode = packet.header.bth.opcode;
        if opcode.starts_message() == self.is_under_way() {
            return Err(Refusal::Invalid);
        }
        // The first and the middle ones are full; only a message without bytes has an empty one (IBTA 9.7.4.1.6).
        let length = packet.payload.len() as u32;
        let right = match (opcode.starts_message(), opcode.ends_message()) {
            (_, false) => length == endpoint.mtu(),
            (true, true) => length <= endpoint.mtu(),
            (false, true) => length <= endpoint.mtu() && length > 0,
        };
        if !right {
            return Err(Refusal::Invalid);
        }
        match self.progress {
            Progress::None if opcode.is_send() => self.send(0, packet, host)?,
            Progress::Send { received } if opcode.is_send() => {
                self.send(received, packet, host)?;
            }
            Progress::None if opcode.is_write() => {
                let (remote, length) = announced(endpoint, packet, host)?;
                self.write(remote, length, 0, packet, host)?;
            }
            Progress::Write {
                remote,
                length,
                written,
            } if opcode.is_write() => {
                self.write(remote, length, written, packet, host)?;
            }
            _ => return Err(Refusal::Invalid),
        }
        let ends = opcode.ends_message();
        if ends {
            self.progress = Progress::None;
        }
        Ok(ends)
    }

    /// Takes the next packets of a send or a write if they are of its middle, and all is well with them. If not, they can be
    /// [taken](Self::accept) one by one.
    pub(super) fn accept_run(
        &mut self,
        endpoint: &Endpoint,
        run: &Run<'_>,
        host: &mut impl Host,
    ) -> bool {
        let first = run.first();
        let opcode = first.header.bth.opcode;
        let is_full = first.payload.len() as u32 == endpoint.mtu();
        // A run has less than 2^16 bytes.
        let length = (run.count() * first.payload.len()) as u32;
        if !opcode.is_middle() || !is_full {
            return false;
        }
        match (&mut self.progress, &self.receive) {
            (Progress::Send { received }, Some(receive)) if opcode.is_send() => {
                let total = *received + length;
                let fits = u64::from(total) <= receive.request.length && total <= MAX_ANNOUNCED;
                let list = &receive.request.segments;
                let taken =
                    fits && (host.scatter_parts(list, *received, length, run.payloads())).is_ok();
                if taken {
                    *received = total;
                }
                taken
            }
            (
                Progress::Write {
                    remote,
                    length: announced,
                    written,
                },
                _,
            ) if opcode.is_write() => {
                let total = *written + length;
                let address = remote.address.checked_add(u64::from(*written));
                let taken = total < *announced
                    && address.is_some_and(|address| {
                        let payloads = run.payloads();
                        (host.write_remote_parts(remote.key, address, length, payloads)).is_ok()
                    });
                if taken {
                    *written = total;
                }
                taken
            }
            _ => false,
        }
    }

    /// Takes a send that is no more than a packet, and invalidates nothing.
    pub(super) fn accept_whole(
        &mut self,
        payload: &[u8],
        trailer: Trailer,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        if self.is_under_way() {
            return Err(Refusal::Invalid);
        }
        let request = match self.receive.take() {
            Some(receive) => receive.request,
            None => host.next_receive(None).ok_or(Refusal::NotReady)?,
        };
        let total = payload.len() as u32;
        let done = if u64::from(total) > request.length {
            Err(Refusal::Receive(CompletionStatus::LocalLength))
        } else if payload.is_empty() {
            Ok(())
        } else {
            host.scatter(&request.segments, 0, payload).map_err(local)
        };
        if let Err(refusal) = done {
            // The receive ends with the connection.
            let xrc_srq = None;
            self.receive = Some(Receive { request, xrc_srq });
            self.progress = Progress::Send { received: total };
            return Err(refusal);
        }
        let completion = Completion {
            length: total,
            immediate: trailer.immediate,
            solicited: trailer.solicited,
            ..Completion::new(request.id, CompletionStatus::Success, Work::Receive)
        };
        host.complete_receive(completion, None);
        Ok(())
    }

    /// Takes a part of a send, whose bytes are in segments of the peer's memory. Returns how many bytes they are, or `None` if
    /// the peer has to send them; then nothing has changed but that the message may have a receive.
    pub(super) fn fetch<H: Host>(
        &mut self,
        (starts, ends): (bool, bool),
        from: &[Segment],
        trailer: Trailer,
        host: &mut H,
        partner: &mut impl Partner<H>,
    ) -> Result<Option<u32>, Refusal> {
        let received = match self.progress {
            Progress::None if starts => 0,
            Progress::Send { received } if !starts => received,
            _ => return Err(Refusal::Invalid),
        };
        self.take_receive(None, host)?;
        if let Some(key) = trailer.invalidated {
            withdraw(key, host)?;
        }
        let Some(receive) = &self.receive else {
            return Err(Refusal::NotReady);
        };
        // The sum of a few lengths of 32 bits does not wrap.
        let length: u64 = from.iter().map(|segment| u64::from(segment.length)).sum();
        let total = u64::from(received) + length;
        let before = self.progress;
        self.progress = Progress::Send {
            received: u32::try_from(total).unwrap_or(u32::MAX),
        };
        if total > receive.request.length || total > MAX_ANNOUNCED.into() {
            return Err(Refusal::Receive(CompletionStatus::LocalLength));
        }
        match partner.fetch(from, &receive.request.segments, received, host) {
            Ok(()) => {}
            Err(Misplaced::Here) => return Err(local(LocalFault::Protection)),
            Err(Misplaced::There) => {
                self.progress = before;
                return Ok(None);
            }
        }
        if let Some(key) = trailer.invalidated {
            host.invalidate_remote(key)?;
        }
        if ends {
            self.complete(Work::Receive, total as u32, trailer, host);
            self.progress = Progress::None;
        }
        Ok(Some(length as u32))
    }

    /// Takes the end of a write with immediate data, whose bytes are written.
    pub(super) fn accept_written(
        &mut self,
        length: u32,
        trailer: Trailer,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        if self.is_under_way() || length > MAX_ANNOUNCED {
            return Err(Refusal::Invalid);
        }
        self.take_receive(None, host)?;
        self.complete(Work::ReceiveWithImmediate, length, trailer, host);
        Ok(())
    }

    /// Puts bytes of a send behind those that have come, into its receive; how many there are then.
    fn scatter(
        &mut self,
        received: u32,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Result<u32, Refusal> {
        let Some(receive) = &self.receive else {
            return Err(Refusal::NotReady);
        };
        let total = received + payload.len() as u32;
        self.progress = Progress::Send { received: total };
        if u64::from(total) > receive.request.length || total > MAX_ANNOUNCED {
            return Err(Refusal::Receive(CompletionStatus::LocalLength));
        }
        if !payload.is_empty() {
            host.scatter(&receive.request.segments, received, payload)
                .map_err(local)?;
        }
        Ok(total)
    }

    fn send(
        &mut self,
        received: u32,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        let header = &packet.header;
        self.take_receive(packet.header.xrc_srq, host)?;
        if let Some(key) = header.invalidate {
            withdraw(key, host)?;
        }
        let total = self.scatter(received, packet.payload, host)?;
        if let Some(key) = header.invalidate {
            host.invalidate_remote(key)?;
        }
        if header.bth.opcode.ends_message() {
            self.complete(Work::Receive, total, Trailer::of(packet), host);
        }
        Ok(())
    }

    fn write(
        &mut self,
        remote: Remote,
        length: u32,
        written: u32,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        let opcode = packet.header.bth.opcode;
        // Never more than 2^31 and a packet.
        let total = written + packet.payload.len() as u32;
        let right = if opcode.ends_message() {
            total == length
        } else {
            total < length
        };
        if !right {
            return Err(Refusal::Invalid);
        }
        let immediate = packet.header.immediate.is_some();
        if immediate {
            self.take_receive(packet.header.xrc_srq, host)?;
        }
        self.progress = Progress::Write {
            remote,
            length,
            written: total,
        };
        if !packet.payload.is_empty() {
            let address = remote.address.checked_add(u64::from(written));
            let address = address.ok_or(Refusal::Access)?;
            host.write_remote(remote.key, address, packet.payload)?;
        }
        if immediate {
            self.complete(Work::ReceiveWithImmediate, total, Trailer::of(packet), host);
        }
        Ok(())
    }

    /// Has a receive for the message: that of its earlier packets, or a new one.
    pub(super) fn take_receive(
        &mut self,
        xrc_srq: Option<u32>,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        if self.receive.is_some() {
            return Ok(());
        }
        let request = host.next_receive(xrc_srq).ok_or(Refusal::NotReady)?;
        self.receive = Some(Receive { request, xrc_srq });
        Ok(())
    }

    pub(super) fn complete(
        &mut self,
        work: Work,
        length: u32,
        trailer: Trailer,
        host: &mut impl Host,
    ) {
        let Some(receive) = self.receive.take() else {
            return;
        };
        let completion = Completion {
            length,
            immediate: trailer.immediate,
            invalidated: trailer.invalidated,
            solicited: trailer.solicited,
            ..receive.completion(CompletionStatus::Success, work)
        };
        host.complete_receive(completion, receive.xrc_srq);
    }

    /// Drops what came of the message. Its receive is for the next one.
    pub(super) fn drop_packets(&mut self) {
        self.progress = Progress::None;
    }

    /// Ends the message, and its receive with an error.
    pub(super) fn abort(&mut self, status: CompletionStatus, host: &mut impl Host) {
        self.progress = Progress::None;
        if let Some(receive) = self.receive.take() {
            // Which of the two it would have become cannot be known in the middle of a send.
            let completion = receive.completion(status, Work::Receive);
            host.complete_receive(completion, receive.xrc_srq);
        }
    }
}

impl Trailer {
    fn of(packet: &Packet<'_>) -> Self {
        Self {
            immediate: packet.header.immediate,
            invalidated: packet.header.invalidate,
            solicited: packet.header.bth.solicited,
        }
    }
}

impl Receive {
    fn completion(&self, status: CompletionStatus, work: Work) -> Completion {
        Completion::new(self.request.id, status, work)
    }
}

/// Returns the place of a write, if the peer may write there.
fn announced(
    endpoint: &Endpoint,
    packet: &Packet<'_>,
    host: &impl Host,
) -> Result<(Remote, u32), Refusal> {
    let reth = packet.header.reth.ok_or(Refusal::Invalid)?;
    if !endpoint
        .attributes
        .access
        .contains(AccessFlags::REMOTE_WRITE)
        || reth.length > MAX_ANNOUNCED
    {
        return Err(Refusal::Invalid);
    }
    host.check_remote(
        reth.key,
        reth.address,
        reth.length,
        AccessFlags::REMOTE_WRITE,
    )?;
    let remote = Remote {
        address: reth.address,
        key: reth.key,
    };
    Ok((remote, reth.length))
}

/// Succeeds if the key that a message invalidates is no longer in use.
pub(super) fn withdraw(key: u32, host: &impl Host) -> Result<(), Refusal> {
    match host.withdraw(key) {
        Withdrawal::Complete => Ok(()),
        Withdrawal::Pending { again } => Err(Refusal::Later { key, again }),
        Withdrawal::Refused => Err(Refusal::Access),
    }
}

/// Returns the refusal for a receive whose memory cannot be used.
pub(super) fn local(_: LocalFault) -> Refusal {
    Refusal::Receive(CompletionStatus::LocalProtection)
}
