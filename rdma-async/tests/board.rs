//! Checks the example `board`: readers of other processes, of which some die, and an owner that
//! dies.

mod example;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::ChildStdout;

use example::Example;

const NAME: &str = "board";

/// Starts a reader, and waits until it has connected.
fn reader(address: &str, more: &[&str]) -> (Example, BufReader<ChildStdout>) {
    let mut reader = Example::start(NAME, &[&["read", address], more].concat());
    let mut output = reader.output();
    assert_eq!(example::line(&mut output), "reading");
    (reader, output)
}

/// Reads lines until `last`.
fn read_until(output: &mut impl BufRead, last: &str) {
    loop {
        let line = example::line(output);
        assert!(!line.is_empty(), "the output ends before {last:?}");
        if line == last {
            return;
        }
    }
}

#[test]
fn readers_that_are_killed_while_they_read_disturb_nobody() {
    let (mut owner, _output, address) = Example::serve(NAME);
    let mut notices = owner.child.stdin.take().expect("a pipe");
    let mut publish = |text: &str| writeln!(notices, "{text}").expect("the owner reads");
    let (waiting, mut waiting_output) = reader(&address, &[]);
    let (polling, mut polling_output) = reader(&address, &["--poll", "0"]);
    for round in 0..3 {
        let (mut victim, mut victim_output) = reader(&address, &["--poll", "0"]);
        let notice = format!("notice {round}");
        publish(&notice);
        read_until(&mut victim_output, &notice);
        victim.child.kill().expect("the reader is killed");
        read_until(&mut waiting_output, &notice);
        read_until(&mut polling_output, &notice);
    }
    publish("the last one");
    read_until(&mut waiting_output, "the last one");
    read_until(&mut polling_output, "the last one");
    drop(notices);
    for (reader, mut output) in [(waiting, waiting_output), (polling, polling_output)] {
        read_until(&mut output, "the board has ended");
        reader.finish().expect("the reader ends with the board");
    }
    owner.finish().expect("the owner ends with its input");
}

#[test]
fn readers_learn_that_the_owner_was_killed() {
    let (mut owner, _output, address) = Example::serve(NAME);
    let mut notices = owner.child.stdin.take().expect("a pipe");
    let readers = [reader(&address, &[]), reader(&address, &["--poll", "0"])];
    writeln!(notices, "a notice").expect("the owner reads");
    let mut readers = readers.map(|(reader, mut output)| {
        read_until(&mut output, "a notice");
        (reader, output)
    });
    owner.child.kill().expect("the owner is killed");
    for (_, output) in &mut readers {
        read_until(output, "the board has ended");
        let mut rest = String::new();
        output.read_to_string(&mut rest).expect("its output");
        assert_eq!(rest, "");
    }
    for (reader, _) in readers {
        reader.finish().expect("the reader ends");
    }
}
