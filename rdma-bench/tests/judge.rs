//! Measurements of the judge in every layer, on an RDMA device: the one that `RDMA_DEVICE` selects,
//! or the first usable one. The tests fail if there is no device.

#![forbid(unsafe_code)]

use std::time::Duration;

use rdma_bench::Layer;
use rdma_bench::compare::Network;
use rdma_bench::limits::{
    Bound, Effort, Goal, Judge, Judged, Networks, Programs, Row, Run, Source, Statistic, Term, Unit,
};
use rdma_bench::machine::Machine;
use rdma_bench::{Metric, Verb};
use rdma_core::Context;

/// Minimum effort: one pair of the shortest runs.
const SHORT: Effort = Effort {
    checks: &[1],
    repeats: 0,
    time: Duration::from_millis(1),
};

const fn latency(layer: Layer, verb: Verb) -> Term {
    Term::of(Source::Ours(layer, Run::new(verb, Metric::Latency, 8)))
}

const TAILS: Row = Row {
    id: "T1",
    what: "send_lat 8 B, p99 over async - p99 over core",
    unit: Unit::Microseconds,
    figure: latency(Layer::Async, Verb::Send).with(Statistic::P99),
    yardstick: &[latency(Layer::Core, Verb::Send).with(Statistic::P99)],
    goal: Goal::Difference(Bound::AtMost(0.2)),
};

const CALLS: Row = Row {
    id: "T2",
    what: "echo_lat 8 B, p99.9 / median",
    unit: Unit::Microseconds,
    figure: latency(Layer::Rpc, Verb::Echo).with(Statistic::P99_9),
    yardstick: &[latency(Layer::Rpc, Verb::Echo)],
    goal: Goal::Ratio(Bound::AtMost(10.0)),
};

const ITERATIONS: Row = Row {
    id: "T3",
    what: "iterations",
    unit: Unit::Count,
    figure: latency(Layer::Core, Verb::Send).with(Statistic::Counter("/results/n_iterations")),
    yardstick: &[],
    goal: Goal::Value(Bound::AtMost(200_000.0)),
};

const BESIDE: Row = Row {
    id: "T4",
    what: "send 64 KiB beside send_lat 8 B / send_bw",
    unit: Unit::Bytes(65536),
    figure: Term::of(Source::Ours(
        Layer::Core,
        Run::new(Verb::Send, Metric::Latency, 8).with(&["--beside", "65536", "-t", "2"]),
    ))
    .with(Statistic::Beside),
    yardstick: &[Term::of(Source::Ours(
        Layer::Core,
        Run::new(Verb::Send, Metric::Bandwidth, 65536),
    ))],
    goal: Goal::Ratio(Bound::AtLeast(0.5)),
};

fn measured(row: &Row) -> Judged {
    let context = Context::open_default().expect("a device");
    let network = Network::of(&context).expect("a port");
    let programs = Programs {
        bench: env!("CARGO_BIN_EXE_rdma-bench").into(),
        yardstick: env!("CARGO_BIN_EXE_yardstick").into(),
        connections: env!("CARGO_BIN_EXE_connections").into(),
        streams: env!("CARGO_BIN_EXE_streams").into(),
        attacker: None,
        peers: None,
        examples: None,
        web: None,
    };
    let networks = Networks {
        softroce: network,
        kernel: None,
    };
    let judged = Judge::new(programs, networks, SHORT).judge(row);
    let judged = judged.expect("the row can be measured");
    assert_eq!((judged.pairs.len(), judged.verdict()), (1, None));
    assert!(judged.pairs[0].cache_line.iter().all(|line| *line > 0.0));
    judged
}

#[test]
fn percentiles_of_two_layers_differ_by_microseconds() {
    let judged = measured(&TAILS);
    let [pair] = &*judged.pairs else { panic!() };
    assert_eq!(
        pair.judged,
        pair.figure - pair.yardstick.expect("a yardstick")
    );
    let percentile = |document: usize| &pair.documents[document]["results"]["percentile_99"];
    assert_eq!(percentile(0).as_f64(), Some(pair.figure));
    assert_eq!(percentile(1).as_f64(), pair.yardstick);
}

#[test]
fn calls_are_judged_by_a_ratio_of_their_percentiles() {
    let judged = measured(&CALLS);
    let [pair] = &*judged.pairs else { panic!() };
    let tail = &pair.documents[0]["results"]["percentile_99.9"];
    assert_eq!(tail.as_f64(), Some(pair.figure));
    let median = &pair.documents[1]["results"]["t_typical"];
    assert_eq!(median.as_f64(), pair.yardstick);
}

#[test]
fn rates_beside_a_latency_are_compared_with_rates() {
    let judged = measured(&BESIDE);
    let [pair] = &*judged.pairs else { panic!() };
    let rate = |document: usize, pointer| {
        let millions = pair.documents[document].pointer(pointer);
        millions.and_then(|rate| rate.as_f64()).expect("a rate") * 1e6
    };
    assert_eq!(rate(0, "/results/beside/MsgRate"), pair.figure);
    assert_eq!(Some(rate(1, "/results/MsgRate")), pair.yardstick);
}

#[test]
fn counters_are_numbers_of_the_programs_document() {
    let judged = measured(&ITERATIONS);
    assert!(judged.figure() >= 1000.0, "{}", judged.figure());
    assert_eq!(
        (judged.median(), judged.yardstick()),
        (judged.figure(), None)
    );
    assert_eq!(judged.document(&Machine::detect())["unit"], "count");
}
