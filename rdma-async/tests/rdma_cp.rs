//! Checks the example `rdma_cp`: files arrive unchanged, interrupted copies continue, and wrong
//! bytes are detected.

mod example;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use example::Example;

const SIZE: usize = 9_000_001;

fn start(words: &[&str], flags: &[&str]) -> Example {
    let start = match words[0] {
        "receive" => Example::start_server,
        _ => Example::start,
    };
    start("rdma_cp", &[words, flags, &["--quiet"]].concat())
}

/// Copies a file to a directory, and returns the errors of the sender and of the receiver.
fn copy(file: &Path, directory: &Path, flags: &[&str]) -> [Result<(), String>; 2] {
    let directory = directory.to_str().expect("a path in UTF-8");
    let words = ["receive", directory, "--listen", "127.0.0.1:0", "--once"];
    let mut receiver = start(&words, flags);
    let mut output = receiver.output();
    let line = example::line(&mut output);
    let address = line.strip_prefix("listening at ");
    let address = address.unwrap_or_else(|| panic!("the receiver printed {line:?}"));
    let sender = start(&["send", file.to_str().expect("UTF-8"), address], flags);
    [sender.finish(), receiver.finish()]
}

fn contents() -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..SIZE).map(|_| next()).collect()
}

/// A temporary directory of a test, which contains a file and a directory for its copy. Dropping
/// the value removes the directory.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("rdma_cp-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("to")).expect("a directory");
        fs::write(path.join("data"), contents()).expect("a file");
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("data")
    }

    fn target(&self) -> PathBuf {
        self.0.join("to")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

#[test]
fn a_file_arrives_unchanged_over_both_protocols() {
    for (name, flags) in [("rdma", &[][..]), ("tcp", &["--tcp"])] {
        let place = Place::new(name);
        assert_eq!(
            copy(&place.file(), &place.target(), flags),
            [Ok(()), Ok(())]
        );
        assert!(fs::read(place.target().join("data")).unwrap() == contents());
        assert!(!place.target().join("data.part").exists());
    }
}

#[test]
fn an_interrupted_copy_continues_and_a_wrong_part_is_replaced() {
    let place = Place::new("part");
    let part = place.target().join("data.part");
    let mut first = contents();
    first.truncate(5_000_000);
    fs::write(&part, &first).unwrap();
    assert_eq!(copy(&place.file(), &place.target(), &[]), [Ok(()), Ok(())]);
    assert!(fs::read(place.target().join("data")).unwrap() == contents());
    first[1_000_000] ^= 1;
    fs::write(&part, &first).unwrap();
    assert_eq!(copy(&place.file(), &place.target(), &[]), [Ok(()), Ok(())]);
    assert!(fs::read(place.target().join("data")).unwrap() == contents());
}

#[test]
fn an_empty_file_is_copied_and_a_missing_one_is_an_error() {
    let place = Place::new("empty");
    fs::write(place.file(), []).unwrap();
    assert_eq!(copy(&place.file(), &place.target(), &[]), [Ok(()), Ok(())]);
    assert_eq!(fs::read(place.target().join("data")).unwrap(), []);
    let missing = start(&["send", "/nowhere/at/all", "127.0.0.1:1"], &[]);
    let complaint = missing.finish().unwrap_err();
    assert!(complaint.contains("opening /nowhere/at/all"), "{complaint}");
}
