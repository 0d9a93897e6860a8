//! Streams of long messages between two processes. Each message has bytes of its own. Each side
//! checks the bytes, the numbers and the order.

use std::thread;
use std::time::{Duration, Instant};

use ibverbs_sys::{ibv_wc, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode};
use softroce::fault::stops::stop_at;

use crate::node::{Card, LIMIT, Node, Request};
use crate::plan::{Plan, RECEIVE, count};

/// Time without a message after which a stream is over.
const QUIET: Duration = Duration::from_millis(20);

/// Progress of a plan on one side.
#[derive(Debug)]
pub(crate) struct Stream {
    plan: Plan,
    peer: Card,
    /// Number of posted sends, and of completed sends.
    posted: u64,
    pub(crate) completed: u64,
    /// Number of posted receives, and of received messages.
    offered: u64,
    pub(crate) received: u64,
}

impl Stream {
    /// Creates the stream of a plan to this peer. The first receives must be posted.
    pub(crate) fn new(plan: &Plan, peer: &Card) -> Self {
        Self {
            plan: *plan,
            peer: *peer,
            posted: 0,
            completed: 0,
            offered: plan.first_receives(),
            received: 0,
        }
    }

    /// Posts messages and takes completions. If a request fails, returns its status.
    pub(crate) fn go_on(&mut self, node: &Node) -> Result<(), ibv_wc_status> {
        while self.posted < count(self.plan.sends)
            && self.posted - self.completed < self.plan.window()
        {
            self.post(node);
        }
        let Some(wc) = node.poll() else {
            thread::yield_now();
            return Ok(());
        };
        if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
            self.count(&wc);
            return Err(wc.status);
        }
        self.take(node, &wc);
        Ok(())
    }

    /// Posts and polls until all messages are sent and received.
    #[track_caller]
    pub(crate) fn finish(&mut self, node: &Node) {
        let deadline = Instant::now() + LIMIT;
        while !self.is_over() {
            assert_eq!(self.go_on(node), Ok(()), "{self:?}");
            assert!(
                Instant::now() < deadline,
                "no end within {LIMIT:?}: {self:?}"
            );
        }
    }

    /// Posts and polls until a request fails, and calls `others` meanwhile. Returns the status of
    /// that request.
    #[track_caller]
    pub(crate) fn fail(&mut self, node: &Node, mut others: impl FnMut()) -> ibv_wc_status {
        let deadline = Instant::now() + LIMIT;
        loop {
            others();
            if let Err(status) = self.go_on(node) {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "no failure within {LIMIT:?}: {self:?}"
            );
        }
    }

    /// Takes the completions of all posted requests after a failure.
    #[track_caller]
    pub(crate) fn flush(&mut self, node: &Node) {
        // Receives of a shared receive queue are not flushed.
        while self.completed < self.posted || !self.plan.is_shared && self.received < self.offered {
            let wc = node.complete();
            assert_eq!(wc.status, ibv_wc_status::IBV_WC_WR_FLUSH_ERR, "{self:?}");
            self.count(&wc);
        }
    }

    /// Returns whether all messages are sent and received.
    pub(crate) fn is_over(&self) -> bool {
        self.completed == count(self.plan.sends) && self.received == count(self.plan.receives)
    }

    fn post(&mut self, node: &Node) {
        let plan = &self.plan;
        let (id, bytes) = (self.posted, plan.bytes(self.posted, plan.is_peer));
        let (memory, offset) = plan.sent_from(id);
        node.memories[memory].fill(offset, bytes);
        let (target, at) = plan.written_at(id);
        let (address, key) = self.peer.memories[target];
        node.post(&Request {
            id,
            opcode: plan.kind_of(id),
            sge: node.memories[memory].sge(offset, bytes.len()),
            remote: (address + at as u64, key),
            add: 0,
        });
        self.posted += 1;
    }

    /// Handles the completion of a request that succeeded.
    fn take(&mut self, node: &Node, wc: &ibv_wc) {
        if self.count(wc) {
            self.check(node, self.received - 1, wc);
            if self.offered < count(self.plan.receives) {
                self.plan.post_receive(node, self.offered);
                self.offered += 1;
            }
        }
    }

    /// Counts a completion, which must be the next one of its kind. Returns whether it is that of a
    /// receive.
    fn count(&mut self, wc: &ibv_wc) -> bool {
        let is_receive = wc.wr_id & RECEIVE != 0;
        let next = if is_receive {
            &mut self.received
        } else {
            &mut self.completed
        };
        assert_eq!(wc.wr_id & !RECEIVE, *next, "completed out of order");
        *next += 1;
        is_receive
    }

    /// Checks that message `id` arrived as the other side has sent it.
    fn check(&self, node: &Node, id: u64, wc: &ibv_wc) {
        let plan = &self.plan;
        let bytes = plan.bytes(id, !plan.is_peer);
        let kind = plan.kind_of(id);
        let is_write = kind == ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
        let (opcode, (memory, offset)) = if is_write {
            let opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
            (opcode, plan.written_at(id))
        } else {
            (ibv_wc_opcode::IBV_WC_RECV, plan.received_at(id))
        };
        assert_eq!(
            (wc.opcode, wc.byte_len),
            (opcode, bytes.len() as u32),
            "{id}"
        );
        if kind != ibv_wr_opcode::IBV_WR_SEND {
            // SAFETY: the message has immediate data.
            assert_eq!(unsafe { wc.__bindgen_anon_1.imm_data }, id as u32);
        }
        let holds = node.memories[memory].holds(offset, bytes);
        assert!(holds, "other bytes in message {id} of {plan:?}");
    }
}

/// Sends and receives as the peer, until the plan is complete or the test closes the input.
pub(crate) fn play(plan: &Plan, node: &Node, test: &Card) {
    if let Some((point, pass)) = plan.stop {
        stop_at(point, pass.into());
    }
    let mut stream = Stream::new(plan, test);
    let mut has_failed = false;
    let deadline = Instant::now() + 2 * LIMIT;
    for round in 0_u32.. {
        if has_failed {
            thread::yield_now();
        } else {
            // The test reports the failures of its own end.
            has_failed = stream.go_on(node).is_err();
        }
        if stream.is_over() || round % 64 == 0 && is_input_closed() {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "the test does not end: {stream:?}"
        );
    }
    // Receives all messages that were sent before the end.
    let mut quiet = Instant::now();
    while !has_failed && quiet.elapsed() < QUIET {
        let before = stream.received;
        has_failed = stream.go_on(node).is_err();
        if stream.received > before {
            quiet = Instant::now();
        }
    }
}

/// Returns whether the test has closed the standard input.
fn is_input_closed() -> bool {
    let mut descriptor = libc::pollfd {
        fd: 0,
        events: 0,
        revents: 0,
    };
    // SAFETY: the pointer is to one descriptor.
    let ready = unsafe { libc::poll(&raw mut descriptor, 1, 0) };
    ready == 1 && descriptor.revents & libc::POLLHUP != 0
}
