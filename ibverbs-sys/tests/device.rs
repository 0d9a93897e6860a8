//! Verbs on a device: the one that `RDMA_DEVICE` names, or else the first. After the devices of the
//! machine there is softroce.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block is a call of C with the arguments that its manual page asks for"
)]

use std::env;
use std::ffi::{CStr, c_int, c_uint};
use std::io::Error;
use std::mem;
use std::path::Path;
use std::ptr;
use std::time::{Duration, Instant};

use ibverbs_sys::*;

const PORT: u8 = 1;

/// Fails the test with `errno` if a verb returned a null pointer.
fn non_null<T>(verb: &str, pointer: *mut T) -> *mut T {
    assert!(!pointer.is_null(), "{verb}: {}", Error::last_os_error());
    pointer
}

/// Fails the test if a verb returned an error number.
fn zero(verb: &str, result: c_int) {
    assert_eq!(result, 0, "{verb}: {}", Error::from_raw_os_error(result));
}

/// An open device.
struct Device {
    name: String,
    context: *mut ibv_context,
}

impl Device {
    fn open() -> Self {
        softroce::install();
        let wanted = env::var("RDMA_DEVICE").ok();
        let mut count = 0;
        let list = unsafe { ibv_get_device_list(&mut count) };
        assert!(
            !list.is_null() && count > 0,
            "there is no RDMA device here ({})",
            Error::last_os_error()
        );
        let devices = unsafe { std::slice::from_raw_parts(list, count as usize) };
        let name = |device| unsafe { CStr::from_ptr(ibv_get_device_name(device)) };
        let names: Vec<_> = devices
            .iter()
            .map(|device| name(*device).to_string_lossy())
            .collect();
        let at = match &wanted {
            Some(wanted) => names
                .iter()
                .position(|name| name == wanted)
                .unwrap_or_else(|| {
                    panic!("there is no RDMA device {wanted} (RDMA_DEVICE), only {names:?}")
                }),
            None => 0,
        };
        let name = names[at].to_string();
        let context = non_null("ibv_open_device", unsafe { ibv_open_device(devices[at]) });
        unsafe { ibv_free_device_list(list) };
        Self { name, context }
    }

    fn port(&self) -> ibv_port_attr {
        let mut attr = ibv_port_attr::default();
        zero("ibv_query_port", unsafe {
            ibv_query_port(self.context, PORT, &mut attr)
        });
        attr
    }

    /// Returns the GIDs of the port. The first one is the GID to use: RoCE v2 of an IPv4 address.
    fn gids(&self) -> Vec<ibv_gid_entry> {
        let mut entries = vec![ibv_gid_entry::default(); 1024];
        let count =
            unsafe { ibv_query_gid_table(self.context, entries.as_mut_ptr(), entries.len(), 0) };
        assert!(count > 0, "ibv_query_gid_table returned {count}");
        entries.truncate(count as usize);
        entries.retain(|entry| entry.port_num == PORT.into());
        entries.sort_by_key(|entry| {
            let raw = unsafe { entry.gid.raw };
            let ipv4 = raw[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
            (
                entry.gid_type != ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0,
                !ipv4,
                entry.gid_index,
            )
        });
        entries
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        zero("ibv_close_device", unsafe {
            ibv_close_device(self.context)
        });
    }
}

#[test]
fn device_and_port_are_described() {
    let device = Device::open();

    let mut attr = ibv_device_attr::default();
    zero("ibv_query_device", unsafe {
        ibv_query_device(device.context, &mut attr)
    });
    assert!(attr.phys_port_cnt >= PORT && attr.max_qp > 0 && attr.max_mr_size > 0);

    let mut extended = ibv_device_attr_ex::default();
    zero("ibv_query_device_ex", unsafe {
        ibv_query_device_ex(device.context, ptr::null(), &mut extended)
    });
    assert_eq!(extended.orig_attr.max_qp, attr.max_qp);
    assert_eq!(extended.phys_port_cnt_ex, attr.phys_port_cnt.into());

    let port = device.port();
    assert_eq!(port.state, ibv_port_state::IBV_PORT_ACTIVE);
    assert!(port.active_mtu.0 >= ibv_mtu::IBV_MTU_256.0 && port.max_msg_sz > 0);
    assert!([IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_ETHERNET].contains(&port.link_layer.into()));

    let state = unsafe { CStr::from_ptr(ibv_port_state_str(port.state)) };
    assert_eq!(state.to_str(), Ok("active"));
}

#[test]
fn gids_are_the_same_by_every_query() {
    let device = Device::open();
    for entry in device.gids() {
        let mut single = ibv_gid_entry::default();
        zero("ibv_query_gid_ex", unsafe {
            ibv_query_gid_ex(device.context, PORT.into(), entry.gid_index, &mut single, 0)
        });
        assert_eq!(single.gid_type, entry.gid_type);
        assert_eq!(single.ndev_ifindex, entry.ndev_ifindex);

        let mut gid = ibv_gid::default();
        let index = entry.gid_index as c_int;
        zero("ibv_query_gid", unsafe {
            ibv_query_gid(device.context, PORT, index, &mut gid)
        });
        assert_eq!(unsafe { gid.raw }, unsafe { entry.gid.raw });
        assert_eq!(unsafe { single.gid.raw }, unsafe { entry.gid.raw });
    }
}

/// Two connected queue pairs of one process, with their objects.
struct Loopback {
    device: Device,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    mr: *mut ibv_mr,
    memory: Box<[u8; 8192]>,
}

impl Loopback {
    fn new() -> Self {
        let device = Device::open();
        let context = device.context;
        let pd = non_null("ibv_alloc_pd", unsafe { ibv_alloc_pd(context) });
        let cq = unsafe { ibv_create_cq(context, 16, ptr::null_mut(), ptr::null_mut(), 0) };
        let cq = non_null("ibv_create_cq", cq);
        let mut memory = Box::new([0; 8192]);
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING;
        let mr = unsafe {
            ibv_reg_mr(
                pd,
                memory.as_mut_ptr().cast(),
                memory.len(),
                access.0 as c_int,
            )
        };
        let mr = non_null("ibv_reg_mr", mr);
        Self {
            device,
            pd,
            cq,
            mr,
            memory,
        }
    }

    fn cap() -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        }
    }

    fn queue_pair(&self) -> *mut ibv_qp {
        let mut attr = ibv_qp_init_attr {
            send_cq: self.cq,
            recv_cq: self.cq,
            cap: Self::cap(),
            qp_type: ibv_qp_type::IBV_QPT_RC,
            ..Default::default()
        };
        let qp = non_null("ibv_create_qp", unsafe {
            ibv_create_qp(self.pd, &mut attr)
        });
        assert!(
            attr.cap.max_send_wr >= 4,
            "the capacities that were granted come back"
        );
        qp
    }

    /// Creates a queue pair with the `ibv_wr_*` functions.
    fn queue_pair_ex(&self) -> *mut ibv_qp {
        let mut attr = ibv_qp_init_attr_ex {
            send_cq: self.cq,
            recv_cq: self.cq,
            cap: Self::cap(),
            qp_type: ibv_qp_type::IBV_QPT_RC,
            comp_mask: (ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
                | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
                .0,
            pd: self.pd,
            send_ops_flags: ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_SEND_WITH_IMM
                .0
                .into(),
            ..Default::default()
        };
        let qp = unsafe { ibv_create_qp_ex(self.device.context, &mut attr) };
        let qp = non_null("ibv_create_qp_ex", qp);
        assert!(
            attr.cap.max_send_wr >= 4,
            "the capacities that were granted come back"
        );
        qp
    }

    /// Takes a queue pair from RESET to RTS, connected to `peer`.
    fn connect(&self, qp: *mut ibv_qp, peer: u32) {
        use ibv_qp_attr_mask as mask;

        let modify = |mut attr: ibv_qp_attr, given: ibv_qp_attr_mask| {
            zero("ibv_modify_qp", unsafe {
                ibv_modify_qp(qp, &mut attr, given.0 as c_int)
            });
        };
        let init = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            port_num: PORT,
            ..Default::default()
        };
        modify(
            init,
            mask::IBV_QP_STATE
                | mask::IBV_QP_PKEY_INDEX
                | mask::IBV_QP_PORT
                | mask::IBV_QP_ACCESS_FLAGS,
        );

        let port = self.device.port();
        let gid = self.device.gids()[0];
        let ready_to_receive = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: port.active_mtu,
            dest_qp_num: peer,
            min_rnr_timer: 12,
            ah_attr: ibv_ah_attr {
                grh: ibv_global_route {
                    dgid: gid.gid,
                    sgid_index: gid.gid_index as u8,
                    hop_limit: 64,
                    ..Default::default()
                },
                is_global: 1,
                dlid: port.lid,
                port_num: PORT,
                ..Default::default()
            },
            ..Default::default()
        };
        modify(
            ready_to_receive,
            mask::IBV_QP_STATE
                | mask::IBV_QP_AV
                | mask::IBV_QP_PATH_MTU
                | mask::IBV_QP_DEST_QPN
                | mask::IBV_QP_RQ_PSN
                | mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | mask::IBV_QP_MIN_RNR_TIMER,
        );

        let ready_to_send = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..Default::default()
        };
        modify(
            ready_to_send,
            mask::IBV_QP_STATE
                | mask::IBV_QP_TIMEOUT
                | mask::IBV_QP_RETRY_CNT
                | mask::IBV_QP_RNR_RETRY
                | mask::IBV_QP_SQ_PSN
                | mask::IBV_QP_MAX_QP_RD_ATOMIC,
        );

        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let everything = (mask::IBV_QP_STATE | mask::IBV_QP_DEST_QPN).0 as c_int;
        zero("ibv_query_qp", unsafe {
            ibv_query_qp(qp, &mut attr, everything, &mut init)
        });
        assert_eq!(
            (attr.qp_state, attr.dest_qp_num),
            (ibv_qp_state::IBV_QPS_RTS, peer)
        );
        assert_eq!(init.qp_type, ibv_qp_type::IBV_QPT_RC);
    }

    fn sge(&self, offset: usize, length: usize) -> ibv_sge {
        let addr = unsafe { (*self.mr).addr } as u64 + offset as u64;
        ibv_sge {
            addr,
            length: length as u32,
            lkey: unsafe { (*self.mr).lkey },
        }
    }

    fn post_recv(&self, qp: *mut ibv_qp, wr_id: u64, mut sge: ibv_sge) {
        let mut wr = ibv_recv_wr {
            wr_id,
            sg_list: &mut sge,
            num_sge: 1,
            ..Default::default()
        };
        let mut bad = ptr::null_mut();
        zero("ibv_post_recv", unsafe {
            ibv_post_recv(qp, &mut wr, &mut bad)
        });
    }

    /// Waits for the next completions and returns them by work request id.
    fn completions(&self, count: usize) -> Vec<ibv_wc> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut found = Vec::new();
        while found.len() < count {
            let mut wc = ibv_wc::default();
            match unsafe { ibv_poll_cq(self.cq, 1, &mut wc) } {
                0 => assert!(Instant::now() < deadline, "no completion within a minute"),
                1 => {
                    let status = unsafe { CStr::from_ptr(ibv_wc_status_str(wc.status)) };
                    assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS, "{status:?}");
                    found.push(wc);
                }
                error => panic!("ibv_poll_cq returned {error}"),
            }
        }
        found.sort_by_key(|wc| wc.wr_id);
        found
    }

    fn fill(&mut self, offset: usize, length: usize) {
        for (i, byte) in self.memory[offset..offset + length].iter_mut().enumerate() {
            *byte = (i % 251) as u8;
        }
    }

    fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        // The device wrote the bytes, so they are not read through a reference.
        let from = unsafe { (*self.mr).addr.cast::<u8>().add(offset) };
        (0..length)
            .map(|i| unsafe { from.add(i).read_volatile() })
            .collect()
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        zero("ibv_dereg_mr", unsafe { ibv_dereg_mr(self.mr) });
        zero("ibv_destroy_cq", unsafe { ibv_destroy_cq(self.cq) });
        zero("ibv_dealloc_pd", unsafe { ibv_dealloc_pd(self.pd) });
    }
}

const RECEIVED: u64 = 1;
const SENT: u64 = 2;
const IMMEDIATE: u32 = 0x1234_5678;

fn check_received(loopback: &Loopback, completions: &[ibv_wc], length: usize) {
    let [received, sent] = completions else {
        panic!("two completions, not {completions:?}")
    };
    assert_eq!(
        (received.wr_id, received.opcode),
        (RECEIVED, ibv_wc_opcode::IBV_WC_RECV)
    );
    assert_eq!(
        (sent.wr_id, sent.opcode),
        (SENT, ibv_wc_opcode::IBV_WC_SEND)
    );
    assert_eq!(received.byte_len as usize, length);
    let with_immediate = c_uint::from(received.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0);
    assert_ne!(with_immediate, 0);
    assert_eq!(
        u32::from_be(unsafe { received.__bindgen_anon_1.imm_data }),
        IMMEDIATE
    );
    assert_eq!(loopback.read(4096, length), loopback.read(0, length));
}

#[test]
fn a_send_arrives_at_a_queue_pair_of_the_same_process() {
    let mut loopback = Loopback::new();
    let (from, to) = (loopback.queue_pair(), loopback.queue_pair());
    loopback.connect(from, unsafe { (*to).qp_num });
    loopback.connect(to, unsafe { (*from).qp_num });

    let length = 3000;
    loopback.fill(0, length);
    loopback.post_recv(to, RECEIVED, loopback.sge(4096, 4096));
    let mut sge = loopback.sge(0, length);
    let mut wr: ibv_send_wr = unsafe { mem::zeroed() };
    wr.wr_id = SENT;
    wr.sg_list = &mut sge;
    wr.num_sge = 1;
    wr.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
    wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
    wr.__bindgen_anon_1.imm_data = IMMEDIATE.to_be();
    let mut bad = ptr::null_mut();
    zero("ibv_post_send", unsafe {
        ibv_post_send(from, &mut wr, &mut bad)
    });

    check_received(&loopback, &loopback.completions(2), length);
    for qp in [from, to] {
        zero("ibv_destroy_qp", unsafe { ibv_destroy_qp(qp) });
    }
}

#[test]
fn a_send_of_the_extended_queue_pair_arrives() {
    let mut loopback = Loopback::new();
    let (from, to) = (loopback.queue_pair_ex(), loopback.queue_pair());
    loopback.connect(from, unsafe { (*to).qp_num });
    loopback.connect(to, unsafe { (*from).qp_num });

    let length = 3000;
    loopback.fill(0, length);
    loopback.post_recv(to, RECEIVED, loopback.sge(4096, 4096));
    let sge = loopback.sge(0, length);
    let qp = non_null("ibv_qp_to_qp_ex", unsafe { ibv_qp_to_qp_ex(from) });
    unsafe {
        ibv_wr_start(qp);
        (*qp).wr_id = SENT;
        (*qp).wr_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        ibv_wr_send_imm(qp, IMMEDIATE.to_be());
        ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length);
        zero("ibv_wr_complete", ibv_wr_complete(qp));
    }

    check_received(&loopback, &loopback.completions(2), length);
    for qp in [from, to] {
        zero("ibv_destroy_qp", unsafe { ibv_destroy_qp(qp) });
    }
}

#[test]
fn the_connection_manager_finds_the_device() {
    let device = Device::open();
    let mut count = 0;
    let list = non_null("rdma_get_devices", unsafe { rdma_get_devices(&mut count) });
    let contexts = unsafe { std::slice::from_raw_parts(list, count as usize) };
    let name = |context: &*mut ibv_context| unsafe {
        CStr::from_ptr((**context).device.as_ref().expect("a device").name.as_ptr())
    };
    let names: Vec<_> = contexts
        .iter()
        .map(|context| name(context).to_string_lossy())
        .collect();
    assert!(
        names.contains(&device.name.as_str().into()),
        "{} is not in {names:?}",
        device.name
    );
    unsafe { rdma_free_devices(list) };

    let channel = unsafe { rdma_create_event_channel() };
    if !Path::new("/dev/infiniband/rdma_cm").exists() {
        // The kernel has no connection manager here.
        assert!(channel.is_null(), "a channel without a connection manager");
        return;
    }
    let channel = non_null("rdma_create_event_channel", channel);
    let mut id = ptr::null_mut();
    let created = unsafe {
        rdma_create_id(
            channel,
            &mut id,
            ptr::null_mut(),
            rdma_port_space::RDMA_PS_TCP,
        )
    };
    assert_eq!(created, 0, "rdma_create_id: {}", Error::last_os_error());
    assert_eq!(unsafe { (*id).ps }, rdma_port_space::RDMA_PS_TCP);
    assert_eq!(unsafe { rdma_destroy_id(id) }, 0);
    unsafe { rdma_destroy_event_channel(channel) };
}
