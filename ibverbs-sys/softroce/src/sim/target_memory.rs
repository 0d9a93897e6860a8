use std::ops::Range;

use crate::proto::AccessFlags;

use super::content;
use super::memory::Memory;

/// Memory of one simulated node that only a single requester (the peer of a queue pair of the node)
/// accesses remotely. So the order of that requester's requests determines every byte.
#[derive(Debug)]
pub(crate) struct TargetMemory {
    pub(crate) node: usize,
    pub(crate) key: u32,
    pub(crate) base: u64,
    /// Content that the memory must have after all posted requests.
    current: Vec<u8>,
    /// Content that the memory must have after the requests that have completed.
    committed: Vec<u8>,
}

/// A write to simulated memory for which the model does not know whether the write was executed,
/// for example because the request has failed.
pub(crate) struct PossibleWrite<'a> {
    pub(crate) offset: usize,
    pub(crate) bytes: &'a [u8],
}

impl TargetMemory {
    /// Registers `length` bytes of memory at the simulated node with the index `node`. `base` is
    /// the address of the first byte. The initial content is the test pattern of the message ID
    /// `id`. Returns the memory with its expected content.
    pub(crate) fn new(node: usize, memory: &Memory, id: u64, base: u64, length: usize) -> Self {
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC
            | AccessFlags::MW_BIND;
        let current = content::message(id, length);
        Self {
            node,
            key: memory.register(current.clone(), base, access),
            base,
            committed: current.clone(),
            current,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.current.len()
    }

    /// Returns the expected bytes in the range `range` of this memory after all posted requests. A
    /// read that is posted now must fetch these bytes.
    pub(crate) fn read(&self, range: Range<usize>) -> &[u8] {
        &self.current[range]
    }

    /// Returns the expected eight bytes at `offset` of this memory after all posted requests, as a
    /// number in native byte order.
    pub(crate) fn number(&self, offset: usize) -> u64 {
        let mut eight = [0; 8];
        eight.copy_from_slice(&self.current[offset..offset + 8]);
        u64::from_ne_bytes(eight)
    }

    /// Writes `bytes` at `offset` to the expected content of this memory. Called when a request was
    /// posted that will write these bytes.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.current[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes `bytes` at `offset` to the content that this memory must have after the completed
    /// requests. Called when a request has completed that has written these bytes.
    pub(crate) fn commit(&mut self, offset: usize, bytes: &[u8]) {
        self.committed[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Replaces the expected content by the actual content of the simulated memory `memory`. Called
    /// when it is unknown which of the earlier requests were executed, after a reset of the queue
    /// pairs.
    pub(crate) fn adopt_content(&mut self, memory: &Memory) {
        memory.inspect(self.key, |found| self.committed.copy_from_slice(found));
        self.current.clone_from(&self.committed);
    }

    /// Checks that the range `range` of `memory` contains the bytes that completed requests have
    /// written. The caller must ensure that no other posted request writes to this range.
    pub(crate) fn check_written(&self, memory: &Memory, range: Range<usize>) -> Result<(), String> {
        let expected = &self.committed[range.clone()];
        memory.inspect(self.key, |found| {
            match content::difference(&found[range.clone()], expected) {
                Some(place) => Err(format!("byte {} of {} was not written", place, range.len())),
                None => Ok(()),
            }
        })
    }

    /// Checks that the whole memory contains the bytes that completed requests have written. A byte
    /// can also have the value that a write in `maybe` would have written, because these writes may
    /// have been executed.
    pub(crate) fn check(&self, memory: &Memory, maybe: &[PossibleWrite<'_>]) -> Result<(), String> {
        memory.inspect(self.key, |found| {
            if found == self.committed {
                return Ok(());
            }
            for (place, (&found, &committed)) in found.iter().zip(&self.committed).enumerate() {
                let written = |maybe: &PossibleWrite<'_>| {
                    let index = place.checked_sub(maybe.offset);
                    index.and_then(|index| maybe.bytes.get(index)) == Some(&found)
                };
                if found != committed && !maybe.iter().any(written) {
                    return Err(format!("byte {place} of the written memory is wrong"));
                }
            }
            Ok(())
        })
    }
}
