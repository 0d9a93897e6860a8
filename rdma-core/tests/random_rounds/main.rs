//! Make, use, fail and drop everything in random order, again and again: nothing is left behind.
//!
//! `ROUNDS` is how many rounds there are, `SEED` where they begin; a failure prints the seed of its
//! round.

mod chance;
mod heap;
mod world;

use std::env;
use std::fs;

use rdma_core::{Context, DeviceSelector};
use softroce::Kind;

use crate::chance::Chance;
use crate::world::{Tally, World};

/// Rounds before the first count: what the process makes once and keeps is there then.
const WARM_UP: u64 = 20;

/// How much more memory may be in use in the end: tables that grew and keep their size. A thing of
/// 2 KiB that each of 1,000 rounds left behind would be more.
const SLACK: usize = 1 << 20;

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

/// What a process can leave behind, besides memory.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    objects: Vec<(Kind, u64)>,
}

impl Held {
    fn count() -> Self {
        let objects = Kind::ALL.map(|kind| (kind, softroce::objects(kind)));
        Self {
            descriptors: fs::read_dir("/proc/self/fd").expect("descriptors").count(),
            objects: objects.to_vec(),
        }
    }
}

/// The one test of this program: others would disturb its counts.
#[test]
fn rounds_of_everything_leave_nothing_behind() {
    // A device in the kernel, emulated perhaps, is given fewer.
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
    assert_eq!(Held::count(), held, "after {rounds} rounds");
    let grown = heap::in_use().saturating_sub(heap);
    assert!(grown < SLACK, "{grown} bytes more after {rounds} rounds");
    // What is to be left behind nothing has to have happened.
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

/// Says which seed a round had, if it ends early.
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
