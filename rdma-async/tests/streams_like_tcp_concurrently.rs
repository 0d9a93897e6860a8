//! Checks that a stream behaves like a TCP connection while both ends write, flush, read, shut down
//! and drop concurrently: the same random scripts run on streams and on TCP connections, and give
//! the same bytes, ends and kinds of errors.
//!
//! While no end is dropped early, the results of TCP are deterministic. An end that is dropped
//! before it has read the peer's end makes them depend on timing: see [`check_end`] for the allowed
//! results.

mod common;

use std::future::Future;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use common::{bytes, pair_with, run_within, tcp_pair, two_threads};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

/// Time limit of one case on one kind of connection.
const CASE_TIMEOUT: Duration = Duration::from_secs(60);

/// A step of the writing future of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Write(usize),
    WriteVectored(usize),
    Flush,
    Shutdown,
    Pause(Pause),
}

/// A pause between two operations, which changes the order of the operations of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    Yield,
    Millisecond,
}

/// The last action of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Shuts down the direction, and reads until the peer's end.
    Shutdown,
    /// Reads until the peer's end, and drops the stream without a shutdown.
    DropAfterPeer,
    /// Drops the stream after the last write, and thus possibly while the peer writes and with
    /// unread bytes.
    Drop,
}

/// Operations of one end.
#[derive(Debug, Clone)]
struct Script {
    writes: Vec<Step>,
    /// Lengths of the reads, and pauses after them. The reads repeat until the peer's end.
    reads: Vec<(usize, Option<Pause>)>,
    ending: Ending,
}

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    Failed(ErrorKind),
}

/// Reason for which an end reads no further bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// The end was dropped before it has read the peer's end.
    Dropped,
    End,
    Failed(ErrorKind),
}

/// Results of one end.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    steps: Vec<(Step, Outcome)>,
    /// Number of bytes that the stream accepted.
    written: usize,
    /// Number of bytes that were read. Each was equal to the byte that the peer had written.
    read: usize,
    last: Last,
}

fn script() -> impl Strategy<Value = Script> {
    let length = || prop_oneof![0..200_usize, 0..10_000_usize, 0..300_000_usize];
    let pause = || {
        prop_oneof![
            4 => Just(Pause::Yield),
            1 => Just(Pause::Millisecond),
        ]
    };
    let step = prop_oneof![
        5 => length().prop_map(Step::Write),
        // Linux performs no check of the socket for an empty vectored write.
        3 => length().prop_map(|len| Step::WriteVectored(len.max(1))),
        2 => Just(Step::Flush),
        2 => pause().prop_map(Step::Pause),
    ];
    let read = (1..100_000_usize, prop::option::weighted(0.3, pause()));
    let ending = prop_oneof![
        2 => Just(Ending::Shutdown),
        1 => Just(Ending::DropAfterPeer),
        2 => Just(Ending::Drop),
    ];
    (vec(step, 0..20), vec(read, 1..10), ending).prop_map(|(writes, reads, ending)| Script {
        writes,
        reads,
        ending,
    })
}

impl Script {
    /// Returns the bytes that this end, of number `number`, writes.
    fn bytes(&self, number: usize) -> Vec<u8> {
        let lengths = self.writes.iter().map(|step| match step {
            Step::Write(len) | Step::WriteVectored(len) => *len,
            _ => 0,
        });
        bytes(lengths.sum(), number as u8)
    }
}

impl Pause {
    async fn pass(self) {
        match self {
            Self::Yield => yield_now().await,
            Self::Millisecond => sleep(Duration::from_millis(1)).await,
        }
    }
}

impl From<io::Result<()>> for Outcome {
    fn from(result: io::Result<()>) -> Self {
        match result {
            Ok(()) => Self::Done,
            Err(error) => Self::Failed(error.kind()),
        }
    }
}

/// Performs the operations of one end, and returns their results.
async fn perform<S: AsyncRead + AsyncWrite>(stream: S, number: usize, scripts: &Scripts) -> Record {
    let script = &scripts[number];
    let (own, expected) = (script.bytes(number), scripts[1 - number].bytes(1 - number));
    let (reader, writer) = tokio::io::split(stream);
    let mut record = Record {
        steps: Vec::new(),
        written: 0,
        read: 0,
        last: Last::Dropped,
    };
    {
        let reading = read_all(
            reader,
            script,
            &expected,
            &mut record.read,
            &mut record.last,
        );
        let writing = write_all(writer, script, &own, &mut record.steps, &mut record.written);
        let (mut reading, mut writing) = (pin!(reading), pin!(writing));
        match script.ending {
            Ending::Drop => tokio::select! {
                writer = &mut writing => drop(writer),
                reader = &mut reading => drop((reader, writing.await)),
            },
            _ => drop(tokio::join!(reading, writing)),
        }
    }
    record
}

/// Reads the bytes `expected` until the peer's end or an error.
async fn read_all<S: AsyncRead>(
    mut reader: ReadHalf<S>,
    script: &Script,
    expected: &[u8],
    read: &mut usize,
    last: &mut Last,
) -> ReadHalf<S> {
    let mut room = vec![0; 100_000];
    for (len, pause) in script.reads.iter().cycle() {
        match reader.read(&mut room[..*len]).await {
            Ok(0) => {
                assert_eq!(reader.read(&mut room).await.ok(), Some(0), "the end stays");
                *last = Last::End;
                break;
            }
            Ok(count) => {
                let rest = expected.get(*read..*read + count);
                assert!(rest == Some(&room[..count]), "bytes from {read}");
                *read += count;
            }
            Err(error) => {
                *last = Last::Failed(error.kind());
                break;
            }
        }
        if let Some(pause) = pause {
            pause.pass().await;
        }
    }
    reader
}

/// Performs the steps of `script`. After a failed step, the later steps are also performed.
async fn write_all<S: AsyncWrite>(
    mut writer: WriteHalf<S>,
    script: &Script,
    mut bytes: &[u8],
    steps: &mut Vec<(Step, Outcome)>,
    written: &mut usize,
) -> WriteHalf<S> {
    // A write after the shutdown fails.
    let end: &[_] = match script.ending {
        Ending::Shutdown => &[Step::Shutdown, Step::Write(4), Step::Flush],
        _ => &[],
    };
    for step in script.writes.iter().chain(end) {
        let outcome = match *step {
            Step::Write(len) | Step::WriteVectored(len) => {
                let (part, rest) = bytes.split_at_checked(len).unwrap_or((b"late", bytes));
                bytes = rest;
                let is_vectored = matches!(step, Step::WriteVectored(_));
                write_part(&mut writer, part, is_vectored, written).await
            }
            Step::Flush => writer.flush().await,
            Step::Shutdown => writer.shutdown().await,
            Step::Pause(pause) => {
                pause.pass().await;
                continue;
            }
        };
        steps.push((*step, outcome.into()));
    }
    writer
}

async fn write_part(
    writer: &mut (impl AsyncWrite + Unpin),
    mut part: &[u8],
    is_vectored: bool,
    written: &mut usize,
) -> io::Result<()> {
    loop {
        let (front, back) = part.split_at(part.len() / 3);
        let slices = [IoSlice::new(front), IoSlice::new(&[]), IoSlice::new(back)];
        let accepted = match is_vectored {
            true => writer.write_vectored(&slices).await?,
            false => writer.write(part).await?,
        };
        *written += accepted;
        part = &part[accepted..];
        if part.is_empty() {
            return Ok(());
        }
        assert!(accepted > 0, "a stream accepts a byte or waits");
    }
}

type Scripts = [Script; 2];

/// Checks the results of the end `number`. The result of an operation depends on timing only if the
/// peer is dropped early ([`Ending::Drop`]). Then, as on TCP:
///
/// - Writes succeed until the peer is gone. The first write after that fails with `BrokenPipe` or
///   `ConnectionReset`, the later ones with `BrokenPipe`.
/// - A shutdown succeeds or fails with `NotConnected`. On a stream, a shutdown fails only if
///   accepted bytes were lost.
/// - A flush succeeds. On a stream, a flush can also fail with `BrokenPipe`, if accepted bytes were
///   lost. TCP does not report such a loss.
/// - Reads return the peer's bytes and then the end. On TCP, a peer that is dropped with unread
///   bytes resets the connection. Then bytes can be lost, and a read fails with `ConnectionReset`,
///   or returns the end if a write got the error before. A stream delivers the bytes.
///
/// An end that is dropped early has read any number of the peer's bytes.
fn check_end(number: usize, scripts: &Scripts, records: &[Record; 2], is_tcp: bool) {
    let (record, peer) = (&records[number], &records[1 - number]);
    let is_dropped = scripts[number].ending == Ending::Drop;
    let is_peer_dropped = scripts[1 - number].ending == Ending::Drop;
    let (mut has_failed, mut is_shut) = (false, false);
    for (at, (step, outcome)) in record.steps.iter().enumerate() {
        let is_allowed = match (step, *outcome) {
            (Step::Write(_) | Step::WriteVectored(_), Outcome::Done) => !has_failed && !is_shut,
            (Step::Write(_) | Step::WriteVectored(_), Outcome::Failed(kind)) => {
                let is_first = !std::mem::replace(&mut has_failed, true);
                match kind {
                    ErrorKind::BrokenPipe => is_shut || is_peer_dropped,
                    ErrorKind::ConnectionReset => is_first && is_peer_dropped,
                    _ => false,
                }
            }
            (Step::Shutdown, _) if std::mem::replace(&mut is_shut, true) => false,
            (_, Outcome::Done) => true,
            (Step::Flush, Outcome::Failed(kind)) => {
                is_peer_dropped && !is_tcp && kind == ErrorKind::BrokenPipe
            }
            (_, Outcome::Failed(kind)) => is_peer_dropped && kind == ErrorKind::NotConnected,
        };
        assert!(
            is_allowed,
            "end {number}, on TCP {is_tcp}, step {at}: {step:?} gives {outcome:?}"
        );
    }
    let is_complete = record.read == peer.written;
    let is_allowed = match record.last {
        Last::End => is_complete || (is_tcp && is_peer_dropped),
        Last::Dropped => is_dropped,
        Last::Failed(kind) => {
            let may_reset = is_peer_dropped && (is_tcp || is_dropped);
            may_reset && kind == ErrorKind::ConnectionReset
        }
    };
    assert!(
        is_allowed && record.read <= peer.written,
        "end {number}, on TCP {is_tcp}: {:?} after {} of {} bytes",
        record.last,
        record.read,
        peer.written,
    );
}

/// Runs the scripts at the two ends of a connection in two tasks.
async fn perform_both<S: AsyncRead + AsyncWrite + Send + 'static>(
    ends: (S, S),
    scripts: &Arc<Scripts>,
) -> [Record; 2] {
    let spawn = |stream, number| {
        let scripts = Arc::clone(scripts);
        tokio::spawn(async move { perform(stream, number, &scripts).await })
    };
    let both = async { tokio::join!(spawn(ends.0, 0), spawn(ends.1, 1)) };
    let (first, second) = timeout(CASE_TIMEOUT, both)
        .await
        .expect("every operation ends");
    [
        first.expect("the first end"),
        second.expect("the second end"),
    ]
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut output = None;
    run_within(common::LIMIT, two_threads(), async {
        output = Some(future.await);
    });
    output.expect("the future has ended")
}

fn compare(cases: u32) {
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 50,
        ..Config::default()
    });
    let buffer = prop_oneof![Just(64_usize << 10), Just(1 << 20)];
    let outcome = runner.run(&([script(), script()], buffer), |(mut scripts, buffer)| {
        // One of two ends must end first.
        if scripts
            .iter()
            .all(|script| script.ending == Ending::DropAfterPeer)
        {
            scripts[1].ending = Ending::Shutdown;
        }
        let scripts = Arc::new(scripts);
        let (over_tcp, over_rdma) = block_on(async {
            let over_tcp = perform_both(tcp_pair().await, &scripts).await;
            let (client, server) = pair_with(|builder| builder.stream_buffer(buffer)).await;
            let streams = (client.into_stream(), server.into_stream());
            (over_tcp, perform_both(streams, &scripts).await)
        });
        for number in [0, 1] {
            check_end(number, &scripts, &over_tcp, true);
            check_end(number, &scripts, &over_rdma, false);
        }
        if scripts.iter().all(|script| script.ending != Ending::Drop) {
            prop_assert_eq!(over_tcp, over_rdma);
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn concurrent_operations_have_the_results_of_tcp() {
    compare(40);
}

#[test]
fn concurrent_operations_have_the_results_of_tcp_while_packets_are_lost() {
    const NAME: &str = "concurrent_operations_have_the_results_of_tcp_while_packets_are_lost";
    if common::loses_packets(NAME) {
        compare(12);
    }
}
