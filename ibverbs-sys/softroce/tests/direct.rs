//! Direct messages, which go between queue pairs of one process without packets: their differences
//! from packets, and their use by several threads. The conformance suite checks that all else is as
//! with packets.

use std::mem::zeroed;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ibverbs_sys::*;
use softroce::path::{Way, way};
use softroce::proto::Counter;

/// Time limit that no operation reaches.
const LOST: Duration = Duration::from_secs(60);

/// Lock for one test at a time, because counters and injected faults belong to the process.
static ALONE: Mutex<()> = Mutex::new(());

type Mask = ibv_qp_attr_mask;

/// An open device with a protection domain.
struct Device {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
}

// SAFETY: verbs may be called by any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    fn open() -> Self {
        softroce::install();
        let mut count = 0;
        // SAFETY: the list has `count` devices until it is freed; softroce's is the last.
        unsafe {
            let list = ibv_get_device_list(&mut count);
            assert!(count > 0);
            let context = ibv_open_device(*list.add(count as usize - 1));
            assert!(!context.is_null());
            ibv_free_device_list(list);
            let pd = ibv_alloc_pd(context);
            assert!(!pd.is_null());
            Self { context, pd }
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: everything that used them is destroyed.
        unsafe {
            assert_eq!(ibv_dealloc_pd(self.pd), 0);
            assert_eq!(ibv_close_device(self.context), 0);
        }
    }
}

/// Queue pair with a completion queue and registered memory.
struct End<'a> {
    device: &'a Device,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    memory: Box<[AtomicU64]>,
    mr: *mut ibv_mr,
}

// SAFETY: verbs may be called by any thread.
unsafe impl Send for End<'_> {}
// SAFETY: as above.
unsafe impl Sync for End<'_> {}

const DEPTH: u32 = 64;

impl<'a> End<'a> {
    fn new(device: &'a Device, kind: ibv_qp_type, bytes: usize) -> Self {
        let memory: Box<[AtomicU64]> = (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
        // SAFETY: the memory is valid until the region is deregistered.
        unsafe {
            let cq = ibv_create_cq(
                device.context,
                4 * DEPTH as i32,
                ptr::null_mut(),
                ptr::null_mut(),
                0,
            );
            assert!(!cq.is_null());
            let mut attributes = ibv_qp_init_attr {
                send_cq: cq,
                recv_cq: cq,
                cap: ibv_qp_cap {
                    max_send_wr: DEPTH,
                    max_recv_wr: DEPTH,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: 0,
                },
                qp_type: kind,
                sq_sig_all: 1,
                ..ibv_qp_init_attr::default()
            };
            let qp = ibv_create_qp(device.pd, &mut attributes);
            assert!(!qp.is_null());
            let address = memory.as_ptr().cast_mut().cast();
            let mr = ibv_reg_mr(device.pd, address, bytes, access.0 as i32);
            assert!(!mr.is_null());
            Self {
                device,
                cq,
                qp,
                memory,
                mr,
            }
        }
    }

    fn number(&self) -> u32 {
        // SAFETY: the queue pair is valid.
        unsafe { (*self.qp).qp_num }
    }

    fn modify(&self, mut attributes: ibv_qp_attr, mask: Mask) {
        // SAFETY: the queue pair is valid.
        let answer = unsafe { ibv_modify_qp(self.qp, &mut attributes, mask.0 as i32) };
        assert_eq!(answer, 0, "{mask:?}");
    }

    fn enter(&self, state: ibv_qp_state) {
        let attributes = ibv_qp_attr {
            qp_state: state,
            ..ibv_qp_attr::default()
        };
        self.modify(attributes, Mask::IBV_QP_STATE);
    }

    /// Moves the queue pair from RESET to RTS.
    fn connect(&self, peer: &Self) {
        self.initialize();
        self.receive_from(peer.number());
        self.start();
    }

    fn initialize(&self) {
        let attributes = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            port_num: 1,
            qp_access_flags: (ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
                | ibv_access_flags::IBV_ACCESS_REMOTE_READ
                | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC)
                .0,
            ..ibv_qp_attr::default()
        };
        self.modify(
            attributes,
            Mask::IBV_QP_STATE
                | Mask::IBV_QP_PKEY_INDEX
                | Mask::IBV_QP_PORT
                | Mask::IBV_QP_ACCESS_FLAGS,
        );
    }

    fn receive_from(&self, number: u32) {
        let mut attributes = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: ibv_mtu::IBV_MTU_1024,
            dest_qp_num: number,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            ..ibv_qp_attr::default()
        };
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.port_num = 1;
        attributes.ah_attr.grh.hop_limit = 64;
        // SAFETY: the device is open, and there is room for a GID.
        let answer =
            unsafe { ibv_query_gid(self.device.context, 1, 0, &mut attributes.ah_attr.grh.dgid) };
        assert_eq!(answer, 0);
        self.modify(
            attributes,
            Mask::IBV_QP_STATE
                | Mask::IBV_QP_AV
                | Mask::IBV_QP_PATH_MTU
                | Mask::IBV_QP_DEST_QPN
                | Mask::IBV_QP_RQ_PSN
                | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | Mask::IBV_QP_MIN_RNR_TIMER,
        );
    }

    fn start(&self) {
        let attributes = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            // 134 ms, eight times: longer than a thread waits for a processor on a busy machine.
            timeout: 15,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            ..ibv_qp_attr::default()
        };
        self.modify(
            attributes,
            Mask::IBV_QP_STATE
                | Mask::IBV_QP_TIMEOUT
                | Mask::IBV_QP_RETRY_CNT
                | Mask::IBV_QP_RNR_RETRY
                | Mask::IBV_QP_SQ_PSN
                | Mask::IBV_QP_MAX_QP_RD_ATOMIC,
        );
    }

    fn piece(&self, length: u32) -> ibv_sge {
        ibv_sge {
            addr: self.memory.as_ptr().addr() as u64,
            length,
            // SAFETY: the region is valid.
            lkey: unsafe { (*self.mr).lkey },
        }
    }

    /// Posts a request for the start of the peer's memory. Returns whether the queue had room.
    fn post(&self, id: u64, opcode: ibv_wr_opcode, length: u32, peer: (u64, u32)) -> bool {
        let mut piece = self.piece(length);
        // SAFETY: plain data that is all zeroes for a request without data.
        let mut request: ibv_send_wr = unsafe { zeroed() };
        request.wr_id = id;
        request.sg_list = &raw mut piece;
        request.num_sge = 1;
        request.opcode = opcode;
        if opcode == ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD {
            request.wr.atomic.remote_addr = peer.0;
            request.wr.atomic.rkey = peer.1;
            request.wr.atomic.compare_add = 1;
        } else {
            request.wr.rdma.remote_addr = peer.0;
            request.wr.rdma.rkey = peer.1;
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the request and what it points to are valid during the call.
        match unsafe { ibv_post_send(self.qp, &mut request, &mut bad) } {
            0 => true,
            libc::ENOMEM => false,
            errno => panic!("errno {errno}"),
        }
    }

    fn post_receive(&self, id: u64, length: u32) -> bool {
        let mut piece = self.piece(length);
        // SAFETY: zeros are a valid value.
        let mut request: ibv_recv_wr = unsafe { zeroed() };
        request.wr_id = id;
        request.sg_list = &raw mut piece;
        request.num_sge = 1;
        let mut bad = ptr::null_mut();
        // SAFETY: the request and what it points to are valid during the call.
        unsafe { ibv_post_recv(self.qp, &mut request, &mut bad) == 0 }
    }

    fn target(&self) -> (u64, u32) {
        // SAFETY: the region is valid.
        (self.piece(0).addr, unsafe { (*self.mr).rkey })
    }

    fn poll(&self) -> Option<ibv_wc> {
        // SAFETY: zeros are a valid completion, and there is room for one.
        unsafe {
            let mut completion: ibv_wc = zeroed();
            match ibv_poll_cq(self.cq, 1, &mut completion) {
                0 => None,
                1 => Some(completion),
                other => panic!("{other}"),
            }
        }
    }

    fn complete(&self) -> ibv_wc {
        let end = Instant::now() + LOST;
        loop {
            if let Some(completion) = self.poll() {
                return completion;
            }
            assert!(Instant::now() < end, "no completion came");
        }
    }

    fn succeed(&self, id: u64) {
        let completion = self.complete();
        let success = ibv_wc_status::IBV_WC_SUCCESS;
        assert_eq!((completion.wr_id, completion.status), (id, success));
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        // SAFETY: no code uses these objects any more.
        unsafe {
            assert_eq!(ibv_destroy_qp(self.qp), 0);
            assert_eq!(ibv_destroy_cq(self.cq), 0);
            if !self.mr.is_null() {
                assert_eq!(ibv_dereg_mr(self.mr), 0);
            }
        }
    }
}

fn sent() -> (u64, u64) {
    let counters = softroce::counters();
    (
        counters.value(Counter::DirectMessages),
        counters.value(Counter::SentPackets),
    )
}

const RC: ibv_qp_type = ibv_qp_type::IBV_QPT_RC;
const WRITE: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
const READ: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
const SEND: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_SEND;
const ADD: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Returns the counters of paths that are not 0, except for those of direct messages, and then
/// messages, bytes and copies of direct messages.
fn amounts() -> (Vec<(&'static str, u64)>, [u64; 3]) {
    let counters = softroce::counters();
    let others = counters.all().filter(|(name, value)| {
        let is_of_path = ["_messages", "_bytes", "_copies"];
        let is_of_path = is_of_path.iter().any(|end| name.ends_with(end));
        is_of_path && *value > 0 && !name.starts_with("direct_")
    });
    let direct = ["direct_messages", "direct_bytes", "direct_copies"];
    let direct = direct.map(|name| counters.named(name).expect("a counter"));
    (others.collect(), direct)
}

/// Returns whether messages go directly. `SOFTROCE_PATH` may choose another path.
fn is_direct() -> bool {
    std::env::var("SOFTROCE_PATH").map_or(true, |path| path.is_empty() || path == "direct")
}

#[test]
fn no_packets_are_sent_and_the_data_has_arrived_when_the_post_returns() {
    let _alone = alone();
    let (one, two) = (Device::open(), Device::open());
    // The ends belong to two contexts.
    let (a, b) = (End::new(&one, RC, 1 << 20), End::new(&two, RC, 1 << 20));
    a.connect(&b);
    b.connect(&a);
    if is_direct() {
        assert_eq!(way(a.number()), Some(Way::Udp), "not known yet");
    }
    let before = sent();
    assert!(b.post_receive(7, 1 << 20));
    for (id, opcode) in [(0, WRITE), (1, READ), (2, SEND), (3, ADD)] {
        let length = if opcode == ADD { 8 } else { 1 << 20 };
        assert!(a.post(id, opcode, length, b.target()));
        if is_direct() {
            let completion = a.poll().expect("it is done");
            assert_eq!(completion.status, ibv_wc_status::IBV_WC_SUCCESS);
        } else {
            a.succeed(id);
        }
    }
    b.succeed(7);
    let after = sent();
    if is_direct() {
        assert_eq!(after, (before.0 + 4, before.1));
        assert_eq!(way(a.number()), Some(Way::Direct));
        assert_eq!(way(b.number()), Some(Way::Udp), "it sent nothing");
    } else {
        assert_eq!(after.0, before.0);
        assert!(after.1 > before.1);
    }
    assert_eq!(b.memory[0].load(Ordering::Relaxed), 1);
}

#[test]
fn every_part_is_counted_with_one_copy() {
    if !is_direct() {
        return;
    }
    let _alone = alone();
    let device = Device::open();
    let (a, b) = (
        End::new(&device, RC, 1 << 20),
        End::new(&device, RC, 1 << 20),
    );
    a.connect(&b);
    b.connect(&a);
    let (others, mut expected) = amounts();
    for (id, (opcode, length, copies)) in [
        (SEND, 8, 1),
        (SEND, 0, 0),
        (SEND, 4096, 1),
        (SEND, 64 << 10, 1),
        (SEND, 1 << 20, 16),
        (ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, 32, 1),
        (WRITE, 64 << 10, 1),
        (READ, 64 << 10, 1),
        (ADD, 8, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let id = id as u64;
        let takes_receive = ![WRITE, READ, ADD].contains(&opcode);
        if takes_receive {
            assert!(b.post_receive(id, 1 << 20));
        }
        assert!(a.post(id, opcode, length, b.target()));
        a.succeed(id);
        if takes_receive {
            b.succeed(id);
        }
        let amount = [1, u64::from(length), copies];
        for (sum, by) in expected.iter_mut().zip(amount) {
            *sum += by;
        }
        assert_eq!(amounts(), (others.clone(), expected), "message {id}");
    }
}

#[test]
fn accidents_meet_packets_from_the_moment_that_they_are_arranged() {
    let _alone = alone();
    let device = Device::open();
    let (a, b) = (End::new(&device, RC, 8), End::new(&device, RC, 8));
    a.connect(&b);
    b.connect(&a);
    let faults = softroce::fault::NetworkFaults {
        duplicate: 1.0,
        ..Default::default()
    };
    for round in 0..10 {
        let arranged = round % 2 == 1;
        softroce::faults().set_network(if arranged { faults } else { Default::default() });
        let before = sent();
        for id in 0..10 {
            assert!(a.post(id, ADD, 8, b.target()));
        }
        for id in 0..10 {
            a.succeed(id);
        }
        let after = sent();
        let direct = is_direct() && !arranged;
        assert_eq!(after.0 - before.0, if direct { 10 } else { 0 }, "{round}");
        // In rounds without faults late duplicates of the round before are still answered by
        // packets.
        assert!(direct || after.1 > before.1);
    }
    softroce::faults().set_network(Default::default());
    assert_eq!(b.memory[0].load(Ordering::Relaxed), 100, "each once");
}

#[test]
fn a_peer_that_gets_ready_late_gets_all_in_order() {
    let _alone = alone();
    let device = Device::open();
    let (a, b) = (End::new(&device, RC, 8), End::new(&device, RC, 8));
    b.initialize();
    for id in 0..10 {
        assert!(b.post_receive(id, 8));
    }
    a.connect(&b);
    for id in 0..5 {
        assert!(a.post(id, SEND, 8, (0, 0)));
    }
    b.receive_from(a.number());
    for id in 0..5 {
        a.succeed(id);
        b.succeed(id);
    }
    let before = sent();
    for id in 5..10 {
        assert!(a.post(id, SEND, 8, (0, 0)));
        a.succeed(id);
        b.succeed(id);
    }
    assert_eq!(sent().0 - before.0, if is_direct() { 5 } else { 0 });
}

#[test]
fn requests_to_a_destroyed_peer_fail_in_time() {
    let _alone = alone();
    let device = Device::open();
    let a = End::new(&device, RC, 8);
    {
        let b = End::new(&device, RC, 8);
        a.connect(&b);
        b.connect(&a);
        assert!(a.post(0, WRITE, 8, b.target()));
        a.succeed(0);
    }
    assert!(a.post(1, WRITE, 8, (0, 0)));
    let completion = a.complete();
    let exceeded = ibv_wc_status::IBV_WC_RETRY_EXC_ERR;
    assert_eq!((completion.wr_id, completion.status), (1, exceeded));
}

/// Checks two threads that post requests to each other's memory and poll, while a third thread
/// moves one queue pair to ERR. All requests complete in order, and no thread waits for ever.
#[test]
fn two_threads_post_towards_each_other_while_a_third_fails_them() {
    let _alone = alone();
    let device = Device::open();
    let (a, b) = (End::new(&device, RC, 4096), End::new(&device, RC, 4096));
    for round in 0..40_u64 {
        a.connect(&b);
        b.connect(&a);
        let stop = AtomicBool::new(false);
        let begin = Barrier::new(3);
        thread::scope(|scope| {
            for (own, peer) in [(&a, &b), (&b, &a)] {
                let (stop, begin) = (&stop, &begin);
                scope.spawn(move || {
                    begin.wait();
                    talk(own, peer, stop);
                });
            }
            begin.wait();
            // The moment is between zero and one millisecond later.
            let until = Instant::now() + Duration::from_micros(round * round % 997);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            let end = if round % 2 == 0 { &a } else { &b };
            end.enter(ibv_qp_state::IBV_QPS_ERR);
            stop.store(true, Ordering::SeqCst);
        });
        for end in [&a, &b] {
            end.enter(ibv_qp_state::IBV_QPS_RESET);
        }
    }
}

/// Posts and polls until `stop` is set, and then until all requests have completed.
fn talk(own: &End<'_>, peer: &End<'_>, stop: &AtomicBool) {
    const RECEIVE: u64 = 1 << 32;
    let opcodes = [SEND, WRITE, READ, ADD];
    let (mut posted, mut ended, mut received, mut failed) = (0, 0, 0, false);
    for id in 0..DEPTH.into() {
        own.post_receive(RECEIVE + id, 4096);
    }
    let end = Instant::now() + LOST;
    while !stop.load(Ordering::SeqCst) || ended < posted {
        assert!(Instant::now() < end, "{ended} of {posted} have ended");
        if !stop.load(Ordering::SeqCst) && !failed {
            let opcode = opcodes[posted as usize % opcodes.len()];
            let length = if opcode == ADD {
                8
            } else {
                1 + posted as u32 % 4096
            };
            posted += u64::from(own.post(posted, opcode, length, peer.target()));
        }
        while let Some(completion) = own.poll() {
            failed |= completion.status != ibv_wc_status::IBV_WC_SUCCESS;
            if completion.wr_id >= RECEIVE {
                assert_eq!(completion.wr_id, RECEIVE + received);
                received += 1;
                if !failed {
                    own.post_receive(RECEIVE + received + u64::from(DEPTH) - 1, 4096);
                }
            } else {
                assert_eq!(completion.wr_id, ended, "in order");
                ended += 1;
            }
        }
        if stop.load(Ordering::SeqCst) {
            // The remaining requests of this side are flushed.
            own.enter(ibv_qp_state::IBV_QPS_ERR);
        }
    }
}

/// Checks that no copy goes to memory whose registration has ended, because the memory may be
/// unmapped then.
#[test]
fn no_copy_writes_to_deregistered_memory() {
    let _alone = alone();
    const BYTES: usize = 1 << 20;
    let device = Device::open();
    let (a, mut b) = (End::new(&device, RC, BYTES), End::new(&device, RC, 8));
    for round in 0..30_u64 {
        a.connect(&b);
        b.connect(&a);
        // SAFETY: the mapping is new, and is registered until it is unmapped.
        let (mapping, mr) = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
            let mapping = libc::mmap(ptr::null_mut(), BYTES, protection, flags, -1, 0);
            assert_ne!(mapping, libc::MAP_FAILED);
            let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
                | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
            let mr = ibv_reg_mr(device.pd, mapping, BYTES, access.0 as i32);
            assert!(!mr.is_null());
            (mapping, mr)
        };
        // SAFETY: the region is valid.
        let target = (mapping.addr() as u64, unsafe { (*mr).rkey });
        let begun = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut id = 0;
                loop {
                    begun.store(true, Ordering::SeqCst);
                    assert!(a.post(id, WRITE, BYTES as u32, target));
                    let completion = a.complete();
                    assert_eq!(completion.wr_id, id);
                    if completion.status != ibv_wc_status::IBV_WC_SUCCESS {
                        assert_eq!(completion.status, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
                        break;
                    }
                    id += 1;
                }
            });
            while !begun.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            thread::sleep(Duration::from_micros(round * 37 % 500));
            let (mr, mapping) = (mr.expose_provenance(), mapping.expose_provenance());
            // SAFETY: no other code uses the region, or the memory after the end of its
            // registration.
            unsafe {
                assert_eq!(ibv_dereg_mr(ptr::with_exposed_provenance_mut(mr)), 0);
                assert_eq!(
                    libc::munmap(ptr::with_exposed_provenance_mut(mapping), BYTES),
                    0
                );
            }
        });
        for end in [&a, &b] {
            end.enter(ibv_qp_state::IBV_QPS_RESET);
        }
        // The asynchronous event is discarded together with the queue pair.
        drop(std::mem::replace(&mut b, End::new(&device, RC, 8)));
    }
}

/// Checks that a thread that sees the last byte of a message sees all of it, and that a write
/// before a send is visible when the send is received.
#[test]
fn a_write_is_complete_when_its_last_byte_changes_and_before_the_next_receive() {
    let _alone = alone();
    const WORDS: usize = 8192;
    let device = Device::open();
    let (a, b) = (
        End::new(&device, RC, WORDS * 8),
        End::new(&device, RC, WORDS * 8),
    );
    a.connect(&b);
    b.connect(&a);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=200 {
                for word in &a.memory {
                    word.store(round, Ordering::Relaxed);
                }
                assert!(a.post(round, WRITE, (WORDS * 8) as u32, b.target()));
                a.succeed(round);
                assert!(a.post(round, SEND, 0, (0, 0)));
                a.succeed(round);
            }
        });
        let (mut last, mut receives) = (0, 0);
        let end = Instant::now() + LOST;
        assert!(b.post_receive(1, 0));
        while receives < 200 {
            assert!(Instant::now() < end);
            let seen = b.memory[WORDS - 1].load(Ordering::Acquire);
            assert!(seen >= last);
            if seen > last {
                last = seen;
                assert!(
                    b.memory
                        .iter()
                        .all(|word| word.load(Ordering::Relaxed) >= last)
                );
            }
            if let Some(completion) = b.poll() {
                assert_eq!(completion.status, ibv_wc_status::IBV_WC_SUCCESS);
                receives += 1;
                let first = b.memory[0].load(Ordering::Relaxed);
                assert!(first >= receives, "{first} after {receives} receives");
                b.post_receive(receives + 1, 0);
            }
        }
    });
}

/// Checks datagrams that several threads send at the same time to each other's queue pairs.
#[test]
fn datagrams_of_many_threads_arrive_or_are_dropped() {
    let _alone = alone();
    let device = Device::open();
    let all: Vec<End<'_>> = (0..4)
        .map(|_| End::new(&device, ibv_qp_type::IBV_QPT_UD, 4096))
        .collect();
    for end in &all {
        let attributes = |state| ibv_qp_attr {
            qp_state: state,
            port_num: 1,
            qkey: 5,
            ..ibv_qp_attr::default()
        };
        let initial =
            Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_QKEY;
        end.modify(attributes(ibv_qp_state::IBV_QPS_INIT), initial);
        end.modify(attributes(ibv_qp_state::IBV_QPS_RTR), Mask::IBV_QP_STATE);
        let start = Mask::IBV_QP_STATE | Mask::IBV_QP_SQ_PSN;
        end.modify(attributes(ibv_qp_state::IBV_QPS_RTS), start);
    }
    let mut address = ibv_ah_attr {
        is_global: 1,
        port_num: 1,
        ..ibv_ah_attr::default()
    };
    address.grh.hop_limit = 64;
    // SAFETY: the device is open, and there is room for a GID.
    let handle = unsafe {
        assert_eq!(
            ibv_query_gid(device.context, 1, 0, &mut address.grh.dgid),
            0
        );
        ibv_create_ah(device.pd, &mut address)
    };
    assert!(!handle.is_null());
    let handle_address = handle.expose_provenance();
    let (before, (_, amounts_before)) = (sent(), amounts());
    let received = AtomicU64::new(0);
    let receive = |done: ibv_wc| {
        assert_eq!(done.status, ibv_wc_status::IBV_WC_SUCCESS);
        assert_eq!(done.byte_len, 552);
        received.fetch_add(1, Ordering::Relaxed);
    };
    thread::scope(|scope| {
        for own in &all {
            let (all, receive) = (&all, &receive);
            scope.spawn(move || {
                let end = Instant::now() + LOST;
                for id in 0..200_u64 {
                    // A receive is always posted, so that some of the datagrams need not be
                    // dropped.
                    own.post_receive(1 << 32, 4096);
                    let others = all.iter().filter(|other| other.number() != own.number());
                    let to = others.skip(id as usize % 3).map(End::number).next();
                    // SAFETY: zeros are a valid value.
                    let mut request: ibv_send_wr = unsafe { zeroed() };
                    let mut piece = own.piece(512);
                    request.wr_id = id;
                    request.sg_list = &raw mut piece;
                    request.num_sge = 1;
                    request.opcode = SEND;
                    request.wr.ud.ah = ptr::with_exposed_provenance_mut(handle_address);
                    request.wr.ud.remote_qpn = to.expect("three others");
                    request.wr.ud.remote_qkey = 5;
                    let mut bad = ptr::null_mut();
                    // SAFETY: the request and what it points to are valid during the call.
                    let answer = unsafe { ibv_post_send(own.qp, &mut request, &mut bad) };
                    assert_eq!(answer, 0);
                    loop {
                        assert!(Instant::now() < end);
                        match own.poll() {
                            Some(done) if done.wr_id == id => break,
                            Some(done) => receive(done),
                            None => {}
                        }
                    }
                }
            });
        }
    });
    if is_direct() {
        let after = sent();
        assert_eq!((after.0 - before.0, after.1), (800, before.1));
        // Each datagram is copied into a packet and out of it.
        let (_, amounts) = amounts();
        let added: [u64; 3] = std::array::from_fn(|at| amounts[at] - amounts_before[at]);
        assert_eq!(added, [800, 800 * 512, 2 * 800]);
        // Some threads may have ended before others began, with their datagrams not polled.
        while let Some(done) = all.iter().find_map(End::poll) {
            receive(done);
        }
        assert!(received.load(Ordering::Relaxed) > 0);
    }
    // SAFETY: no code uses the object any more.
    assert_eq!(unsafe { ibv_destroy_ah(handle) }, 0);
}
