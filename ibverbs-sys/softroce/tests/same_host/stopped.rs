//! Processes that are stopped (SIGSTOP) while long messages are on their way to or from them, and
//! are then continued or killed.

use std::thread;
use std::time::{Duration, Instant};

use ibverbs_sys::ibv_wc_status;
use softroce::fault::stops::StopPoint;

use crate::node::{LIMIT, Memory, Node, PATIENT};
use crate::number;
use crate::peer::{Peer, Role};
use crate::plan::{ENDLESS, KINDS, Plan, reuse};
use crate::resources::{await_resources, resources};
use crate::stream::Stream;

/// Exponent of a timeout of 34 ms: a peer that does not answer counts as ended after eight
/// timeouts.
const HASTY: u8 = 13;

/// Lengths of messages in bytes. Messages of the first length are copied only from memory of the
/// device.
const LENGTHS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

/// Stream of messages to another process.
struct Streaming {
    // Dropped first, because the process may be in a copy from or to the memory of the node.
    peer: Peer,
    node: Node,
    stream: Stream,
}

impl Streaming {
    /// Starts the other process of a plan, which begins immediately.
    fn start(plan: &Plan) -> Self {
        let node = plan.node();
        let plan_number = plan.encode();
        let mut peer = Peer::start(Role::Streams { plan: plan_number });
        peer.introduce(&node);
        node.connect(&peer.card);
        plan.post_receives(&node);
        peer.await_ready();
        let stream = Stream::new(plan, &peer.card);
        peer.go();
        Self { peer, node, stream }
    }

    /// Starts a process with which messages are exchanged without end.
    fn bystander() -> Self {
        Self::start(&Plan {
            length: Some(64 << 10),
            sends: ENDLESS,
            receives: ENDLESS,
            ..Plan::new(PATIENT)
        })
    }

    #[track_caller]
    fn go_on(&mut self) {
        assert_eq!(self.stream.go_on(&self.node), Ok(()), "{:?}", self.stream);
    }

    /// Posts and polls for this time.
    fn go_on_for(&mut self, time: Duration) {
        let begin = Instant::now();
        while begin.elapsed() < time {
            self.go_on();
        }
    }

    /// Posts and polls until this many more messages have been sent and received.
    fn advance(&mut self, messages: u64) {
        let Stream {
            completed,
            received,
            ..
        } = self.stream;
        let deadline = Instant::now() + LIMIT;
        while self.stream.completed < completed + messages
            || self.stream.received < received + messages
        {
            self.go_on();
            assert!(
                Instant::now() < deadline,
                "it is disturbed: {:?}",
                self.stream
            );
        }
    }

    /// Posts and polls until the process has stopped itself.
    fn advance_to_stop(&mut self) {
        let deadline = Instant::now() + LIMIT;
        while !self.peer.has_stopped() {
            self.go_on();
            assert!(
                Instant::now() < deadline,
                "it does not stop: {:?}",
                self.stream
            );
        }
    }

    /// Continues the process.
    fn resume(&self) {
        self.peer.signal(libc::SIGCONT);
    }

    /// Moves the queue pair to ERR, and takes the flushed requests.
    fn give_up(&mut self) {
        self.node.fail();
        // The completions of successful requests come first.
        let status = self.stream.fail(&self.node, || ());
        assert_eq!(status, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
        self.stream.flush(&self.node);
    }

    /// Ends the process and checks its status: the process checks all that it receives.
    #[track_caller]
    fn end(mut self) {
        let status = self.peer.end_of_input();
        assert!(status.success(), "{status}: {:?}", self.stream);
    }
}

/// Returns a plan for each length and kind of messages; every second plan uses shared receive
/// queues.
fn plans(timeout: u8) -> impl Iterator<Item = Plan> {
    let number = LENGTHS.len() * KINDS.len();
    (0..number).map(move |at| Plan {
        length: Some(LENGTHS[at % LENGTHS.len()]),
        kind: Some(KINDS[at / LENGTHS.len()]),
        is_shared: at % 2 == 0,
        crosses: at % 4 > 1,
        ..Plan::new(timeout)
    })
}

/// Returns a pseudorandom pause below `limit` for this round.
fn pause(round: usize, limit: Duration) -> Duration {
    limit * (round as u32 * 7919 % 101) / 101
}

pub(crate) fn messages_to_a_stopped_receiver_fail_and_other_messages_arrive() {
    let mut bystander = Streaming::bystander();
    for (round, plan) in plans(HASTY).enumerate() {
        let mut stopped = Streaming::start(&Plan {
            sends: ENDLESS,
            ..plan
        });
        if round % 2 == 0 {
            // In even rounds the process is stopped in the middle of messages, otherwise before the
            // first.
            stopped.go_on_for(pause(round, Duration::from_millis(5)));
        }
        stopped.peer.stop();
        let Streaming { stream, node, .. } = &mut stopped;
        let status = stream.fail(node, || bystander.go_on());
        assert_eq!(status, ibv_wc_status::IBV_WC_RETRY_EXC_ERR, "{plan:?}");
        stream.flush(node);
        bystander.advance(4);
        reuse(node);
        stopped.resume();
        stopped.end();
    }
    bystander.end();
}

pub(crate) fn messages_arrive_when_a_stopped_receiver_continues() {
    for (round, plan) in plans(PATIENT).enumerate() {
        let mut stopped = Streaming::start(&Plan { sends: 40, ..plan });
        stopped.go_on_for(pause(round, Duration::from_millis(3)));
        stopped.peer.stop();
        stopped.go_on_for(Duration::from_millis(5));
        stopped.resume();
        stopped.stream.finish(&stopped.node);
        stopped.peer.done();
        stopped.end();
    }
}

pub(crate) fn messages_arrive_when_a_stopped_sender_continues() {
    let mut bystander = Streaming::bystander();
    for (round, plan) in plans(PATIENT).enumerate() {
        let mut stopped = Streaming::start(&Plan {
            receives: 40,
            ..plan
        });
        stopped.go_on_for(pause(round, Duration::from_millis(5)));
        stopped.peer.stop();
        // Meanwhile this process copies the messages that were announced.
        stopped.go_on_for(Duration::from_millis(2));
        bystander.advance(4);
        stopped.resume();
        stopped.stream.finish(&stopped.node);
        stopped.peer.done();
        stopped.end();
    }
    bystander.end();
}

/// Checks streams in both directions while the peer is stopped at random moments.
pub(crate) fn streams_survive_stops_at_any_time() {
    let rounds = number("SOFTROCE_TEST_STOPS", 4);
    let mut stops = 0;
    for round in 0..rounds {
        let mut stopped = Streaming::start(&Plan {
            is_shared: round % 2 > 0,
            crosses: round % 4 > 1,
            sends: 200,
            receives: 200,
            ..Plan::new(PATIENT)
        });
        let deadline = Instant::now() + LIMIT;
        while !stopped.stream.is_over() {
            stops += 1;
            stopped.go_on_for(pause(stops, Duration::from_millis(2)));
            // Without waiting, so that the threads of the process stop one after the other.
            stopped.peer.signal(libc::SIGSTOP);
            stopped.go_on_for(pause(stops * 3, Duration::from_millis(1)));
            stopped.resume();
            assert!(Instant::now() < deadline, "no end: {:?}", stopped.stream);
        }
        stopped.peer.done();
        stopped.end();
    }
    println!("the peers were stopped {stops} times");
}

pub(crate) fn the_links_of_a_peer_that_is_killed_while_stopped_are_removed() {
    let mut bystander = Streaming::bystander();
    let mut before = None;
    for (round, plan) in plans(HASTY).enumerate() {
        let mut stopped = Streaming::start(&Plan {
            sends: [ENDLESS, 0, ENDLESS][round % 3],
            receives: [0, ENDLESS, ENDLESS][round % 3],
            ..plan
        });
        stopped.go_on_for(pause(round, Duration::from_millis(5)));
        stopped.peer.stop();
        stopped.go_on_for(pause(round, Duration::from_millis(3)));
        stopped.peer.kill();
        let Streaming { stream, node, .. } = &mut stopped;
        if round % 3 != 1 {
            let status = stream.fail(node, || bystander.go_on());
            assert_eq!(status, ibv_wc_status::IBV_WC_RETRY_EXC_ERR, "{plan:?}");
            stream.flush(node);
        } else if plan.is_shared {
            node.fail();
        } else {
            // A receive does not end without a failure of the queue pair.
            stopped.give_up();
        }
        bystander.advance(4);
        drop(stopped);
        await_same_resources(&mut before);
    }
    bystander.end();
}

/// Waits until the resources of this process equal `before`. In the first round, sets `before` to
/// them.
fn await_same_resources(before: &mut Option<(usize, usize)>) {
    let expected = *before.get_or_insert_with(|| {
        thread::sleep(Duration::from_millis(200));
        resources()
    });
    await_resources(expected);
}

/// Returns plans for each point at which the receiver stops itself, with each length and number of
/// passes.
fn plans_with_stops(timeout: u8) -> impl Iterator<Item = Plan> {
    let passes = [1, 2, 7];
    let points = [StopPoint::Copy, StopPoint::Copied];
    points.into_iter().enumerate().flat_map(move |(at, point)| {
        (LENGTHS.into_iter().zip(passes)).map(move |(length, pass)| Plan {
            length: Some(length),
            // The receiver does not copy the bytes of a write with immediate data.
            kind: Some(KINDS[at]),
            is_shared: pass % 2 == at as u8,
            stop: Some((point, pass)),
            ..Plan::new(timeout)
        })
    })
}

pub(crate) fn a_receiver_that_is_stopped_in_a_copy_continues() {
    for plan in plans_with_stops(PATIENT) {
        let mut stopped = Streaming::start(&Plan { sends: 40, ..plan });
        stopped.advance_to_stop();
        stopped.go_on_for(Duration::from_millis(5));
        stopped.resume();
        stopped.stream.finish(&stopped.node);
        stopped.peer.done();
        stopped.end();
    }
}

/// Checks that the receiver accepts no bytes that the program wrote after the requests had ended.
pub(crate) fn bytes_are_not_accepted_that_change_while_the_receiver_is_stopped() {
    for (plan, by_itself) in plans_with_stops(HASTY).flat_map(|plan| [(plan, false), (plan, true)])
    {
        let mut stopped = Streaming::start(&Plan {
            sends: ENDLESS,
            ..plan
        });
        stopped.advance_to_stop();
        if by_itself {
            let Streaming { stream, node, .. } = &mut stopped;
            let status = stream.fail(node, || ());
            assert_eq!(status, ibv_wc_status::IBV_WC_RETRY_EXC_ERR, "{plan:?}");
            stream.flush(node);
        } else {
            stopped.give_up();
        }
        reuse(&stopped.node);
        stopped.resume();
        // The process checks all bytes that it accepts.
        stopped.end();
    }
}

/// Checks that a receiver that is killed during a copy delays no other connection: the requests to
/// the receiver fail after the configured retries, other connections work, and the memory can be
/// deregistered.
pub(crate) fn a_receiver_that_is_killed_in_a_copy_delays_no_other_connection() {
    let mut bystander = Streaming::bystander();
    let mut before = None;
    for plan in plans_with_stops(HASTY) {
        let mut stopped = Streaming::start(&Plan {
            sends: ENDLESS,
            ..plan
        });
        stopped.advance_to_stop();
        stopped.peer.kill();
        let Streaming { stream, node, .. } = &mut stopped;
        let status = stream.fail(node, || bystander.go_on());
        assert_eq!(status, ibv_wc_status::IBV_WC_RETRY_EXC_ERR, "{plan:?}");
        stream.flush(node);
        node.memories.iter_mut().for_each(Memory::deregister);
        bystander.advance(4);
        drop(stopped);
        await_same_resources(&mut before);
    }
    bystander.end();
}

pub(crate) fn memory_that_a_stopped_receiver_copies_from_stays_registered() {
    for (round, point) in [StopPoint::Copy, StopPoint::Copied].into_iter().enumerate() {
        let mut stopped = Streaming::start(&Plan {
            length: Some(64 << 10),
            kind: Some(KINDS[0]),
            stop: Some((point, 1)),
            sends: ENDLESS,
            ..Plan::new(PATIENT)
        });
        stopped.advance_to_stop();
        stopped.give_up();
        let memory = &mut stopped.node.memories[round];
        assert_eq!(memory.try_deregister(), libc::EBUSY);
        stopped.resume();
        stopped.node.memories[round].deregister();
        stopped.end();
    }
}
