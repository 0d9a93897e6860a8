//! The command `receive`: receives files.

use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::file::{Offer, Present, checksum, receive_u32, receive_u64};
use crate::link::{Arrived, Link, Listener};
use crate::progress::Progress;

/// Maximum number of received pieces that wait to be written to the file. With several pieces,
/// short delays of the disk do not stop the transfer.
const MAX_UNWRITTEN: usize = 4;

/// Listens at `address`, and receives files into `directory` until the program is ended, or only
/// one file with `once`.
pub(crate) async fn serve(
    directory: &Path,
    address: &str,
    tcp: bool,
    once: bool,
    shows_progress: bool,
) -> anyhow::Result<()> {
    ensure!(
        directory.is_dir(),
        "{} is not a directory",
        directory.display()
    );
    let listening = Listener::bind(address, tcp).await;
    let mut listener = listening.with_context(|| format!("listening at {address}"))?;
    println!("listening at {}", listener.address()?);
    loop {
        let link = listener.accept().await.context("accepting")?;
        let received = receive(link, directory, shows_progress).await;
        if once {
            return received;
        }
        if let Err(error) = received {
            eprintln!("rdma_cp: {error:#}");
        }
    }
}

/// Receives one file from the sender at the other end of `link`, and renames it once its checksum
/// is correct.
async fn receive(mut link: Link, directory: &Path, shows_progress: bool) -> anyhow::Result<()> {
    let offer = Offer::receive(&mut link).await?;
    let part = directory.join(format!("{}.part", offer.name));
    let (len, before) = present(&part).await?;
    let present = Present {
        len,
        checksum: before.clone().finalize(),
    };
    present.send(&mut link).await?;
    let begin = receive_u64(&mut link).await?;
    ensure!(begin == 0 || begin == len, "the sender begins at {begin}");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&part)
        .with_context(|| format!("creating {}", part.display()))?;
    file.set_len(begin)?;
    file.seek(SeekFrom::Start(begin))?;
    let (arrived, mut pieces) = mpsc::channel::<Arrived>(MAX_UNWRITTEN);
    // Writing to the file blocks, so a thread writes while the next bytes arrive.
    let writing = spawn_blocking(move || -> anyhow::Result<u32> {
        let mut hasher = if begin == 0 {
            crc32fast::Hasher::new()
        } else {
            before
        };
        while let Some(piece) = pieces.blocking_recv() {
            file.write_all(piece.bytes()).context("writing")?;
            hasher.update(piece.bytes());
        }
        file.sync_data().context("writing")?;
        Ok(hasher.finalize())
    });
    let mut progress = Progress::new(&offer.name, begin, offer.size, shows_progress);
    let mut rest = offer.size - begin;
    let mut outcome = Ok(());
    while rest > 0 {
        let max = usize::try_from(rest).unwrap_or(usize::MAX);
        let piece = match link.receive_some(max).await {
            Ok(piece) => piece,
            Err(error) => {
                outcome = Err(error).context("receiving");
                break;
            }
        };
        let len = piece.bytes().len();
        ensure!(len as u64 <= rest, "more bytes than the file has");
        rest -= len as u64;
        progress.add(len);
        // If the thread has failed, its result contains the reason.
        if arrived.send(piece).await.is_err() {
            break;
        }
    }
    drop(arrived);
    let found = writing.await??;
    outcome?;
    link.send(&found.to_be_bytes()).await?;
    if receive_u32(&mut link).await? != 1 {
        fs::remove_file(&part)?;
        bail!("{} has arrived with a wrong checksum", offer.name);
    }
    fs::rename(&part, directory.join(&offer.name))?;
    link.send(&1_u32.to_be_bytes()).await?;
    progress.finish();
    Ok(())
}

/// Returns the number of bytes that an earlier copy has left in the file `part`, and their
/// checksum.
async fn present(part: &Path) -> anyhow::Result<(u64, crc32fast::Hasher)> {
    let Ok(found) = fs::metadata(part) else {
        return Ok((0, crc32fast::Hasher::new()));
    };
    let (part, len) = (part.to_owned(), found.len());
    let hasher = spawn_blocking(move || checksum(&part, len)).await??;
    Ok((len, hasher))
}
