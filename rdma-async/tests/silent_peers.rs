//! Checks that waiting for a peer that no longer answers ends with an error in bounded time.

mod common;

use std::env;
use std::fs::{self, DirEntry};
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::hostile::Hostile;
use common::{
    assert_disconnected, assert_gone, builder, bytes, layout, listen, pattern, run, two_threads,
};
use rdma_async::{Error, LocalMrReadAccess, Rdma, RdmaBuilder};
use rdma_core::{ConnectOptions, WorkStatus};
use rustix::process::{Pid, Signal, kill_process};
use socket2::{SockFilter, SockRef};
use tokio::time::timeout;

/// Time limit until an error is detected.
const BOUND: Duration = Duration::from_secs(90);
/// Environment variable with the address to which a process connects as the peer of a test.
const PEER_OF: &str = "RDMA_ASYNC_TEST_PEER_OF";
const LENGTH: usize = 1 << 16;

async fn in_time<T>(what: &str, operation: impl Future<Output = T>) -> T {
    timeout(BOUND, operation)
        .await
        .unwrap_or_else(|_| panic!("{what} took longer than {BOUND:?}"))
}

#[track_caller]
fn assert_status(error: &Error, expected: WorkStatus) {
    match error {
        Error::Work(work) => assert_eq!(work.status, expected),
        other => panic!("not a failed request: {other}"),
    }
}

/// Checks that an operation failed because the process of the peer was killed.
///
/// The kernel frees the objects of a killed process one at a time. A read may find that the queue
/// pair still exists but its memory region does not; the connection then ends with that error.
#[track_caller]
fn assert_killed(error: &Error) {
    match error {
        Error::Work(work) if work.status == WorkStatus::RemoteAccess => {}
        other => assert_gone(other),
    }
}

async fn hostile_peer(
    configure: impl Fn(RdmaBuilder) -> RdmaBuilder,
    connect: impl AsyncFnOnce(SocketAddr) -> Hostile,
) -> (Hostile, Rdma) {
    let mut listener = listen(configure).await;
    let address = listener.local_address().unwrap();
    let (hostile, server) = tokio::join!(connect(address), listener.accept());
    (hostile, server.unwrap())
}

#[test]
fn an_idle_connection_detects_an_unreachable_peer() {
    run(async {
        let settings = |builder: RdmaBuilder| builder.keep_alive(Duration::from_secs(4));
        let (hostile, server) = hostile_peer(settings, Hostile::connect).await;
        // The peer's system drops every segment of the TCP connection, as a cut link does. Code 6
        // is the instruction to return, here a length of 0.
        let nothing = SockFilter::new(6, 0, 0, 0);
        SockRef::from(&hostile.stream)
            .attach_filter(&[nothing])
            .unwrap();
        let (received, ended) = in_time("the end", async {
            tokio::join!(server.receive(), server.ended())
        })
        .await;
        assert_disconnected(received);
        assert!(ended.to_string().contains("the peer is gone"), "{ended}");
    });
}

#[test]
fn a_request_to_a_queue_pair_that_does_not_answer_fails() {
    run(async {
        let (hostile, server) = hostile_peer(|builder| builder, Hostile::connect).await;
        // The TCP connection of the peer remains open.
        hostile.queue_pair.fail().unwrap();
        let outcome = in_time("a message", server.send(&pattern(&server, 8, 1))).await;
        assert_status(&outcome.unwrap_err(), WorkStatus::RetryExceeded);
        assert_status(&server.ended().await, WorkStatus::RetryExceeded);
    });
}

#[test]
fn sends_to_a_peer_without_receives_are_retried_up_to_the_set_count() {
    run(async {
        let few = ConnectOptions::default().rnr_retries(2);
        let options = |builder: RdmaBuilder| builder.options(few);
        let (hostile, server) = hostile_peer(options, Hostile::without_receives).await;
        let message = pattern(&server, 8, 1);
        let outcomes = in_time("a message", async {
            tokio::join!(
                server.send(&message),
                server.receive(),
                server.request_remote_mr(layout(8)),
            )
        })
        .await;
        assert_status(&outcomes.0.unwrap_err(), WorkStatus::RnrRetryExceeded);
        assert_status(&outcomes.1.unwrap_err(), WorkStatus::RnrRetryExceeded);
        assert_status(&outcomes.2.unwrap_err(), WorkStatus::RnrRetryExceeded);
        drop(hostile);
    });
}

/// Process that a test uses as its peer. Dropping the value kills the process.
struct Peer(Child);

impl Peer {
    /// Starts this program again as the peer of the test `test`.
    fn start(test: &str, address: SocketAddr) -> Self {
        let program = env::current_exe().expect("this program's path");
        let child = Command::new(program)
            .args(["--exact", test, "--nocapture"])
            .env(PEER_OF, address.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Self(child.expect("this program can be run again"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("the process is a child");
    }

    /// Stops all threads of the process.
    async fn stop(&self) {
        self.signal(Signal::STOP);
        let threads = PathBuf::from(format!("/proc/{}/task", self.0.id()));
        let is_stopped = |thread: DirEntry| {
            let state = fs::read_to_string(thread.path().join("stat")).expect("its state");
            // The name of the program, which comes before the state, ends with a parenthesis.
            state
                .rsplit_once(')')
                .is_some_and(|(_, state)| state.starts_with(" T"))
        };
        in_time("stopping a process", async {
            while !fs::read_dir(&threads)
                .expect("the threads")
                .all(|thread| is_stopped(thread.expect("a thread")))
            {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Runs `test` with a connection to another process, which runs the test `name` of this program.
fn with_peer(name: &str, test: impl AsyncFnOnce(Peer, Rdma)) {
    if let Ok(address) = env::var(PEER_OF) {
        return two_threads().block_on(async {
            let rdma = builder().connect(address).await.expect("the test listens");
            // Serves the requests of the test until the test ends.
            let message = pattern(&rdma, 8, 7);
            rdma.send(&message).await.expect("the test receives");
            rdma.ended().await;
        });
    }
    run(async {
        let limit = Duration::from_secs(10);
        let mut listener = listen(|builder| builder.response_timeout(limit)).await;
        let peer = Peer::start(name, listener.local_address().unwrap());
        let rdma = in_time("the peer's start", listener.accept())
            .await
            .unwrap();
        let message = in_time("a message", rdma.receive()).await.unwrap();
        assert_eq!(message.as_slice(), bytes(8, 7));
        test(peer, rdma).await;
    });
}

#[test]
fn operations_in_flight_fail_when_the_peers_process_is_killed() {
    with_peer(
        "operations_in_flight_fail_when_the_peers_process_is_killed",
        async |peer, rdma| {
            let remote = rdma.request_remote_mr(layout(LENGTH)).await.unwrap();
            let mut target = rdma.alloc_local_mr(layout(LENGTH)).unwrap();
            rdma.read(&mut target, &remote).await.unwrap();
            let message = pattern(&rdma, 64, 1);
            let failing = async {
                tokio::join!(
                    async {
                        loop {
                            if let Err(error) = rdma.read(&mut target, &remote).await {
                                return error;
                            }
                        }
                    },
                    async {
                        loop {
                            if let Err(error) = rdma.send(&message).await {
                                return error;
                            }
                        }
                    },
                    rdma.receive(),
                )
            };
            let ((read, sent, received), ()) = in_time("the operations", async {
                tokio::join!(failing, async { peer.signal(Signal::KILL) })
            })
            .await;
            assert_killed(&read);
            assert_killed(&sent);
            assert_killed(&received.unwrap_err());
            assert_killed(&rdma.request_remote_mr(layout(8)).await.unwrap_err());
        },
    );
}

#[test]
fn a_request_to_a_stopped_process_fails() {
    with_peer(
        "a_request_to_a_stopped_process_fails",
        async |peer, rdma| {
            peer.stop().await;
            // A device in the kernel acknowledges the request in place of the process.
            match in_time("a request", rdma.request_remote_mr(layout(8))).await {
                Err(Error::Timeout { .. }) => {}
                Err(error) => assert_gone(&error),
                Ok(memory) => panic!("a stopped process has lent {memory:?}"),
            }
        },
    );
}
