//! Writes cpio archives in the `newc` format, which the kernel unpacks as its initial root.

/// File types and permission bits of archive entries.
mod mode {
    pub(super) const DIRECTORY: u32 = 0o040_755;
    pub(super) const PROGRAM: u32 = 0o100_755;
    pub(super) const SYMLINK: u32 = 0o120_777;
}

/// A cpio archive under construction, to which entries can be added.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds an empty directory with the path `path` to the archive. The parent directory must have
    /// been added before, because the kernel unpacks the entries in order.
    pub(crate) fn directory(&mut self, path: &str) {
        self.entry(path, mode::DIRECTORY, &[]);
    }

    /// Adds a regular file with the path `path` and the content `contents` to this cpio archive.
    /// All users may read and execute the file.
    pub(crate) fn file(&mut self, path: &str, contents: &[u8]) {
        self.entry(path, mode::PROGRAM, contents);
    }

    /// Adds a symbolic link with the path `path` to the archive. The link points to `target`.
    pub(crate) fn symlink(&mut self, path: &str, target: &str) {
        self.entry(path, mode::SYMLINK, target.as_bytes());
    }

    /// Adds the entry that marks the end of the archive, and returns the bytes of the archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(contents.len()).expect("no file of an initramfs has 4 GiB");
        let name_size = u32::try_from(path.len() + 1).expect("paths are short");
        let header = [
            self.entries, // inode
            mode,
            0, // uid
            0, // gid
            1, // links
            0, // time of modification
            size,
            0, // device, major
            0, // device, minor
            0, // device special file, major
            0, // device special file, minor
            name_size,
            0, // checksum, unused in this variant
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in header {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;

    #[test]
    fn entries_are_aligned_and_sized() {
        let mut archive = Archive::default();
        archive.directory("bin");
        archive.file("bin/a", b"12345");
        archive.symlink("bin/b", "a");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);

        let mut names = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            assert_eq!(&bytes[at..at + 6], b"070701");
            let field = |index: usize| {
                let hex = std::str::from_utf8(&bytes[at + 6 + 8 * index..][..8]).unwrap();
                usize::from_str_radix(hex, 16).unwrap()
            };
            let (size, name_size) = (field(6), field(11));
            let name = &bytes[at + 110..at + 110 + name_size - 1];
            let data = (at + 110 + name_size).next_multiple_of(4);
            names.push((
                String::from_utf8(name.to_vec()).unwrap(),
                bytes[data..data + size].to_vec(),
            ));
            at = (data + size).next_multiple_of(4);
        }
        let expected: [(&str, &[u8]); 4] = [
            ("bin", b""),
            ("bin/a", b"12345"),
            ("bin/b", b"a"),
            ("TRAILER!!!", b""),
        ];
        let names: Vec<_> = names
            .iter()
            .map(|(n, d)| (n.as_str(), d.as_slice()))
            .collect();
        assert_eq!(names, expected);
    }
}
