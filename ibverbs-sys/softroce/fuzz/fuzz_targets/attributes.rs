//! Attributes and work requests of programs: for all their contents and all orders of calls, each
//! verb returns, the process does not crash, and no object is left after all were destroyed.
//!
//! Pointers are valid, as the manual pages require; everything else comes from the input.

#![no_main]

use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::mem;
use std::ptr;
use std::sync::OnceLock;

use ibverbs_sys::*;
use libfuzzer_sys::fuzz_target;
use softroce::{Kind, objects};

/// Length in bytes of the registered memory that the requests access.
const MEMORY: usize = 1 << 16;

/// Maximum number of verbs called for one input.
const CALLS: usize = 64;

/// Number of scatter/gather elements in each list that requests point to.
const ELEMENTS: usize = 40;

fuzz_target!(|bytes: &[u8]| {
    let device = Device::of_process();
    let input = Input(Cell::new(bytes));
    let before = Kind::ALL.map(objects);
    let mut session = Session::new(device, &input);
    for _ in 0..CALLS {
        if input.is_empty() {
            break;
        }
        session.call(&input);
    }
    session.destroy();
    assert_eq!(Kind::ALL.map(objects), before, "objects of {:?}", Kind::ALL);
});

/// The unread bytes of the fuzzer's input. After the last byte, reads return zeros.
struct Input<'a>(Cell<&'a [u8]>);

impl Input<'_> {
    fn is_empty(&self) -> bool {
        self.0.get().is_empty()
    }

    fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut taken = [0; N];
        self.fill(&mut taken);
        taken
    }

    fn fill(&self, out: &mut [u8]) {
        let left = self.0.get();
        let (taken, rest) = left.split_at(out.len().min(left.len()));
        out[..taken.len()].copy_from_slice(taken);
        self.0.set(rest);
    }

    fn byte(&self) -> u8 {
        self.bytes::<1>()[0]
    }

    fn word(&self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    fn long(&self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    /// Consumes one byte of the input. In most cases returns the element of `usual` that the byte
    /// selects; otherwise returns the next 32-bit number of the input.
    fn one_of(&self, usual: &[u32]) -> u32 {
        match self.byte() {
            255 => self.word(),
            choice => usual[usize::from(choice) % usual.len()],
        }
    }
}

/// The device's objects that are created once and used for all inputs of the fuzzer.
struct Device {
    context: *mut ibv_context,
    domain: *mut ibv_pd,
    region: *mut ibv_mr,
    memory: usize,
    gid: [u8; 16],
}

// SAFETY: the objects of libibverbs may be used by any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    fn of_process() -> &'static Self {
        static DEVICE: OnceLock<Device> = OnceLock::new();
        DEVICE.get_or_init(|| {
            softroce::install();
            // SAFETY: the calls obey the manual pages.
            unsafe {
                let list = ibv_get_device_list(ptr::null_mut());
                let context = ibv_open_device(*list);
                ibv_free_device_list(list);
                assert!(!context.is_null(), "{}", std::io::Error::last_os_error());
                let domain = ibv_alloc_pd(context);
                let memory = Box::leak(vec![0_u8; MEMORY].into_boxed_slice()).as_mut_ptr();
                let region = ibv_reg_mr(domain, memory.cast(), MEMORY, 0b1_1111);
                assert!(!region.is_null());
                let mut gid: ibv_gid = mem::zeroed();
                assert_eq!(ibv_query_gid(context, 1, 0, &mut gid), 0);
                Self {
                    context,
                    domain,
                    region,
                    memory: memory as usize,
                    gid: gid.raw,
                }
            }
        })
    }
}

/// The verbs objects that are created for one input of the fuzzer, and destroyed after the input.
struct Session {
    device: &'static Device,
    channel: *mut ibv_comp_channel,
    queue: *mut ibv_cq,
    shared: *mut ibv_srq,
    pair: *mut ibv_qp,
    handle: *mut ibv_ah,
    window: *mut ibv_mw,
    domain: *mut ibv_xrcd,
}

impl Session {
    fn new(device: &'static Device, input: &Input<'_>) -> Self {
        // SAFETY: the calls obey the manual pages.
        unsafe {
            let channel = ibv_create_comp_channel(device.context);
            let queue = ibv_create_cq(device.context, 64, ptr::null_mut(), channel, 0);
            assert!(!queue.is_null());
            let mut session = Self {
                device,
                channel,
                queue,
                shared: ptr::null_mut(),
                pair: ptr::null_mut(),
                handle: ptr::null_mut(),
                window: ptr::null_mut(),
                domain: ptr::null_mut(),
            };
            if input.byte() % 2 == 0 {
                session.create_shared(input);
            }
            session.create_handle(input);
            session.create_pair(input);
            session
        }
    }

    /// Calls one verb. The next byte of the input selects the verb, and the following bytes its
    /// arguments.
    fn call(&mut self, input: &Input<'_>) {
        // SAFETY: the objects exist, and what the pointers refer to outlives the calls.
        unsafe {
            match input.byte() % 18 {
                0..4 => self.modify(input),
                4..7 => self.post_send(input),
                7 => self.post_receive(input),
                8 => self.post_by_calls(input),
                9 => self.query(input),
                10 => self.poll(input),
                11 => self.create_pair(input),
                12 => self.create_shared(input),
                13 => self.create_handle(input),
                14 => self.create_queue(input),
                15 => self.register(input),
                16 => self.windows(input),
                _ => self.modify_queues(input),
            }
        }
    }

    unsafe fn modify(&self, input: &Input<'_>) {
        if self.pair.is_null() {
            return;
        }
        let mut attributes: ibv_qp_attr = unsafe { mem::zeroed() };
        let mut raw = [0; size_of::<ibv_qp_attr>()];
        let usual = input.byte();
        if usual % 4 == 0 {
            input.fill(&mut raw);
            // SAFETY: every field is an integer.
            attributes = unsafe { mem::transmute_copy(&raw) };
        } else {
            attributes.qp_state = ibv_qp_state(input.one_of(&[1, 2, 3, 4, 6, 0]));
            attributes.path_mtu = ibv_mtu(input.one_of(&[3, 5, 1]));
            attributes.port_num = 1;
            attributes.qp_access_flags = input.one_of(&[0, 0xf]);
            // The queue pair is its own peer.
            attributes.dest_qp_num = unsafe { (*self.pair).qp_num };
            attributes.ah_attr.is_global = 1;
            attributes.ah_attr.port_num = 1;
            attributes.max_dest_rd_atomic = input.byte() % 20;
            attributes.max_rd_atomic = input.byte() % 20;
            attributes.retry_cnt = input.byte() % 9;
            attributes.rnr_retry = input.byte() % 9;
            attributes.timeout = input.byte() % 33;
        }
        attributes.ah_attr.grh.dgid.raw = self.device.gid;
        const INIT: u32 = 0x1 | 0x8 | 0x10 | 0x20;
        const RTR: u32 = 0x1 | 0x80 | 0x100 | 0x10_0000 | 0x1000 | 0x2_0000 | 0x8000;
        const RTS: u32 = 0x1 | 0x200 | 0x400 | 0x800 | 0x1_0000 | 0x2000;
        let mask = input.one_of(&[INIT, RTR, RTS, 0x1, 0x39 | 0x40, 0x1_0001]);
        unsafe { ibv_modify_qp(self.pair, &mut attributes, mask as c_int) };
    }

    /// Returns a list of scatter/gather elements in the registered memory, as the input determines.
    /// Unless `valid` is set, some elements have an arbitrary address, length and key.
    fn elements(&self, input: &Input<'_>, valid: bool) -> [ibv_sge; ELEMENTS] {
        let lkey = unsafe { (*self.device.region).lkey };
        std::array::from_fn(|_| {
            if !valid && input.byte() == 255 {
                return ibv_sge {
                    addr: input.long(),
                    length: input.word(),
                    lkey: input.word(),
                };
            }
            let offset = usize::from(input.byte()) * 64;
            ibv_sge {
                addr: (self.device.memory + offset) as u64,
                length: u32::from(input.byte()) * 8,
                lkey,
            }
        })
    }

    unsafe fn post_send(&self, input: &Input<'_>) {
        if self.pair.is_null() {
            return;
        }
        let mut elements = self.elements(input, true);
        let mut list: [ibv_send_wr; 3] = unsafe { mem::zeroed() };
        for request in &mut list {
            request.wr_id = input.long();
            request.sg_list = elements.as_mut_ptr();
            request.num_sge = match input.byte() {
                255 => -1,
                254 => ELEMENTS as c_int,
                number => c_int::from(number % 4),
            };
            request.opcode = ibv_wr_opcode(input.one_of(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
            request.send_flags = c_uint::from(input.byte());
            request.__bindgen_anon_1.imm_data = input.word();
            if self.is_datagram() {
                request.wr.ud.ah = self.handle;
                request.wr.ud.remote_qpn = input.one_of(&[unsafe { (*self.pair).qp_num }]);
                request.wr.ud.remote_qkey = input.word();
            } else {
                request.wr.rdma.remote_addr = self.device.memory as u64 + u64::from(input.byte());
                request.wr.rdma.rkey = input.one_of(&[unsafe { (*self.device.region).rkey }]);
            }
            request.qp_type.xrc.remote_srqn = input.word();
        }
        // Binding needs a valid window, which these requests do not name.
        list.iter_mut()
            .filter(|request| request.opcode == ibv_wr_opcode::IBV_WR_BIND_MW)
            .for_each(|request| request.opcode = ibv_wr_opcode::IBV_WR_SEND);
        let (first, rest) = list.split_at_mut(1);
        if input.byte() % 2 == 0 {
            first[0].next = &mut rest[0];
        }
        let mut bad = ptr::null_mut();
        unsafe { ibv_post_send(self.pair, &mut first[0], &mut bad) };
    }

    fn is_datagram(&self) -> bool {
        unsafe { (*self.pair).qp_type == ibv_qp_type::IBV_QPT_UD }
    }

    unsafe fn post_receive(&self, input: &Input<'_>) {
        let mut elements = self.elements(input, false);
        let mut request: ibv_recv_wr = unsafe { mem::zeroed() };
        request.wr_id = input.long();
        request.sg_list = elements.as_mut_ptr();
        request.num_sge = c_int::from(input.byte() % 40) - 1;
        let mut bad = ptr::null_mut();
        unsafe {
            if !self.shared.is_null() {
                ibv_post_srq_recv(self.shared, &mut request, &mut bad);
            }
            if !self.pair.is_null() {
                ibv_post_recv(self.pair, &mut request, &mut bad);
            }
        }
    }

    /// Posts requests by the functions `ibv_wr_*`, in an order that the input determines and that
    /// may be wrong.
    unsafe fn post_by_calls(&self, input: &Input<'_>) {
        if self.pair.is_null() {
            return;
        }
        unsafe {
            let pair = ibv_qp_to_qp_ex(self.pair);
            if pair.is_null() {
                return;
            }
            let region = &*self.device.region;
            let address = self.device.memory as u64;
            ibv_wr_start(pair);
            for _ in 0..input.byte() % 16 {
                (*pair).wr_id = input.long();
                (*pair).wr_flags = c_uint::from(input.byte());
                match input.byte() % 14 {
                    0 => ibv_wr_send(pair),
                    1 => ibv_wr_send_imm(pair, input.word()),
                    2 => ibv_wr_send_inv(pair, input.word()),
                    3 => ibv_wr_rdma_write(pair, region.rkey, address),
                    4 => ibv_wr_rdma_write_imm(pair, region.rkey, address, input.word()),
                    5 => ibv_wr_rdma_read(pair, region.rkey, address),
                    6 => ibv_wr_atomic_cmp_swp(pair, region.rkey, address, input.long(), 1),
                    7 => ibv_wr_atomic_fetch_add(pair, region.rkey, address, input.long()),
                    8 => ibv_wr_local_inv(pair, input.word()),
                    9 => ibv_wr_set_sge(pair, region.lkey, address, u32::from(input.byte())),
                    10 => {
                        let elements = self.elements(input, false);
                        let count = usize::from(input.byte()) % ELEMENTS;
                        ibv_wr_set_sge_list(pair, count, elements.as_ptr());
                    }
                    11 => {
                        let length = usize::from(input.byte()) * 16;
                        let bytes = ptr::with_exposed_provenance_mut(self.device.memory);
                        ibv_wr_set_inline_data(pair, bytes, length);
                    }
                    12 if !self.handle.is_null() => {
                        ibv_wr_set_ud_addr(pair, self.handle, input.word(), input.word());
                    }
                    _ => ibv_wr_set_xrc_srqn(pair, input.word()),
                }
            }
            if input.byte() % 4 == 0 {
                ibv_wr_abort(pair);
            } else {
                ibv_wr_complete(pair);
            }
        }
    }

    unsafe fn query(&self, input: &Input<'_>) {
        unsafe {
            if !self.pair.is_null() {
                let mut attributes: ibv_qp_attr = mem::zeroed();
                let mut made: ibv_qp_init_attr = mem::zeroed();
                ibv_query_qp(self.pair, &mut attributes, input.word() as c_int, &mut made);
            }
            if !self.shared.is_null() {
                let mut attributes: ibv_srq_attr = mem::zeroed();
                ibv_query_srq(self.shared, &mut attributes);
            }
            let mut port: ibv_port_attr = mem::zeroed();
            ibv_query_port(self.device.context, input.byte(), &mut port);
            let mut gid: ibv_gid = mem::zeroed();
            ibv_query_gid(self.device.context, 1, input.word() as c_int, &mut gid);
            let mut key = 0;
            ibv_query_pkey(self.device.context, 1, input.word() as c_int, &mut key);
        }
    }

    unsafe fn poll(&self, input: &Input<'_>) {
        unsafe {
            let mut completions: [ibv_wc; 8] = mem::zeroed();
            let count = ibv_poll_cq(self.queue, 8, completions.as_mut_ptr());
            // More completions than the queue has room for overrun it, and from then on it fails.
            let overrun = count == -libc::EIO;
            assert!(overrun || (0..=8).contains(&count), "{count} completions");
            ibv_req_notify_cq(self.queue, c_int::from(input.byte() % 2));
        }
    }

    unsafe fn create_pair(&mut self, input: &Input<'_>) {
        unsafe {
            if !self.pair.is_null() {
                assert_eq!(ibv_destroy_qp(self.pair), 0);
                self.pair = ptr::null_mut();
            }
            let mut attributes: ibv_qp_init_attr_ex = mem::zeroed();
            attributes.send_cq = self.queue;
            attributes.recv_cq = self.queue;
            attributes.srq = if input.byte() % 4 == 0 {
                self.shared
            } else {
                ptr::null_mut()
            };
            attributes.cap.max_send_wr = input.one_of(&[1, 4, 16, 64]);
            attributes.cap.max_recv_wr = input.one_of(&[1, 4, 16, 64]);
            attributes.cap.max_send_sge = input.one_of(&[1, 2, 32]);
            attributes.cap.max_recv_sge = input.one_of(&[1, 2, 32]);
            attributes.cap.max_inline_data = input.one_of(&[0, 64, 512]);
            attributes.qp_type = ibv_qp_type(input.one_of(&[2, 2, 3, 4, 9, 10]));
            attributes.sq_sig_all = c_int::from(input.byte() % 2);
            attributes.comp_mask = input.one_of(&[1, 1, 0x41]);
            attributes.pd = self.device.domain;
            attributes.send_ops_flags = input.long() & 0x7ff;
            self.pair = ibv_create_qp_ex(self.device.context, &mut attributes);
        }
    }

    unsafe fn create_shared(&mut self, input: &Input<'_>) {
        unsafe {
            // The destruction fails while a queue pair uses the queue.
            if !self.shared.is_null() && ibv_destroy_srq(self.shared) != 0 {
                return;
            }
            self.shared = ptr::null_mut();
            let mut attributes: ibv_srq_init_attr_ex = mem::zeroed();
            attributes.attr.max_wr = input.one_of(&[1, 16, 100]);
            attributes.attr.max_sge = input.one_of(&[1, 4]);
            attributes.attr.srq_limit = input.one_of(&[0, 4]);
            attributes.comp_mask = input.one_of(&[2, 3, 0xf]);
            attributes.srq_type = ibv_srq_type(input.one_of(&[0, 1, 2]));
            attributes.pd = self.device.domain;
            attributes.cq = self.queue;
            if self.domain.is_null() && input.byte() % 2 == 0 {
                let mut of_domain: ibv_xrcd_init_attr = mem::zeroed();
                of_domain.comp_mask = 3;
                of_domain.fd = -1;
                of_domain.oflags = 0o100;
                self.domain = ibv_open_xrcd(self.device.context, &mut of_domain);
            }
            attributes.xrcd = self.domain;
            self.shared = ibv_create_srq_ex(self.device.context, &mut attributes);
        }
    }

    unsafe fn create_handle(&mut self, input: &Input<'_>) {
        unsafe {
            let mut attributes: ibv_ah_attr = mem::zeroed();
            attributes.is_global = input.byte();
            attributes.port_num = input.one_of(&[1, 1, 0, 2]) as u8;
            attributes.grh.sgid_index = input.one_of(&[0, 1, 7]) as u8;
            attributes.grh.flow_label = input.word();
            attributes.grh.hop_limit = input.byte();
            attributes.grh.dgid.raw = self.device.gid;
            if !self.handle.is_null() {
                // Posted requests do not refer to the handle any more.
                assert_eq!(ibv_destroy_ah(self.handle), 0);
            }
            self.handle = ibv_create_ah(self.device.domain, &mut attributes);
        }
    }

    unsafe fn create_queue(&self, input: &Input<'_>) {
        unsafe {
            let mut attributes: ibv_cq_init_attr_ex = mem::zeroed();
            attributes.cqe = input.one_of(&[0, 1, 100, u32::MAX]);
            attributes.channel = self.channel;
            attributes.comp_vector = input.one_of(&[0, 1]);
            attributes.wc_flags = input.long();
            attributes.comp_mask = input.one_of(&[0, 1, 2]);
            attributes.flags = input.one_of(&[0, 1, 2, 3]);
            let queue = ibv_create_cq_ex(self.device.context, &mut attributes);
            if !queue.is_null() {
                ibv_resize_cq(ibv_cq_ex_to_cq(queue), input.word() as c_int);
                assert_eq!(ibv_destroy_cq(ibv_cq_ex_to_cq(queue)), 0);
            }
        }
    }

    unsafe fn register(&self, input: &Input<'_>) {
        unsafe {
            let address = if input.byte() == 255 {
                input.long()
            } else {
                self.device.memory as u64
            };
            let pointer = ptr::with_exposed_provenance_mut(address as usize);
            let length = match input.byte() {
                255 => input.long() as usize,
                short => usize::from(short) * 16,
            };
            let access = input.word();
            let region =
                ibv_reg_mr_iova2(self.device.domain, pointer, length, input.long(), access);
            if region.is_null() {
                return;
            }
            let flags = input.one_of(&[1, 2, 4, 7]) as c_int;
            // The region remains valid, whether or not the call succeeds.
            ibv_rereg_mr(
                region,
                flags,
                self.device.domain,
                ptr::with_exposed_provenance_mut(self.device.memory),
                usize::from(input.byte()),
                input.byte().into(),
            );
            assert_eq!(ibv_dereg_mr(region), 0);
        }
    }

    unsafe fn windows(&mut self, input: &Input<'_>) {
        unsafe {
            if self.window.is_null() {
                let kind = ibv_mw_type(input.one_of(&[1, 2]));
                self.window = ibv_alloc_mw(self.device.domain, kind);
                return;
            }
            if !self.pair.is_null() {
                let mut binding: ibv_mw_bind = mem::zeroed();
                binding.wr_id = input.long();
                binding.send_flags = c_uint::from(input.byte());
                binding.bind_info.mr = self.device.region;
                binding.bind_info.addr = self.device.memory as u64 + u64::from(input.word());
                binding.bind_info.length = input.one_of(&[0, 8, 4096]).into();
                binding.bind_info.mw_access_flags = c_uint::from(input.byte());
                ibv_bind_mw(self.pair, self.window, &mut binding);
            }
        }
    }

    unsafe fn modify_queues(&self, input: &Input<'_>) {
        unsafe {
            let mut attributes: ibv_modify_cq_attr = mem::zeroed();
            attributes.attr_mask = input.one_of(&[1, 0, 2]);
            attributes.moderate.cq_count = input.word() as u16;
            attributes.moderate.cq_period = input.word() as u16;
            ibv_modify_cq(self.queue, &mut attributes);
            ibv_resize_cq(self.queue, input.one_of(&[1, 64, 1000]) as c_int);
            if !self.shared.is_null() {
                let mut attributes: ibv_srq_attr = mem::zeroed();
                attributes.max_wr = input.one_of(&[1, 64, 1000]);
                attributes.srq_limit = input.one_of(&[0, 1, 100]);
                ibv_modify_srq(
                    self.shared,
                    &mut attributes,
                    input.one_of(&[1, 2, 3]) as c_int,
                );
            }
        }
    }

    /// Destroys all objects: each object after all objects that refer to it.
    fn destroy(self) {
        // SAFETY: each object is destroyed once, after the objects that refer to it.
        unsafe {
            if !self.pair.is_null() {
                assert_eq!(ibv_destroy_qp(self.pair), 0);
            }
            if !self.window.is_null() {
                assert_eq!(ibv_dealloc_mw(self.window), 0);
            }
            if !self.handle.is_null() {
                assert_eq!(ibv_destroy_ah(self.handle), 0);
            }
            if !self.shared.is_null() {
                assert_eq!(ibv_destroy_srq(self.shared), 0);
            }
            if !self.domain.is_null() {
                assert_eq!(ibv_close_xrcd(self.domain), 0);
            }
            assert_eq!(ibv_destroy_cq(self.queue), 0);
            assert_eq!(ibv_destroy_comp_channel(self.channel), 0);
        }
    }
}
