//! Checks the example `lock`: mutual exclusion, and the end of a lease whose holder has died.

mod example;

use std::io::BufReader;
use std::process::ChildStdout;

use example::Example;

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
