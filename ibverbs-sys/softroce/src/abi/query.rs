use std::mem;
use std::ptr;

use ibverbs_sys::{
    _compat_ibv_port_attr, IBV_LINK_LAYER_ETHERNET, ib_uverbs_query_port_flags, ibv_atomic_cap,
    ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_device_cap_flags, ibv_mtu,
    ibv_odp_general_caps, ibv_odp_transport_cap_bits, ibv_pci_atomic_op_size, ibv_port_attr,
    ibv_port_cap_flags, ibv_port_state, ibv_query_device_ex_input, ibv_values_ex, ibv_values_mask,
};
use libc::{c_char, c_int, size_t, timespec};

use super::{forward, guard, number, open, verb};
use crate::fault::Verb;
use crate::limits;
use crate::net;
use crate::nic::{self, Nic};
use crate::proto::Mtu;

/// Stores the attributes of the device in `device_attr` (`ibv_query_device(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    device_attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the C API requires an open context, and room for the attributes.
    unsafe {
        forward!(context, ibv_query_device(context, device_attr));
        query_device_ex(
            context,
            ptr::null(),
            device_attr.cast(),
            size_of::<ibv_device_attr>(),
        )
    }
}

/// Stores the extended attributes of the device in `attr`, up to the size of the caller's structure
/// (`ibv_query_device_ex(3)`). Attributes that this crate does not know are zero.
pub(super) unsafe extern "C" fn query_device_ex(
    _context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: size_t,
) -> c_int {
    verb(Verb::QueryDevice, number, || {
        // SAFETY: the C API requires `input` to be null or valid.
        let input = unsafe { input.as_ref() };
        if attr_size < size_of::<ibv_device_attr>() || input.is_some_and(|i| i.comp_mask != 0) {
            return libc::EINVAL;
        }
        // SAFETY: the C API requires room for `attr_size` bytes.
        unsafe { write_padded(attr.cast(), attr_size, &device_attributes()) };
        0
    })
}

/// Stores the attributes of a port that the oldest version of the verbs API has
/// (`ibv_query_port(3)`). Programs that were built with old headers call this function, because
/// their structure has fewer fields. Programs that were built with newer headers call
/// [`query_port`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut _compat_ibv_port_attr,
) -> c_int {
    const OLD: usize = mem::offset_of!(ibv_port_attr, port_cap_flags2);
    // SAFETY: the C API requires an open context, and room for the original attributes.
    unsafe {
        forward!(context, ibv_query_port(context, port_num, port_attr));
        query_port(context, port_num, port_attr.cast(), OLD)
    }
}

/// Stores the attributes of a port in `port_attr`, up to the size of the caller's structure
/// (`ibv_query_port(3)`).
pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut ibv_port_attr,
    port_attr_len: size_t,
) -> c_int {
    verb(Verb::QueryPort, number, || {
        if !is_port(port_num.into()) {
            return libc::EINVAL;
        }
        // SAFETY: only contexts of this device have this function. The C API requires room for
        // `port_attr_len` bytes.
        unsafe {
            write_padded(
                port_attr.cast(),
                port_attr_len,
                &port_attributes(open::nic(context)),
            );
        };
        0
    })
}

/// Stores the present time of the clock for completion timestamps in `values.raw_clock`, if the
/// program asks for it (`ibv_query_rt_values_ex(3)`).
pub(super) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    const CLOCK: u32 = ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
    guard(libc::EIO, || {
        // SAFETY: only contexts of this device have this function. The C API requires valid
        // `values`.
        let (nic, values) = unsafe { (open::nic(context), &mut *values) };
        if values.comp_mask & !CLOCK != 0 {
            return libc::EINVAL;
        }
        if values.comp_mask & CLOCK != 0 {
            // As for other devices, the field for nanoseconds is the complete count of clock ticks.
            // A tick is a nanosecond here, so the sum of both fields is right, too.
            values.raw_clock = timespec {
                tv_sec: 0,
                tv_nsec: nic.now().as_nanos().cast_signed(),
            };
        }
        0
    })
}

/// Returns whether the device has a port with the number `number`.
pub(super) fn is_port(number: u32) -> bool {
    (1..=u32::from(limits::PORTS)).contains(&number)
}

/// Copies `value` to the memory at `place`, up to `room` bytes, and zeroes the remaining bytes. So
/// callers with older and with newer versions of a structure get the fields that they know.
///
/// # Safety
/// `place` must be valid for writes of `room` bytes. `T` must be plain data without uninitialized
/// padding.
unsafe fn write_padded<T>(place: *mut u8, room: usize, value: &T) {
    // SAFETY: the caller guarantees the conditions of this function.
    unsafe {
        ptr::write_bytes(place, 0, room);
        ptr::copy_nonoverlapping(ptr::from_ref(value).cast(), place, room.min(size_of::<T>()));
    }
}

/// Vendor ID of the device (`vendor_id` of `ibv_query_device(3)`). No organization has this
/// identifier: its first byte has the bit of locally administered identifiers.
const VENDOR_ID: u32 = 0x02_53_52;
/// Number of this device among the devices of the vendor [`VENDOR_ID`] (`vendor_part_id` of
/// `ibv_query_device(3)`).
const VENDOR_PART_ID: u32 = 1;
/// Hardware version of the device (`hw_ver` of `ibv_query_device(3)`). A constant, because the
/// device has no hardware.
const HARDWARE_VERSION: u32 = 1;

fn device_attributes() -> ibv_device_attr_ex {
    // SAFETY: the structure is plain data, for which zeroes are valid. The padding of the structure
    // is zeroed, too.
    let mut attributes: ibv_device_attr_ex = unsafe { mem::zeroed() };
    let original = &mut attributes.orig_attr;
    write_text(&mut original.fw_ver, env!("CARGO_PKG_VERSION"));
    original.vendor_id = VENDOR_ID;
    original.vendor_part_id = VENDOR_PART_ID;
    original.hw_ver = HARDWARE_VERSION;
    original.node_guid = nic::guid().to_be();
    original.sys_image_guid = original.node_guid;
    original.max_mr_size = limits::MAX_MR_SIZE;
    original.page_size_cap = limits::PAGE_SIZE_CAP;
    original.max_qp = count(limits::MAX_QP);
    original.max_qp_wr = count(limits::MAX_QP_WR as usize);
    original.device_cap_flags = CAPABILITIES;
    original.max_sge = count(limits::MAX_SGE as usize);
    original.max_sge_rd = count(limits::MAX_SGE_RD as usize);
    original.max_cq = count(limits::MAX_CQ);
    original.max_cqe = count(limits::MAX_CQE as usize);
    original.max_mr = count(limits::MAX_MR);
    original.max_pd = count(limits::MAX_PD);
    original.max_qp_rd_atom = limits::MAX_QP_RD_ATOM.into();
    original.max_qp_init_rd_atom = limits::MAX_QP_INIT_RD_ATOM.into();
    original.max_res_rd_atom = count(limits::MAX_QP * usize::from(limits::MAX_QP_RD_ATOM));
    // UCX uses atomics only with this value. The stronger guarantee is in `pci_atomic_caps`.
    original.atomic_cap = ibv_atomic_cap::IBV_ATOMIC_HCA;
    original.max_mw = count(limits::MAX_MW);
    original.max_mcast_grp = count(limits::MAX_MCAST_GRP);
    original.max_mcast_qp_attach = count(limits::MAX_MCAST_QP_ATTACH);
    original.max_total_mcast_qp_attach = count(limits::MAX_TOTAL_MCAST_QP_ATTACH);
    original.max_ah = count(limits::MAX_AH);
    original.max_srq = count(limits::MAX_SRQ);
    original.max_srq_wr = count(limits::MAX_SRQ_WR as usize);
    original.max_srq_sge = count(limits::MAX_SRQ_SGE as usize);
    original.max_pkeys = limits::MAX_PKEYS;
    original.local_ca_ack_delay = limits::LOCAL_CA_ACK_DELAY;
    original.phys_port_cnt = limits::PORTS;

    // The device pins no memory, so all memory can be registered on demand.
    attributes.odp_caps.general_caps = (ibv_odp_general_caps::IBV_ODP_SUPPORT
        | ibv_odp_general_caps::IBV_ODP_SUPPORT_IMPLICIT)
        .0
        .into();
    let datagram = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_SEND
        | ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_RECV
        | ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_SRQ_RECV;
    let unreliable = datagram | ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_WRITE;
    let reliable = unreliable
        | ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_READ
        | ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_ATOMIC;
    let reliable = reliable.0 | ODP_SUPPORT_FLUSH | ODP_SUPPORT_ATOMIC_WRITE;
    attributes.odp_caps.per_transport_caps.rc_odp_caps = reliable;
    attributes.odp_caps.per_transport_caps.uc_odp_caps = unreliable.0;
    attributes.odp_caps.per_transport_caps.ud_odp_caps = datagram.0;
    attributes.xrc_odp_caps = reliable;
    attributes.completion_timestamp_mask = limits::TIMESTAMP_MASK;
    attributes.hca_core_clock = limits::HCA_CORE_CLOCK;
    attributes.device_cap_flags_ex =
        u64::from(CAPABILITIES) | DEVICE_FLUSH_GLOBAL | DEVICE_ATOMIC_WRITE;
    attributes.cq_mod_caps.max_cq_count = limits::MAX_MODERATION_COUNT;
    attributes.cq_mod_caps.max_cq_period = limits::MAX_MODERATION_PERIOD;
    // The processor's own instructions execute remote atomics, so they are atomic with respect to
    // the program's atomics, too.
    attributes.pci_atomic_caps.fetch_add = WORD_ATOMICS;
    attributes.pci_atomic_caps.compare_swap = WORD_ATOMICS;
    attributes.max_dm_size = limits::MAX_DM_SIZE;
    attributes.phys_port_cnt_ex = limits::PORTS.into();
    attributes
}

/// Value of `pci_atomic_caps` in the extended device attributes (`ibv_query_device_ex(3)`): atomics
/// of 8 bytes are supported.
const WORD_ATOMICS: u16 = ibv_pci_atomic_op_size::IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP.0 as u16;

/// Bits of `device_cap_flags` in the device attributes (`ibv_query_device(3)`): the optional
/// features that the softroce device supports.
const CAPABILITIES: u32 = ibv_device_cap_flags::IBV_DEVICE_CURR_QP_STATE_MOD.0
    | ibv_device_cap_flags::IBV_DEVICE_PORT_ACTIVE_EVENT.0
    | ibv_device_cap_flags::IBV_DEVICE_SYS_IMAGE_GUID.0
    | ibv_device_cap_flags::IBV_DEVICE_RC_RNR_NAK_GEN.0
    | ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE.0
    | ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW.0
    | ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0
    | ibv_device_cap_flags::IBV_DEVICE_MEM_MGT_EXTENSIONS.0
    | ibv_device_cap_flags::IBV_DEVICE_XRC.0;

/// Capability flag of devices that support flushes with global visibility
/// (`IB_UVERBS_DEVICE_FLUSH_GLOBAL`): a flush makes earlier writes visible to all processors and
/// devices of the host. This crate's version of the verbs headers lacks the constant. The flag for
/// persistent memory is not set, because the device has no such memory.
const DEVICE_FLUSH_GLOBAL: u64 = 1 << 38;
/// Capability flag of devices that support atomic writes (`IB_UVERBS_DEVICE_ATOMIC_WRITE`). This
/// crate's version of the verbs headers lacks the constant.
const DEVICE_ATOMIC_WRITE: u64 = 1 << 40;
/// Capability flag of devices that support flushes of regions with on-demand paging, ODP
/// (`IBV_ODP_SUPPORT_FLUSH`). This crate's version of the verbs headers lacks the constant.
const ODP_SUPPORT_FLUSH: u32 = 1 << 6;
/// Capability flag of devices that support atomic writes to regions with on-demand paging, ODP
/// (`IBV_ODP_SUPPORT_ATOMIC_WRITE`). This crate's version of the verbs headers lacks the constant.
const ODP_SUPPORT_ATOMIC_WRITE: u32 = 1 << 7;

fn port_attributes(nic: &Nic) -> ibv_port_attr {
    // SAFETY: the structure is plain data, for which zeroes are valid. The padding of the structure
    // is zeroed, too.
    let mut attributes: ibv_port_attr = unsafe { mem::zeroed() };
    let up = nic.link_is_up();
    attributes.state = if up {
        ibv_port_state::IBV_PORT_ACTIVE
    } else {
        ibv_port_state::IBV_PORT_DOWN
    };
    attributes.phys_state = if up { LINK_UP } else { DISABLED };
    attributes.max_mtu = ibv_mtu::IBV_MTU_4096;
    attributes.active_mtu = match nic.mtu() {
        Mtu::Mtu256 => ibv_mtu::IBV_MTU_256,
        Mtu::Mtu512 => ibv_mtu::IBV_MTU_512,
        Mtu::Mtu1024 => ibv_mtu::IBV_MTU_1024,
        Mtu::Mtu2048 => ibv_mtu::IBV_MTU_2048,
        Mtu::Mtu4096 => ibv_mtu::IBV_MTU_4096,
    };
    attributes.gid_tbl_len = count(net::GIDS);
    attributes.port_cap_flags = ibv_port_cap_flags::IBV_PORT_IP_BASED_GIDS.0;
    attributes.max_msg_sz = limits::MAX_MESSAGE;
    attributes.pkey_tbl_len = limits::MAX_PKEYS;
    attributes.max_vl_num = ONE_LANE;
    // The port has no cable. One lane of 10 Gbit/s is the order of magnitude of a processor's
    // throughput.
    attributes.active_width = WIDTH_1X;
    attributes.active_speed = SPEED_10G;
    attributes.link_layer = IBV_LINK_LAYER_ETHERNET as u8;
    // Each RoCE packet has a GRH (IBTA annex A17).
    attributes.flags = ib_uverbs_query_port_flags::IBV_QPF_GRH_REQUIRED.0 as u8;
    attributes
}

/// Physical port state "disabled", as numbered in IBTA table 155.
const DISABLED: u8 = 3;
/// Physical port state "link up", as numbered in IBTA table 155.
const LINK_UP: u8 = 5;
/// Value of the port attribute `max_vl_num` (`ibv_query_port(3)`) that means a single virtual lane.
const ONE_LANE: u8 = 1;
/// Value of the port attribute `active_width` (`ibv_query_port(3)`) that means a link with a single
/// lane.
const WIDTH_1X: u8 = 1;
/// Value of the port attribute `active_speed` (`ibv_query_port(3)`) that means 10 Gbit/s per lane
/// (FDR10).
const SPEED_10G: u8 = 8;

fn count(limit: usize) -> c_int {
    c_int::try_from(limit).unwrap_or(c_int::MAX)
}

fn write_text(field: &mut [c_char], text: &str) {
    for (place, byte) in field.iter_mut().zip(text.bytes()) {
        *place = byte.cast_signed();
    }
}
