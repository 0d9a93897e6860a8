//! Checks that a stream behaves like a TCP connection: a random sequence of operations at both ends
//! has equal results on a stream and on a TCP connection.

mod common;

use std::future::Future;
use std::io::{ErrorKind, IoSlice};
use std::time::Duration;

use common::{bytes, pair, run_within, tcp_pair, two_threads};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Maximum number of unread bytes of a direction, less than both protocols buffer.
const UNREAD: usize = 200_000;
/// Time limit of one operation.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);

/// An operation at one end of a connection.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Write(usize),
    WriteVectored(usize),
    Flush,
    /// Reads this number of bytes, or all bytes if there are fewer.
    Read(usize),
    Shutdown,
    /// Drops the end if it has read all bytes that the peer has sent.
    Drop,
}

/// Result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Done,
    Bytes(Vec<u8>),
    End,
    Failed(ErrorKind),
}

fn operation() -> impl Strategy<Value = (usize, Operation)> {
    let length = prop_oneof![1..200_usize, 1..10_000_usize, 1..150_000_usize];
    let operation = prop_oneof![
        6 => length.clone().prop_map(Operation::Write),
        3 => length.clone().prop_map(Operation::WriteVectored),
        2 => Just(Operation::Flush),
        8 => length.prop_map(Operation::Read),
        1 => Just(Operation::Shutdown),
        1 => Just(Operation::Drop),
    ];
    (0..2_usize, operation)
}

/// One end of a connection, with the numbers of its bytes.
struct End<S> {
    stream: Option<S>,
    /// Number of bytes that this end has written and the peer has not read.
    unread: usize,
    /// Number of bytes that this end has written.
    written: usize,
    is_shut: bool,
}

impl<S> End<S> {
    fn new(stream: S) -> Self {
        Self {
            stream: Some(stream),
            unread: 0,
            written: 0,
            is_shut: false,
        }
    }

    /// Returns the next `len` bytes to write. The bytes depend on the number of bytes written
    /// before.
    fn next(&mut self, len: usize) -> Vec<u8> {
        let next = bytes(self.written + len, 1).split_off(self.written);
        self.written += len;
        self.unread += len;
        next
    }
}

/// Performs the operations, and returns their results. Skips operations whose results depend on
/// timing.
async fn perform<S: AsyncRead + AsyncWrite + Unpin>(
    ends: (S, S),
    operations: &[(usize, Operation)],
) -> Vec<Outcome> {
    let mut ends = [End::new(ends.0), End::new(ends.1)];
    let mut outcomes = Vec::new();
    for &(which, operation) in operations {
        let [first, second] = &mut ends;
        let (end, peer) = match which {
            0 => (first, second),
            _ => (second, first),
        };
        let done = timeout(OPERATION_TIMEOUT, perform_one(end, peer, operation)).await;
        outcomes.extend(done.unwrap_or_else(|_| panic!("{operation:?} does not end")));
    }
    outcomes
}

async fn perform_one<S: AsyncRead + AsyncWrite + Unpin>(
    end: &mut End<S>,
    peer: &mut End<S>,
    operation: Operation,
) -> Option<Outcome> {
    let is_peer_gone = peer.stream.is_none();
    let stream = end.stream.as_mut()?;
    let outcome = |done: std::io::Result<()>| match done {
        Ok(()) => Outcome::Done,
        Err(error) => Outcome::Failed(error.kind()),
    };
    match operation {
        Operation::Write(_) | Operation::WriteVectored(_) if end.is_shut => {
            Some(outcome(stream.write_all(b"late").await))
        }
        Operation::Write(len) | Operation::WriteVectored(len)
            if is_peer_gone || end.unread + len > UNREAD =>
        {
            None
        }
        Operation::Write(len) => {
            let next = end.next(len);
            let stream = end.stream.as_mut()?;
            Some(outcome(stream.write_all(&next).await))
        }
        Operation::WriteVectored(len) => {
            let next = end.next(len);
            let stream = end.stream.as_mut()?;
            let (front, back) = next.split_at(len / 2);
            let slices = [IoSlice::new(front), IoSlice::new(back)];
            let written = stream.write_vectored(&slices).await;
            Some(match written {
                // The number of accepted bytes may differ.
                Ok(count) => outcome(stream.write_all(&next[count..]).await),
                Err(error) => Outcome::Failed(error.kind()),
            })
        }
        Operation::Flush => (!is_peer_gone).then_some(outcome(stream.flush().await)),
        Operation::Read(len) if peer.unread > 0 => {
            let mut room = vec![0; len.min(peer.unread)];
            let read = stream.read_exact(&mut room).await;
            peer.unread -= room.len();
            Some(match read {
                Ok(_) => Outcome::Bytes(room),
                Err(error) => Outcome::Failed(error.kind()),
            })
        }
        Operation::Read(_) if peer.is_shut => {
            let mut room = [0; 8];
            Some(match stream.read(&mut room).await {
                Ok(0) => Outcome::End,
                Ok(count) => Outcome::Bytes(room[..count].to_vec()),
                Err(error) => Outcome::Failed(error.kind()),
            })
        }
        // The read waits for bytes that never arrive.
        Operation::Read(_) => None,
        Operation::Shutdown if is_peer_gone => None,
        Operation::Shutdown => {
            end.is_shut = true;
            Some(outcome(stream.shutdown().await))
        }
        Operation::Drop if peer.unread > 0 => None,
        Operation::Drop => {
            end.stream = None;
            end.is_shut = true;
            Some(Outcome::Done)
        }
    }
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
        ..Config::default()
    });
    let outcome = runner.run(&vec(operation(), 1..60), |operations| {
        let (over_tcp, over_rdma) = block_on(async {
            let over_tcp = perform(tcp_pair().await, &operations).await;
            let (client, server) = pair().await;
            let streams = (client.into_stream(), server.into_stream());
            (over_tcp, perform(streams, &operations).await)
        });
        prop_assert_eq!(over_tcp, over_rdma);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn random_operations_have_the_results_of_tcp() {
    compare(60);
}

#[test]
fn random_operations_have_the_results_of_tcp_while_packets_are_lost() {
    const NAME: &str = "random_operations_have_the_results_of_tcp_while_packets_are_lost";
    if common::loses_packets(NAME) {
        compare(20);
    }
}

#[test]
fn writes_to_a_disconnected_peer_fail_as_on_tcp() {
    async fn error_of(mut near: impl AsyncWrite + Unpin, far: impl Sized) -> ErrorKind {
        drop(far);
        let failing = async {
            loop {
                if let Err(error) = near.write_all(&[0; 1000]).await {
                    return error.kind();
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let kind = timeout(OPERATION_TIMEOUT, failing).await;
        kind.expect("a write fails at last")
    }
    run_within(common::LIMIT, two_threads(), async {
        let (near, far) = tcp_pair().await;
        let expected = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
        assert!(expected.contains(&error_of(near, far).await));
        let (near, far) = pair().await;
        let kind = error_of(near.into_stream(), far.into_stream()).await;
        assert!(expected.contains(&kind), "{kind:?}");
    });
}
