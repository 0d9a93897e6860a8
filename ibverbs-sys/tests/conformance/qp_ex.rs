//! The work request functions: `ibv_wr_start` to `ibv_wr_complete`.

use ibverbs_sys::ibv_access_flags as Access;
use ibverbs_sys::ibv_qp_create_send_ops_flags as Op;
use ibverbs_sys::ibv_qp_type as Service;
use ibverbs_sys::ibv_wc_opcode as Opcode;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_queue_pair_is_created,
        plain_queue_pair_has_no_functions,
        an_unknown_operation_is_refused,
        operation_of_another_service_is_refused,
        send_arrives,
        send_with_immediate_data_arrives,
        send_of_a_list_arrives,
        send_of_nothing_arrives,
        inline_data_arrives,
        inline_data_of_a_list_arrives,
        inline_data_beyond_the_capacity_is_refused,
        write_arrives,
        write_with_immediate_data_arrives,
        read_brings_bytes,
        compare_and_swap,
        fetch_and_add,
        atomic_write,
        atomic_writes_follow_each_other,
        atomic_write_of_an_odd_address_fails,
        atomic_write_needs_remote_write,
        flush_of_a_range,
        flush_of_a_region,
        flush_through_a_window,
        flush_beyond_the_region_fails,
        flush_needs_the_region_s_permission,
        flush_needs_the_queue_pair_s_permission,
        persistent_flush_as_claimed,
        bind_and_local_invalidate,
        bind_takes_flags_of_regions,
        send_and_invalidate,
        batch_arrives_in_order,
        aborted_batch_leaves_nothing,
        queue_works_after_an_abort,
        batch_beyond_the_queue_is_refused_whole,
        flags_are_heeded,
        plain_posts_interleave,
        datagram_arrives,
        unreliable_connection_works,
        start_in_reset_fails_at_the_end,
    ]
}

/// The operations of every device with a reliable connection.
const BASIC: Op = Op(Op::IBV_QP_EX_WITH_RDMA_WRITE.0
    | Op::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0
    | Op::IBV_QP_EX_WITH_SEND.0
    | Op::IBV_QP_EX_WITH_SEND_WITH_IMM.0
    | Op::IBV_QP_EX_WITH_RDMA_READ.0);

const ATOMIC: Op =
    Op(Op::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0 | Op::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0);

const WINDOWS: Op = Op(Op::IBV_QP_EX_WITH_LOCAL_INV.0
    | Op::IBV_QP_EX_WITH_BIND_MW.0
    | Op::IBV_QP_EX_WITH_SEND_WITH_INV.0);

fn create(pd: &Pd, cq: &Cq, plan: &Plan, operations: u64) -> Result<Qp, i32> {
    let mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
        | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let mut attr = ibv_qp_init_attr_ex {
        send_cq: cq.raw(),
        recv_cq: cq.raw(),
        cap: plan.cap,
        qp_type: plan.service,
        comp_mask: mask.0,
        pd: pd.raw(),
        send_ops_flags: operations,
        ..Default::default()
    };
    let raw = pointer(unsafe { ibv_create_qp_ex(pd.device().context(), &mut attr) })?;
    Ok(Qp::from_raw(pd, cq, cq, plan, raw, attr.cap))
}

/// A pair whose first end has the functions.
struct Batches {
    qp: *mut ibv_qp_ex,
    pair: Pair,
}

impl Batches {
    fn new(device: &Device, service: Service, operations: Op) -> Self {
        Self::of(device, &Plan::new(service), operations)
    }

    fn of(device: &Device, plan: &Plan, operations: Op) -> Self {
        let pd = Pd::new(device);
        let cq = Cq::new(device, 64);
        let made = create(&pd, &cq, plan, operations.0.into());
        let a = End {
            qp: made.supported("ibv_create_qp_ex(SEND_OPS_FLAGS)"),
            cq,
            mr: Mr::new(&pd, SPACE, ALL_ACCESS),
        };
        let b = End::new(&pd, plan, SPACE);
        a.qp.connect(b.qp.number());
        b.qp.connect(a.qp.number());
        let qp = unsafe { ibv_qp_to_qp_ex(a.qp.raw()) };
        assert!(!qp.is_null(), "ibv_qp_to_qp_ex gave nothing");
        Self {
            qp,
            pair: Pair { a, b, pd },
        }
    }

    fn rc(device: &Device) -> Self {
        Self::new(device, Service::IBV_QPT_RC, BASIC)
    }

    /// Posts one signaled request, number 1.
    #[track_caller]
    fn post(&self, build: impl FnOnce(*mut ibv_qp_ex)) {
        unsafe { ibv_wr_start(self.qp) };
        self.request(1, build);
        unsafe { ibv_wr_complete(self.qp) }.succeeds("ibv_wr_complete");
    }

    /// Adds a request to the batch by the function `build`.
    fn request(&self, id: u64, build: impl FnOnce(*mut ibv_qp_ex)) {
        unsafe {
            (*self.qp).wr_id = id;
            (*self.qp).wr_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        build(self.qp);
    }

    /// Sets the data of the current request.
    fn data(&self, offset: usize, length: u32) {
        let mr = &self.pair.a.mr;
        unsafe { ibv_wr_set_sge(self.qp, mr.lkey(), mr.at(offset), length) };
    }

    #[track_caller]
    fn done(&self, opcode: Opcode) {
        equal("the opcode", self.pair.a.cq.success(1).opcode, opcode);
    }

    /// Returns the key and the address of the other end's memory.
    fn remote(&self) -> (u32, u64) {
        (self.pair.b.mr.rkey(), self.pair.b.mr.at(0))
    }
}

fn a_queue_pair_is_created(device: &Device) {
    drop(Batches::rc(device));
}

fn plain_queue_pair_has_no_functions(device: &Device) {
    let pair = Pair::rc(device);
    let qp = unsafe { ibv_qp_to_qp_ex(pair.a.qp.raw()) };
    assert!(
        qp.is_null(),
        "the manual: NULL where it was not asked for at creation"
    );
}

fn an_unknown_operation_is_refused(device: &Device) {
    drop(Batches::rc(device));
    let (pd, cq) = (Pd::new(device), Cq::new(device, 4));
    create(&pd, &cq, &Plan::new(Service::IBV_QPT_RC), 1 << 60)
        .map(drop)
        .fails(
            "ibv_create_qp_ex",
            &[libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS],
        );
}

fn operation_of_another_service_is_refused(device: &Device) {
    drop(Batches::rc(device));
    let (pd, cq) = (Pd::new(device), Cq::new(device, 4));
    let read = u64::from(Op::IBV_QP_EX_WITH_RDMA_READ.0);
    create(&pd, &cq, &Plan::new(Service::IBV_QPT_UD), read)
        .map(drop)
        .fails(
            "ibv_create_qp_ex",
            &[libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS],
        );
}

fn send_arrives(device: &Device) {
    let batches = Batches::rc(device);
    batches.pair.a.mr.write(0, b"sent");
    batches.pair.b.receive(2, 0, 64);
    batches.post(|qp| {
        unsafe { ibv_wr_send(qp) };
        batches.data(0, 4);
    });
    batches.done(Opcode::IBV_WC_SEND);
    equal("the length", batches.pair.b.cq.success(2).byte_len, 4);
    equal(
        "the message",
        batches.pair.b.mr.read(0, 4),
        b"sent".to_vec(),
    );
}

fn send_with_immediate_data_arrives(device: &Device) {
    let batches = Batches::rc(device);
    batches.pair.b.receive(2, 0, 64);
    batches.post(|qp| {
        unsafe { ibv_wr_send_imm(qp, 99_u32.to_be()) };
        batches.data(0, 4);
    });
    batches.done(Opcode::IBV_WC_SEND);
    equal("the data", immediate(&batches.pair.b.cq.success(2)), 99);
}

fn send_of_a_list_arrives(device: &Device) {
    let batches = Batches::rc(device);
    let (a, b) = (&batches.pair.a, &batches.pair.b);
    a.mr.write(0, b"onetwothree");
    b.receive(2, 0, 64);
    batches.post(|qp| {
        let sges = [a.mr.sge(6, 5), a.mr.sge(3, 3), a.mr.sge(0, 3)];
        unsafe {
            ibv_wr_send(qp);
            ibv_wr_set_sge_list(qp, sges.len(), sges.as_ptr());
        }
    });
    batches.done(Opcode::IBV_WC_SEND);
    b.cq.success(2);
    equal("the message", b.mr.read(0, 11), b"threetwoone".to_vec());
}

fn send_of_nothing_arrives(device: &Device) {
    let batches = Batches::rc(device);
    batches.pair.b.receive(2, 0, 64);
    batches.post(|qp| unsafe {
        ibv_wr_send(qp);
        ibv_wr_set_sge_list(qp, 0, std::ptr::null());
    });
    batches.done(Opcode::IBV_WC_SEND);
    equal("the length", batches.pair.b.cq.success(2).byte_len, 0);
}

fn inline_data_arrives(device: &Device) {
    let batches = Batches::rc(device);
    batches.pair.b.receive(2, 0, 64);
    let mut bytes = *b"inline";
    batches.post(|qp| unsafe {
        ibv_wr_send(qp);
        ibv_wr_set_inline_data(qp, bytes.as_mut_ptr().cast(), 6);
        // The manual: the memory can be reused immediately.
        bytes.fill(0);
    });
    batches.done(Opcode::IBV_WC_SEND);
    batches.pair.b.cq.success(2);
    equal(
        "the message",
        batches.pair.b.mr.read(0, 6),
        b"inline".to_vec(),
    );
}

fn inline_data_of_a_list_arrives(device: &Device) {
    let batches = Batches::rc(device);
    batches.pair.b.receive(2, 0, 64);
    let mut bytes = *b"linein";
    let piece = |at: usize, length| ibv_data_buf {
        addr: bytes.as_ptr().wrapping_add(at).cast_mut().cast(),
        length,
    };
    let list = [piece(4, 2), piece(0, 4)];
    batches.post(|qp| unsafe {
        ibv_wr_send(qp);
        ibv_wr_set_inline_data_list(qp, list.len(), list.as_ptr());
    });
    bytes.fill(0);
    batches.done(Opcode::IBV_WC_SEND);
    batches.pair.b.cq.success(2);
    equal(
        "the message",
        batches.pair.b.mr.read(0, 6),
        b"inline".to_vec(),
    );
}

fn inline_data_beyond_the_capacity_is_refused(device: &Device) {
    let batches = Batches::rc(device);
    let mut bytes = vec![0_u8; batches.pair.a.qp.query().0.cap.max_inline_data as usize + 1];
    unsafe {
        ibv_wr_start(batches.qp);
        (*batches.qp).wr_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        ibv_wr_send(batches.qp);
        ibv_wr_set_inline_data(batches.qp, bytes.as_mut_ptr().cast(), bytes.len());
    }
    unsafe { ibv_wr_complete(batches.qp) }.refuses("ibv_wr_complete");
    batches.pair.a.cq.stays_empty();
}

fn write_arrives(device: &Device) {
    let batches = Batches::rc(device);
    let (key, address) = batches.remote();
    batches.pair.a.mr.write(0, b"written");
    batches.post(|qp| {
        unsafe { ibv_wr_rdma_write(qp, key, address) };
        batches.data(0, 7);
    });
    batches.done(Opcode::IBV_WC_RDMA_WRITE);
    equal(
        "the bytes",
        batches.pair.b.mr.read(0, 7),
        b"written".to_vec(),
    );
}

fn write_with_immediate_data_arrives(device: &Device) {
    let batches = Batches::rc(device);
    let (key, address) = batches.remote();
    batches.pair.b.qp.receive(2, &[]);
    batches.post(|qp| {
        unsafe { ibv_wr_rdma_write_imm(qp, key, address, 98_u32.to_be()) };
        batches.data(0, 7);
    });
    batches.done(Opcode::IBV_WC_RDMA_WRITE);
    let received = batches.pair.b.cq.success(2);
    equal(
        "the opcode",
        received.opcode,
        Opcode::IBV_WC_RECV_RDMA_WITH_IMM,
    );
    equal("the data", immediate(&received), 98);
}

fn read_brings_bytes(device: &Device) {
    let batches = Batches::rc(device);
    let (key, address) = batches.remote();
    batches.pair.b.mr.write(0, b"remote");
    batches.post(|qp| {
        unsafe { ibv_wr_rdma_read(qp, key, address) };
        batches.data(100, 6);
    });
    batches.done(Opcode::IBV_WC_RDMA_READ);
    equal(
        "the bytes",
        batches.pair.a.mr.read(100, 6),
        b"remote".to_vec(),
    );
}

fn compare_and_swap(device: &Device) {
    device.needs_atomics();
    let batches = Batches::new(device, Service::IBV_QPT_RC, ATOMIC);
    let (key, address) = batches.remote();
    batches.pair.b.mr.set_u64(0, 3);
    batches.post(|qp| {
        unsafe { ibv_wr_atomic_cmp_swp(qp, key, address, 3, 8) };
        batches.data(0, 8);
    });
    batches.done(Opcode::IBV_WC_COMP_SWAP);
    equal("what was there", batches.pair.a.mr.u64(0), 3);
    equal("what is there", batches.pair.b.mr.u64(0), 8);
}

fn fetch_and_add(device: &Device) {
    device.needs_atomics();
    let batches = Batches::new(device, Service::IBV_QPT_RC, ATOMIC);
    let (key, address) = batches.remote();
    batches.pair.b.mr.set_u64(0, 3);
    batches.post(|qp| {
        unsafe { ibv_wr_atomic_fetch_add(qp, key, address, 4) };
        batches.data(0, 8);
    });
    batches.done(Opcode::IBV_WC_FETCH_ADD);
    equal("what was there", batches.pair.a.mr.u64(0), 3);
    equal("what is there", batches.pair.b.mr.u64(0), 7);
}

/// Ignores the case if the device has no atomic writes.
fn for_atomic_writes(device: &Device) -> Batches {
    // IBV_DEVICE_ATOMIC_WRITE, of headers newer than the bindings.
    if device.attr_ex().device_cap_flags_ex & (1 << 40) == 0 {
        ignore("the device does not claim IBV_DEVICE_ATOMIC_WRITE");
    }
    let operations = BASIC | Op::IBV_QP_EX_WITH_ATOMIC_WRITE;
    Batches::new(device, Service::IBV_QPT_RC, operations)
}

fn atomic_write(device: &Device) {
    let batches = for_atomic_writes(device);
    let (key, address) = batches.remote();
    batches.post(|qp| unsafe {
        ibv_wr_atomic_write(qp, key, address, 77_u64.to_ne_bytes().as_ptr().cast());
    });
    batches.done(Opcode::IBV_WC_ATOMIC_WRITE);
    equal("what is there", batches.pair.b.mr.u64(0), 77);
}

fn atomic_writes_follow_each_other(device: &Device) {
    let batches = for_atomic_writes(device);
    let (key, address) = batches.remote();
    // More than the queue pair may have outstanding, between other requests.
    unsafe { ibv_wr_start(batches.qp) };
    for id in 0..12_u64 {
        batches.request(id, |qp| unsafe {
            if id % 3 == 2 {
                ibv_wr_rdma_write(qp, key, address + 8);
                batches.data(0, 8);
            } else {
                ibv_wr_atomic_write(qp, key, address, id.to_ne_bytes().as_ptr().cast());
            }
        });
    }
    unsafe { ibv_wr_complete(batches.qp) }.succeeds("ibv_wr_complete");
    for id in 0..12 {
        batches.pair.a.cq.success(id);
    }
    equal("what is there", batches.pair.b.mr.u64(0), 10);
}

fn atomic_write_of_an_odd_address_fails(device: &Device) {
    let batches = for_atomic_writes(device);
    let (key, address) = batches.remote();
    batches.post(|qp| unsafe {
        ibv_wr_atomic_write(qp, key, address + 4, 77_u64.to_ne_bytes().as_ptr().cast());
    });
    let refused = ibv_wc_status::IBV_WC_REM_INV_REQ_ERR;
    batches.pair.a.cq.expect(1, refused);
    equal("what is there", batches.pair.b.mr.u64(0), 0);
}

fn atomic_write_needs_remote_write(device: &Device) {
    let batches = for_atomic_writes(device);
    let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    let mr = Mr::new(
        &batches.pair.pd,
        4096,
        access | Access::IBV_ACCESS_REMOTE_READ,
    );
    batches.post(|qp| unsafe {
        ibv_wr_atomic_write(
            qp,
            mr.rkey(),
            mr.at(0),
            77_u64.to_ne_bytes().as_ptr().cast(),
        );
    });
    let refused = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
    batches.pair.a.cq.expect(1, refused);
    equal("what is there", mr.u64(0), 0);
}

/// Flags of headers newer than the bindings.
const FLUSH_GLOBAL: Access = Access(1 << 8);
const FLUSH_PERSISTENT: Access = Access(1 << 9);
const WITH_FLUSH: Op = Op(1 << 11);
const WC_FLUSH: Opcode = Opcode(8);
/// Placement types and selectivity levels of flushes.
const GLOBAL: u8 = 1;
const PERSISTENT: u8 = 2;
const RANGE: u8 = 0;
const REGION: u8 = 1;

/// `struct ibv_qp_ex` of newer headers.
#[repr(C)]
struct Later {
    known: ibv_qp_ex,
    wr_flush: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8),
}

/// A pair for flushes, and a region of the second end's that permits them. Ends the case where the
/// device has none.
struct Flushes {
    batches: Batches,
    mr: Mr,
}

impl Flushes {
    fn new(device: &Device) -> Self {
        Self::with(device, FLUSH_GLOBAL, FLUSH_GLOBAL)
    }

    /// Creates batches with additional access rights of the queue pair and the region.
    fn with(device: &Device, queue_pair: Access, region: Access) -> Self {
        if device.attr_ex().device_cap_flags_ex & (1 << 38) == 0 {
            ignore("the device does not claim IBV_DEVICE_FLUSH_GLOBAL");
        }
        let plan = Plan {
            access: ALL_ACCESS | queue_pair,
            ..Plan::new(Service::IBV_QPT_RC)
        };
        let batches = Batches::of(device, &plan, BASIC | WINDOWS | WITH_FLUSH);
        let access = ALL_ACCESS | Access::IBV_ACCESS_MW_BIND | region;
        let mr = Mr::new(&batches.pair.pd, 4096, access);
        Self { batches, mr }
    }

    #[track_caller]
    fn post(&self, key: u32, address: u64, length: usize, placement: u8, level: u8) {
        self.batches.post(|qp| unsafe {
            // The queue pair was created for flushes, so the function pointer is set.
            ((*qp.cast::<Later>()).wr_flush)(qp, key, address, length, placement, level);
        });
    }
}

fn flush_of_a_range(device: &Device) {
    let flushes = Flushes::new(device);
    let (a, mr) = (&flushes.batches.pair.a, &flushes.mr);
    a.mr.write(0, b"flushed!");
    let write = Request::write(&[a.mr.sge(0, 8)], mr.at(64), mr.rkey());
    a.qp.post(write.id(2).unsignaled());
    flushes.post(mr.rkey(), mr.at(64), 8, GLOBAL, RANGE);
    flushes.batches.done(WC_FLUSH);
    equal("what is there", mr.read(64, 8), b"flushed!".to_vec());
    flushes.post(mr.rkey(), mr.at(0), 4096, GLOBAL, RANGE);
    flushes.batches.done(WC_FLUSH);
}

fn flush_of_a_region(device: &Device) {
    let flushes = Flushes::new(device);
    // Of a region, neither the address nor the length counts.
    flushes.post(flushes.mr.rkey(), 0, 0, GLOBAL, REGION);
    flushes.batches.done(WC_FLUSH);
}

fn flush_through_a_window(device: &Device) {
    let flushes = Flushes::new(device);
    let mw = Mw::new(&flushes.batches.pair.pd);
    let key = unsafe { ibv_inc_rkey((*mw.0).rkey) };
    let place = ibv_mw_bind_info {
        mr: flushes.mr.raw(),
        addr: flushes.mr.at(1024),
        length: 64,
        mw_access_flags: (Access::IBV_ACCESS_REMOTE_WRITE | FLUSH_GLOBAL).0,
    };
    let b = &flushes.batches.pair.b;
    b.qp.post(Request::bind(mw.0, key, place).id(3));
    b.cq.success(3);
    flushes.post(key, flushes.mr.at(1024), 64, GLOBAL, RANGE);
    flushes.batches.done(WC_FLUSH);
    flushes.post(key, 0, 0, GLOBAL, REGION);
    flushes.batches.done(WC_FLUSH);
    flushes.post(key, flushes.mr.at(1024), 65, GLOBAL, RANGE);
    let refused = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
    flushes.batches.pair.a.cq.expect(1, refused);
}

fn flush_beyond_the_region_fails(device: &Device) {
    let flushes = Flushes::new(device);
    flushes.post(flushes.mr.rkey(), flushes.mr.at(4000), 97, GLOBAL, RANGE);
    let refused = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
    flushes.batches.pair.a.cq.expect(1, refused);
}

fn flush_needs_the_region_s_permission(device: &Device) {
    for level in [RANGE, REGION] {
        let flushes = Flushes::with(device, FLUSH_GLOBAL, NO_ACCESS);
        flushes.post(flushes.mr.rkey(), flushes.mr.at(0), 8, GLOBAL, level);
        let refused = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
        flushes.batches.pair.a.cq.expect(1, refused);
    }
}

fn flush_needs_the_queue_pair_s_permission(device: &Device) {
    let flushes = Flushes::with(device, NO_ACCESS, FLUSH_GLOBAL);
    flushes.post(flushes.mr.rkey(), flushes.mr.at(0), 8, GLOBAL, RANGE);
    let refused = ibv_wc_status::IBV_WC_REM_INV_REQ_ERR;
    flushes.batches.pair.a.cq.expect(1, refused);
}

fn persistent_flush_as_claimed(device: &Device) {
    let flushes = Flushes::with(device, FLUSH_PERSISTENT, FLUSH_GLOBAL);
    // IBV_DEVICE_FLUSH_PERSISTENT: memory of the test is not persistent in any case.
    let pd = &flushes.batches.pair.pd;
    Mr::of(
        pd,
        flushes.mr.memory(),
        0,
        4096,
        ALL_ACCESS | FLUSH_PERSISTENT,
    )
    .map(drop)
    .fails("ibv_reg_mr", &[libc::EINVAL, libc::EOPNOTSUPP]);
    let mr = &flushes.mr;
    flushes.post(mr.rkey(), mr.at(0), 8, PERSISTENT, RANGE);
    let refused = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
    flushes.batches.pair.a.cq.expect(1, refused);
}

/// A window of the pair's domain, freed at its end.
struct Mw(*mut ibv_mw);

impl Mw {
    fn new(pd: &Pd) -> Self {
        let caps = ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A
            | ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        if pd.device().attr().device_cap_flags & caps.0 == 0 {
            ignore("the device claims no memory windows of type 2");
        }
        let raw = unsafe { ibv_alloc_mw(pd.raw(), ibv_mw_type::IBV_MW_TYPE_2) };
        Self(raw.succeeds("ibv_alloc_mw"))
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        must("ibv_dealloc_mw", unsafe { ibv_dealloc_mw(self.0) });
    }
}

/// Registers a region for windows. Returns the region, and the range to bind.
fn ground(batches: &Batches) -> (Mr, ibv_mw_bind_info) {
    let access = ALL_ACCESS | ibv_access_flags::IBV_ACCESS_MW_BIND;
    let mr = Mr::new(&batches.pair.pd, 4096, access);
    let place = ibv_mw_bind_info {
        mr: mr.raw(),
        addr: mr.at(0),
        length: 64,
        mw_access_flags: ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
    };
    (mr, place)
}

fn bind_and_local_invalidate(device: &Device) {
    let batches = Batches::new(device, Service::IBV_QPT_RC, BASIC | WINDOWS);
    let (mr, place) = ground(&batches);
    let mw = Mw::new(&batches.pair.pd);
    let key = unsafe { ibv_inc_rkey((*mw.0).rkey) };
    batches.post(|qp| unsafe { ibv_wr_bind_mw(qp, mw.0, key, &place) });
    batches.done(Opcode::IBV_WC_BIND_MW);
    let b = &batches.pair.b;
    b.qp.post(Request::write(&[b.mr.sge(0, 8)], mr.at(0), key));
    b.cq.success(1);
    batches.post(|qp| unsafe { ibv_wr_local_inv(qp, key) });
    batches.done(Opcode::IBV_WC_LOCAL_INV);
    b.qp.post(Request::write(&[b.mr.sge(0, 8)], mr.at(0), key));
    b.cq.expect(1, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
}

fn bind_takes_flags_of_regions(device: &Device) {
    let batches = Batches::new(device, Service::IBV_QPT_RC, BASIC | WINDOWS);
    let (mr, mut place) = ground(&batches);
    place.mw_access_flags |= ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
    let mw = Mw::new(&batches.pair.pd);
    let key = unsafe { ibv_inc_rkey((*mw.0).rkey) };
    batches.post(|qp| unsafe { ibv_wr_bind_mw(qp, mw.0, key, &place) });
    batches.done(Opcode::IBV_WC_BIND_MW);
    let b = &batches.pair.b;
    b.qp.post(Request::write(&[b.mr.sge(0, 8)], mr.at(0), key));
    b.cq.success(1);
}

fn send_and_invalidate(device: &Device) {
    let batches = Batches::new(device, Service::IBV_QPT_RC, BASIC | WINDOWS);
    let (mr, place) = ground(&batches);
    let mw = Mw::new(&batches.pair.pd);
    let key = unsafe { ibv_inc_rkey((*mw.0).rkey) };
    let b = &batches.pair.b;
    b.qp.post(Request::bind(mw.0, key, place));
    b.cq.success(1);
    b.receive(3, 0, 64);
    batches.post(|qp| {
        unsafe { ibv_wr_send_inv(qp, key) };
        batches.data(0, 8);
    });
    batches.done(Opcode::IBV_WC_SEND);
    b.cq.success(3);
    let a = &batches.pair.a;
    a.qp.post(Request::write(&[a.mr.sge(0, 8)], mr.at(0), key));
    a.cq.expect(1, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
}

fn batch_arrives_in_order(device: &Device) {
    let batches = Batches::rc(device);
    let (key, address) = batches.remote();
    (0..4).for_each(|id| batches.pair.b.receive(id, 0, 64));
    unsafe { ibv_wr_start(batches.qp) };
    for id in 0..8 {
        batches.request(id, |qp| {
            match id % 2 {
                0 => unsafe { ibv_wr_send(qp) },
                _ => unsafe { ibv_wr_rdma_write(qp, key, address) },
            }
            batches.data(0, 8);
        });
    }
    batches.pair.a.cq.stays_empty();
    unsafe { ibv_wr_complete(batches.qp) }.succeeds("ibv_wr_complete");
    for id in 0..8 {
        batches.pair.a.cq.success(id);
    }
    for id in 0..4 {
        batches.pair.b.cq.success(id);
    }
}

fn abort(batches: &Batches) {
    let (key, address) = batches.remote();
    batches.pair.a.mr.write(0, b"aborted!");
    unsafe { ibv_wr_start(batches.qp) };
    for id in 0..3 {
        batches.request(id, |qp| {
            unsafe { ibv_wr_rdma_write(qp, key, address) };
            batches.data(0, 8);
        });
    }
    unsafe { ibv_wr_abort(batches.qp) };
}

fn aborted_batch_leaves_nothing(device: &Device) {
    let batches = Batches::rc(device);
    abort(&batches);
    batches.pair.a.cq.stays_empty();
    equal("the bytes", batches.pair.b.mr.read(0, 8), vec![0; 8]);
}

fn queue_works_after_an_abort(device: &Device) {
    let batches = Batches::rc(device);
    // More than the queue holds, were they not given back.
    (0..20).for_each(|_| abort(&batches));
    batches.pair.exchange(100);
}

fn batch_beyond_the_queue_is_refused_whole(device: &Device) {
    // The manual: no work is executed unless ibv_wr_complete returns success.
    let batches = Batches::rc(device);
    let (key, address) = batches.remote();
    let room = u64::from(batches.pair.a.qp.query().0.cap.max_send_wr);
    batches.pair.a.mr.write(0, b"too much");
    unsafe { ibv_wr_start(batches.qp) };
    for id in 0..=room {
        batches.request(id, |qp| {
            unsafe { ibv_wr_rdma_write(qp, key, address) };
            batches.data(0, 8);
        });
    }
    unsafe { ibv_wr_complete(batches.qp) }.refuses("ibv_wr_complete");
    batches.pair.a.cq.stays_empty();
    equal("the bytes", batches.pair.b.mr.read(0, 8), vec![0; 8]);
    batches.pair.exchange(8);
}

fn flags_are_heeded(device: &Device) {
    let batches = Batches::rc(device);
    let (key, address) = batches.remote();
    unsafe { ibv_wr_start(batches.qp) };
    for id in 0..3 {
        unsafe {
            (*batches.qp).wr_id = id;
            (*batches.qp).wr_flags = match id {
                2 => ibv_send_flags::IBV_SEND_SIGNALED.0 | ibv_send_flags::IBV_SEND_FENCE.0,
                _ => 0,
            };
            ibv_wr_rdma_write(batches.qp, key, address);
        }
        batches.data(0, 8);
    }
    unsafe { ibv_wr_complete(batches.qp) }.succeeds("ibv_wr_complete");
    batches.pair.a.cq.success(2);
    batches.pair.a.cq.stays_empty();
}

fn plain_posts_interleave(device: &Device) {
    let batches = Batches::rc(device);
    let (key, address) = batches.remote();
    for round in 0..5 {
        batches.post(|qp| {
            unsafe { ibv_wr_rdma_write(qp, key, address) };
            batches.data(0, 8);
        });
        batches
            .pair
            .a
            .qp
            .post(batches.pair.a.write(&batches.pair.b, 0, 8).id(10 + round));
        batches.pair.a.cq.success(1);
        batches.pair.a.cq.success(10 + round);
    }
}

fn datagram_arrives(device: &Device) {
    let batches = Batches::new(device, Service::IBV_QPT_UD, Op::IBV_QP_EX_WITH_SEND);
    let b = &batches.pair.b;
    let ah = Ah::own(&batches.pair.pd);
    batches.pair.a.mr.write(0, b"datagram");
    b.receive(2, 0, 64);
    batches.post(|qp| {
        unsafe {
            ibv_wr_send(qp);
            ibv_wr_set_ud_addr(qp, ah.raw(), b.qp.number(), QKEY);
        }
        batches.data(0, 8);
    });
    batches.done(Opcode::IBV_WC_SEND);
    b.cq.success(2);
    equal("the message", b.mr.read(GRH, 8), b"datagram".to_vec());
}

fn unreliable_connection_works(device: &Device) {
    let operations = Op::IBV_QP_EX_WITH_SEND | Op::IBV_QP_EX_WITH_RDMA_WRITE;
    let batches = Batches::new(device, Service::IBV_QPT_UC, operations);
    batches.pair.b.receive(2, 0, 64);
    batches.post(|qp| {
        unsafe { ibv_wr_send(qp) };
        batches.data(0, 8);
    });
    batches.done(Opcode::IBV_WC_SEND);
    batches.pair.b.cq.success(2);
}

fn start_in_reset_fails_at_the_end(device: &Device) {
    let batches = Batches::rc(device);
    batches
        .pair
        .a
        .qp
        .enter(ibv_qp_state::IBV_QPS_RESET)
        .succeeds("to RESET");
    unsafe { ibv_wr_start(batches.qp) };
    batches.request(1, |qp| unsafe { ibv_wr_send(qp) });
    batches.data(0, 8);
    unsafe { ibv_wr_complete(batches.qp) }.refuses("ibv_wr_complete");
}
