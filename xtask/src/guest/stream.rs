//! Copies an output of the guest, up to the mark that ends the output.
//!
//! The emulator's ports have no end of file, and a message on one port does not prove that all
//! output of another port has arrived. Therefore the guest ends each output with a mark (a random
//! text) in the same stream.

use std::io::{self, Read, Write};

/// Copies from `port` to `out` until the text `mark` or the end of file. Writes all bytes except
/// `mark` as soon as they arrive.
pub(crate) fn copy_until(mark: &[u8], mut port: impl Read, mut out: impl Write) -> io::Result<()> {
    let mut pending = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    loop {
        let count = match port.read(&mut chunk) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // The emulator was killed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
            Err(error) => return Err(error),
        };
        if count == 0 {
            out.write_all(&pending)?;
            return out.flush();
        }
        pending.extend_from_slice(&chunk[..count]);
        let end = pending
            .windows(mark.len())
            .position(|window| window == mark);
        let ready = end.unwrap_or_else(|| pending.len() - partial_mark_len(&pending, mark));
        out.write_all(&pending[..ready])?;
        out.flush()?;
        if end.is_some() {
            return Ok(());
        }
        pending.drain(..ready);
    }
}

/// Returns the number of bytes at the end of `bytes` that equal the first bytes of `mark`, the text
/// that ends an output. Only the bytes that follow show whether these bytes belong to the mark or
/// to the output.
fn partial_mark_len(bytes: &[u8], mark: &[u8]) -> usize {
    let longest = bytes.len().min(mark.len() - 1);
    (1..=longest)
        .rev()
        .find(|&count| bytes.ends_with(&mark[..count]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::{self, Read};

    use super::copy_until;

    /// A reader for tests, which returns the elements of a list one by one, one for each read.
    struct Chunks(VecDeque<&'static [u8]>);

    impl Read for Chunks {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let piece = self.0.pop_front().unwrap_or_default();
            buffer[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    fn copied(pieces: &[&'static [u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        copy_until(b"<END>", Chunks(pieces.iter().copied().collect()), &mut out).unwrap();
        out
    }

    #[test]
    fn stops_at_the_mark_wherever_it_is_cut() {
        assert_eq!(copied(&[b"hello<END>more"]), b"hello");
        assert_eq!(copied(&[b"hello<E", b"N", b"D>more"]), b"hello");
        assert_eq!(copied(&[b"<END>"]), b"");
        assert_eq!(copied(&[b"<<END", b">"]), b"<");
    }

    #[test]
    fn what_only_looks_like_the_mark_is_output() {
        assert_eq!(copied(&[b"a<EN", b"d>b<END>"]), b"a<ENd>b");
        assert_eq!(copied(&[b"a<EN"]), b"a<EN");
    }
}
