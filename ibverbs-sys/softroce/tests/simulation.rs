//! Transport on a simulated network: many schedules from seeds, and small schedules that shrink.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use proptest::prelude::*;
use softroce::proto::{Counter, Mtu, Sequence};
use softroce::sim::{
    Conditions, Connection, Ending, Fate, Kind, Schedule, bottleneck_table, goodput_table, run_all,
};

/// Returns the number of schedules; the longer run uses 10,000.
fn schedules() -> u64 {
    let name = "SOFTROCE_SIM_SCHEDULES";
    match env::var(name) {
        Ok(count) => count
            .parse()
            .unwrap_or_else(|_| panic!("{name} is {count:?}, which is no number")),
        Err(_) => 1000,
    }
}

#[test]
fn every_schedule_keeps_the_rules() {
    let count = schedules();
    let sum = run_all(0, count).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{count} schedules: {sum:?}");
    assert!(sum.requests >= 200 * count, "{sum:?}");
    assert!(sum.traffic.packets >= 1000 * count, "{sum:?}");
    // Most requests succeed, but not all.
    assert!(sum.completed > sum.requests * 9 / 10, "{sum:?}");
    if count < 1000 {
        return;
    }
    // Every outcome of the transport occurs.
    assert!(sum.failed > 0, "{sum:?}");
    for counter in [
        Counter::DuplicateRequest,
        Counter::OutOfSequenceRequest,
        Counter::SentRnr,
        Counter::ReceivedRnr,
        Counter::ReceivedSequenceNak,
        Counter::ImpliedNak,
        Counter::AcknowledgementTimeout,
        Counter::RetryExceeded,
        Counter::RnrRetryExceeded,
        Counter::ReceiveDropped,
        Counter::RemoteAccessErrors,
        Counter::RemoteInvalidRequests,
    ] {
        assert!(sum.counters[counter as usize] > 0, "{counter:?}: {sum:?}");
    }
}

#[test]
fn a_seed_is_a_run() {
    for seed in 0..20 {
        let run = || Schedule::of_seed(seed).run(None).unwrap();
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn a_schedule_has_the_expected_content() {
    let mut kinds = 0;
    let mut endings = BTreeMap::new();
    for seed in 0..1000 {
        let schedule = Schedule::of_seed(seed);
        let posts = |connection: &Connection| match connection.kind {
            Kind::Extended => connection.requests[0],
            _ => connection.requests.iter().sum(),
        };
        let requests: u32 = schedule.connections.iter().map(posts).sum();
        assert!(requests >= 200, "seed {seed}");
        assert!(schedule.connections.len() >= 2, "seed {seed}");
        let largest = schedule.connections.iter().map(|c| c.largest).max();
        kinds += usize::from(largest == Some(1 << 20));
        let losses = schedule.conditions.loss + schedule.conditions.corrupt;
        assert!(losses <= if schedule.harsh { 300_000 } else { 100_000 });
        for ending in schedule.connections.iter().filter_map(|c| c.ending) {
            *endings.entry(format!("{ending:?}")).or_insert(0) += 1;
        }
    }
    assert!(kinds > 800, "{kinds} schedules have a message of 1 MiB");
    assert_eq!(endings.len(), Ending::ALL.len(), "{endings:?}");
}

#[test]
fn goodput_is_as_recorded() {
    check_recorded("goodput", &goodput_table());
}

#[test]
fn shares_of_a_link_are_as_recorded() {
    check_recorded("bottleneck", &bottleneck_table());
}

/// Checks that `table` equals the recorded table `name`. If the variable `SOFTROCE_SIM_RECORD`
/// exists, records the table instead.
fn check_recorded(name: &str, table: &str) {
    let record = "SOFTROCE_SIM_RECORD";
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    let file = directory.join(format!("{name}.txt"));
    assert!(!table.contains("failed"), "a connection failed:\n{table}");
    if env::var_os(record).is_some() {
        fs::write(&file, table).unwrap();
        return;
    }
    let recorded = fs::read_to_string(&file).unwrap_or_default();
    if table == recorded {
        return;
    }
    let changed: String = recorded
        .lines()
        .zip(table.lines())
        .filter(|(before, now)| before != now)
        .map(|(before, now)| format!("- {before}\n+ {now}\n"))
        .collect();
    panic!(
        "the table is not that of {}:\n{changed}if the transport is meant to behave so, record it with\n\
         {record}=1 cargo test -p softroce --test simulation recorded\nand look at the difference",
        file.display()
    );
}

fn small_connection() -> impl Strategy<Value = Connection> {
    let kind = prop_oneof![4 => Just(Kind::Reliable), 1 => Just(Kind::Extended)];
    let mtu = prop_oneof![Just(Mtu::Mtu256), Just(Mtu::Mtu1024)];
    let amounts = (1u32..12, 0u32..12, 1u32..5000);
    let limits = (1u32..20, 1u8..5, 1usize..10, 1usize..5);
    let kept = [(); 2].map(|()| prop_oneof![Just(0u32), 1u32..5, Just(80)]);
    let others = (0u32..64, any::<[bool; 3]>(), kept);
    (kind, mtu, amounts, limits, others).prop_map(
        |(
            kind,
            mtu,
            (there, back, largest),
            (window, reads, depth, receives),
            (start, flags, kept),
        )| {
            Connection {
                kind,
                nodes: [0, 1],
                requests: [there, back],
                largest,
                has_largest: true,
                mtu,
                sequences: [
                    Sequence::new(0xff_ffff - start),
                    Sequence::new(0xff_ffe0 + start),
                ],
                window,
                kept,
                reads,
                ack_timeout: Duration::from_millis(1),
                retry_count: 7,
                rnr_retry: 7,
                rnr_timer: 2,
                depth,
                receives,
                refill: Duration::from_micros(if flags[0] { 30 } else { 0 }),
                shared_receive: flags[1],
                signal_all: false,
                drain: flags[2],
                ending: None,
            }
        },
    )
}

fn fate() -> impl Strategy<Value = Fate> {
    let time = (0u64..200_000).prop_map(Duration::from_nanos);
    prop_oneof![
        3 => Just(Fate::Lose),
        2 => time.clone().prop_map(Fate::Hold),
        2 => time.prop_map(Fate::Duplicate),
        1 => any::<u64>().prop_map(Fate::Corrupt),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    })]

    /// Checks that seven faults do not exhaust the first try and seven retries.
    #[test]
    fn a_request_with_seven_faults_completes(
        seed in any::<u64>(),
        connections in prop::collection::vec(small_connection(), 1..3),
        script in prop::collection::btree_map(0u64..300, fate(), 0..8),
        batch in 0u64..3000,
        ring_messages in prop::option::of(0u64..20_000),
        again in any::<bool>(),
    ) {
        let schedule = Schedule {
            seed,
            conditions: Conditions::CLEAN,
            script: Some(script),
            harsh: false,
            nodes: 2,
            ipv6: false,
            batch: Duration::from_nanos(batch),
            ring_messages: ring_messages.map(Duration::from_nanos),
            again,
            connections,
        };
        if let Err(failure) = schedule.run(None) {
            return Err(TestCaseError::fail(failure.what));
        }
    }
}
