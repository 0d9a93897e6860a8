//! Sources of the bytes of messages that consume a receive. [`QueuePair::take_part`](crate::proto::QueuePair::take_part) and
//! [`receive_part`](crate::proto::QueuePair::receive_part) execute the messages with one of these sources.

use crate::proto::{Data, Host, Memory, Misplaced, Place, Segment, Source};

use super::PeerMemory;

/// Bytes in a ring slot.
#[derive(Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<H: Host> Source<H> for Bytes<'_> {
    #[inline]
    fn copy(&mut self, to: &[Segment], offset: u32, host: &H) -> Result<(), Misplaced> {
        host.scatter(to, offset, self.0)
            .map_err(|_| Misplaced::Here)
    }
}

/// Bytes in chunks of the ring.
#[derive(Debug)]
pub(super) struct Chunks<'a, P> {
    pub(super) length: u32,
    pub(super) peer: &'a mut P,
}

impl<H, P: PeerMemory<H>> Source<H> for Chunks<'_, P> {
    fn copy(&mut self, to: &[Segment], offset: u32, host: &H) -> Result<(), Misplaced> {
        self.peer.take(self.length, to, offset, host)
    }
}

/// Bytes of a write with immediate data, which the sender has already written.
#[derive(Debug)]
pub(super) struct Written;

impl<H> Source<H> for Written {
    fn copy(&mut self, _: &[Segment], _: u32, _: &H) -> Result<(), Misplaced> {
        Ok(())
    }
}

/// Bytes in the memory of another process, described by segments.
#[derive(Debug)]
pub(super) struct Described<'a, P> {
    /// Segments of the peer's memory that hold the bytes.
    pub(super) segments: &'a [Segment],
    pub(super) peer: &'a mut P,
    /// Number of copies that were made.
    pub(super) copies: u64,
}

impl<H, P: PeerMemory<H>> Source<H> for Described<'_, P> {
    fn copy(&mut self, to: &[Segment], offset: u32, host: &H) -> Result<(), Misplaced> {
        self.peer.fetch(self.segments, to, offset, host)?;
        self.copies += 1;
        Ok(())
    }
}

/// Bytes of a message from a queue pair of this process.
#[derive(Debug)]
pub(super) struct Local<'a, H> {
    pub(super) data: Data<'a>,
    /// Number of bytes of the message before the part.
    pub(super) offset: u32,
    pub(super) length: u32,
    pub(super) sender: &'a H,
}

impl<H: Memory> Source<H> for Local<'_, H> {
    fn copy(&mut self, to: &[Segment], offset: u32, host: &H) -> Result<(), Misplaced> {
        let place = Place::Local(to, offset);
        let carried = (self.sender).carry(self.data, self.offset, self.length, host, place);
        // The sender's own memory is the receiver's peer memory, and the other way around.
        carried.map_err(|fault| match fault {
            Misplaced::Here => Misplaced::There,
            Misplaced::There => Misplaced::Here,
        })
    }
}
