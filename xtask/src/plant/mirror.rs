//! Updates a copy of a directory tree file by file.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

/// Makes the directory tree `to` a copy of the directory tree `from` without the entries whose
/// names are in `left_out`. Files that are already equal keep their modification time, so that
/// cargo does not rebuild them.
pub(super) fn mirror(from: &Path, to: &Path, left_out: &[&str]) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_left_out = name.to_str().is_some_and(|name| left_out.contains(&name));
        // Cargo's target directory may have another name. In that case it contains this copy, and
        // must not be copied.
        if is_left_out || to.starts_with(entry.path()) {
            continue;
        }
        let (source, copy) = (entry.path(), to.join(&name));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            mirror(&source, &copy, left_out)?;
        } else if kind.is_file() {
            let bytes = fs::read(&source)?;
            if fs::read(&copy).ok().as_ref() != Some(&bytes) {
                fs::write(&copy, bytes)?;
            }
        } else {
            continue;
        }
        names.insert(name);
    }
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        if !names.contains(&entry.file_name()) {
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_has_what_the_original_has() {
        let place = std::env::temp_dir().join(format!("xtask-mirror-{}", std::process::id()));
        let (from, to) = (place.join("from"), place.join("to"));
        fs::create_dir_all(from.join("target")).unwrap();
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::create_dir_all(to.join("gone")).unwrap();
        fs::write(from.join("a/b/file"), "new").unwrap();
        fs::write(to.join("file"), "gone").unwrap();
        mirror(&from, &to, &["target"]).unwrap();
        assert_eq!(fs::read_to_string(to.join("a/b/file")).unwrap(), "new");
        let names: Vec<_> = fs::read_dir(&to)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(names, ["a"]);
        fs::remove_dir_all(&place).unwrap();
    }
}
