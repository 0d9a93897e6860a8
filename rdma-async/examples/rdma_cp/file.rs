//! The messages about a file, and checksums of files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context as _, ensure};

use crate::link::Link;

const MAGIC: u32 = 0x5244_4350;
/// Maximum length of a name in bytes, that of Linux.
const MAX_NAME: usize = 255;

/// The sender's first message: the name and the size of the file.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) name: String,
    pub(crate) size: u64,
}

/// The receiver's answer: the bytes that it has already, and their checksum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Present {
    pub(crate) len: u64,
    pub(crate) checksum: u32,
}

impl Offer {
    pub(crate) async fn send(&self, link: &mut Link) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&MAGIC.to_be_bytes());
        bytes.extend_from_slice(&(self.name.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&self.size.to_be_bytes());
        bytes.extend_from_slice(self.name.as_bytes());
        Ok(link.send(&bytes).await?)
    }

    pub(crate) async fn receive(link: &mut Link) -> anyhow::Result<Self> {
        ensure!(
            number(link).await? == MAGIC,
            "the peer is no sender of files"
        );
        let len = number(link).await? as usize;
        ensure!((1..=MAX_NAME).contains(&len), "a name of {len} bytes");
        let size = long(link).await?;
        let mut name = vec![0; len];
        link.receive(&mut name).await?;
        let name = String::from_utf8(name).context("a name that is not UTF-8")?;
        // The file must stay in the directory.
        ensure!(
            !name.contains('/') && name != "." && name != "..",
            "the name {name:?} is a path"
        );
        Ok(Self { name, size })
    }
}

impl Present {
    pub(crate) async fn send(self, link: &mut Link) -> anyhow::Result<()> {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.len.to_be_bytes());
        bytes[8..].copy_from_slice(&self.checksum.to_be_bytes());
        Ok(link.send(&bytes).await?)
    }

    pub(crate) async fn receive(link: &mut Link) -> anyhow::Result<Self> {
        Ok(Self {
            len: long(link).await?,
            checksum: number(link).await?,
        })
    }
}

/// Receives a number of four bytes.
pub(crate) async fn number(link: &mut Link) -> anyhow::Result<u32> {
    let mut bytes = [0; 4];
    link.receive(&mut bytes).await?;
    Ok(u32::from_be_bytes(bytes))
}

/// Receives a number of eight bytes.
pub(crate) async fn long(link: &mut Link) -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    link.receive(&mut bytes).await?;
    Ok(u64::from_be_bytes(bytes))
}

/// Returns the CRC-32 of the first `len` bytes of a file, as a hasher that further bytes can be
/// added to.
pub(crate) fn checksum(path: &Path, len: u64) -> io::Result<crc32fast::Hasher> {
    let mut hasher = crc32fast::Hasher::new();
    let mut rest = File::open(path)?.take(len);
    let mut room = vec![0; 1 << 20];
    loop {
        match rest.read(&mut room)? {
            0 => return Ok(hasher),
            count => hasher.update(&room[..count]),
        }
    }
}
