use super::entry::Entry;
use crate::proto::endpoint::Endpoint;
use crate::proto::{CompletionStatus, Memory, Payload, SendOperation, Sequence};
use crate::wire::{AtomicEth, BASE, Deth, Feth, Header, Operation, Reth};

/// Position of a packet within its request, the number of sequence numbers that the packet
/// occupies, and whether the packet must request an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketPosition {
    pub(super) sequence: Sequence,
    /// Index of the packet's first sequence number within the request.
    pub(super) packet: u32,
    /// Number of sequence numbers that the packet covers: the number of response packets for a read
    /// request packet, and one for any other packet.
    pub(super) covers: u32,
    /// Number of sequence numbers of the request.
    pub(super) packets: u32,
    /// Set if the packet requests an acknowledgement.
    pub(super) acknowledge: bool,
}

/// Appends a packet of the request `entry` to `out`. `place` is the position of the packet within
/// the request. After an error, `out` is unchanged.
pub(super) fn write(
    entry: &Entry,
    place: PacketPosition,
    endpoint: &Endpoint,
    memory: &impl Memory,
    out: &mut Vec<u8>,
) -> Result<(), CompletionStatus> {
    let header = header(entry, place, endpoint)?;
    if !header.bth.opcode.has_payload() {
        header.emit(out);
        return Ok(());
    }
    let request = &entry.request;
    if let SendOperation::AtomicWrite { bytes, .. } = &request.operation {
        header.emit(out);
        out.extend_from_slice(bytes);
        return Ok(());
    }
    let begin = place.packet * endpoint.mtu();
    let length = (request.length - begin).min(endpoint.mtu());
    write_message(header, &request.payload, begin, length, memory, out)
}

/// Writes `count` packets from the middle of a message to `out`. `place` is the position of the
/// first packet within the request. Divides `out` into `count` equal parts, which must be long
/// enough for a packet, and writes each packet to the beginning of a part.
pub(super) fn write_run(
    entry: &Entry,
    place: PacketPosition,
    count: u32,
    endpoint: &Endpoint,
    memory: &impl Memory,
    out: &mut [u8],
) -> Result<(), CompletionStatus> {
    let mut bth = header(entry, place, endpoint)?.bth;
    let stride = out.len() / count as usize;
    let mtu = endpoint.mtu() as usize;
    for (number, packet) in (0..count).zip(out.chunks_exact_mut(stride)) {
        bth.sequence = (place.sequence + number).value();
        packet[..BASE].copy_from_slice(&bth.to_bytes());
    }
    let payloads = out.chunks_exact_mut(stride);
    let payloads = payloads.map(|packet| &mut packet[BASE..BASE + mtu]);
    let (begin, length) = (place.packet * endpoint.mtu(), count * endpoint.mtu());
    match &entry.request.payload {
        Payload::Inline(bytes) => {
            let mut parts = bytes.get(begin as usize..).unwrap_or(&[]).chunks(mtu);
            for payload in payloads {
                let part = parts.next().filter(|part| part.len() == mtu);
                payload.copy_from_slice(part.ok_or(CompletionStatus::LocalLength)?);
            }
            Ok(())
        }
        Payload::Gathered(list) => (memory.gather_parts(list, begin, length, payloads))
            .map_err(|_| CompletionStatus::LocalProtection),
    }
}

/// Returns the headers of the packet at the position `place` of the request `entry`. The pad count
/// is not set, because it depends on the payload.
fn header(
    entry: &Entry,
    place: PacketPosition,
    endpoint: &Endpoint,
) -> Result<Header, CompletionStatus> {
    let request = &entry.request;
    let first = place.packet == 0;
    let last = place.packet + place.covers == place.packets;
    let operation = operation(&request.operation, first, last);
    let mut header = endpoint.header(operation, place.sequence);
    header.bth.acknowledge = place.acknowledge;
    let opcode = header.bth.opcode;
    if opcode.has_xrc_srq() {
        header.xrc_srq = Some(request.xrc_srq.unwrap_or(0));
    }

    // The product fits: lengths are in bytes, and no message is longer than `MAX_MESSAGE`.
    let begin = place.packet * endpoint.mtu();
    let length = request.length - begin;
    match &request.operation {
        SendOperation::Send {
            immediate,
            invalidate,
        } => {
            header.bth.solicited = request.solicited && last;
            header.immediate = immediate.filter(|_| opcode.has_immediate());
            header.invalidate = invalidate.filter(|_| opcode.has_invalidate());
        }
        SendOperation::Datagram {
            immediate,
            destination,
            queue_key,
            ..
        } => {
            header.bth.solicited = request.solicited;
            header.bth.destination = *destination;
            header.immediate = *immediate;
            let own = queue_key & 1 << 31 != 0;
            header.deth = Some(Deth {
                queue_key: if own {
                    endpoint.attributes.queue_key
                } else {
                    *queue_key
                },
                source: endpoint.number,
            });
        }
        SendOperation::Write { remote, immediate } => {
            header.bth.solicited = request.solicited && last && immediate.is_some();
            header.immediate = immediate.filter(|_| opcode.has_immediate());
            header.reth = opcode.has_reth().then_some(Reth {
                address: remote.address,
                key: remote.key,
                length,
            });
        }
        SendOperation::Read { remote } => {
            header.reth = Some(Reth {
                address: remote.address.wrapping_add(u64::from(begin)),
                key: remote.key,
                length: length.min(place.covers * endpoint.mtu()),
            });
        }
        SendOperation::CompareSwap {
            remote,
            compare,
            swap,
        } => {
            header.atomic = Some(AtomicEth {
                address: remote.address,
                key: remote.key,
                swap_or_add: *swap,
                compare: *compare,
            });
        }
        SendOperation::FetchAdd { remote, add } => {
            header.atomic = Some(AtomicEth {
                address: remote.address,
                key: remote.key,
                swap_or_add: *add,
                compare: 0,
            });
        }
        SendOperation::AtomicWrite { remote, bytes } => {
            header.reth = Some(Reth {
                address: remote.address,
                key: remote.key,
                length: bytes.len() as u32,
            });
        }
        SendOperation::Flush(flush) => {
            header.feth = Some(Feth {
                placement: flush.placement,
                level: flush.level,
            });
            header.reth = Some(Reth {
                address: flush.remote.address,
                key: flush.remote.key,
                length: flush.length,
            });
        }
        SendOperation::Bind(_) | SendOperation::LocalInvalidate { .. } => {
            return Err(CompletionStatus::LocalQueuePairOperation);
        }
    }

    Ok(header)
}

/// Appends a packet to `out`: the header, `length` bytes of the message from byte `begin` on, and
/// the pad. After an error, `out` is unchanged.
fn write_message(
    mut header: Header,
    payload: &Payload,
    begin: u32,
    length: u32,
    memory: &impl Memory,
    out: &mut Vec<u8>,
) -> Result<(), CompletionStatus> {
    let before = out.len();
    let length = length as usize;
    header.bth.pad = Header::pad_for(length);
    header.emit(out);
    let start = out.len();
    match payload {
        Payload::Inline(bytes) => {
            let bytes = bytes
                .get(begin as usize..)
                .and_then(|rest| rest.get(..length));
            match bytes {
                Some(bytes) => out.extend_from_slice(bytes),
                None => {
                    out.truncate(before);
                    return Err(CompletionStatus::LocalLength);
                }
            }
        }
        Payload::Gathered(list) if length > 0 => {
            out.resize(start + length, 0);
            if memory.gather(list, begin, &mut out[start..]).is_err() {
                out.truncate(before);
                return Err(CompletionStatus::LocalProtection);
            }
        }
        Payload::Gathered(_) => {}
    }
    out.resize(start + length + usize::from(header.bth.pad), 0);
    Ok(())
}

/// Returns the operation for the opcode of a packet. The operation depends on the kind of the
/// request, and on the position of the packet. `first` and `last` are set if the packet is the
/// first or the last of its message.
fn operation(request: &SendOperation, first: bool, last: bool) -> Operation {
    use Operation as O;
    match request {
        SendOperation::Send {
            immediate,
            invalidate,
        } => match (first, last) {
            (true, true) if immediate.is_some() => O::SendOnlyImmediate,
            (true, true) if invalidate.is_some() => O::SendOnlyInvalidate,
            (true, true) => O::SendOnly,
            (true, false) => O::SendFirst,
            (false, false) => O::SendMiddle,
            (false, true) if immediate.is_some() => O::SendLastImmediate,
            (false, true) if invalidate.is_some() => O::SendLastInvalidate,
            (false, true) => O::SendLast,
        },
        SendOperation::Datagram { immediate, .. } if immediate.is_some() => O::SendOnlyImmediate,
        // Packets of `Bind` and `LocalInvalidate` do not exist.
        SendOperation::Datagram { .. }
        | SendOperation::Bind(_)
        | SendOperation::LocalInvalidate { .. } => O::SendOnly,
        SendOperation::Write { immediate, .. } => match (first, last) {
            (true, true) if immediate.is_some() => O::WriteOnlyImmediate,
            (true, true) => O::WriteOnly,
            (true, false) => O::WriteFirst,
            (false, false) => O::WriteMiddle,
            (false, true) if immediate.is_some() => O::WriteLastImmediate,
            (false, true) => O::WriteLast,
        },
        SendOperation::Read { .. } => O::ReadRequest,
        SendOperation::CompareSwap { .. } => O::CompareSwap,
        SendOperation::FetchAdd { .. } => O::FetchAdd,
        SendOperation::AtomicWrite { .. } => O::AtomicWrite,
        SendOperation::Flush(_) => O::Flush,
    }
}
