//! The messages of the protocol that copies a file, and checksums of files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context as _, ensure};

use crate::link::Link;

/// First field of an [`Offer`], by which the receiver recognizes this protocol: `RDCP` in ASCII.
const MAGIC: u32 = 0x5244_4350;
/// Maximum length of a file name, in bytes: the limit of Linux.
const MAX_NAME_LEN: usize = 255;

/// The sender's first message: the name and the size of the file.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) name: String,
    pub(crate) size: u64,
}

/// The receiver's reply to an [`Offer`]: the number of bytes that an earlier, interrupted copy has
/// left, and their checksum.
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
            receive_u32(link).await? == MAGIC,
            "the peer is not a sender of files"
        );
        let len = receive_u32(link).await? as usize;
        ensure!((1..=MAX_NAME_LEN).contains(&len), "a name of {len} bytes");
        let size = receive_u64(link).await?;
        let mut name = vec![0; len];
        link.receive(&mut name).await?;
        let name = String::from_utf8(name).context("a name that is not UTF-8")?;
        // The name must not lead out of the receiver's directory.
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
            len: receive_u64(link).await?,
            checksum: receive_u32(link).await?,
        })
    }
}

/// Receives a number of four bytes, in network byte order.
pub(crate) async fn receive_u32(link: &mut Link) -> anyhow::Result<u32> {
    let mut bytes = [0; 4];
    link.receive(&mut bytes).await?;
    Ok(u32::from_be_bytes(bytes))
}

/// Receives a number of eight bytes, in network byte order.
pub(crate) async fn receive_u64(link: &mut Link) -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    link.receive(&mut bytes).await?;
    Ok(u64::from_be_bytes(bytes))
}

/// Returns the CRC-32 of the first `len` bytes of a file, as a hasher to which further bytes can be
/// added.
pub(crate) fn checksum(path: &Path, len: u64) -> io::Result<crc32fast::Hasher> {
    let mut hasher = crc32fast::Hasher::new();
    let mut rest = File::open(path)?.take(len);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match rest.read(&mut buffer)? {
            0 => return Ok(hasher),
            count => hasher.update(&buffer[..count]),
        }
    }
}
