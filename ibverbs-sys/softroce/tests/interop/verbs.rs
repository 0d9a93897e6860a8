//! Verbs objects of the test, with errors as text.

use std::ffi::{CStr, c_int};
use std::io::Error;
use std::mem;
use std::net::IpAddr;
use std::ptr;
use std::time::{Duration, Instant};

use ibverbs_sys::*;

use crate::talk::Place;

const PORT: u8 = 1;
/// Depth of each queue.
pub(crate) const DEPTH: usize = 32;
/// Maximum time until a completion, because packets are lost and the machine may be emulated.
const MAX_WAIT: Duration = Duration::from_secs(120);
const QUEUE_KEY: u32 = 0x1122;

pub(crate) type Result<T, E = String> = std::result::Result<T, E>;

/// Settings of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) transport: ibv_qp_type,
    pub(crate) shared_receive: bool,
    pub(crate) mtu: u32,
    /// Number of times that a message is repeated for which the receiver is not ready; 7 for no
    /// limit.
    pub(crate) rnr_retries: u8,
}

impl Settings {
    /// Returns whether queue pairs send datagrams.
    pub(crate) fn uses_datagrams(&self) -> bool {
        self.transport == ibv_qp_type::IBV_QPT_UD
    }

    /// Returns whether messages are acknowledged.
    fn is_reliable(&self) -> bool {
        self.transport == ibv_qp_type::IBV_QPT_RC
    }
}

/// Open device with one of its GIDs.
pub(crate) struct Device {
    context: *mut ibv_context,
    domain: *mut ibv_pd,
    gid_index: u8,
    gid: [u8; 16],
}

/// Registered memory.
pub(crate) struct Memory {
    region: *mut ibv_mr,
    bytes: Box<[u8]>,
}

/// Queue pair with the objects that it needs.
pub(crate) struct Connection {
    device_gid_index: u8,
    domain: *mut ibv_pd,
    completions: *mut ibv_cq,
    shared: *mut ibv_srq,
    pair: *mut ibv_qp,
    settings: Settings,
    handle: *mut ibv_ah,
}

fn errno(what: &str, result: c_int) -> Result<()> {
    match result {
        0 => Ok(()),
        number => Err(format!("{what}: {}", Error::from_raw_os_error(number))),
    }
}

fn non_null<T>(what: &str, pointer: *mut T) -> Result<*mut T> {
    if pointer.is_null() {
        return Err(format!("{what}: {}", Error::last_os_error()));
    }
    Ok(pointer)
}

impl Device {
    /// Opens the device `name`, with the GID of `address`.
    pub(crate) fn open(name: &str, address: IpAddr) -> Result<Self> {
        let mut count = 0;
        let list = non_null("the device list", unsafe {
            ibv_get_device_list(&mut count)
        })?;
        let devices = unsafe { std::slice::from_raw_parts(list, count as usize) };
        let named = |device: *mut ibv_device| {
            let found = unsafe { CStr::from_ptr(ibv_get_device_name(device)) };
            found.to_bytes() == name.as_bytes()
        };
        let device = devices.iter().find(|device| named(**device));
        let device = device.ok_or_else(|| format!("there is no device {name}"))?;
        let context = non_null("opening the device", unsafe { ibv_open_device(*device) })?;
        unsafe { ibv_free_device_list(list) };
        let domain = non_null("a protection domain", unsafe { ibv_alloc_pd(context) })?;
        let wanted = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let wanted = wanted.octets();
        for index in 0..=u8::MAX {
            let mut entry: ibv_gid_entry = unsafe { mem::zeroed() };
            let queried =
                unsafe { ibv_query_gid_ex(context, PORT.into(), index.into(), &mut entry, 0) };
            let v2 = ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0;
            if queried == 0 && entry.gid_type == v2 && unsafe { entry.gid.raw } == wanted {
                return Ok(Self {
                    context,
                    domain,
                    gid_index: index,
                    gid: wanted,
                });
            }
        }
        Err(format!("{name} has no RoCE v2 GID of {address}"))
    }

    /// Registers `length` zeroed bytes with all access rights.
    pub(crate) fn memory(&self, length: usize) -> Result<Memory> {
        let mut bytes = vec![0; length].into_boxed_slice();
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
        let region = unsafe {
            ibv_reg_mr(
                self.domain,
                bytes.as_mut_ptr().cast(),
                length,
                access.0 as c_int,
            )
        };
        Ok(Memory {
            region: non_null("registering memory", region)?,
            bytes,
        })
    }

    /// Creates a queue pair that is not connected.
    pub(crate) fn connection(&self, settings: Settings) -> Result<Connection> {
        let entries = 4 * DEPTH as c_int;
        let completions =
            unsafe { ibv_create_cq(self.context, entries, ptr::null_mut(), ptr::null_mut(), 0) };
        let completions = non_null("a completion queue", completions)?;
        let mut shared = ptr::null_mut();
        if settings.shared_receive {
            let mut attributes: ibv_srq_init_attr = unsafe { mem::zeroed() };
            attributes.attr.max_wr = DEPTH as u32;
            attributes.attr.max_sge = 1;
            let made = unsafe { ibv_create_srq(self.domain, &mut attributes) };
            shared = non_null("a shared receive queue", made)?;
        }
        let mut attributes: ibv_qp_init_attr = unsafe { mem::zeroed() };
        attributes.send_cq = completions;
        attributes.recv_cq = completions;
        attributes.srq = shared;
        attributes.cap.max_send_wr = DEPTH as u32;
        attributes.cap.max_recv_wr = DEPTH as u32;
        attributes.cap.max_send_sge = 1;
        attributes.cap.max_recv_sge = 1;
        attributes.qp_type = settings.transport;
        let pair = non_null("a queue pair", unsafe {
            ibv_create_qp(self.domain, &mut attributes)
        })?;
        let connection = Connection {
            device_gid_index: self.gid_index,
            domain: self.domain,
            completions,
            shared,
            pair,
            settings,
            handle: ptr::null_mut(),
        };
        let mut attributes: ibv_qp_attr = unsafe { mem::zeroed() };
        attributes.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attributes.port_num = PORT;
        let mut mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT;
        if settings.uses_datagrams() {
            attributes.qkey = QUEUE_KEY;
            mask |= ibv_qp_attr_mask::IBV_QP_QKEY;
        } else {
            attributes.qp_access_flags = (ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
                | ibv_access_flags::IBV_ACCESS_REMOTE_READ
                | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC)
                .0;
            mask |= ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        }
        connection.modify("INIT", &mut attributes, mask)?;
        Ok(connection)
    }

    /// Returns the addresses of `connection` and `memory`.
    pub(crate) fn place(&self, connection: &Connection, memory: &Memory, sequence: u32) -> Place {
        Place {
            gid: self.gid,
            queue_pair: unsafe { (*connection.pair).qp_num },
            sequence,
            address: memory.bytes.as_ptr() as u64,
            key: unsafe { (*memory.region).rkey },
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        unsafe {
            ibv_dealloc_pd(self.domain);
            ibv_close_device(self.context);
        }
    }
}

impl Memory {
    /// Returns bytes that no request is using.
    pub(crate) fn bytes(&mut self, offset: usize, length: usize) -> &mut [u8] {
        &mut self.bytes[offset..offset + length]
    }

    fn element(&self, offset: usize, length: usize) -> ibv_sge {
        ibv_sge {
            addr: self.bytes.as_ptr() as u64 + offset as u64,
            length: length as u32,
            lkey: unsafe { (*self.region).lkey },
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        unsafe { ibv_dereg_mr(self.region) };
    }
}

impl Connection {
    fn modify(&self, to: &str, attributes: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<()> {
        let result = unsafe { ibv_modify_qp(self.pair, attributes, mask.0 as c_int) };
        errno(&format!("modifying the queue pair to {to}"), result)
    }

    /// Connects the queue pair to `peer`, and moves it to RTS.
    pub(crate) fn connect(&mut self, own: &Place, peer: &Place) -> Result<()> {
        let mut handle: ibv_ah_attr = unsafe { mem::zeroed() };
        handle.is_global = 1;
        handle.grh.dgid.raw = peer.gid;
        handle.grh.sgid_index = self.device_gid_index;
        handle.grh.hop_limit = 64;
        handle.port_num = PORT;
        let mut attributes: ibv_qp_attr = unsafe { mem::zeroed() };
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTR;
        let mut mask = ibv_qp_attr_mask::IBV_QP_STATE;
        if self.settings.uses_datagrams() {
            let made = unsafe { ibv_create_ah(self.domain, &mut handle) };
            self.handle = non_null("an address handle", made)?;
        } else {
            attributes.ah_attr = handle;
            attributes.path_mtu = match self.settings.mtu {
                1024 => ibv_mtu::IBV_MTU_1024,
                _ => ibv_mtu::IBV_MTU_4096,
            };
            attributes.dest_qp_num = peer.queue_pair;
            attributes.rq_psn = peer.sequence;
            mask = mask
                | ibv_qp_attr_mask::IBV_QP_AV
                | ibv_qp_attr_mask::IBV_QP_PATH_MTU
                | ibv_qp_attr_mask::IBV_QP_DEST_QPN
                | ibv_qp_attr_mask::IBV_QP_RQ_PSN;
        }
        if self.settings.is_reliable() {
            attributes.max_dest_rd_atomic = 8;
            attributes.min_rnr_timer = 1;
            mask = mask
                | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        }
        self.modify("RTR", &mut attributes, mask)?;
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attributes.sq_psn = own.sequence;
        mask = ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_SQ_PSN;
        if self.settings.is_reliable() {
            // 33 ms: several ticks of the kernel, and short in comparison with a test.
            attributes.timeout = 13;
            attributes.retry_cnt = 7;
            attributes.rnr_retry = self.settings.rnr_retries;
            attributes.max_rd_atomic = 8;
            mask = mask
                | ibv_qp_attr_mask::IBV_QP_TIMEOUT
                | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
                | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
                | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
        }
        self.modify("RTS", &mut attributes, mask)
    }

    pub(crate) fn receive(
        &self,
        id: usize,
        memory: &Memory,
        offset: usize,
        length: usize,
    ) -> Result<()> {
        let mut element = memory.element(offset, length);
        let mut request: ibv_recv_wr = unsafe { mem::zeroed() };
        request.wr_id = id as u64;
        request.sg_list = &mut element;
        request.num_sge = 1;
        let mut bad = ptr::null_mut();
        let result = unsafe {
            if self.shared.is_null() {
                ibv_post_recv(self.pair, &mut request, &mut bad)
            } else {
                ibv_post_srq_recv(self.shared, &mut request, &mut bad)
            }
        };
        errno("posting a receive", result)
    }

    /// Posts a request of this opcode for the bytes from `offset` on. `prepare` sets the other
    /// fields.
    pub(crate) fn send(
        &self,
        id: usize,
        opcode: ibv_wr_opcode,
        memory: &Memory,
        (offset, length): (usize, usize),
        prepare: impl FnOnce(&mut ibv_send_wr),
    ) -> Result<()> {
        let mut element = memory.element(offset, length);
        let mut request: ibv_send_wr = unsafe { mem::zeroed() };
        request.wr_id = id as u64;
        request.sg_list = &mut element;
        request.num_sge = c_int::from(length > 0);
        request.opcode = opcode;
        request.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        prepare(&mut request);
        let mut bad = ptr::null_mut();
        errno("posting a send", unsafe {
            ibv_post_send(self.pair, &mut request, &mut bad)
        })
    }

    /// Sets the peer as the destination of a datagram.
    pub(crate) fn address(&self, request: &mut ibv_send_wr, peer: &Place) {
        request.wr.ud.ah = self.handle;
        request.wr.ud.remote_qpn = peer.queue_pair;
        request.wr.ud.remote_qkey = QUEUE_KEY;
    }

    /// Waits for the next completion. A failed completion is an error.
    pub(crate) fn wait(&self) -> Result<ibv_wc> {
        let completion = self.wait_for_any()?;
        match completion.status {
            ibv_wc_status::IBV_WC_SUCCESS => Ok(completion),
            status => Err(format!(
                "request {} failed: {}",
                completion.wr_id,
                describe(status)
            )),
        }
    }

    /// Waits for the next completion, which may be that of a failed request.
    pub(crate) fn wait_for_any(&self) -> Result<ibv_wc> {
        let deadline = Instant::now() + MAX_WAIT;
        let mut completion: ibv_wc = unsafe { mem::zeroed() };
        loop {
            match unsafe { ibv_poll_cq(self.completions, 1, &mut completion) } {
                1 => return Ok(completion),
                0 if Instant::now() > deadline => {
                    return Err(format!("no completion within {MAX_WAIT:?}"));
                }
                0 => {}
                error => return Err(format!("polling: {error}")),
            }
        }
    }
}

/// Returns the text of the status of a completion.
pub(crate) fn describe(status: ibv_wc_status) -> String {
    let text = unsafe { CStr::from_ptr(ibv_wc_status_str(status)) };
    text.to_string_lossy().into_owned()
}

impl Drop for Connection {
    fn drop(&mut self) {
        unsafe {
            if !self.handle.is_null() {
                ibv_destroy_ah(self.handle);
            }
            ibv_destroy_qp(self.pair);
            if !self.shared.is_null() {
                ibv_destroy_srq(self.shared);
            }
            ibv_destroy_cq(self.completions);
        }
    }
}
