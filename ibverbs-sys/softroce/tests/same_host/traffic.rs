//! Random requests of all kinds.

use std::collections::VecDeque;

use ibverbs_sys::{ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode};

use crate::node::{Card, DEPTH, Node, Request, SIZE};

/// State of the traffic: the requests in flight, and the generator of the next ones.
#[derive(Debug)]
pub(crate) struct Traffic {
    state: u64,
    peer: Card,
    /// Number, opcode and length of each send request in flight.
    under_way: VecDeque<(u64, ibv_wr_opcode, usize)>,
    receives: u32,
    next: u64,
    /// Set after a request has failed.
    is_over: bool,
}

/// Offsets between which a peer writes. Guards lie below and above.
const BEGIN: usize = 1 << 20;
const END: usize = 3 << 20;

/// Length of the longest message in bytes, and offset of the places for receives. The places
/// overlap, because the received bytes are not checked.
const LONGEST: usize = 1 << 20;
const ROOM: usize = BEGIN;

/// Number of places for receives, and their distance in bytes.
const PLACES: usize = 16;
const DISTANCE: usize = 64 << 10;

/// Sends that the receiver copies in one part and in many, and writes with immediate data of the
/// same lengths.
pub(crate) const LONG: [(ibv_wr_opcode, usize); 4] = [
    (ibv_wr_opcode::IBV_WR_SEND, 64 << 10),
    (ibv_wr_opcode::IBV_WR_SEND, LONGEST),
    (ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, 64 << 10),
    (ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, LONGEST),
];

/// Value of each byte of a guard.
const GUARD: u8 = 0xc3;

/// Length of each guard in bytes.
const GUARDS: usize = 4096;

impl Traffic {
    pub(crate) fn new(seed: u64, peer: &Card) -> Self {
        Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            peer: *peer,
            under_way: VecDeque::new(),
            receives: 0,
            next: 0,
            is_over: false,
        }
    }

    /// Sets guards and posts receives.
    pub(crate) fn prepare(&mut self, node: &Node) {
        for memory in &node.memories {
            for place in [BEGIN - GUARDS, SIZE - GUARDS] {
                memory.write(place, &[GUARD; GUARDS]);
            }
        }
        for _ in 0..DEPTH / 2 {
            self.receive(node);
        }
    }

    /// Posts requests and takes completions. If a request fails, returns its status.
    pub(crate) fn go_on(&mut self, node: &Node) -> Result<(), ibv_wc_status> {
        while self.under_way.len() < DEPTH as usize / 2 {
            self.post(node);
        }
        while let Some(wc) = node.poll() {
            if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
                self.is_over = true;
                // The other fields of a failed completion are undefined.
                self.count(wc.wr_id);
                return Err(wc.status);
            }
            self.count(wc.wr_id);
            if wc.opcode.0 & ibv_wc_opcode::IBV_WC_RECV.0 != 0 {
                self.receive(node);
            }
        }
        Ok(())
    }

    /// Takes the completions of all requests in flight, after a failure.
    pub(crate) fn drain(&mut self, node: &Node) {
        assert!(self.is_over);
        while !self.under_way.is_empty() || self.receives > 0 {
            let wc = node.complete();
            self.count(wc.wr_id);
        }
    }

    /// Checks that the bytes of the guards are unchanged.
    pub(crate) fn check_guards(&self, node: &Node) {
        for memory in &node.memories {
            for place in [BEGIN - GUARDS, SIZE - GUARDS] {
                assert!(memory.read(place, GUARDS) == [GUARD; GUARDS]);
            }
        }
    }

    /// Returns the number of messages in flight of each [kind and length](LONG).
    pub(crate) fn long_under_way(&self) -> [usize; LONG.len()] {
        LONG.map(|long| {
            let is_long = |&&(_, kind, length): &&_| (kind, length) == long;
            self.under_way.iter().filter(is_long).count()
        })
    }

    fn count(&mut self, id: u64) {
        if id & RECEIVE == 0 {
            let first = self.under_way.pop_front();
            assert_eq!(first.map(|(first, ..)| first), Some(id), "out of order");
        } else {
            self.receives -= 1;
        }
    }

    fn receive(&mut self, node: &Node) {
        let place = ROOM + self.random(PLACES) * DISTANCE;
        let memory = &node.memories[self.random(2)];
        node.receive(RECEIVE | self.next, memory.sge(place, LONGEST));
        self.next += 1;
        self.receives += 1;
    }

    fn post(&mut self, node: &Node) {
        use ibv_wr_opcode as O;
        let opcode = match self.random(8) {
            0 | 1 => O::IBV_WR_RDMA_WRITE,
            2 | 3 => O::IBV_WR_RDMA_READ,
            4 => O::IBV_WR_ATOMIC_FETCH_AND_ADD,
            5 => O::IBV_WR_RDMA_WRITE_WITH_IMM,
            _ => O::IBV_WR_SEND,
        };
        let length = match (opcode, self.random(3)) {
            (O::IBV_WR_ATOMIC_FETCH_AND_ADD, _) => 8,
            (O::IBV_WR_SEND | O::IBV_WR_RDMA_WRITE_WITH_IMM, 0) => {
                [64 << 10, LONGEST][self.random(2)]
            }
            (O::IBV_WR_SEND, 1) => self.random(LONGEST),
            (O::IBV_WR_SEND, _) => self.random(48 << 10),
            (_, 0) => self.random(64),
            (_, 1) => self.random(8192),
            _ => self.random(1 << 18),
        };
        let (address, key) = self.peer.memories[self.random(2)];
        let offset = BEGIN + self.random(END - BEGIN - length) / 8 * 8;
        let memory = self.random(2);
        let place = if opcode == O::IBV_WR_SEND {
            (0, 0)
        } else {
            (address + offset as u64, key)
        };
        node.post(&Request {
            id: self.next,
            opcode,
            // The local memory is below the first guard.
            sge: node.memories[memory].sge(self.random(BEGIN / 2), length),
            remote: place,
            add: 1,
        });
        self.under_way.push_back((self.next, opcode, length));
        self.next += 1;
    }

    /// Returns a number below `limit`.
    fn random(&mut self, limit: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state % limit.max(1) as u64) as usize
    }
}

/// Bit that is set in the `wr_id` of receives.
const RECEIVE: u64 = 1 << 63;
