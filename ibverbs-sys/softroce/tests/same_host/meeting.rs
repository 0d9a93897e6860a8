//! A peer that begins to copy as soon as it may, while the memory is deregistered.
//!
//! This process is that peer. In the other process, a thread begins a handshake and gets no
//! processor any more once it has reported the new link. At that moment another thread of that
//! process deregisters the memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, ptr, thread};

use ibverbs_sys::{ibv_wc_status, ibv_wr_opcode};
use softroce::path::Way;

use crate::node::{self, Card, LIMIT, Node, Request, SIZE};
use crate::number;
use crate::peer::{Peer, Role};

/// Length of a write in bytes: one copy.
const LENGTH: usize = SIZE / 4;

/// Time limit for the link to the other process, on a busy machine.
const SOON: Duration = Duration::from_secs(5);

/// Binds a thread to one processor if there are at least two. Thread 0 is the calling thread.
fn pin(thread: i32, processor: usize) {
    if thread::available_parallelism().map_or(1, usize::from) < 2 {
        return;
    }
    // SAFETY: zeros are an empty set, and the kernel only reads the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(thread, size_of_val(&set), &raw const set);
    }
}

/// Gives this thread the idle scheduling class.
fn give_way() {
    // SAFETY: zeros are priority 0, and the kernel only reads the value.
    unsafe {
        let parameters: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters);
    }
}

/// Returns the numbers of all other threads of this process.
fn other_threads() -> Vec<i32> {
    // SAFETY: the call has no preconditions.
    let own = unsafe { libc::gettid() };
    let threads = fs::read_dir("/proc/self/task").expect("procfs");
    let numbers = threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter(|&number| number != own).collect()
}

/// Connects, which begins a handshake, and deregisters `memory` as soon as the peer's first write
/// has reached it. The other process of the test calls this function.
pub(crate) fn deregister_while_linked(node: &mut Node, peer: &Card, memory: usize) {
    let queue_pair = node.qp.expose_provenance();
    thread::scope(|scope| {
        scope.spawn(move || {
            pin(0, 0);
            give_way();
            node::make_ready_to_receive(ptr::with_exposed_provenance_mut(queue_pair), peer);
        });
        pin(0, 1);
        let memory = &mut node.memories[memory];
        // SAFETY: the place is inside of the memory.
        let read = |at: usize| unsafe { memory.start.add(at).read_volatile() };
        let deadline = Instant::now() + LIMIT;
        while read(0) == 0 {
            assert!(Instant::now() < deadline, "nothing was written");
            // The pause lets the peer notice immediately that it may write.
            thread::sleep(Duration::from_micros(100));
        }
        memory.deregister();
        // SAFETY: the place is inside of the memory, which is still mapped.
        let read = |at: usize| unsafe { memory.start.add(at).read_volatile() };
        let last = || [LENGTH / 2, LENGTH - 4096, LENGTH - 1].map(read);
        let before = last();
        // Long enough for a copy in progress to end.
        let end = Instant::now() + Duration::from_millis(100);
        while Instant::now() < end {
            assert_eq!(last(), before, "touched after its end");
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Checks that deregistered memory does not change any more, even if the link to the peer has just
/// been made.
pub(crate) fn memory_deregistered_during_a_handshake_is_not_accessed() {
    let mut links = 0;
    for round in 0..number("SOFTROCE_TEST_MEETINGS", 24) {
        let node = Node::new();
        let own = &node.memories[0];
        for quarter in 0..4_u8 {
            let offset = usize::from(quarter) * LENGTH;
            // SAFETY: the place is inside of the memory, which no request uses.
            unsafe { ptr::write_bytes(own.start.add(offset), quarter + 1, LENGTH) };
        }
        let mut peer = Peer::start(Role::Deregisters {
            memory: round as usize % 2,
        });
        peer.introduce(&node);
        // The stopped peer does not answer this process, which does not try again for a second.
        // Hence the peer begins the next handshake.
        peer.stop();
        node.connect(&peer.card);
        assert_eq!(node.way(), Some(Way::Udp));
        peer.signal(libc::SIGCONT);
        for thread in other_threads() {
            pin(thread, 0);
        }
        pin(0, 1);
        let (is_linked, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            let busy = scope.spawn(|| {
                pin(0, 0);
                while !is_linked.load(Ordering::Acquire) {
                    thread::park();
                }
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            peer.go();
            let soon = Instant::now() + SOON;
            while node.way() != Some(Way::Shared) && Instant::now() < soon {
                std::hint::spin_loop();
            }
            is_linked.store(true, Ordering::Release);
            busy.thread().unpark();
            links += u32::from(node.way() == Some(Way::Shared));
            write_until_refused(&node, peer.card.memories[round as usize % 2]);
            is_over.store(true, Ordering::Relaxed);
        });
        peer.done();
    }
    assert!(links > 0, "there never was a link");
}

/// Writes different values in turn to the memory of the peer, until a write fails.
fn write_until_refused(node: &Node, to: (u64, u32)) {
    let deadline = Instant::now() + LIMIT;
    for id in 0.. {
        assert!(Instant::now() < deadline, "it is never deregistered");
        node.post(&Request {
            id,
            opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            sge: node.memories[0].sge(id as usize % 4 * LENGTH, LENGTH),
            remote: to,
            add: 0,
        });
        if node.complete().status != ibv_wc_status::IBV_WC_SUCCESS {
            return;
        }
    }
}
