//! Transfer of messages to a queue pair of the same process, in parts (ranges of a message): the
//! sender's thread copies the bytes and updates the state of both queue pairs.
//!
//! If the peer does not expect the part, or the request is not allowed, the part is sent as
//! packets, whose responses report the reason.

use std::ops::Range;

use super::Transfer;
use super::choice::Kind as WorkKind;
use super::one_sided::{Atomic, MemoryAccess, OneSided, OneSidedError};
use super::two_sided::InProcessSource;
use crate::proto::{
    AccessFlags, CompletionStatus, CopyError, Data, Host, Incoming, Kind, Memory, Part,
    PartOutcome, PartRefusal, QueuePair, Remote, Segment, SendOperation, Sink, Source, Upcoming,
};

/// Maximum number of bytes that are copied in one step between two queue pairs of this process.
/// During the copy, other threads cannot use the two queue pairs, so the limit keeps the wait of
/// these threads short.
const MAX_PART: u32 = 64 << 10;

/// Returns the next part (range) of the message that the queue pair `queue_pair` is sending. The
/// part is short enough for [`transfer_part`]. Returns `None` if there is no message to send.
pub(crate) fn next_part<'a>(queue_pair: &'a QueuePair, upcoming: &Upcoming) -> Option<Part<'a>> {
    let request = queue_pair.next_request()?;
    let largest = MAX_PART / queue_pair.mtu();
    let left = upcoming.packets - upcoming.packet;
    // Only the last packet of a write with immediate data consumes a receive.
    let takes_receive = WorkKind::of(request) == WorkKind::WriteWithImmediate;
    let packets = if takes_receive && left > 1 {
        largest.min(left - 1)
    } else {
        largest
    };
    queue_pair.part(upcoming, packets)
}

/// Transfers a part of a message directly to the connected queue pair `peer` of the same process.
/// `sender` gives access to the sender's memory, and `host` to the peer's. Returns
/// [`PartOutcome::UsePackets`] if the part must be sent as packets, for example because `transfer`
/// is not [`Transfer::OneSided`] or [`Transfer::TwoSided`].
pub(crate) fn transfer_part<H: Host>(
    part: &Part<'_>,
    transfer: Transfer,
    peer: &mut QueuePair,
    host: &mut H,
    sender: &H,
) -> PartOutcome {
    if !peer.expects(part) {
        return PartOutcome::UsePackets;
    }
    let is_send = OneSided::of(part.request).is_none();
    // The access rights to all bytes are checked before the first part. A write that is not allowed
    // takes no receive.
    let is_checked = match transfer {
        Transfer::OneSided => part.starts && !part.ends,
        Transfer::TwoSided => !is_send && (part.starts || part.ends),
        Transfer::Slot
        | Transfer::Chunks
        | Transfer::Descriptor
        | Transfer::Written
        | Transfer::Later
        | Transfer::Packets => {
            return PartOutcome::UsePackets;
        }
    };
    if is_checked && !is_permitted(part, rights(peer), host, sender) {
        return PartOutcome::UsePackets;
    }
    match transfer {
        Transfer::TwoSided if is_send => take(part, Kind::Send, peer, host, sender),
        Transfer::TwoSided if part.ends => take(part, Kind::Written, peer, host, sender),
        _ => execute(part, peer, host, sender),
    }
}

/// Executes a part of a read or a write, or an atomic operation, in the peer's memory. Afterwards
/// the peer's queue pair has the same state as if the peer itself had executed the request. If the
/// part could not be executed, leaves the queue pair unchanged. The caller must then send the part
/// as packets.
fn execute<H: Host>(
    part: &Part<'_>,
    peer: &mut QueuePair,
    host: &mut H,
    sender: &H,
) -> PartOutcome {
    match copy(part, rights(peer), host, sender) {
        Ok(()) => {
            peer.executed(part, host);
            PartOutcome::Executed
        }
        Err(OneSidedError::NotExecuted) => PartOutcome::UsePackets,
        Err(OneSidedError::ResultLost) => {
            peer.executed(part, host);
            PartOutcome::Failed(CompletionStatus::LocalProtection)
        }
    }
}

/// Executes a part of a read or a write, or a whole atomic, in the peer's memory, to which the
/// sender has the rights `access`. `sender` and `host` give access to the memory of both sides.
fn copy<H: Memory>(
    part: &Part<'_>,
    access: AccessFlags,
    host: &H,
    sender: &H,
) -> Result<(), OneSidedError> {
    let work = OneSided::of(part.request).ok_or(OneSidedError::NotExecuted)?;
    let mut both = Both {
        access,
        sender,
        peer: host,
    };
    work.execute(part.offset..part.offset + part.length, &mut both)
}

/// Returns the access rights that the queue pair `peer` grants to remote requests: the rights with
/// which the queue pair was configured. If the queue pair accepts no reads and atomics
/// (`max_accepted` is 0), the result does not contain the rights to read and to execute atomics.
fn rights(peer: &QueuePair) -> AccessFlags {
    let attributes = peer.attributes();
    let mut access = attributes.access;
    if attributes.max_accepted == 0 {
        access -= AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    }
    access
}

/// [`Source`] of the payload of a write with immediate data. The bytes are copied to the remote
/// address of the write, and not to the memory of the receive request that the write consumes.
struct Write<'a, H> {
    part: &'a Part<'a>,
    access: AccessFlags,
    sender: &'a H,
}

impl<H: Memory> Source<H> for Write<'_, H> {
    fn copy(&mut self, _: &[Segment], _: u32, host: &H) -> Result<(), CopyError> {
        let copied = copy(self.part, self.access, host, self.sender);
        copied.map_err(|_| CopyError::Peer)
    }
}

/// Passes a part of a send or of a write with immediate data to the queue pair `peer`, which copies
/// the bytes and consumes a receive request. The result states how the sender must continue.
fn take<H: Host>(
    part: &Part<'_>,
    kind: Kind,
    peer: &mut QueuePair,
    host: &mut H,
    sender: &H,
) -> PartOutcome {
    let (immediate, invalidated) = match part.request.operation {
        SendOperation::Send {
            immediate,
            invalidate,
        } => (immediate, invalidate),
        SendOperation::Write { immediate, .. } => (immediate, None),
        _ => return PartOutcome::UsePackets,
    };
    let incoming = Incoming {
        sequence: part.sequence,
        kind,
        length: part.length,
        starts: part.starts,
        ends: part.ends,
        immediate: immediate.filter(|_| part.ends),
        invalidated: invalidated.filter(|_| part.ends),
        solicited: part.request.solicited,
    };
    let taken = match kind {
        Kind::Send => {
            let mut source = InProcessSource {
                data: part.request.payload.data(),
                offset: part.offset,
                length: part.length,
                sender,
            };
            peer.take_part(&incoming, &mut source, host)
        }
        Kind::Write(_) | Kind::Written => {
            let mut source = Write {
                part,
                access: rights(peer),
                sender,
            };
            peer.take_part(&incoming, &mut source, host)
        }
    };
    match taken {
        Ok(()) => PartOutcome::Executed,
        // A message that would fail in any case does not wait for a receive.
        Err(PartRefusal::NotReady { .. }) if !is_permitted(part, rights(peer), host, sender) => {
            PartOutcome::UsePackets
        }
        Err(PartRefusal::NotReady { timer }) => PartOutcome::NotReady { timer },
        Err(PartRefusal::Later { delay }) => PartOutcome::Later { delay },
        Err(PartRefusal::UsePackets) => PartOutcome::UsePackets,
    }
}

/// Returns whether the access rights permit to transfer a part of a message. The sender must be
/// able to read its own bytes. A read or write must also be permitted in the peer's memory.
/// `sender` gives access to the sender's memory, and `host` to the peer's memory.
fn is_permitted<H: Memory>(part: &Part<'_>, access: AccessFlags, host: &H, sender: &H) -> bool {
    let request = part.request;
    let (right, remote) = match request.operation {
        SendOperation::Write { remote, .. } => (AccessFlags::REMOTE_WRITE, Some(remote)),
        SendOperation::Read { remote } => (AccessFlags::REMOTE_READ, Some(remote)),
        _ => (AccessFlags::empty(), None),
    };
    let is_readable = match request.payload.data() {
        Data::Gathered(list) if part.length > 0 && right != AccessFlags::REMOTE_READ => {
            sender.check_local(list, part.offset, part.length).is_ok()
        }
        _ => true,
    };
    let is_allowed = remote.is_none_or(|Remote { address, key }| {
        host.check_remote(key, address, request.length, right)
            .is_ok()
    });
    is_readable && access.contains(right) && is_allowed
}

/// Access to the memory on both sides of a read, write or atomic between two queue pairs of this
/// process: the memory of the sender, and the memory of its peer.
struct Both<'a, H> {
    /// Access rights that the peer's queue pair grants to requests of the sender.
    access: AccessFlags,
    sender: &'a H,
    peer: &'a H,
}

impl<H: Memory> MemoryAccess for Both<'_, H> {
    fn put(&mut self, from: Data<'_>, range: Range<u32>, to: Remote) -> Option<()> {
        if !self.access.contains(AccessFlags::REMOTE_WRITE) {
            return None;
        }
        let length = range.len() as u32;
        if length == 0 {
            return Some(());
        }
        let place = Sink::Remote(to);
        let address_in_gid =
            (self.sender).copy_message(from, range.start, length, self.peer, place);
        address_in_gid.ok()
    }

    fn get(&mut self, to: Data<'_>, range: Range<u32>, from: Remote) -> Option<()> {
        let Data::Gathered(list) = to else {
            return None;
        };
        if !self.access.contains(AccessFlags::REMOTE_READ) {
            return None;
        }
        let length = range.len() as u32;
        if length == 0 {
            return Some(());
        }
        let fetched = (self.sender).fetch(list, range.start, length, self.peer, from);
        fetched.ok()
    }

    fn atomic(
        &mut self,
        at: Remote,
        atomic: Atomic,
        result: &[Segment],
    ) -> Result<(), OneSidedError> {
        if !self.access.contains(AccessFlags::REMOTE_ATOMIC) {
            return Err(OneSidedError::NotExecuted);
        }
        let Remote { address, key } = at;
        let before = match atomic {
            Atomic::CompareSwap { compare, swap } => {
                self.peer.compare_swap(key, address, compare, swap)
            }
            Atomic::FetchAdd { add } => self.peer.fetch_add(key, address, add),
        };
        let before = before.map_err(|_| OneSidedError::NotExecuted)?;
        let stored = (self.sender).scatter(result, 0, &before.to_ne_bytes());
        stored.map_err(|_| OneSidedError::ResultLost)
    }
}
