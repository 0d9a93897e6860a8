//! Ports, GIDs and P_Keys.

use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        port_is_active,
        mtu_is_within_the_port_s,
        the_port_has_tables_and_supports_messages,
        link_layer_is_known,
        ethernet_port_has_no_lid,
        port_zero_is_refused,
        port_beyond_the_last_is_refused,
        gid_is_the_same_by_every_query,
        gid_table_holds_indices_below_its_length,
        gid_type_has_a_global_prefix_or_address,
        gid_beyond_the_table_is_refused,
        gid_of_another_port_is_refused,
        gid_extended_query_refuses_flags,
        gid_table_refuses_flags,
        gid_table_refuses_too_little_room,
        gids_of_roce_have_a_network_device,
        pkey_zero_is_a_full_member_of_the_default_partition,
        pkey_beyond_the_table_is_refused,
        pkey_index_is_found,
        pkey_index_of_an_absent_key_is_minus_one,
    ]
}

fn port_is_active(device: &Device) {
    equal(
        "the state",
        device.port().state,
        ibv_port_state::IBV_PORT_ACTIVE,
    );
}

fn mtu_is_within_the_port_s(device: &Device) {
    let port = device.port();
    assert!(port.active_mtu.0 >= ibv_mtu::IBV_MTU_256.0);
    assert!(port.active_mtu.0 <= port.max_mtu.0);
    assert!(port.max_mtu.0 <= ibv_mtu::IBV_MTU_4096.0);
}

fn the_port_has_tables_and_supports_messages(device: &Device) {
    let port = device.port();
    assert!(port.gid_tbl_len > 0, "there is no GID table");
    assert!(port.pkey_tbl_len > 0, "there is no P_Key table");
    // IBTA chapter 9: messages are as long as 2^31 bytes, at most.
    assert!(
        (1 << 20..=1 << 31).contains(&port.max_msg_sz),
        "max_msg_sz is {}",
        port.max_msg_sz
    );
}

fn link_layer_is_known(device: &Device) {
    let layer = u32::from(device.port().link_layer);
    assert!(
        [IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_ETHERNET].contains(&layer),
        "{layer}"
    );
}

fn ethernet_port_has_no_lid(device: &Device) {
    if u32::from(device.port().link_layer) != IBV_LINK_LAYER_ETHERNET {
        ignore("the port is not of Ethernet");
    }
    // IBTA annex A16: a RoCE port has no subnet manager and no LIDs.
    equal("the LID", device.port().lid, 0);
    equal("the subnet manager's LID", device.port().sm_lid, 0);
}

fn port_zero_is_refused(device: &Device) {
    let mut attr = ibv_port_attr::default();
    unsafe { ibv_query_port(device.context(), 0, &mut attr) }
        .fails("ibv_query_port(0)", &[libc::EINVAL]);
}

fn port_beyond_the_last_is_refused(device: &Device) {
    let mut attr = ibv_port_attr::default();
    let beyond = device.attr().phys_port_cnt + 1;
    unsafe { ibv_query_port(device.context(), beyond, &mut attr) }
        .fails("ibv_query_port", &[libc::EINVAL]);
}

fn gid_is_the_same_by_every_query(device: &Device) {
    for entry in gid_table(device.context()) {
        let mut single = ibv_gid_entry::default();
        unsafe {
            ibv_query_gid_ex(
                device.context(),
                entry.port_num,
                entry.gid_index,
                &mut single,
                0,
            )
        }
        .succeeds("ibv_query_gid_ex");
        equal("the type", single.gid_type, entry.gid_type);
        equal("the index", single.gid_index, entry.gid_index);
        equal("the port", single.port_num, entry.port_num);
        equal("the interface", single.ndev_ifindex, entry.ndev_ifindex);
        let mut gid = ibv_gid::default();
        unsafe {
            let (port, index) = (entry.port_num as u8, entry.gid_index as i32);
            ibv_query_gid(device.context(), port, index, &mut gid)
        }
        .succeeds("ibv_query_gid");
        equal("the GID", unsafe { gid.raw }, unsafe { entry.gid.raw });
        equal("the GID", unsafe { single.gid.raw }, unsafe {
            entry.gid.raw
        });
    }
}

fn gid_table_holds_indices_below_its_length(device: &Device) {
    let entries = gid_table(device.context());
    assert!(!entries.is_empty(), "there is no GID");
    for entry in entries {
        assert!((entry.gid_index as i32) < device.port().gid_tbl_len);
        assert!((1..=device.attr().phys_port_cnt.into()).contains(&entry.port_num));
    }
}

fn gid_type_has_a_global_prefix_or_address(device: &Device) {
    for entry in gid_table(device.context()) {
        assert!(
            entry.gid_type <= ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0,
            "{}",
            entry.gid_type
        );
        assert!(unsafe { entry.gid.raw } != [0; 16], "a valid entry is zero");
    }
}

fn gid_beyond_the_table_is_refused(device: &Device) {
    let mut gid = ibv_gid::default();
    let index = device.port().gid_tbl_len;
    let result = unsafe { ibv_query_gid(device.context(), PORT, index, &mut gid) };
    assert!(result != 0, "ibv_query_gid succeeded beyond the table");
    let mut entry = ibv_gid_entry::default();
    unsafe { ibv_query_gid_ex(device.context(), PORT.into(), index as u32, &mut entry, 0) }
        .fails("ibv_query_gid_ex", &[libc::EINVAL]);
}

fn gid_of_another_port_is_refused(device: &Device) {
    let mut entry = ibv_gid_entry::default();
    let beyond = u32::from(device.attr().phys_port_cnt) + 1;
    unsafe { ibv_query_gid_ex(device.context(), beyond, 0, &mut entry, 0) }
        .fails("ibv_query_gid_ex", &[libc::EINVAL]);
}

fn gid_extended_query_refuses_flags(device: &Device) {
    let mut entry = ibv_gid_entry::default();
    let index = device.gid().gid_index;
    unsafe { ibv_query_gid_ex(device.context(), PORT.into(), index, &mut entry, 1) }
        .fails("ibv_query_gid_ex", &[libc::EINVAL, libc::EOPNOTSUPP]);
}

fn gid_table_refuses_flags(device: &Device) {
    let mut entries = vec![ibv_gid_entry::default(); 1024];
    let count =
        unsafe { ibv_query_gid_table(device.context(), entries.as_mut_ptr(), entries.len(), 1) };
    assert!(count < 0, "ibv_query_gid_table returned {count}");
}

fn gid_table_refuses_too_little_room(device: &Device) {
    let mut entries = gid_table(device.context());
    let room = entries.len() - 1;
    // A request for 0 entries, which the manual forbids, fails too.
    let count = unsafe { ibv_query_gid_table(device.context(), entries.as_mut_ptr(), room, 0) };
    assert!(
        count < 0,
        "{count} entries came, and there are {}",
        room + 1
    );
}

fn gids_of_roce_have_a_network_device(device: &Device) {
    let gid = device.gid();
    if gid.gid_type == ibv_gid_type::IBV_GID_TYPE_IB.0 {
        ignore("the GID is not of RoCE");
    }
    // The manual allows 0 for a GID that no network device stands behind.
    if gid.ndev_ifindex == 0 {
        ignore("the GID belongs to no network device");
    }
    let mut buffer = [0; libc::IF_NAMESIZE];
    let name = unsafe { libc::if_indextoname(gid.ndev_ifindex, buffer.as_mut_ptr()) };
    assert!(
        !name.is_null(),
        "there is no interface {}",
        gid.ndev_ifindex
    );
}

fn pkey(device: &Device, index: i32) -> Result<u16, i32> {
    let mut pkey = 0;
    status(unsafe { ibv_query_pkey(device.context(), PORT, index, &mut pkey) })?;
    Ok(u16::from_be(pkey))
}

fn pkey_zero_is_a_full_member_of_the_default_partition(device: &Device) {
    // IBTA 10.9: the first entry is the default partition's after power-up.
    equal(
        "the P_Key",
        pkey(device, 0).succeeds("ibv_query_pkey"),
        0xffff,
    );
}

fn pkey_beyond_the_table_is_refused(device: &Device) {
    let result = pkey(device, device.port().pkey_tbl_len.into());
    assert!(result.is_err(), "ibv_query_pkey succeeded beyond the table");
}

fn pkey_index_is_found(device: &Device) {
    let key = pkey(device, 0).succeeds("ibv_query_pkey");
    let index = unsafe { ibv_get_pkey_index(device.context(), PORT, key.to_be()) };
    equal("the index", index, 0);
}

fn pkey_index_of_an_absent_key_is_minus_one(device: &Device) {
    let index = unsafe { ibv_get_pkey_index(device.context(), PORT, 0x1234_u16.to_be()) };
    equal("the index", index, -1);
}
