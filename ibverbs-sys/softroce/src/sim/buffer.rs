use smallvec::SmallVec;

use crate::proto::{AccessFlags, GatherList, Segment};

use super::content::difference;
use super::memory::Memory;
use super::random::Random;

/// Number of guard bytes before and after each memory segment of a buffer. No request may write to
/// the guard bytes, so a changed guard byte reveals a write out of bounds.
const GUARD_BYTES: usize = 16;

/// Maximum number of bytes after a message that are checked for wrong writes, in a buffer that is
/// longer than the message. The limit keeps the time of a check short.
const CHECKED_BYTES: usize = 64;

/// Local memory of one request, in one or more segments. Each segment is in its own memory region,
/// between guard bytes of zeros. The regions are registered only for this request. So an access
/// after the end of the request fails, because its key is invalid.
#[derive(Debug)]
pub(crate) struct Buffer {
    segments: GatherList,
    length: usize,
}

impl Buffer {
    /// Registers a buffer of `length` zero bytes in `memory`. Random numbers from `random`
    /// determine how the bytes are divided into one to four segments.
    pub(crate) fn zeroed(memory: &Memory, random: &mut Random, length: usize) -> Self {
        Self::new(memory, random, length, |_, _| ())
    }

    /// Creates a buffer that contains the bytes `message`. The random numbers from `random`
    /// determine how the bytes are divided into memory segments.
    pub(crate) fn containing(memory: &Memory, random: &mut Random, message: &[u8]) -> Self {
        Self::new(memory, random, message.len(), |offset, piece| {
            piece.copy_from_slice(&message[offset..offset + piece.len()]);
        })
    }

    fn new(
        memory: &Memory,
        random: &mut Random,
        length: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Self {
        let mut cuts: SmallVec<[usize; 5]> = SmallVec::new();
        cuts.extend([0, length]);
        if random.percent(30) {
            for _ in 0..random.range(1, 3) {
                cuts.push(random.range(0, length as u64) as usize);
            }
            cuts.sort_unstable();
        }
        let mut segments = GatherList::new();
        for cut in cuts.windows(2) {
            let (offset, piece) = (cut[0], cut[1] - cut[0]);
            let mut bytes = vec![0; piece + 2 * GUARD_BYTES];
            fill(offset, &mut bytes[GUARD_BYTES..GUARD_BYTES + piece]);
            let base = random.range(1, 1 << 40);
            segments.push(Segment {
                address: base + GUARD_BYTES as u64,
                length: piece as u32,
                key: memory.register(bytes, base, AccessFlags::LOCAL_WRITE),
            });
        }
        Self { segments, length }
    }

    pub(crate) fn segments(&self) -> &GatherList {
        &self.segments
    }

    /// Checks that the buffer begins with `message`, and that the guard bytes and the first
    /// [`CHECKED_BYTES`] bytes of each segment after the message are still zero.
    pub(crate) fn check(&self, memory: &Memory, message: &[u8]) -> Result<(), String> {
        self.check_with(memory, message, true)
    }

    /// Checks that the buffer begins with `message`, and that the bytes around the buffer are still
    /// zero. The rest of the buffer may contain part of an earlier, longer message.
    pub(crate) fn check_reused(&self, memory: &Memory, message: &[u8]) -> Result<(), String> {
        self.check_with(memory, message, false)
    }

    fn check_with(&self, memory: &Memory, message: &[u8], fresh: bool) -> Result<(), String> {
        if message.len() > self.length {
            return Err(format!(
                "{} B in a buffer of {}",
                message.len(),
                self.length
            ));
        }
        let mut offset = 0;
        for segment in &self.segments {
            let piece = segment.length as usize;
            let here = &message[offset.min(message.len())..message.len().min(offset + piece)];
            memory.inspect(segment.key, |bytes| {
                if bytes.len() != piece + 2 * GUARD_BYTES {
                    return Err("the buffer's region is gone".to_owned());
                }
                let found = &bytes[GUARD_BYTES..GUARD_BYTES + here.len()];
                if let Some(place) = difference(found, here) {
                    return Err(format!(
                        "wrong byte {} of {}",
                        offset + place,
                        message.len()
                    ));
                }
                let behind = &bytes[GUARD_BYTES + here.len()..];
                let seen = CHECKED_BYTES.min(if fresh { behind.len() } else { 0 });
                let untouched = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
                let ends = [
                    &bytes[..GUARD_BYTES],
                    &behind[..seen],
                    &behind[behind.len() - GUARD_BYTES..],
                ];
                if ends.into_iter().all(untouched) {
                    Ok(())
                } else {
                    Err(format!(
                        "bytes around the {} of the message changed",
                        message.len()
                    ))
                }
            })?;
            offset += piece;
        }
        Ok(())
    }

    /// Deregisters this buffer from `memory`, so that its keys become invalid. Called when the
    /// request that uses the buffer has ended.
    pub(crate) fn release(self, memory: &Memory) {
        for segment in &self.segments {
            memory.deregister(segment.key);
        }
    }
}
