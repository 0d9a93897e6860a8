//! End of a connection in this process, with memory that the peer may access.

use std::fmt;
use std::io;
use std::mem::zeroed;
use std::ptr::{self, null, null_mut};
use std::str::FromStr;
use std::time::{Duration, Instant};

use ibverbs_sys::*;

/// Length of each memory in bytes.
pub(crate) const SIZE: usize = 4 << 20;

/// Maximum number of requests in a queue.
pub(crate) const DEPTH: u32 = 64;

/// Maximum number of completions in the completion queue.
pub(crate) const COMPLETIONS: u32 = 4 * DEPTH;

/// Exponent of a timeout of four seconds: only lost packets are sent again.
pub(crate) const PATIENT: u8 = 20;

const ACCESS: u32 = 0b1111;

/// Queue key of queue pairs of type UD.
pub(crate) const QUEUE_KEY: u32 = 0x1234_5678;

/// Time limit of each step.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Address data that a process sends to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) number: u32,
    gid: u128,
    /// Address and rkey of the program's own memory and of the device's memory.
    pub(crate) memories: [(u64, u32); 2],
}

impl Card {
    /// Returns the GID of the process's device.
    #[allow(dead_code, reason = "of the attacked connection's test")]
    pub(crate) fn gid(&self) -> std::net::Ipv6Addr {
        std::net::Ipv6Addr::from_bits(self.gid)
    }

    /// Creates an address handle for the process's device.
    #[allow(dead_code, reason = "the attacked connection is reliable")]
    pub(crate) fn address_handle(&self, pd: *mut ibv_pd, traffic_class: u8) -> *mut ibv_ah {
        // SAFETY: the domain is valid, and zeros are valid attributes.
        unsafe {
            let mut attr: ibv_ah_attr = zeroed();
            (attr.is_global, attr.port_num) = (1, 1);
            attr.grh.dgid.raw = self.gid.to_be_bytes();
            (attr.grh.hop_limit, attr.grh.traffic_class) = (77, traffic_class);
            let handle = ibv_create_ah(pd, &raw mut attr);
            assert!(!handle.is_null(), "{}", std::io::Error::last_os_error());
            handle
        }
    }

    /// Returns the IPv4 address in the GID.
    pub(crate) fn address(&self) -> u32 {
        self.gid as u32
    }
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [own, device] = self.memories;
        let (number, gid) = (self.number, self.gid);
        write!(
            f,
            "{number} {gid} {} {} {} {}",
            own.0, own.1, device.0, device.1
        )
    }
}

impl FromStr for Card {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let mut next = || -> Result<u128, String> {
            let word = words.next().ok_or_else(|| format!("too short: {text}"))?;
            word.parse().map_err(|_| format!("no number: {text}"))
        };
        Ok(Self {
            number: next()? as u32,
            gid: next()?,
            memories: [
                (next()? as u64, next()? as u32),
                (next()? as u64, next()? as u32),
            ],
        })
    }
}

/// Registered memory.
pub(crate) struct Memory {
    pub(crate) start: *mut u8,
    mr: *mut ibv_mr,
    /// Buffer of the device; null for memory of the program.
    buf: *mut ibv_buf,
}

impl Memory {
    /// Allocates and registers memory of the device, or of the program at `address`, or at any
    /// address if `address` is 0.
    fn new(pd: *mut ibv_pd, of_device: bool, address: usize) -> Self {
        // SAFETY: the domain is valid, and the memory outlives its registration.
        unsafe {
            let mut buf = null_mut();
            let start = if of_device {
                ibv_alloc_buf(pd, SIZE, &raw mut buf)
            } else {
                let fixed = match address {
                    0 => 0,
                    _ => libc::MAP_FIXED_NOREPLACE,
                };
                libc::mmap(
                    ptr::without_provenance_mut(address),
                    SIZE,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed,
                    -1,
                    0,
                )
            };
            assert!(!start.is_null() && start != libc::MAP_FAILED);
            let mr = ibv_reg_mr(pd, start, SIZE, ACCESS as i32);
            assert!(!mr.is_null(), "{}", std::io::Error::last_os_error());
            Self {
                start: start.cast(),
                mr,
                buf,
            }
        }
    }

    /// Registers the memory again.
    pub(crate) fn register(&mut self, pd: *mut ibv_pd) {
        // SAFETY: the memory is mapped, and not registered.
        self.mr = unsafe { ibv_reg_mr(pd, self.start.cast(), SIZE, ACCESS as i32) };
        assert!(!self.mr.is_null());
    }

    /// Deregisters the memory, which must succeed.
    pub(crate) fn deregister(&mut self) {
        assert_eq!(self.try_deregister(), 0);
    }

    /// Deregisters the memory. Returns 0 or the errno of the verb.
    pub(crate) fn try_deregister(&mut self) -> i32 {
        // SAFETY: the memory is registered.
        let answer = unsafe { ibv_dereg_mr(self.mr) };
        if answer == 0 {
            self.mr = null_mut();
        }
        answer
    }

    /// Removes all access rights from the pages.
    pub(crate) fn lose(&self) {
        // SAFETY: no code holds a reference to the memory.
        let answer = unsafe { libc::mprotect(self.start.cast(), SIZE, libc::PROT_NONE) };
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    }

    /// Returns the memory region.
    pub(crate) fn region(&self) -> *mut ibv_mr {
        self.mr
    }

    pub(crate) fn place(&self) -> (u64, u32) {
        // SAFETY: the memory is registered.
        (self.start.addr() as u64, unsafe { (*self.mr).rkey })
    }

    pub(crate) fn sge(&self, offset: usize, length: usize) -> ibv_sge {
        ibv_sge {
            addr: (self.start.addr() + offset) as u64,
            length: length as u32,
            // SAFETY: the memory is registered.
            lkey: unsafe { (*self.mr).lkey },
        }
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        for (at, &byte) in bytes.iter().enumerate() {
            // SAFETY: the place is inside of the memory.
            unsafe { self.start.add(offset + at).write_volatile(byte) };
        }
    }

    /// Copies bytes to an offset with one call.
    #[allow(dead_code, reason = "the attacked connection has short messages")]
    pub(crate) fn fill(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= SIZE);
        // SAFETY: the place is inside of the memory.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(offset), bytes.len()) };
    }

    /// Returns whether the memory holds `bytes` at `offset`.
    #[allow(dead_code, reason = "the attacked connection has short messages")]
    pub(crate) fn holds(&self, offset: usize, bytes: &[u8]) -> bool {
        assert!(offset + bytes.len() <= SIZE);
        // SAFETY: the place is inside of the memory.
        unsafe {
            libc::memcmp(
                self.start.add(offset).cast(),
                bytes.as_ptr().cast(),
                bytes.len(),
            ) == 0
        }
    }

    pub(crate) fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        // SAFETY: the place is inside of the memory.
        let byte = |at| unsafe { self.start.add(at).read_volatile() };
        (offset..offset + length).map(byte).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: no code uses the memory any more.
        unsafe {
            if !self.mr.is_null() {
                assert_eq!(ibv_dereg_mr(self.mr), 0);
            }
            if self.start.is_null() {
                return;
            }
            if self.buf.is_null() {
                libc::munmap(self.start.cast(), SIZE);
            } else {
                ibv_free_buf(self.buf);
            }
        }
    }
}

/// End of a connection in this process.
pub(crate) struct Node {
    context: *mut ibv_context,
    channel: *mut ibv_comp_channel,
    pub(crate) pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    pub(crate) qp: *mut ibv_qp,
    /// Type of the queue pair.
    kind: ibv_qp_type,
    /// Shared receive queue of the queue pair; null if it has a receive queue of its own.
    srq: *mut ibv_srq,
    /// Exponent of the acknowledgement timeout: 4.096 us * 2^timeout.
    pub(crate) timeout: u8,
    /// The program's own memory and the device's memory.
    pub(crate) memories: [Memory; 2],
}

/// Verbs objects of a node.
pub(crate) struct Raw {
    pub(crate) context: *mut ibv_context,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq: *mut ibv_cq,
}

/// Completion channel of a node, which must outlive this value.
pub(crate) struct Channel(*mut ibv_comp_channel);

// SAFETY: any thread may wait at a completion channel.
unsafe impl Send for Channel {}

impl Channel {
    /// Waits for one event and acknowledges it.
    pub(crate) fn next_event(&self) {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is valid, and there is room for the results.
        unsafe {
            let answer = ibv_get_cq_event(self.0, &raw mut cq, &raw mut context);
            assert_eq!(answer, 0);
            ibv_ack_cq_events(cq, 1);
        }
    }
}

/// A send request with one element.
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) opcode: ibv_wr_opcode,
    pub(crate) sge: ibv_sge,
    pub(crate) remote: (u64, u32),
    pub(crate) add: u64,
}

impl Node {
    pub(crate) fn new() -> Self {
        Self::at(0)
    }

    /// Creates a node with a queue pair of this type.
    #[allow(dead_code, reason = "the attacked connection is reliable")]
    pub(crate) fn of(kind: ibv_qp_type) -> Self {
        Self::with(kind, 0)
    }

    /// Creates a node whose queue pair takes receives from a shared receive queue.
    #[allow(dead_code, reason = "the attacked connection has receives of its own")]
    pub(crate) fn sharing() -> Self {
        let mut node = Self::new();
        // SAFETY: the domain is valid, zeros are valid attributes, and no code uses the queue pair.
        unsafe {
            let mut init: ibv_srq_init_attr = zeroed();
            (init.attr.max_wr, init.attr.max_sge) = (DEPTH, 1);
            node.srq = ibv_create_srq(node.pd, &raw mut init);
        }
        assert!(!node.srq.is_null(), "{}", std::io::Error::last_os_error());
        node.renew();
        node
    }

    /// Creates a node with the program's own memory at this address, or at any address if it is 0.
    pub(crate) fn at(address: usize) -> Self {
        Self::with(ibv_qp_type::IBV_QPT_RC, address)
    }

    fn with(kind: ibv_qp_type, address: usize) -> Self {
        softroce::install();
        let mut count = 0;
        // SAFETY: the list has `count` devices until it is freed; the last one is softroce's.
        unsafe {
            let list = ibv_get_device_list(&raw mut count);
            let context = ibv_open_device(*list.add(count as usize - 1));
            ibv_free_device_list(list);
            assert!(!context.is_null(), "{}", std::io::Error::last_os_error());
            let pd = ibv_alloc_pd(context);
            let channel = ibv_create_comp_channel(context);
            assert!(!channel.is_null());
            let cq = ibv_create_cq(context, COMPLETIONS as i32, null_mut(), channel, 0);
            assert!(!pd.is_null() && !cq.is_null());
            let mut node = Self {
                context,
                channel,
                pd,
                cq,
                qp: null_mut(),
                kind,
                srq: null_mut(),
                // 67 ms.
                timeout: 14,
                memories: [Memory::new(pd, false, address), Memory::new(pd, true, 0)],
            };
            node.create();
            node
        }
    }

    fn create(&mut self) {
        // SAFETY: all objects that the queue pair refers to are valid.
        unsafe {
            let mut init: ibv_qp_init_attr = zeroed();
            (init.send_cq, init.recv_cq) = (self.cq, self.cq);
            init.srq = self.srq;
            init.qp_type = self.kind;
            init.cap = ibv_qp_cap {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 64,
            };
            self.qp = ibv_create_qp(self.pd, &raw mut init);
            assert!(!self.qp.is_null(), "{}", std::io::Error::last_os_error());
        }
    }

    /// Replaces the queue pair with a new one.
    pub(crate) fn renew(&mut self) {
        // SAFETY: no code uses the queue pair.
        assert_eq!(unsafe { ibv_destroy_qp(self.qp) }, 0);
        self.create();
    }

    pub(crate) fn card(&self) -> Card {
        // SAFETY: the objects are valid.
        unsafe {
            let mut gid: ibv_gid = zeroed();
            assert_eq!(ibv_query_gid(self.context, 1, 0, &raw mut gid), 0);
            let [own, device] = &self.memories;
            Card {
                number: (*self.qp).qp_num,
                gid: u128::from_be_bytes(gid.raw),
                memories: [own.place(), device.place()],
            }
        }
    }

    /// Connects the queue pair to a peer.
    pub(crate) fn connect(&self, peer: &Card) {
        make_ready_to_receive(self.qp, peer);
        self.make_ready_to_send();
    }

    fn make_ready_to_send(&self) {
        use ibv_qp_attr_mask as M;
        // SAFETY: the queue pair is valid, and the mask names what is set.
        unsafe {
            let mut attr: ibv_qp_attr = zeroed();
            attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
            attr.sq_psn = 0x123;
            let mut mask = M::IBV_QP_STATE | M::IBV_QP_SQ_PSN;
            if self.kind == ibv_qp_type::IBV_QPT_RC {
                (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (self.timeout, 7, 7);
                attr.max_rd_atomic = 8;
                mask = mask
                    | M::IBV_QP_TIMEOUT
                    | M::IBV_QP_RETRY_CNT
                    | M::IBV_QP_RNR_RETRY
                    | M::IBV_QP_MAX_QP_RD_ATOMIC;
            }
            assert_eq!(ibv_modify_qp(self.qp, &raw mut attr, mask.0 as i32), 0);
        }
    }

    /// Returns the path that messages of the queue pair take.
    pub(crate) fn way(&self) -> Option<softroce::path::Way> {
        // SAFETY: the queue pair is valid.
        softroce::path::way(unsafe { (*self.qp).qp_num })
    }

    pub(crate) fn post(&self, request: &Request) {
        let signaled = ibv_send_flags::IBV_SEND_SIGNALED.0;
        assert_eq!(self.post_list(&[(request, signaled)]), Ok(()));
    }

    /// Posts requests with one call, each with its flags and its `id` as immediate data. On failure
    /// returns the errno of the verb and the number of requests that were posted.
    pub(crate) fn post_list(&self, requests: &[(&Request, u32)]) -> Result<(), (i32, usize)> {
        let mut sges: Vec<ibv_sge> = requests.iter().map(|(request, _)| request.sge).collect();
        let mut list: Vec<ibv_send_wr> = Vec::new();
        for ((request, flags), sge) in requests.iter().zip(&mut sges) {
            // SAFETY: zeros are valid for the numbers and pointers of a request.
            let mut wr: ibv_send_wr = unsafe { zeroed() };
            wr.wr_id = request.id;
            wr.sg_list = sge;
            wr.num_sge = 1;
            wr.opcode = request.opcode;
            wr.send_flags = *flags;
            wr.__bindgen_anon_1.imm_data = request.id as u32;
            if request.opcode == ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD {
                wr.wr.atomic.remote_addr = request.remote.0;
                wr.wr.atomic.rkey = request.remote.1;
                wr.wr.atomic.compare_add = request.add;
            } else {
                wr.wr.rdma.remote_addr = request.remote.0;
                wr.wr.rdma.rkey = request.remote.1;
            }
            list.push(wr);
        }
        let first = list.as_mut_ptr();
        for at in 1..list.len() {
            // SAFETY: the index is inside of the list.
            list[at - 1].next = unsafe { first.add(at) };
        }
        let mut bad = null_mut();
        // SAFETY: the queue pair is valid, and the verb reads the list before it returns.
        match unsafe { ibv_post_send(self.qp, first, &raw mut bad) } {
            0 => Ok(()),
            error => Err((
                error,
                (bad.addr() - first.addr()) / size_of::<ibv_send_wr>(),
            )),
        }
    }

    /// Returns the state of the queue pair.
    pub(crate) fn state(&self) -> ibv_qp_state {
        // SAFETY: the queue pair is valid, and there is room for the attributes.
        unsafe {
            let (mut attr, mut init) = (zeroed::<ibv_qp_attr>(), zeroed());
            let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as i32;
            let answer = ibv_query_qp(self.qp, &raw mut attr, mask, &raw mut init);
            assert_eq!(answer, 0);
            attr.qp_state
        }
    }

    pub(crate) fn receive(&self, id: u64, mut sge: ibv_sge) {
        // SAFETY: the queue is valid, and the verb reads the request before it returns.
        unsafe {
            let mut wr: ibv_recv_wr = zeroed();
            wr.wr_id = id;
            wr.sg_list = &raw mut sge;
            wr.num_sge = 1;
            let mut bad = null_mut();
            let answer = if self.srq.is_null() {
                ibv_post_recv(self.qp, &raw mut wr, &raw mut bad)
            } else {
                ibv_post_srq_recv(self.srq, &raw mut wr, &raw mut bad)
            };
            assert_eq!(answer, 0);
        }
    }

    /// Returns the next completion if the queue holds one.
    pub(crate) fn poll(&self) -> Option<ibv_wc> {
        // SAFETY: the queue is valid, and there is room for one completion.
        unsafe {
            let mut wc: ibv_wc = zeroed();
            let count = ibv_poll_cq(self.cq, 1, &raw mut wc);
            assert!(count >= 0);
            (count == 1).then_some(wc)
        }
    }

    /// Waits for the next completion by polling. Panics after [`LIMIT`].
    #[track_caller]
    pub(crate) fn complete(&self) -> ibv_wc {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(wc) = self.poll() {
                return wc;
            }
            assert!(Instant::now() < deadline, "no completion within {LIMIT:?}");
        }
    }

    /// Requests an event for the next completion.
    pub(crate) fn arm(&self) {
        // SAFETY: the queue is valid.
        unsafe { assert_eq!(ibv_req_notify_cq(self.cq, 0), 0) };
    }

    /// Returns the node's verbs objects.
    pub(crate) fn raw(&self) -> Raw {
        Raw {
            context: self.context,
            channel: self.channel,
            cq: self.cq,
        }
    }

    /// Returns the completion channel, for another thread.
    pub(crate) fn channel(&self) -> Channel {
        Channel(self.channel)
    }

    /// Moves the queue pair to ERR.
    pub(crate) fn fail(&self) {
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as i32;
        // SAFETY: the queue pair is valid, and the mask names what is set.
        unsafe {
            let mut attr: ibv_qp_attr = zeroed();
            attr.qp_state = ibv_qp_state::IBV_QPS_ERR;
            assert_eq!(ibv_modify_qp(self.qp, &raw mut attr, mask), 0);
        }
    }

    /// Waits for the next completion asleep.
    #[track_caller]
    pub(crate) fn complete_asleep(&self) -> ibv_wc {
        loop {
            self.arm();
            if let Some(wc) = self.poll() {
                return wc;
            }
            while !self.take_event() {
                self.wait_until_readable();
            }
        }
    }

    /// Makes the completion channel non-blocking, as an event loop does.
    pub(crate) fn make_channel_non_blocking(&self) {
        // SAFETY: the channel is valid; the calls take no pointers.
        unsafe {
            let flags = libc::fcntl((*self.channel).fd, libc::F_GETFL);
            let flags = flags | libc::O_NONBLOCK;
            assert_eq!(libc::fcntl((*self.channel).fd, libc::F_SETFL, flags), 0);
        }
    }

    /// Takes the next event of the completion channel and acknowledges it. Returns `false` if the
    /// channel is non-blocking and has no event.
    #[track_caller]
    pub(crate) fn take_event(&self) -> bool {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is valid, and there is room for the results.
        let answer = unsafe { ibv_get_cq_event(self.channel, &raw mut cq, &raw mut context) };
        if answer != 0 {
            let error = io::Error::last_os_error();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
            return false;
        }
        assert_eq!(cq, self.cq);
        // SAFETY: the queue is valid, and one event of it was taken.
        unsafe { ibv_ack_cq_events(cq, 1) };
        true
    }

    #[track_caller]
    fn wait_until_readable(&self) {
        let limit = libc::timespec {
            tv_sec: LIMIT.as_secs() as libc::time_t,
            tv_nsec: 0,
        };
        // SAFETY: the channel is valid, and the pointers are to one descriptor and to the time
        // limit.
        let ready = unsafe {
            let mut descriptor = libc::pollfd {
                fd: (*self.channel).fd,
                events: libc::POLLIN,
                revents: 0,
            };
            libc::ppoll(&raw mut descriptor, 1, &raw const limit, null())
        };
        assert_eq!(ready, 1, "no event within {LIMIT:?}");
    }

    /// Posts a request and waits for its success.
    #[track_caller]
    pub(crate) fn execute(&self, request: &Request) {
        self.post(request);
        let wc = self.complete();
        assert_eq!(
            (wc.status, wc.wr_id),
            (ibv_wc_status::IBV_WC_SUCCESS, request.id)
        );
    }
}

/// Moves a queue pair to RTR, connected to `peer` unless the queue pair is of type UD.
pub(crate) fn make_ready_to_receive(queue_pair: *mut ibv_qp, peer: &Card) {
    use ibv_qp_attr_mask as M;
    // SAFETY: the queue pair is valid, and the masks name what is set.
    unsafe {
        let mut attr: ibv_qp_attr = zeroed();
        attr.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attr.port_num = 1;
        attr.qp_access_flags = ACCESS;
        attr.qkey = QUEUE_KEY;
        let kind = (*queue_pair).qp_type;
        let is_for_datagrams = kind == ibv_qp_type::IBV_QPT_UD;
        let of_kind = if is_for_datagrams {
            M::IBV_QP_QKEY
        } else {
            M::IBV_QP_ACCESS_FLAGS
        };
        let mask = M::IBV_QP_STATE | M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT | of_kind;
        assert_eq!(ibv_modify_qp(queue_pair, &raw mut attr, mask.0 as i32), 0);
        attr.qp_state = ibv_qp_state::IBV_QPS_RTR;
        attr.path_mtu = ibv_mtu::IBV_MTU_4096;
        attr.dest_qp_num = peer.number;
        attr.rq_psn = 0x123;
        (attr.max_dest_rd_atomic, attr.min_rnr_timer) = (8, 1);
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.dgid.raw = peer.gid.to_be_bytes();
        attr.ah_attr.grh.hop_limit = 64;
        let mut mask = M::IBV_QP_STATE;
        if !is_for_datagrams {
            mask = mask | M::IBV_QP_AV | M::IBV_QP_PATH_MTU | M::IBV_QP_DEST_QPN | M::IBV_QP_RQ_PSN;
        }
        if kind == ibv_qp_type::IBV_QPT_RC {
            mask = mask | M::IBV_QP_MAX_DEST_RD_ATOMIC | M::IBV_QP_MIN_RNR_TIMER;
        }
        assert_eq!(ibv_modify_qp(queue_pair, &raw mut attr, mask.0 as i32), 0);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // SAFETY: no code uses these objects any more, and memory is released after its users.
        unsafe {
            assert_eq!(ibv_destroy_qp(self.qp), 0);
            if !self.srq.is_null() {
                assert_eq!(ibv_destroy_srq(self.srq), 0);
            }
            assert_eq!(ibv_destroy_cq(self.cq), 0);
            assert_eq!(ibv_destroy_comp_channel(self.channel), 0);
            let Self {
                pd,
                context,
                memories,
                ..
            } = self;
            for memory in memories {
                ptr::drop_in_place(memory);
                // The second drop of this value must do nothing.
                ptr::write(
                    memory,
                    Memory {
                        start: ptr::null_mut(),
                        mr: null_mut(),
                        buf: null_mut(),
                    },
                );
            }
            assert_eq!(ibv_dealloc_pd(*pd), 0);
            assert_eq!(ibv_close_device(*context), 0);
        }
    }
}
