//! Rounds in which objects are created, used, failed and dropped in random order. Checks that
//! nothing is left behind.
//!
//! `ROUNDS` is the number of rounds, and `SEED` the seed of the first; a failure prints the seed of
//! its round.

mod chance;
mod heap;
mod world;

use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use rdma_core::Context;
use rdma_core::device::DeviceSelector;
use softroce::Kind;

use crate::chance::Chance;
use crate::world::{Tally, World};

/// Number of rounds before the first count, in which the process creates the objects that it keeps.
const WARM_UP: u64 = 20;

/// Maximum growth of the memory in bytes, for tables that grow and keep their size. An object of 2
/// KiB that is left behind in each of 1,000 rounds would exceed this limit.
const SLACK: usize = 1 << 20;

/// Maximum time until the descriptors that the device's thread opens for a moment are closed.
const SETTLING_TIME: Duration = Duration::from_secs(10);

fn number(variable: &str, usual: u64) -> u64 {
    match env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is no number")),
        Err(_) => usual,
    }
}

fn context() -> Context {
    let selector = DeviceSelector::from_environment().expect("a selector");
    let selector = selector.unwrap_or_else(|| "=softroce0".parse().expect("a selector"));
    Context::open_selected(&selector).unwrap_or_else(|error| panic!("{error}"))
}

/// Resources besides memory that a process can leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    /// Targets of the open descriptors, without inode numbers, in sorted order.
    descriptors: Vec<String>,
    objects: Vec<(Kind, u64)>,
}

impl Held {
    fn count() -> Self {
        let objects = Kind::ALL.map(|kind| (kind, softroce::objects(kind)));
        Self {
            descriptors: descriptors(),
            objects: objects.to_vec(),
        }
    }
}

/// Returns the targets of the open descriptors, without inode numbers, in sorted order.
fn descriptors() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd").expect("descriptors");
    let target = |entry: io::Result<fs::DirEntry>| {
        // A descriptor can be closed meanwhile, as that of this directory will be.
        let target = fs::read_link(entry.expect("a descriptor").path()).ok()?;
        let target = target.to_string_lossy().into_owned();
        Some(target.split(":[").next().unwrap_or_default().to_owned())
    };
    let mut targets: Vec<_> = entries.filter_map(target).collect();
    targets.sort_unstable();
    targets
}

/// The only test of this program, because others would change its counts.
#[test]
fn rounds_of_everything_leave_nothing_behind() {
    // A device of the kernel, which may be emulated, gets fewer rounds.
    let usual = if context().device().is_emulated() {
        1000
    } else {
        100
    };
    let rounds = number("ROUNDS", usual);
    let seed = number("SEED", 1);
    let mut tally = Tally::default();
    let mut round = |number: u64| {
        let seed = seed.wrapping_add(number);
        let told = Told(seed);
        let mut world = World::new(context(), Chance::new(seed));
        world.live();
        tally.add(&world.end());
        told.passed();
    };
    (0..WARM_UP).for_each(&mut round);
    let (held, heap) = (Held::count(), heap::in_use());
    (WARM_UP..WARM_UP + rounds).for_each(&mut round);
    println!("{tally:?}");
    // The device's thread can have descriptors open for a moment.
    let latest = Instant::now() + SETTLING_TIME;
    while Held::count() != held && Instant::now() < latest {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(Held::count(), held, "after {rounds} rounds");
    let grown = heap::in_use().saturating_sub(heap);
    assert!(grown < SLACK, "{grown} bytes more after {rounds} rounds");
    // The test is only valid if these events have happened.
    let Tally {
        posted,
        refused,
        succeeded,
        failed,
        abandoned,
    } = tally;
    for count in [posted, refused, succeeded, failed, abandoned] {
        assert!(rounds < 100 || count > 10, "{tally:?}");
    }
}

/// Prints the seed of a round that ends early.
struct Told(u64);

impl Told {
    fn passed(self) {
        std::mem::forget(self);
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        eprintln!("the round of SEED={} failed: ROUNDS=1 repeats it", self.0);
    }
}
