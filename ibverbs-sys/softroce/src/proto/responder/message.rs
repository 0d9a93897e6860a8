use std::time::Duration;

use crate::proto::endpoint::Endpoint;
use crate::proto::{
    AccessFlags, Completion, CompletionOpcode, CompletionStatus, CopyError, Host, Incoming, Kind,
    LocalFault, Part, ReceiveRequest, Remote, RemoteFault, SendOperation, Source, Withdrawal,
};
use crate::wire::{Packet, Run};

/// Maximum length in bytes of a message of the peer (IBTA 9.7.2). A request whose header contains a
/// greater length is invalid.
pub(super) const MAX_ANNOUNCED: u32 = 1 << 31;

/// Reason why the responder does not accept a request packet, or a part of a message that is
/// transferred without packets. The reason determines the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No receive is posted for the message. The state is unchanged.
    NotReady,
    /// Other processes still use the key that the message invalidates. The state is unchanged,
    /// except that the message may have taken a receive.
    Later { key: u32, delay: Duration },
    /// The packet is out of order, has a wrong length, or is not allowed.
    Invalid,
    /// The peer has no right to access the memory that the request names.
    Access,
    /// The message is longer than the receive, or the memory of the receive cannot be used. The
    /// receive completes with this status.
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

/// A send or write of the peer that is being received, in packets or through shared memory.
#[derive(Debug, Default)]
pub(super) struct Message {
    pub(super) progress: Progress,
    /// Receive that the message consumes.
    pub(super) receive: Option<Receive>,
}

#[derive(Debug)]
pub(super) struct Receive {
    pub(super) request: ReceiveRequest,
    pub(super) xrc_srq: Option<u32>,
}

/// Header fields of a message's last packet that the completion of the message reports.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trailer {
    pub(super) immediate: Option<[u8; 4]>,
    pub(super) invalidated: Option<u32>,
    pub(super) solicited: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Progress {
    /// No message is in progress.
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
    /// Returns whether a message is in progress: its first packet has arrived, and more packets
    /// must follow.
    pub(super) fn is_under_way(&self) -> bool {
        !matches!(self.progress, Progress::None)
    }

    /// Receives the next packet of a send or a write, and copies its payload to the memory of the
    /// receive or of the write. Returns whether the packet is the last of its message, or the
    /// reason why the packet is not accepted.
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
        // First and middle packets are full. A last packet is empty only if the whole message is
        // (IBTA 9.7.4.1.6).
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

    /// Receives the packets of `run`, which have equal lengths and consecutive numbers, in one
    /// step. The packets must all be valid middle packets of the send or write in progress.
    /// Otherwise returns `false` and does nothing. The caller must then [receive](Self::accept) the
    /// packets one by one.
    pub(super) fn accept_run(
        &mut self,
        endpoint: &Endpoint,
        run: &Run<'_>,
        host: &mut impl Host,
    ) -> bool {
        let first = run.first();
        let opcode = first.header.bth.opcode;
        let is_full = first.payload.len() as u32 == endpoint.mtu();
        // A run has fewer than 2^16 bytes.
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

    /// Receives a part (range) of a message from another process. Returns `false` if the bytes
    /// cannot be read from the peer's memory, so that the peer must send them. For a write, first
    /// checks the peer's right to write: the access rights of the queue pair, and for
    /// [`Kind::Write`] also those of the destination. If a right is missing, no posted receive is
    /// consumed.
    #[inline(always)]
    pub(super) fn take_from_process<H: Host>(
        &mut self,
        part: &Incoming,
        source: &mut impl Source<H>,
        endpoint: &Endpoint,
        host: &mut H,
    ) -> Result<bool, Refusal> {
        if part.kind != Kind::Send && !endpoint.allows_remote_write() {
            return Err(Refusal::Invalid);
        }
        if let Kind::Write(Remote { address, key }) = part.kind {
            host.check_remote(key, address, part.length, AccessFlags::REMOTE_WRITE)?;
        }
        self.take(part, source, host)
    }

    /// Receives a part (range) of a message that is transferred without packets: copies its bytes
    /// from `source` to the posted receive, or to the destination of a write. Returns `false` if
    /// the bytes cannot be read from the peer's memory, so that the peer must send them. The state
    /// is then unchanged, except that the message may have consumed a posted receive.
    #[inline(always)]
    pub(super) fn take<H: Host>(
        &mut self,
        part: &Incoming,
        source: &mut impl Source<H>,
        host: &mut H,
    ) -> Result<bool, Refusal> {
        let before = match (part.kind, self.progress) {
            (_, Progress::None) if part.starts => 0,
            (Kind::Send, Progress::Send { received }) if !part.starts => received,
            (Kind::Written, Progress::Write { written, .. }) if !part.starts => written,
            _ => return Err(Refusal::Invalid),
        };
        let request = match self.receive.take() {
            Some(receive) => receive.request,
            None => host.next_receive(None).ok_or(Refusal::NotReady)?,
        };
        let total = u64::from(before) + u64::from(part.length);
        let filled = self.fill(&request, before, total, part, source, host);
        if filled == Ok(true) && part.ends {
            self.progress = Progress::None;
            let opcode = match part.kind {
                Kind::Send => CompletionOpcode::Receive,
                Kind::Write(_) | Kind::Written => CompletionOpcode::ReceiveWithImmediate,
            };
            let completion = Completion {
                length: total as u32,
                immediate: part.immediate,
                invalidated: part.invalidated,
                solicited: part.solicited,
                ..Completion::new(request.id, CompletionStatus::Success, opcode)
            };
            host.complete_receive(completion, None);
            return Ok(true);
        }
        let xrc_srq = None;
        self.receive = Some(Receive { request, xrc_srq });
        filled
    }

    /// Copies the bytes of a part (range) of a message from `source` to the posted receive
    /// `request`, or to the destination of a write. `before` and `total` are the lengths of the
    /// message in bytes before and after this part. Returns `false` if the bytes cannot be read
    /// from the peer's memory.
    #[inline(always)]
    fn fill<H: Host>(
        &mut self,
        request: &ReceiveRequest,
        before: u32,
        total: u64,
        part: &Incoming,
        source: &mut impl Source<H>,
        host: &mut H,
    ) -> Result<bool, Refusal> {
        if let Some(key) = part.invalidated {
            withdraw(key, host)?;
        }
        if total > MAX_ANNOUNCED.into() {
            return Err(Refusal::Receive(CompletionStatus::LocalLength));
        }
        let is_send = part.kind == Kind::Send;
        if is_send && total > request.length {
            return Err(Refusal::Receive(CompletionStatus::LocalLength));
        }
        if part.length > 0 {
            match source.copy(&request.segments, before, host) {
                Ok(()) => {}
                Err(CopyError::Local) if is_send => return Err(local(LocalFault::Protection)),
                Err(CopyError::Local) => return Err(Refusal::Access),
                Err(CopyError::Peer) => return Ok(false),
            }
        }
        if is_send && !part.ends {
            let received = total as u32;
            self.progress = Progress::Send { received };
        }
        if let Some(key) = part.invalidated {
            host.invalidate_remote(key)?;
        }
        Ok(true)
    }

    /// Records that the peer has executed a part (range) of a message directly in memory. If a
    /// write is not complete yet, stores the number of written bytes, because the rest may arrive
    /// as packets.
    pub(super) fn executed(&mut self, part: &Part<'_>) {
        if let SendOperation::Write { remote, .. } = part.request.operation {
            self.progress = if part.ends {
                Progress::None
            } else {
                Progress::Write {
                    remote,
                    length: part.request.length,
                    written: part.offset + part.length,
                }
            };
        }
    }

    /// Copies the payload of a send packet to the posted receive that the message has consumed,
    /// behind the `received` bytes of earlier packets. Returns the new number of received bytes, or
    /// an error if the receive is too short or its memory cannot be used.
    fn scatter(
        &mut self,
        received: u32,
        payload: &[u8],
        host: &mut impl Host,
    ) -> Result<u32, Refusal> {
        let receive = self.receive.as_ref().ok_or(Refusal::NotReady)?;
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
            self.complete(CompletionOpcode::Receive, total, Trailer::of(packet), host);
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
        // The sum is at most 2^31 and the length of a packet.
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
            self.complete(
                CompletionOpcode::ReceiveWithImmediate,
                total,
                Trailer::of(packet),
                host,
            );
        }
        Ok(())
    }

    /// Takes a posted receive for the message, unless an earlier packet of the message has taken
    /// one. An XRC message names the shared receive queue `xrc_srq`. Fails with
    /// [`Refusal::NotReady`] if no receive is posted.
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
        opcode: CompletionOpcode,
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
            ..receive.completion(CompletionStatus::Success, opcode)
        };
        host.complete_receive(completion, receive.xrc_srq);
    }

    /// Drops the message that is being received, because it will not be complete. If the message
    /// has taken a posted receive, the next message uses this receive.
    pub(super) fn drop_packets(&mut self) {
        self.progress = Progress::None;
    }

    /// Drops the message that is being received, and completes its receive with the error `status`.
    pub(super) fn abort(&mut self, status: CompletionStatus, host: &mut impl Host) {
        self.progress = Progress::None;
        if let Some(receive) = self.receive.take() {
            // The kind of a failed completion is not valid, so this one also serves for a write
            // with immediate data.
            let completion = receive.completion(status, CompletionOpcode::Receive);
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
    fn completion(&self, status: CompletionStatus, opcode: CompletionOpcode) -> Completion {
        Completion::new(self.request.id, status, opcode)
    }
}

/// Returns the destination and the length in bytes of a write. The header of the write's first
/// packet contains both. Fails if the peer may not write to the destination.
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

/// Prevents other processes from using a memory key that a message of the peer is about to
/// invalidate. Fails with [`Refusal::Later`] while another process still uses the key. Fails with
/// [`Refusal::Access`] if that process does not stop in time.
pub(super) fn withdraw(key: u32, host: &impl Host) -> Result<(), Refusal> {
    match host.withdraw(key) {
        Withdrawal::Complete => Ok(()),
        Withdrawal::Pending { delay } => Err(Refusal::Later { key, delay }),
        Withdrawal::Refused => Err(Refusal::Access),
    }
}

/// Converts a memory fault of a posted receive to the [`Refusal`] of the message. The result is the
/// same for each fault: the receive completes with a protection error. The unused argument permits
/// a call by `map_err`.
pub(super) fn local(_: LocalFault) -> Refusal {
    Refusal::Receive(CompletionStatus::LocalProtection)
}
