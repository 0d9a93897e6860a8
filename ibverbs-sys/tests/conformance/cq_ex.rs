//! Extended completion queues: iteration, and the fields of a completion.

use ibverbs_sys::ibv_create_cq_wc_flags as Want;
use ibverbs_sys::ibv_wc_status as Status;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        queue_is_made,
        queue_without_entries_is_refused,
        queue_of_unknown_flags_is_refused,
        queue_of_an_unknown_mask_is_refused,
        a_single_threaded_queue_is_created,
        starting_to_poll_an_empty_queue_returns_enoent,
        completion_can_be_read,
        receive_can_be_read,
        service_level_of_a_datagram_is_its_network_header,
        immediate_data_can_be_read,
        a_batch_is_executed_to_its_end,
        plain_polling_works_as_well,
        failure_can_be_read,
        timestamp_can_be_read,
        wallclock_can_be_read,
        queue_raises_events,
        queue_can_be_resized,
    ]
}

/// Fields that every device with extended completion queues supports.
const STANDARD: u64 = IBV_WC_STANDARD_FLAGS as u64;

fn create(device: &Device, change: impl Fn(&mut ibv_cq_init_attr_ex)) -> *mut ibv_cq_ex {
    let mut attr = ibv_cq_init_attr_ex {
        cqe: 16,
        wc_flags: STANDARD,
        ..Default::default()
    };
    change(&mut attr);
    unsafe { ibv_create_cq_ex(device.context(), &mut attr) }
}

/// An extended queue.
struct Extended {
    raw: *mut ibv_cq_ex,
    cq: Cq,
}

impl Extended {
    fn new(device: &Device, wc_flags: u64) -> Self {
        let raw = create(device, |attr| attr.wc_flags = wc_flags).supported("ibv_create_cq_ex");
        let cq = Cq::from_raw(device, unsafe { ibv_cq_ex_to_cq(raw) }, None);
        Self { raw, cq }
    }

    /// Begins an iteration at the first completion. Fails the case if there is none in time.
    #[track_caller]
    fn start(&self) {
        let end = std::time::Instant::now() + max_wait();
        loop {
            match self.try_start() {
                0 => return,
                libc::ENOENT => assert!(std::time::Instant::now() < end, "no completion came"),
                other => panic!("ibv_start_poll returned {other}"),
            }
        }
    }

    fn try_start(&self) -> i32 {
        let mut attr = ibv_poll_cq_attr::default();
        unsafe { ibv_start_poll(self.raw, &mut attr) }
    }

    fn next(&self) -> i32 {
        unsafe { ibv_next_poll(self.raw) }
    }

    fn end(&self) {
        unsafe { ibv_end_poll(self.raw) };
    }

    fn id(&self) -> u64 {
        unsafe { (*self.raw).wr_id }
    }

    fn status(&self) -> Status {
        unsafe { (*self.raw).status }
    }
}

/// Creates a pair whose first end has an extended completion queue.
fn pair(device: &Device, wc_flags: u64) -> (Pair, Extended) {
    let extended = Extended::new(device, wc_flags);
    let pd = Pd::new(device);
    let plan = Plan::new(ibv_qp_type::IBV_QPT_RC);
    let a = End {
        qp: Qp::new(&pd, &extended.cq, &plan),
        cq: extended.cq.clone(),
        mr: Mr::new(&pd, 4096, ALL_ACCESS),
    };
    let b = End::new(&pd, &plan, 4096);
    a.qp.connect(b.qp.number());
    b.qp.connect(a.qp.number());
    (Pair { a, b, pd }, extended)
}

fn queue_is_made(device: &Device) {
    let extended = Extended::new(device, STANDARD);
    assert!(extended.cq.capacity() >= 16);
    equal(
        "context",
        unsafe { (*extended.raw).context },
        device.context(),
    );
}

fn queue_without_entries_is_refused(device: &Device) {
    drop(Extended::new(device, STANDARD));
    create(device, |attr| attr.cqe = 0).fails("ibv_create_cq_ex", &[libc::EINVAL]);
}

fn queue_of_unknown_flags_is_refused(device: &Device) {
    drop(Extended::new(device, STANDARD));
    create(device, |attr| attr.wc_flags = 1 << 40).refuses("ibv_create_cq_ex");
}

fn queue_of_an_unknown_mask_is_refused(device: &Device) {
    drop(Extended::new(device, STANDARD));
    create(device, |attr| attr.comp_mask = 1 << 30).refuses("ibv_create_cq_ex");
}

fn a_single_threaded_queue_is_created(device: &Device) {
    drop(Extended::new(device, STANDARD));
    let raw = create(device, |attr| {
        attr.comp_mask = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
        attr.flags = ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED.0;
    });
    let raw = raw.supported("ibv_create_cq_ex(SINGLE_THREADED)");
    drop(Cq::from_raw(device, unsafe { ibv_cq_ex_to_cq(raw) }, None));
}

fn starting_to_poll_an_empty_queue_returns_enoent(device: &Device) {
    let extended = Extended::new(device, STANDARD);
    equal("ibv_start_poll", extended.try_start(), libc::ENOENT);
    // A second attempt is valid, because the first one began no iteration.
    equal("ibv_start_poll", extended.try_start(), libc::ENOENT);
}

fn completion_can_be_read(device: &Device) {
    let (pair, extended) = pair(device, STANDARD);
    pair.a.qp.post(pair.a.read(&pair.b, 0, 8).id(4));
    extended.start();
    equal("wr_id", extended.id(), 4);
    equal("status", extended.status(), Status::IBV_WC_SUCCESS);
    let opcode = unsafe { ibv_wc_read_opcode(extended.raw) };
    equal("the opcode", opcode, ibv_wc_opcode::IBV_WC_RDMA_READ);
    equal(
        "the length",
        unsafe { ibv_wc_read_byte_len(extended.raw) },
        8,
    );
    equal(
        "the queue pair",
        unsafe { ibv_wc_read_qp_num(extended.raw) },
        pair.a.qp.number(),
    );
    extended.end();
}

fn receive_can_be_read(device: &Device) {
    let (pair, extended) = pair(device, STANDARD);
    pair.a.receive(5, 0, 64);
    pair.b.qp.post(pair.b.send(0, 33));
    extended.start();
    equal("wr_id", extended.id(), 5);
    let opcode = unsafe { ibv_wc_read_opcode(extended.raw) };
    equal("the opcode", opcode, ibv_wc_opcode::IBV_WC_RECV);
    equal(
        "the length",
        unsafe { ibv_wc_read_byte_len(extended.raw) },
        33,
    );
    let flags = unsafe { ibv_wc_read_wc_flags(extended.raw) };
    equal("the flags", flags & ibv_wc_flags::IBV_WC_WITH_IMM.0, 0);
    equal(
        "the service level",
        unsafe { ibv_wc_read_sl(extended.raw) },
        0,
    );
    extended.end();
}

/// RoCE has no service levels. In this field, drivers of network cards report the kind of the
/// network header of a datagram, by which programs such as UCX find its source address.
fn service_level_of_a_datagram_is_its_network_header(device: &Device) {
    if device.driver().starts_with("rxe") {
        ignore("the kernel's Soft-RoCE reports no network header to programs");
    }
    let gid = unsafe { device.gid().gid.raw };
    // 1 for IPv6, 2 for IPv4.
    let kind = match gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] {
        true => 2,
        false => 1,
    };
    let extended = Extended::new(device, STANDARD);
    let pd = Pd::new(device);
    let plan = Plan::new(ibv_qp_type::IBV_QPT_UD);
    let a = End {
        qp: Qp::new(&pd, &extended.cq, &plan),
        cq: extended.cq.clone(),
        mr: Mr::new(&pd, 4096, ALL_ACCESS),
    };
    let b = End::new(&pd, &plan, 4096);
    a.qp.connect(0);
    b.qp.connect(0);
    let ah = Ah::own(&pd);
    a.receive(5, 0, 64);
    let to_a = b.send(0, 8).to(ah.raw(), a.qp.number(), QKEY);
    b.qp.post(to_a);
    b.cq.success(1);
    extended.start();
    equal("wr_id", extended.id(), 5);
    let found = unsafe { ibv_wc_read_sl(extended.raw) };
    extended.end();
    equal("the service level, read", found, kind);

    b.receive(6, 0, 64);
    let to_b = a.send(0, 8).to(ah.raw(), b.qp.number(), QKEY);
    a.qp.post(to_b.unsignaled());
    equal("the service level", b.cq.success(6).sl, kind);
}

fn immediate_data_can_be_read(device: &Device) {
    let (pair, extended) = pair(device, STANDARD);
    pair.a.receive(5, 0, 64);
    pair.b.qp.post(pair.b.send(0, 8).immediate(0x0506_0708));
    extended.start();
    let flags = unsafe { ibv_wc_read_wc_flags(extended.raw) };
    assert!(flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0);
    let data = u32::from_be(unsafe { ibv_wc_read_imm_data(extended.raw) });
    equal("the data", data, 0x0506_0708);
    extended.end();
}

fn a_batch_is_executed_to_its_end(device: &Device) {
    let (pair, extended) = pair(device, STANDARD);
    for id in 0..5 {
        pair.a.qp.post(pair.a.write(&pair.b, 0, 8).id(id));
    }
    // All of them are there before the first is polled.
    pair.b.receive(9, 0, 8);
    pair.a.qp.post(pair.a.send(0, 8).id(5).unsignaled());
    pair.b.cq.success(9);
    pair.b.qp.post(pair.b.read(&pair.a, 0, 8));
    pair.b.cq.success(1);
    std::thread::sleep(QUIET);
    let mut ids = Vec::new();
    while ids.len() < 5 {
        extended.start();
        ids.push(extended.id());
        while extended.next() == 0 {
            ids.push(extended.id());
        }
        extended.end();
    }
    equal("the requests", ids, (0..5).collect());
    equal("ibv_start_poll", extended.try_start(), libc::ENOENT);
}

fn plain_polling_works_as_well(device: &Device) {
    let (pair, extended) = pair(device, STANDARD);
    pair.a.qp.post(pair.a.write(&pair.b, 0, 8).id(6));
    extended.cq.success(6);
    pair.exchange(100);
}

fn failure_can_be_read(device: &Device) {
    let (pair, extended) = pair(device, STANDARD);
    pair.a
        .qp
        .post(Request::write(&[pair.a.mr.sge(0, 8)], 0x1000, pair.b.mr.rkey()).id(7));
    extended.start();
    equal("wr_id", extended.id(), 7);
    equal("status", extended.status(), Status::IBV_WC_REM_ACCESS_ERR);
    let _ = unsafe { ibv_wc_read_vendor_err(extended.raw) };
    extended.end();
}

fn timestamp_can_be_read(device: &Device) {
    if device.attr_ex().completion_timestamp_mask == 0 {
        ignore("the device claims no timestamps (completion_timestamp_mask)");
    }
    let want = Want::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0;
    let (pair, extended) = pair(device, STANDARD | u64::from(want));
    let mut last = 0;
    for id in 0..3 {
        pair.a.qp.post(pair.a.write(&pair.b, 0, 8).id(id));
        extended.start();
        let now = unsafe { ibv_wc_read_completion_ts(extended.raw) };
        extended.end();
        assert!(now > last, "{now} came after {last}");
        assert!(now & !device.attr_ex().completion_timestamp_mask == 0);
        last = now;
    }
}

fn wallclock_can_be_read(device: &Device) {
    let want = Want::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0;
    let (pair, extended) = pair(device, STANDARD | u64::from(want));
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanoseconds = || now().expect("a clock after 1970").as_nanos() as u64;
    let before = nanoseconds();
    pair.a.qp.post(pair.a.write(&pair.b, 0, 8));
    extended.start();
    let at = unsafe { ibv_wc_read_completion_wallclock_ns(extended.raw) };
    extended.end();
    // A device's clock and the system's may be a little apart.
    let slack = 1_000_000_000;
    assert!(
        (before - slack..nanoseconds() + slack).contains(&at),
        "{at}"
    );
}

fn queue_raises_events(device: &Device) {
    drop(Extended::new(device, STANDARD));
    let channel = Channel::new(device);
    let raw = create(device, |attr| attr.channel = channel.raw()).succeeds("ibv_create_cq_ex");
    let cq = Cq::from_raw(device, unsafe { ibv_cq_ex_to_cq(raw) }, Some(&channel));
    let pd = Pd::new(device);
    let qp = Qp::new(&pd, &cq, &Plan::new(ibv_qp_type::IBV_QPT_RC));
    qp.connect(qp.number());
    cq.arm(false);
    qp.post(Request::write(&[], 0, 0));
    equal("the queue", channel.event(), cq.raw());
}

fn queue_can_be_resized(device: &Device) {
    let extended = Extended::new(device, STANDARD);
    unsafe { ibv_resize_cq(extended.cq.raw(), 300) }.supported("ibv_resize_cq");
    assert!(extended.cq.capacity() >= 300);
}
