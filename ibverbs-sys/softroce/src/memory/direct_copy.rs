#![forbid(unsafe_code)]
//! Direct copies between the memory of two queue pairs of the same process.

use smallvec::SmallVec;

use crate::proto::{AccessFlags, CopyError, Data, LocalFault, Remote, Segment, Sink};

use super::Piece;
use super::entries::{AccessibleSpan, Entries};
use super::view::{View, pieces};

/// Memory ranges of a message, in the order of the message's bytes. Each element contains the
/// location of the first byte of a range, and the length of the range in bytes.
type Parts<'a> = SmallVec<[(AccessibleSpan<'a>, usize); 2]>;

impl View<'_> {
    /// Checks that the queue pair may read `length` bytes of a message, which begin at byte
    /// `offset` of the message. `list` is the scatter/gather list of the message: its memory ranges
    /// with their local keys.
    pub(crate) fn check_local(
        &self,
        list: &[Segment],
        offset: u32,
        length: u32,
    ) -> Result<(), LocalFault> {
        self.registry().with(self.queue_pair(), |entries| {
            self.find_local(entries, list, offset, length as usize, false)
                .map(drop)
                .ok_or(LocalFault::Protection)
        })
    }

    /// Copies `length` bytes of `message`, from byte `offset` on, to the memory `to` of another
    /// queue pair of the same process. `peer` is the memory that the other queue pair can access.
    /// Both queue pairs must belong to the same NIC. The memory of both sides stays registered
    /// during the copy.
    pub(crate) fn copy_message(
        &self,
        message: Data<'_>,
        offset: u32,
        length: u32,
        peer: &View<'_>,
        to: Sink<'_>,
    ) -> Result<(), CopyError> {
        let length = length as usize;
        self.registry().with(self.queue_pair(), |entries| {
            if let (Data::Gathered([only]), Sink::Remote(remote)) = (message, to) {
                // The most frequent case: a single segment.
                let inside = u64::from(offset) + length as u64 <= u64::from(only.length);
                let address = only.address.checked_add(offset.into());
                let from = address.filter(|_| inside).and_then(|address| {
                    self.local(entries, only.key, address, length as u64, false)
                });
                let from = from.ok_or(CopyError::Local)?;
                let access = AccessFlags::REMOTE_WRITE;
                let place = peer.remote(entries, remote, length as u64, access);
                let place = place.ok_or(CopyError::Peer)?;
                return (from.span).copy_to(from.offset, place.span, place.offset, length);
            }
            let from = match message {
                Data::Inline(bytes) => {
                    let rest = bytes.get(offset as usize..);
                    let bytes = rest.and_then(|rest| rest.get(..length));
                    Err(bytes.ok_or(CopyError::Local)?)
                }
                Data::Gathered(list) => Ok(self
                    .find_local(entries, list, offset, length, false)
                    .ok_or(CopyError::Local)?),
            };
            let to = match to {
                Sink::Remote(remote) => {
                    peer.find_remote(entries, remote, length, AccessFlags::REMOTE_WRITE)
                }
                Sink::Local(list, offset) => peer.find_local(entries, list, offset, length, true),
            }
            .ok_or(CopyError::Peer)?;
            match from {
                Ok(from) => copy(&from, &to),
                Err(bytes) => fill(bytes, &to),
            }
        })
    }

    /// Executes a part of an RDMA read between two queue pairs of this process. Copies `length`
    /// bytes from the memory `from`, which the other queue pair can access through `peer`, to byte
    /// `offset` of this queue pair's message. `list` is the scatter/gather list of the message.
    /// Fails if the memory `from` does not permit remote reads.
    pub(crate) fn fetch(
        &self,
        list: &[Segment],
        offset: u32,
        length: u32,
        peer: &View<'_>,
        from: Remote,
    ) -> Result<(), CopyError> {
        let length = length as usize;
        self.registry().with(self.queue_pair(), |entries| {
            let from = peer
                .find_remote(entries, from, length, AccessFlags::REMOTE_READ)
                .ok_or(CopyError::Peer)?;
            let to = self
                .find_local(entries, list, offset, length, true)
                .ok_or(CopyError::Local)?;
            // The bytes flow from the peer to this side, so `copy` reports the faulty side the
            // other way around.
            copy(&from, &to).map_err(|fault| match fault {
                CopyError::Local => CopyError::Peer,
                CopyError::Peer => CopyError::Local,
            })
        })
    }

    /// Calls `act` with the memory of a part of a message, and returns the result of `act`. The
    /// part has `length` bytes, and begins at byte `offset` of the message. `list` is the
    /// scatter/gather list of the message. `write` must be set if `act` writes to the memory. The
    /// memory stays registered until `act` returns. Returns `None` if the queue pair may not access
    /// the bytes, or if bytes belong to an on-demand region or to the null region.
    #[inline]
    pub(crate) fn with_segments<T>(
        &self,
        list: &[Segment],
        offset: u32,
        length: usize,
        write: bool,
        act: impl FnOnce(&[Piece<'_>]) -> T,
    ) -> Option<T> {
        self.registry().with(self.queue_pair(), |entries| {
            // The most frequent case: all bytes are in one segment.
            if let Some((segment, skip, part)) = pieces(list, offset, length).next()
                && part == length
            {
                let address = segment.address.checked_add(skip)?;
                let found = self.local(entries, segment.key, address, length as u64, write)?;
                return Some(act(&[found.span.piece(found.offset, length, write)?]));
            }
            let found = self.find_local(entries, list, offset, length, write)?;
            let pieces: Option<SmallVec<[Piece<'_>; 4]>> = found
                .iter()
                .map(|(found, length)| found.span.piece(found.offset, *length, write))
                .collect();
            Some(act(&pieces?))
        })
    }

    fn find_remote<'e>(
        &self,
        entries: &'e Entries,
        remote: Remote,
        length: usize,
        access: AccessFlags,
    ) -> Option<Parts<'e>> {
        let found = self.remote(entries, remote, length as u64, access)?;
        let mut parts = Parts::new();
        parts.push((found, length));
        Some(parts)
    }

    fn find_local<'e>(
        &self,
        entries: &'e Entries,
        list: &[Segment],
        offset: u32,
        length: usize,
        write: bool,
    ) -> Option<Parts<'e>> {
        let mut parts = Parts::new();
        let mut left = length;
        for (segment, skip, length) in pieces(list, offset, length) {
            let address = segment.address.checked_add(skip)?;
            let found = self.local(entries, segment.key, address, length as u64, write)?;
            parts.push((found, length));
            left -= length;
        }
        (left == 0).then_some(parts)
    }
}

/// Copies the bytes of the memory ranges `from` to the memory ranges `to`, which have the same
/// total length.
fn copy(from: &Parts<'_>, to: &Parts<'_>) -> Result<(), CopyError> {
    let (mut sources, mut begin) = (from.iter(), 0);
    let mut source = sources.next();
    for (place, room) in to {
        let mut filled = 0;
        while filled < *room {
            let (bytes, length) = source.ok_or(CopyError::Local)?;
            let count = (length - begin).min(room - filled);
            let (here, there) = (bytes.offset + begin as u64, place.offset + filled as u64);
            bytes.span.copy_to(here, place.span, there, count)?;
            filled += count;
            begin += count;
            if begin == *length {
                (source, begin) = (sources.next(), 0);
            }
        }
    }
    Ok(())
}

fn fill(mut bytes: &[u8], to: &Parts<'_>) -> Result<(), CopyError> {
    for (place, room) in to {
        let (part, rest) = bytes.split_at_checked(*room).ok_or(CopyError::Local)?;
        let written = place.span.write(place.offset, part);
        written.map_err(|_| CopyError::Peer)?;
        bytes = rest;
    }
    Ok(())
}
