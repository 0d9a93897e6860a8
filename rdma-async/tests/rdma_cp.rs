//! Checks the example `rdma_cp`: files arrive unchanged, interrupted copies continue, and wrong
//! bytes are detected.

mod example;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ChildStdout;
use std::thread;
use std::time::{Duration, Instant};

use example::Example;

const SIZE: usize = 9_000_001;

fn start(words: &[&str], flags: &[&str]) -> Example {
    let start = match words[0] {
        "receive" => Example::start_server,
        _ => Example::start,
    };
    start("rdma_cp", &[words, flags, &["--quiet"]].concat())
}

/// Starts a receiver. Returns the receiver, its output, which must be kept open, and its address.
fn receiver(directory: &Path, flags: &[&str]) -> (Example, BufReader<ChildStdout>, String) {
    let directory = directory.to_str().expect("a path in UTF-8");
    let mut receiver = start(&["receive", directory, "--listen", "127.0.0.1:0"], flags);
    let mut output = receiver.output();
    let line = example::line(&mut output);
    let address = line.strip_prefix("listening at ");
    let address = address.unwrap_or_else(|| panic!("the receiver printed {line:?}"));
    let address = address.to_owned();
    (receiver, output, address)
}

fn sender(file: &Path, address: &str, flags: &[&str]) -> Example {
    start(&["send", file.to_str().expect("UTF-8"), address], flags)
}

/// Copies a file to a directory, and returns the errors of the sender and of the receiver.
fn copy(file: &Path, directory: &Path, flags: &[&str]) -> [Result<(), String>; 2] {
    let (receiver, _output, address) = receiver(directory, &[flags, &["--once"]].concat());
    [sender(file, &address, flags).finish(), receiver.finish()]
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

#[test]
fn a_copy_whose_sender_was_killed_continues_at_the_part() {
    const LEN: usize = 64 << 20;
    let place = Place::new("killed");
    let mut all = contents();
    all.resize(LEN, 7);
    fs::write(place.file(), &all).unwrap();
    let part = place.target().join("data.part");
    let present = || fs::metadata(&part).map_or(0, |part| part.len());
    let (_receiver, _output, address) = receiver(&place.target(), &[]);
    let interrupted = || {
        let interrupted = sender(&place.file(), &address, &[]);
        let deadline = Instant::now() + Duration::from_secs(60);
        while present() < 1 << 20 && !place.target().join("data").exists() {
            assert!(Instant::now() < deadline, "no bytes arrive");
            thread::sleep(Duration::from_millis(1));
        }
        // Kills the process.
        drop(interrupted);
        let done = place.target().join("data");
        !done.exists() || fs::remove_file(done).is_err()
    };
    // The copy may have completed before the sender was killed.
    assert!(
        (0..10).any(|_| interrupted()),
        "ten copies were not interrupted"
    );
    let mut continued = sender(&place.file(), &address, &[]);
    let sent = example::line(&mut continued.output());
    assert_eq!(continued.finish(), Ok(()));
    let sent = sent.split(' ').nth(1).and_then(|len| len.parse().ok());
    let sent: usize = sent.expect("the number of sent bytes");
    assert!(sent <= LEN - (1 << 20), "{sent} bytes were sent again");
    assert!(fs::read(place.target().join("data")).unwrap() == all);
    assert!(!part.exists());
}

/// Forwards the bytes of one connection to `address` and back, and inverts a bit of the byte
/// `wrong` on the way to `address`.
fn forward_with_error(listener: &TcpListener, address: &str, wrong: usize) {
    fn forward(mut from: TcpStream, mut to: TcpStream, wrong: Option<usize>) {
        let (mut passed, mut room) = (0, vec![0; 1 << 16]);
        while let Ok(len @ 1..) = from.read(&mut room) {
            if let Some(at) = wrong
                && (passed..passed + len).contains(&at)
            {
                room[at - passed] ^= 1;
            }
            passed += len;
            if to.write_all(&room[..len]).is_err() {
                break;
            }
        }
        drop(to.shutdown(Shutdown::Write));
    }
    let (sender, _) = listener.accept().expect("the sender connects");
    let receiver = TcpStream::connect(address).expect("the receiver listens");
    let back = [&receiver, &sender].map(|end| end.try_clone().expect("a descriptor"));
    let [from, to] = back;
    let answers = thread::spawn(move || forward(from, to, None));
    forward(sender, receiver, Some(wrong));
    answers.join().expect("the bytes are forwarded");
}

#[test]
fn a_wrong_checksum_is_detected_and_the_file_is_not_kept() {
    let place = Place::new("wrong");
    let flags = ["--tcp"];
    let (receiver, _output, address) = receiver(&place.target(), &["--tcp", "--once"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = listener.local_addr().unwrap().to_string();
    let forwarding = thread::spawn(move || forward_with_error(&listener, &address, 4_000_000));
    let sender = sender(&place.file(), &proxy, &flags);
    for end in [sender, receiver] {
        let complaint = end.finish().unwrap_err();
        assert!(complaint.contains("wrong checksum"), "{complaint}");
    }
    forwarding.join().unwrap();
    assert_eq!(fs::read_dir(place.target()).unwrap().count(), 0);
}

#[test]
fn both_ends_show_the_progress() {
    let place = Place::new("progress");
    let directory = place.target();
    let directory = directory.to_str().expect("UTF-8");
    let words = ["receive", directory, "--listen", "127.0.0.1:0", "--once"];
    let mut receiver = Example::start_server("rdma_cp", &words);
    let mut output = receiver.output();
    let address = example::line(&mut output);
    let address = address.strip_prefix("listening at ").expect("an address");
    let file = place.file();
    let words = ["send", file.to_str().expect("UTF-8"), address];
    let sender = Example::start("rdma_cp", &words);
    for mut end in [sender, receiver] {
        let errors = BufReader::new(end.child.stderr.take().expect("a pipe"));
        let lines: Vec<_> = errors.lines().map(|line| line.expect("a line")).collect();
        assert!(end.child.wait().unwrap().success());
        let bar = format!("data [{}] 100.0 %", "#".repeat(30));
        let shown = lines.iter().any(|line| line.contains(&bar));
        assert!(shown, "{lines:?}");
    }
}
