//! Checks the example `ring_all_reduce`: several processes add their vectors.

mod example;

use std::io::Write;

use example::Example;

/// Runs the example with `ranks` processes, and checks that each process has the correct sum.
fn reduce(ranks: usize, elements: usize) {
    let mut programs = Vec::new();
    for rank in 0..ranks {
        let (rank, ranks) = (rank.to_string(), ranks.to_string());
        let elements = elements.to_string();
        let words = ["--rank", &rank, "--ranks", &ranks, "--elements", &elements];
        let mut program = Example::start("ring_all_reduce", &words);
        let mut output = program.output();
        let line = example::line(&mut output);
        let address = line.strip_prefix("listening at ").expect("its address");
        programs.push((program, output, address.to_owned()));
    }
    for rank in 0..ranks {
        let next = programs[(rank + 1) % ranks].2.clone();
        let mut input = programs[rank].0.child.stdin.take().expect("a pipe");
        writeln!(input, "{next}").expect("the program reads a line");
    }
    for (program, mut output, _) in programs {
        let line = example::line(&mut output);
        if !line.starts_with(&format!("{elements} elements are right")) {
            panic!("{line:?}, {:?}", program.finish());
        }
        program.finish().expect("the program succeeds");
    }
}

#[test]
fn four_processes_add_their_vectors() {
    // Each chunk has two pieces, the second of which is shorter.
    reduce(4, 4 * 70_000);
}

#[test]
fn two_and_three_processes_add_their_vectors() {
    reduce(2, 2);
    reduce(3, 3000);
}
