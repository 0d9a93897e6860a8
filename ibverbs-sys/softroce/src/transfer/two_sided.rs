//! Sources of the bytes of messages that consume a receive: a slot, data blocks of the shared ring,
//! memory of the peer. [`QueuePair::take_part`](crate::proto::QueuePair::take_part) and
//! [`receive_part`](crate::proto::QueuePair::receive_part) execute the messages with one of these
//! sources.

use crate::proto::{CopyError, Data, Host, Memory, Remote, Segment, Sink, Source};

use super::PeerMemory;

/// [`Source`] of the bytes of a short message that the shared ring itself contains. The receiver
/// copies these bytes to the memory of a receive request.
#[derive(Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<H: Host> Source<H> for Bytes<'_> {
    #[inline]
    fn copy(&mut self, to: &[Segment], offset: u32, host: &H) -> Result<(), CopyError> {
        host.scatter(to, offset, self.0)
            .map_err(|_| CopyError::Local)
    }
}

/// [`Source`] of the bytes of a message that are in chunks (data blocks) of the shared ring. The
/// receiver copies the bytes from there. `P` gives access to the ring.
#[derive(Debug)]
pub(super) struct Chunks<'a, P> {
    pub(super) length: u32,
    /// Memory that a write names, to which the bytes are copied instead of the receive.
    pub(super) remote: Option<Remote>,
    pub(super) peer: &'a mut P,
}

impl<H, P: PeerMemory<H>> Source<H> for Chunks<'_, P> {
    fn copy(&mut self, to: &[Segment], offset: u32, host: &H) -> Result<(), CopyError> {
        let to = self.remote.map_or(Sink::Local(to, offset), Sink::Remote);
        self.peer.take(self.length, to, host)
    }
}

/// [`Source`] that copies nothing: the sender of a write with immediate data has already written
/// the bytes to the receiver's memory.
#[derive(Debug)]
pub(super) struct AlreadyWritten;

impl<H> Source<H> for AlreadyWritten {
    fn copy(&mut self, _: &[Segment], _: u32, _: &H) -> Result<(), CopyError> {
        Ok(())
    }
}

/// [`Source`] of the bytes of a message that are in the memory of another process, at the addresses
/// in `segments`. The receiver copies the bytes from there. `P` gives access to that memory.
#[derive(Debug)]
pub(super) struct SegmentBytes<'a, P> {
    /// Segments of the peer's memory that hold the bytes.
    pub(super) segments: &'a [Segment],
    pub(super) peer: &'a mut P,
    /// Number of times that bytes were copied from the peer's memory.
    pub(super) copies: u64,
}

impl<H, P: PeerMemory<H>> Source<H> for SegmentBytes<'_, P> {
    fn copy(&mut self, to: &[Segment], offset: u32, host: &H) -> Result<(), CopyError> {
        self.peer.fetch(self.segments, to, offset, host)?;
        self.copies += 1;
        Ok(())
    }
}

/// [`Source`] of the bytes of a message whose sender is a queue pair of the same process. The
/// receiver copies the bytes from the sender's memory. `H` is the sender's [`Host`], which gives
/// access to the memory.
#[derive(Debug)]
pub(super) struct InProcessSource<'a, H> {
    pub(super) data: Data<'a>,
    /// Offset of the bytes within the message.
    pub(super) offset: u32,
    pub(super) length: u32,
    pub(super) sender: &'a H,
}

impl<H: Memory> Source<H> for InProcessSource<'_, H> {
    fn copy(&mut self, to: &[Segment], offset: u32, host: &H) -> Result<(), CopyError> {
        let place = Sink::Local(to, offset);
        let address_in_gid =
            (self.sender).copy_message(self.data, self.offset, self.length, host, place);
        // The sender's own memory is the receiver's peer memory, and the other way around.
        address_in_gid.map_err(|fault| match fault {
            CopyError::Local => CopyError::Peer,
            CopyError::Peer => CopyError::Local,
        })
    }
}
