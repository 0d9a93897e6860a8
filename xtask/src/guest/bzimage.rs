//! Extracts the compressed kernel from a `bzImage`.
//!
//! An emulated processor would take seconds to decompress a kernel. Therefore the host decompresses
//! the kernel once, and the guest boots the plain ELF image through its PVH entry point.

use anyhow::{Context, ensure};

/// The compression of the kernel inside a `bzImage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    /// LZMA2 in an xz stream: Debian up to 12.
    Xz,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
    /// LZ4, legacy frame.
    Lz4,
}

impl Compression {
    /// Returns the name of the program that decompresses this format. Called with `-dc`, the
    /// program decompresses from standard input to standard output.
    pub(crate) fn tool(self) -> &'static str {
        match self {
            Self::Xz => "xz",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
        }
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        let magics: [(&[u8], Self); 4] = [
            (b"\xfd7zXZ\0", Self::Xz),
            (b"\x1f\x8b", Self::Gzip),
            (b"\x28\xb5\x2f\xfd", Self::Zstd),
            (b"\x02\x21\x4c\x18", Self::Lz4),
        ];
        magics
            .iter()
            .find(|(magic, _)| bytes.starts_with(magic))
            .map(|&(_, kind)| kind)
    }
}

/// Offsets of fields in the boot sector, according to the kernel's x86 boot protocol.
mod offset {
    pub(super) const SETUP_SECTS: usize = 0x1f1;
    pub(super) const MAGIC: usize = 0x202;
    pub(super) const VERSION: usize = 0x206;
    pub(super) const PAYLOAD_OFFSET: usize = 0x248;
    pub(super) const PAYLOAD_LENGTH: usize = 0x24c;
}

/// Returns the compressed kernel inside `image`, a `bzImage`, with its compression.
pub(crate) fn payload(image: &[u8]) -> anyhow::Result<(Compression, &[u8])> {
    ensure!(
        image.get(offset::MAGIC..offset::MAGIC + 4) == Some(b"HdrS"),
        "not a bzImage"
    );
    let version = u16::from_le_bytes(field(image, offset::VERSION)?);
    ensure!(
        version >= 0x208,
        "boot protocol {version:#x} does not tell where the payload is"
    );
    let setup_sectors = match image[offset::SETUP_SECTS] {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (setup_sectors + 1) * 512
        + u32::from_le_bytes(field(image, offset::PAYLOAD_OFFSET)?) as usize;
    let length = u32::from_le_bytes(field(image, offset::PAYLOAD_LENGTH)?) as usize;
    let payload = image
        .get(start..start + length)
        .context("truncated bzImage")?;
    // The last four bytes are the decompressed size for the boot code, not a part of the stream.
    let stream = payload.get(..length.saturating_sub(4)).unwrap_or_default();
    let compression = Compression::of(stream).context("unknown compression of the kernel")?;
    Ok((compression, stream))
}

fn field<const N: usize>(image: &[u8], at: usize) -> anyhow::Result<[u8; N]> {
    let bytes = image.get(at..at + N).context("truncated boot sector")?;
    Ok(bytes.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 3 * 512 + 16];
        image[offset::SETUP_SECTS] = 2;
        image[offset::MAGIC..][..4].copy_from_slice(b"HdrS");
        image[offset::VERSION..][..2].copy_from_slice(&0x20f_u16.to_le_bytes());
        image[offset::PAYLOAD_OFFSET..][..4].copy_from_slice(&16_u32.to_le_bytes());
        let length = u32::try_from(payload.len()).unwrap();
        image[offset::PAYLOAD_LENGTH..][..4].copy_from_slice(&length.to_le_bytes());
        image.extend_from_slice(payload);
        image
    }

    #[test]
    fn finds_the_stream_without_its_size_field() {
        let image = image(b"\xfd7zXZ\0streamSIZE");
        let (compression, stream) = payload(&image).unwrap();
        assert_eq!(compression, Compression::Xz);
        assert_eq!(stream, b"\xfd7zXZ\0stream");
    }

    #[test]
    fn refuses_what_is_no_kernel() {
        assert!(payload(b"").is_err());
        assert!(payload(&[0; 4096]).is_err());
        assert!(payload(&image(b"plain bytes here")).is_err());
        let mut cut = image(b"\x1f\x8bstreamSIZE");
        cut.truncate(cut.len() - 1);
        assert!(payload(&cut).is_err());
    }
}
