//! Checks that the last messages of a connection arrive if an end stops or is dropped immediately
//! after them.

mod common;

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::{builder, bytes, one_thread, pattern, two_threads};
use futures_util::future::try_join_all;
use rdma_async::{LocalMrReadAccess, Rdma, RdmaListener};
use tokio::runtime::Runtime;

/// Number of messages, above the number of control credits of an end.
const MESSAGES: usize = 100;
/// Message lengths, in bytes. Two lengths fit into one piece (up to 4352); the receiver reads
/// messages of the other two from the sender's memory.
const SIZES: [usize; 4] = [8, 4352, 4353, 64 << 10];
/// Number of connections for each length and kind of end.
const ROUNDS: usize = 2;

/// An end of a connection, and the runtime that serves it.
struct End {
    // The connection must be dropped before the runtime that drives it.
    rdma: Rdma,
    runtime: Runtime,
}

impl End {
    fn listen(runtime: &Runtime) -> (RdmaListener, SocketAddr) {
        let bound = runtime.block_on(builder().bind("127.0.0.1:0"));
        let listener = bound.expect("a listener");
        let address = listener.local_address().expect("its address");
        (listener, address)
    }

    /// Receives [`MESSAGES`] messages, several at a time, and checks their bytes.
    fn receive_all(&self, len: usize) {
        const AT_ONCE: usize = 10;
        let receive = async || {
            for _ in 0..MESSAGES / AT_ONCE {
                let message = self.rdma.receive().await?;
                assert_eq!(message.as_slice(), bytes(len, 7));
            }
            Ok::<_, rdma_async::Error>(())
        };
        let all = try_join_all((0..AT_ONCE).map(|_| receive()));
        self.runtime.block_on(all).expect("every message arrives");
    }

    /// Sends [`MESSAGES`] messages concurrently, and waits until they have arrived.
    fn send_all(&self, len: usize) {
        let message = pattern(&self.rdma, len, 7);
        let all = try_join_all((0..MESSAGES).map(|_| self.rdma.send(&message)));
        self.runtime.block_on(all).expect("every send ends well");
    }
}

/// Starts a thread that accepts one connection on a runtime of its own and runs `serve`.
fn server(
    runtime: fn() -> Runtime,
    serve: impl FnOnce(End) + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let (address_sender, address) = channel();
    let thread = thread::spawn(move || {
        let runtime = runtime();
        let (mut listener, address) = End::listen(&runtime);
        address_sender
            .send(address)
            .expect("the test waits for the address");
        let rdma = runtime.block_on(listener.accept()).expect("a client");
        serve(End { rdma, runtime });
    });
    (address.recv().expect("an address"), thread)
}

fn client(runtime: Runtime, address: SocketAddr) -> End {
    let rdma = runtime.block_on(builder().connect(address));
    End {
        rdma: rdma.expect("a server"),
        runtime,
    }
}

/// Runs a test in a thread of its own. Ends the process if the test takes too long.
fn run(test: impl FnOnce() + Send + 'static) {
    // This runtime drives only the thread of the test.
    common::run_on(two_threads(), async {
        tokio::task::spawn_blocking(test)
            .await
            .expect("the test passes");
    });
}

fn for_every_size_and_runtime(test: impl Fn(usize, fn() -> Runtime) + Send + 'static) {
    run(move || {
        for runtime in [one_thread, two_threads] {
            for len in SIZES {
                for _ in 0..ROUNDS {
                    test(len, runtime);
                }
            }
        }
    });
}

/// Blocks the thread until the other end of the channel is dropped.
fn wait_for_end(end: &Receiver<()>) {
    let _ended = end.recv();
}

#[test]
fn sends_succeed_when_the_receiver_and_its_runtime_are_dropped() {
    for_every_size_and_runtime(|len, runtime| {
        let (address, server) = server(runtime, move |end| end.receive_all(len));
        client(one_thread(), address).send_all(len);
        server.join().expect("the server");
    });
}

#[test]
fn sends_succeed_when_the_receiver_is_dropped_and_its_runtime_continues() {
    for_every_size_and_runtime(|len, runtime| {
        let (done, end_of_test) = channel::<()>();
        let (address, server) = server(runtime, move |end| {
            end.receive_all(len);
            let End { rdma, runtime } = end;
            drop(rdma);
            runtime.block_on(async {
                tokio::task::spawn_blocking(move || wait_for_end(&end_of_test))
                    .await
                    .expect("the end of the test");
            });
        });
        client(one_thread(), address).send_all(len);
        drop(done);
        server.join().expect("the server");
    });
}

#[test]
fn sends_succeed_when_the_receivers_runtime_is_no_longer_driven() {
    for_every_size_and_runtime(|len, _| {
        let (done, end_of_test) = channel();
        let (address, server) = server(one_thread, move |end| {
            end.receive_all(len);
            wait_for_end(&end_of_test);
        });
        client(one_thread(), address).send_all(len);
        drop(done);
        server.join().expect("the server");
    });
}

#[test]
fn answers_that_wait_for_credits_arrive_after_the_receiver_was_dropped() {
    const LEN: usize = 10_000;
    // The number of messages exceeds the receiver's control credits for its answers, but not the
    // sender's data credits.
    const MESSAGES: usize = 40;
    run(|| {
        let (received, all) = channel();
        let (address, server) = server(one_thread, move |end| {
            end.runtime.block_on(async {
                for _ in 0..MESSAGES {
                    let message = end.rdma.receive().await.expect("every message arrives");
                    assert_eq!(message.as_slice(), bytes(LEN, 7));
                }
            });
            drop(end);
            let _nobody_waits = received.send(());
        });
        let end = client(one_thread(), address);
        let message = pattern(&end.rdma, LEN, 7);
        let sends = (0..MESSAGES).map(|_| Box::pin(end.rdma.send(&message)));
        let mut sends: Vec<_> = sends.collect();
        end.runtime.block_on(async {
            let mut context = Context::from_waker(Waker::noop());
            for send in &mut sends {
                assert!(send.as_mut().poll(&mut context).is_pending());
            }
        });
        // This end returns no credits during this time. The receiver ends only if it does not wait
        // for credits.
        let _has_ended = all.recv_timeout(Duration::from_secs(2));
        let all = end.runtime.block_on(try_join_all(sends));
        all.expect("every send ends well");
        server.join().expect("the server");
    });
}

#[test]
fn posted_messages_arrive_when_the_sender_is_dropped() {
    for_every_size_and_runtime(|len, runtime| {
        let (address, server) = server(one_thread, move |end| end.receive_all(len));
        let end = client(runtime(), address);
        let message = pattern(&end.rdma, len, 7);
        end.runtime.block_on(async {
            for _ in 0..MESSAGES {
                end.rdma.post(&message).await.expect("a message is posted");
            }
        });
        drop(end);
        server.join().expect("the server");
    });
}
