//! Resources of a process, to check that none is left behind.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time until destroyed objects are released.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Resources that a process can leave behind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Held {
    descriptors: usize,
    /// Pinned memory in kilobytes.
    pinned_memory: u64,
    /// Numbers of the device's objects, by kind: `pd`, `cq`, `qp`, `mr`, `ctx` and more.
    objects: BTreeMap<String, u64>,
}

impl Held {
    pub(crate) fn count(device: &str) -> Self {
        Self {
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
            pinned_memory: pinned_memory(),
            objects: objects(device),
        }
    }
}

fn pinned_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    kilobytes.expect("a line VmPin").parse().unwrap()
}

/// Returns the numbers of the device's objects. For a device of the kernel they come from `rdma
/// resource show`, for example `0: rxe_0: pd 1 cq 1 qp 1 cm_id 0 mr 0 ctx 0`.
fn objects(device: &str) -> BTreeMap<String, u64> {
    if device.starts_with("softroce") {
        let count = |kind| (format!("{kind:?}"), softroce::objects(kind));
        return softroce::Kind::ALL.into_iter().map(count).collect();
    }
    let output = Command::new("rdma").args(["resource", "show"]).output();
    let output = output.expect("the tool `rdma` of iproute2 runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let counts = text
        .lines()
        .find_map(|line| line.split_once(&format!(": {device}: ")))
        .unwrap_or_else(|| panic!("{device} is in {text:?}"))
        .1;
    let words: Vec<&str> = counts.split_whitespace().collect();
    let pair = |pair: &[&str]| (pair[0].to_owned(), pair[1].parse().unwrap());
    words.chunks_exact(2).map(pair).collect()
}

/// Runs each of `kinds` for `rounds` times, and checks that the process then has the same resources
/// as before.
pub(crate) fn unchanged_by(device: &str, rounds: usize, kinds: &[(&str, fn())]) {
    let before = Held::count(device);
    println!("{before:?}");
    for (name, kind) in kinds {
        (0..rounds).for_each(|_| kind());
        let mut after = Held::count(device);
        // The kernel may release a queue pair shortly after its destruction.
        let end = Instant::now() + MAX_WAIT;
        while after != before && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
            after = Held::count(device);
        }
        assert_eq!(after, before, "after {rounds} rounds of {name}");
    }
}
