//! The extended reliable connection: domains, its queue pairs and its shared receive queues.

use std::ptr;

use ibverbs_sys::ibv_qp_init_attr_mask as InitMask;
use ibverbs_sys::ibv_qp_state as State;
use ibverbs_sys::ibv_qp_type as Service;
use ibverbs_sys::ibv_srq_init_attr_mask as SrqMask;
use ibverbs_sys::ibv_wc_status as Status;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_domain_without_a_file_is_created,
        domain_of_a_file_is_shared,
        a_new_domain_of_a_file_can_be_required,
        an_unknown_domain_is_refused,
        domain_with_a_queue_is_busy,
        queue_has_a_number,
        send_arrives_in_the_queue,
        long_send_arrives_in_the_queue,
        sends_choose_among_queues,
        immediate_data_arrives,
        writes_and_reads_consume_no_receive,
        keys_are_those_of_the_queue_that_is_named,
        write_that_names_no_queue_fails,
        atomic_works,
        a_write_with_immediate_data_consumes_a_shared_receive,
        send_to_an_unknown_queue_fails,
        a_target_accepts_no_send_requests,
        an_initiator_accepts_no_receives,
        target_is_opened_by_number,
        a_device_without_support_refuses,
    ]
}

/// A domain, closed at its end.
struct Xrcd {
    raw: *mut ibv_xrcd,
    _device: Device,
}

impl Xrcd {
    fn open(device: &Device, fd: i32, oflag: i32) -> Result<Self, i32> {
        let mask = ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD
            | ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS;
        let mut attr = ibv_xrcd_init_attr {
            comp_mask: mask.0,
            fd,
            oflags: oflag,
        };
        let raw = pointer(unsafe { ibv_open_xrcd(device.context(), &mut attr) })?;
        Ok(Self {
            raw,
            _device: device.clone(),
        })
    }

    fn new(device: &Device) -> Self {
        device.needs_xrc();
        Self::open(device, -1, libc::O_CREAT).succeeds("ibv_open_xrcd")
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        must("ibv_close_xrcd", unsafe { ibv_close_xrcd(self.raw) });
    }
}

fn queue(pd: &Pd, cq: &Cq, xrcd: &Xrcd) -> Srq {
    let mask = SrqMask::IBV_SRQ_INIT_ATTR_TYPE
        | SrqMask::IBV_SRQ_INIT_ATTR_PD
        | SrqMask::IBV_SRQ_INIT_ATTR_XRCD
        | SrqMask::IBV_SRQ_INIT_ATTR_CQ;
    let mut attr = ibv_srq_init_attr_ex {
        attr: ibv_srq_attr {
            max_wr: 16,
            max_sge: 2,
            srq_limit: 0,
        },
        comp_mask: mask.0,
        srq_type: ibv_srq_type::IBV_SRQT_XRC,
        pd: pd.raw(),
        xrcd: xrcd.raw,
        cq: cq.raw(),
        ..Default::default()
    };
    let raw = unsafe { ibv_create_srq_ex(pd.device().context(), &mut attr) };
    Srq::from_raw(pd, raw.succeeds("ibv_create_srq_ex(XRC)"))
}

fn number(srq: &Srq) -> u32 {
    let mut number = 0;
    unsafe { ibv_get_srq_num(srq.raw(), &mut number) }.succeeds("ibv_get_srq_num");
    number
}

/// An initiator here, and a target with a queue there.
///
/// Fields go in this order: queues before their domain.
struct Connection {
    initiator: Qp,
    target: Qp,
    srq: Srq,
    xrcd: Xrcd,
    sends: Cq,
    receives: Cq,
    mr: Mr,
    pd: Pd,
}

impl Connection {
    fn new(device: &Device) -> Self {
        let xrcd = Xrcd::new(device);
        let pd = Pd::new(device);
        let (sends, receives) = (Cq::new(device, 32), Cq::new(device, 32));
        let srq = queue(&pd, &receives, &xrcd);
        let initiator = initiator(&pd, &sends);
        let target = target(&pd, &receives, &xrcd);
        initiator.connect(target.number());
        target.connect(initiator.number());
        let mr = Mr::new(&pd, SPACE, ALL_ACCESS);
        Self {
            initiator,
            target,
            srq,
            xrcd,
            sends,
            receives,
            mr,
            pd,
        }
    }

    /// Sends from the start of the memory to the queue, which receives into its second half.
    fn exchange(&self, length: usize) {
        let sent = pattern(length, 5);
        self.mr.write(0, &sent);
        self.srq.receive(2, &[self.mr.sge(SPACE / 2, length)]);
        let send = Request::send(&[self.mr.sge(0, length)]).srq(number(&self.srq));
        self.initiator.post(send);
        self.sends.success(1);
        let received = self.receives.success(2);
        equal("the length", received.byte_len as usize, length);
        assert!(self.mr.read(SPACE / 2, length) == sent);
    }
}

fn initiator(pd: &Pd, cq: &Cq) -> Qp {
    let mut plan = Plan::new(Service::IBV_QPT_XRC_SEND);
    (plan.cap.max_recv_wr, plan.cap.max_recv_sge) = (0, 0);
    let mut attr = ibv_qp_init_attr_ex {
        send_cq: cq.raw(),
        cap: plan.cap,
        qp_type: plan.service,
        comp_mask: InitMask::IBV_QP_INIT_ATTR_PD.0,
        pd: pd.raw(),
        ..Default::default()
    };
    let raw = unsafe { ibv_create_qp_ex(pd.device().context(), &mut attr) };
    let raw = raw.succeeds("ibv_create_qp_ex(XRC_SEND)");
    Qp::from_raw(pd, cq, cq, &plan, raw, attr.cap)
}

fn target(pd: &Pd, cq: &Cq, xrcd: &Xrcd) -> Qp {
    let plan = Plan::new(Service::IBV_QPT_XRC_RECV);
    let mut attr = ibv_qp_init_attr_ex {
        qp_type: plan.service,
        comp_mask: InitMask::IBV_QP_INIT_ATTR_XRCD.0,
        xrcd: xrcd.raw,
        ..Default::default()
    };
    let raw = unsafe { ibv_create_qp_ex(pd.device().context(), &mut attr) };
    let raw = raw.succeeds("ibv_create_qp_ex(XRC_RECV)");
    Qp::from_raw(pd, cq, cq, &plan, raw, attr.cap)
}

fn a_domain_without_a_file_is_created(device: &Device) {
    let xrcd = Xrcd::new(device);
    equal("context", unsafe { (*xrcd.raw).context }, device.context());
}

/// Returns the descriptor of a new file.
fn file() -> i32 {
    let fd = unsafe { libc::memfd_create(c"xrcd".as_ptr(), 0) };
    assert!(fd >= 0, "memfd_create");
    fd
}

fn domain_of_a_file_is_shared(device: &Device) {
    device.needs_xrc();
    let fd = file();
    let first = Xrcd::open(device, fd, libc::O_CREAT).succeeds("ibv_open_xrcd");
    let second = Xrcd::open(device, fd, 0).succeeds("ibv_open_xrcd of what exists");
    drop((first, second));
    unsafe { libc::close(fd) };
}

fn a_new_domain_of_a_file_can_be_required(device: &Device) {
    device.needs_xrc();
    let fd = file();
    let flags = libc::O_CREAT | libc::O_EXCL;
    let first = Xrcd::open(device, fd, flags).succeeds("ibv_open_xrcd");
    let second = Xrcd::open(device, fd, flags).map(drop);
    drop(first);
    unsafe { libc::close(fd) };
    second.fails("ibv_open_xrcd(O_EXCL)", &[libc::EEXIST, libc::EINVAL]);
}

fn an_unknown_domain_is_refused(device: &Device) {
    device.needs_xrc();
    let fd = file();
    let opened = Xrcd::open(device, fd, 0).map(drop);
    unsafe { libc::close(fd) };
    opened.fails("ibv_open_xrcd", &[libc::ENOENT, libc::EINVAL, libc::EAGAIN]);
}

fn domain_with_a_queue_is_busy(device: &Device) {
    let connection = Connection::new(device);
    unsafe { ibv_close_xrcd(connection.xrcd.raw) }.fails("ibv_close_xrcd", &[libc::EBUSY]);
}

fn queue_has_a_number(device: &Device) {
    let connection = Connection::new(device);
    assert!(number(&connection.srq) < 1 << 24);
}

fn send_arrives_in_the_queue(device: &Device) {
    Connection::new(device).exchange(100);
}

fn long_send_arrives_in_the_queue(device: &Device) {
    Connection::new(device).exchange(20_001);
}

fn sends_choose_among_queues(device: &Device) {
    let connection = Connection::new(device);
    let other_receives = Cq::new(device, 16);
    let other = queue(&connection.pd, &other_receives, &connection.xrcd);
    assert!(number(&other) != number(&connection.srq));
    other.receive(9, &[connection.mr.sge(200, 64)]);
    connection.mr.write(0, b"chosen");
    let send = Request::send(&[connection.mr.sge(0, 6)]).srq(number(&other));
    connection.initiator.post(send);
    connection.sends.success(1);
    other_receives.success(9);
    equal(
        "the message",
        connection.mr.read(200, 6),
        b"chosen".to_vec(),
    );
    connection.exchange(8);
}

fn immediate_data_arrives(device: &Device) {
    let connection = Connection::new(device);
    connection.srq.receive(2, &[connection.mr.sge(100, 8)]);
    let send = Request::send(&[connection.mr.sge(0, 8)]).immediate(31);
    connection.initiator.post(send.srq(number(&connection.srq)));
    equal("the data", immediate(&connection.receives.success(2)), 31);
}

fn writes_and_reads_consume_no_receive(device: &Device) {
    let connection = Connection::new(device);
    let (mr, initiator) = (&connection.mr, &connection.initiator);
    // IBTA annex A14: keys are checked against the domain of the queue that the request names.
    let there = number(&connection.srq);
    mr.write(0, b"written");
    initiator.post(Request::write(&[mr.sge(0, 7)], mr.at(100), mr.rkey()).srq(there));
    connection.sends.success(1);
    equal("what was written", mr.read(100, 7), b"written".to_vec());
    initiator.post(Request::read(&[mr.sge(200, 7)], mr.at(100), mr.rkey()).srq(there));
    connection.sends.success(1);
    equal("what was read", mr.read(200, 7), b"written".to_vec());
}

fn keys_are_those_of_the_queue_that_is_named(device: &Device) {
    let connection = Connection::new(device);
    let foreign = Mr::new(&Pd::new(device), 4096, ALL_ACCESS);
    let write = Request::write(&[connection.mr.sge(0, 8)], foreign.at(0), foreign.rkey());
    connection
        .initiator
        .post(write.srq(number(&connection.srq)));
    connection.sends.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
}

fn write_that_names_no_queue_fails(device: &Device) {
    let connection = Connection::new(device);
    let mr = &connection.mr;
    let unknown = number(&connection.srq) ^ 0x0055_5555;
    let write = Request::write(&[mr.sge(0, 8)], mr.at(100), mr.rkey()).srq(unknown);
    connection.initiator.post(write);
    let failed = connection.sends.next();
    assert!(
        failed.status != Status::IBV_WC_SUCCESS,
        "the write succeeded"
    );
}

fn atomic_works(device: &Device) {
    device.needs_atomics();
    let connection = Connection::new(device);
    let mr = &connection.mr;
    let add = Request::fetch_and_add(mr.sge(0, 8), mr.at(64), mr.rkey(), 7);
    connection.initiator.post(add.srq(number(&connection.srq)));
    connection.sends.success(1);
    equal("the counter", mr.u64(64), 7);
}

fn a_write_with_immediate_data_consumes_a_shared_receive(device: &Device) {
    let connection = Connection::new(device);
    let mr = &connection.mr;
    connection.srq.receive(2, &[mr.sge(1000, 8)]);
    let write = Request::write(&[mr.sge(0, 8)], mr.at(100), mr.rkey()).immediate(32);
    connection
        .initiator
        .post(write.srq(number(&connection.srq)));
    connection.sends.success(1);
    let received = connection.receives.success(2);
    equal(
        "the opcode",
        received.opcode,
        ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
    );
    equal("the data", immediate(&received), 32);
}

fn send_to_an_unknown_queue_fails(device: &Device) {
    let connection = Connection::new(device);
    let unknown = number(&connection.srq) ^ 0x0055_5555;
    let send = Request::send(&[connection.mr.sge(0, 8)]).srq(unknown);
    connection.initiator.post(send);
    let failed = connection.sends.next();
    assert!(
        failed.status != Status::IBV_WC_SUCCESS,
        "the send succeeded"
    );
    connection.initiator.becomes(State::IBV_QPS_ERR);
}

fn a_target_accepts_no_send_requests(device: &Device) {
    let connection = Connection::new(device);
    let result = connection.target.try_post(Request::send(&[]));
    result.fails(
        "ibv_post_send",
        &[libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS],
    );
}

fn an_initiator_accepts_no_receives(device: &Device) {
    let connection = Connection::new(device);
    let result = connection.initiator.try_receive(&[Receive::new(1, &[])]);
    result.map_err(|(number, _)| number).fails(
        "ibv_post_recv",
        &[libc::EINVAL, libc::ENOMEM, libc::EOPNOTSUPP, libc::ENOSYS],
    );
}

fn target_is_opened_by_number(device: &Device) {
    let connection = Connection::new(device);
    let mask = ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_NUM
        | ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_XRCD
        | ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_TYPE;
    let mut attr = ibv_qp_open_attr {
        comp_mask: mask.0,
        qp_num: connection.target.number(),
        xrcd: connection.xrcd.raw,
        qp_context: ptr::null_mut(),
        qp_type: Service::IBV_QPT_XRC_RECV,
    };
    let raw = unsafe { ibv_open_qp(device.context(), &mut attr) }.succeeds("ibv_open_qp");
    equal(
        "the number",
        unsafe { (*raw).qp_num },
        connection.target.number(),
    );
    unsafe { ibv_destroy_qp(raw) }.succeeds("ibv_destroy_qp of the opened one");
    connection.exchange(8);
}

fn a_device_without_support_refuses(device: &Device) {
    if device.has(ibv_device_cap_flags::IBV_DEVICE_XRC) {
        return drop(Xrcd::new(device));
    }
    Xrcd::open(device, -1, libc::O_CREAT).map(drop).fails(
        "ibv_open_xrcd",
        &[libc::EOPNOTSUPP, libc::ENOSYS, libc::EINVAL],
    );
}
