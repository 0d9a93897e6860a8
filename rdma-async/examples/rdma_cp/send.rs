//! The command `send`: sends a file.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use tokio::task::spawn_blocking;

use crate::file::{Offer, Present, checksum, receive_u32};
use crate::link::{Link, PIECE, Piece};
use crate::progress::Progress;

/// Maximum number of pieces that are read from the file before they are sent. With several pieces,
/// short delays of the disk do not stop the transfer.
const MAX_READ_AHEAD: usize = 4;

/// Sends a file to the receiver at an address, and waits until the receiver has verified and
/// renamed the file.
pub(crate) async fn send(
    path: &Path,
    receiver: &str,
    tcp: bool,
    shows_progress: bool,
) -> anyhow::Result<()> {
    let name = path.file_name().context("the path has no file name")?;
    let name = name.to_str().context("a name that is not UTF-8")?;
    let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let size = file.metadata()?.len();
    let connecting = Link::connect(receiver, tcp).await;
    let mut link = connecting.with_context(|| format!("connecting to {receiver}"))?;
    let offer = Offer {
        name: name.to_owned(),
        size,
    };
    offer.send(&mut link).await?;
    let present = Present::receive(&mut link).await?;
    let (begin, mut hasher) = first_to_send(path, size, present).await?;
    link.send(&begin.to_be_bytes()).await?;
    file.seek(SeekFrom::Start(begin))?;
    let begun = Instant::now();
    let mut progress = Progress::new(name, begin, size, shows_progress);
    let (filled, mut pieces) = tokio::sync::mpsc::channel(MAX_READ_AHEAD);
    let (empty, mut spare) = tokio::sync::mpsc::channel::<Piece>(MAX_READ_AHEAD);
    // Reading from the file blocks, so a thread reads while earlier pieces are sent.
    let reading = spawn_blocking(move || -> anyhow::Result<u32> {
        while let Some(mut piece) = spare.blocking_recv() {
            file.read_exact(piece.bytes_mut()).context("reading")?;
            hasher.update(piece.bytes());
            if filled.blocking_send(piece).is_err() {
                break;
            }
        }
        Ok(hasher.finalize())
    });
    let mut requested = begin;
    let mut sent = begin;
    while sent < size {
        while requested < size && empty.capacity() > 0 {
            let len = (size - requested).min(PIECE as u64) as usize;
            empty.send(link.piece(len)?).await?;
            requested += len as u64;
        }
        // If the thread has failed, its result contains the reason.
        let Some(piece) = pieces.recv().await else {
            break;
        };
        let len = piece.bytes().len();
        link.send_piece(piece).await.context("sending")?;
        sent += len as u64;
        progress.add(len);
    }
    drop(empty);
    drop(pieces);
    let sent = reading.await??;
    let arrived = receive_u32(&mut link).await;
    let is_correct = arrived.context("waiting for the receiver's checksum")? == sent;
    link.send(&u32::from(is_correct).to_be_bytes()).await?;
    ensure!(is_correct, "the file has arrived with a wrong checksum");
    let renamed = receive_u32(&mut link).await;
    ensure!(
        renamed.context("waiting for the receiver")? == 1,
        "the receiver could not keep the file"
    );
    progress.finish();
    let (copied, seconds) = (size - begin, begun.elapsed().as_secs_f64());
    let rate = copied as f64 / seconds / 1e6;
    println!("sent {copied} bytes in {seconds:.3} s: {rate:.0} MB/s");
    Ok(())
}

/// Returns the offset of the first byte to send, and the checksum of all bytes before it. The
/// offset is the length of the bytes that the receiver has, or 0 if their checksum is wrong.
async fn first_to_send(
    path: &Path,
    size: u64,
    present: Present,
) -> anyhow::Result<(u64, crc32fast::Hasher)> {
    if present.len == 0 || present.len > size {
        return Ok((0, crc32fast::Hasher::new()));
    }
    let path = path.to_owned();
    let hasher = spawn_blocking(move || checksum(&path, present.len)).await??;
    Ok(match hasher.clone().finalize() == present.checksum {
        true => (present.len, hasher),
        false => (0, crc32fast::Hasher::new()),
    })
}
