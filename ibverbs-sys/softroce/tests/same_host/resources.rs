//! Resources of this process: its descriptors, shared mappings and threads.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::node::LIMIT;

pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("procfs").count()
}

/// Returns the descriptors of this process, each with the file that it refers to.
pub(crate) fn open_files() -> BTreeSet<String> {
    let open = fs::read_dir("/proc/self/fd").expect("procfs");
    let name = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        let number = entry.file_name();
        Some(format!("{} {}", number.to_string_lossy(), target.display()))
    };
    open.filter_map(|entry| name(entry.ok()?)).collect()
}

/// Returns the name of each thread of this process, with its state and current system call.
pub(crate) fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("procfs");
    let of = |task: fs::DirEntry| {
        let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        format!("{} {}", read("stat").trim(), read("syscall").trim())
    };
    tasks.filter_map(Result::ok).map(of).collect()
}

/// Returns the mappings of files that processes share.
pub(crate) fn mappings() -> BTreeSet<String> {
    let maps = fs::read_to_string("/proc/self/maps").expect("procfs");
    let lines = maps.lines().filter(|line| line.contains("memfd:"));
    lines.map(str::to_owned).collect()
}

/// Returns the numbers of descriptors and of shared mappings.
pub(crate) fn resources() -> (usize, usize) {
    (descriptors(), mappings().len())
}

/// Waits until the resources of this process equal `before`.
pub(crate) fn await_resources(before: (usize, usize)) {
    let deadline = Instant::now() + LIMIT;
    while resources() != before {
        let now = resources();
        assert!(Instant::now() < deadline, "{now:?} and not {before:?}");
        thread::sleep(Duration::from_millis(1));
    }
}
