//! Checks the example `lock`: mutual exclusion, and the end of a lease whose holder has died.

mod common;
mod example;
#[path = "../examples/lock/lease.rs"]
mod lease;

use std::collections::HashSet;
use std::io::BufReader;
use std::process::ChildStdout;
use std::time::Duration;

use example::Example;
use lease::Lock;
use rdma_async::RemoteMr;
use rdma_core::AccessFlags;

const NAME: &str = "lock";

/// Starts a worker with the additional options `more`. The lease is longer than any pause of a
/// worker on a busy machine.
fn work(address: &str, id: usize, more: &[&str]) -> Example {
    let id = id.to_string();
    let words = ["work", address, "--id", &id];
    Example::start(NAME, &[&words[..], more].concat())
}

/// Ends the server, and returns the counter.
fn counter((mut server, mut output, _): (Example, BufReader<ChildStdout>, String)) -> u64 {
    drop(server.child.stdin.take());
    let line = example::line(&mut output);
    server.finish().expect("the server ends with its input");
    let counter = line.strip_prefix("counter: ").expect("the counter");
    counter.parse().expect("a number")
}

#[test]
fn no_increment_of_concurrent_workers_is_lost() {
    let server = Example::serve(NAME);
    let options = ["--count", "50", "--lease", "20000"];
    let workers: Vec<_> = (1..=4).map(|id| work(&server.2, id, &options)).collect();
    for worker in workers {
        worker.finish().expect("the worker succeeds");
    }
    assert_eq!(counter(server), 200);
}

#[test]
fn the_lock_of_a_dead_holder_is_taken_after_its_lease() {
    let server = Example::serve(NAME);
    let mut holder = work(&server.2, 1, &["--hang"]);
    assert_eq!(example::line(&mut holder.output()), "holding");
    holder.child.kill().expect("the holder is killed");
    let options = ["--count", "10", "--lease", "2000"];
    let worker = work(&server.2, 2, &options);
    worker.finish().expect("the worker succeeds");
    assert_eq!(counter(server), 10);
}

/// A waiting worker that reads the word of several leases of one holder must not read the same word
/// twice: it would count the leases as one unchanged lease, and take a lock that is held.
#[test]
fn each_lease_has_another_word() {
    common::run(async {
        let (client, server) = common::pair().await;
        let memory = server.device().protection_domain().allocate(8).unwrap();
        let memory = memory.expose(AccessFlags::REMOTE).unwrap();
        let word = RemoteMr::from_token(memory.remote());
        let mut lock = Lock::new(&client, word, 7, Duration::from_secs(600));
        let mut words = HashSet::new();
        for _ in 0..4 {
            let mut held = lock.take().await.unwrap();
            assert!(words.insert(memory.load_u64(0).unwrap()), "taken");
            for _ in 0..2 {
                held.renew().await.unwrap();
                held.check().unwrap();
                assert!(words.insert(memory.load_u64(0).unwrap()), "renewed");
            }
            held.release().await.unwrap();
            assert_eq!(memory.load_u64(0).unwrap(), 0);
        }
        assert!(words.iter().all(|word| word >> 32 == 7), "{words:x?}");
    });
}
