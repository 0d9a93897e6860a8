//! Datagrams, address handles and the global route header.

use ibverbs_sys::ibv_qp_type as Service;
use ibverbs_sys::ibv_wc_flags as WcFlag;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        datagram_arrives,
        datagram_of_nothing_arrives,
        datagram_of_the_mtu_arrives,
        datagram_beyond_the_mtu_is_not_sent,
        completion_contains_the_sender,
        completion_has_a_route_header,
        route_header_names_sender_and_receiver,
        immediate_data_arrives,
        inline_datagram_arrives,
        datagrams_from_many_to_one,
        datagram_without_a_receive_is_lost,
        datagram_with_a_wrong_key_is_lost,
        datagram_with_a_privileged_key_takes_the_queue_pair_s,
        datagram_to_nobody_is_lost,
        datagram_to_itself_arrives,
        receive_too_short_fails,
        receive_of_the_header_scatters,
        write_is_refused,
        read_is_refused,
        atomic_is_refused,
        handle_outlives_its_requests,
        handle_needs_a_port_that_exists,
        handle_needs_a_source_address_that_exists,
        handle_of_roce_needs_a_route,
        a_handle_is_created_from_a_completion,
        attributes_are_initialized_from_a_completion,
        queue_key_can_be_changed,
        one_queue_pair_sends_to_two,
    ]
}

fn datagram_arrives(device: &Device) {
    let pair = Datagrams::new(device);
    pair.a.mr.write(0, b"datagram");
    pair.b.receive(2, 0, 4096);
    pair.a.qp.post(pair.to_b(8));
    equal(
        "the opcode",
        pair.a.cq.success(1).opcode,
        ibv_wc_opcode::IBV_WC_SEND,
    );
    let received = pair.b.cq.success(2);
    equal("the opcode", received.opcode, ibv_wc_opcode::IBV_WC_RECV);
    equal("the length", received.byte_len as usize, GRH + 8);
    equal("the message", pair.b.mr.read(GRH, 8), b"datagram".to_vec());
}

fn datagram_of_nothing_arrives(device: &Device) {
    let pair = Datagrams::new(device);
    pair.b.receive(2, 0, 64);
    pair.a.qp.post(pair.to_b(0));
    equal("the length", pair.b.cq.success(2).byte_len as usize, GRH);
}

fn mtu(device: &Device) -> usize {
    128 << device.port().active_mtu.0
}

fn datagram_of_the_mtu_arrives(device: &Device) {
    let pair = Datagrams::new(device);
    let sent = pattern(mtu(device), 1);
    pair.a.mr.write(0, &sent);
    pair.b.receive(2, 0, GRH + sent.len());
    pair.a.qp.post(pair.to_b(sent.len()));
    pair.b.cq.success(2);
    assert!(pair.b.mr.read(GRH, sent.len()) == sent);
}

fn datagram_beyond_the_mtu_is_not_sent(device: &Device) {
    // IBTA C10-93.1.1: no packet is sent, and the request succeeds.
    let pair = Datagrams::new(device);
    pair.b.receive(2, 0, GRH + mtu(device) + 1);
    pair.a.qp.post(pair.to_b(mtu(device) + 1));
    pair.a.cq.success(1);
    pair.b.cq.stays_empty();
}

fn completion_contains_the_sender(device: &Device) {
    let pair = Datagrams::new(device);
    pair.b.receive(2, 0, 64);
    pair.a.qp.post(pair.to_b(8));
    let received = pair.b.cq.success(2);
    equal("src_qp", received.src_qp, pair.a.qp.number());
    equal("qp_num", received.qp_num, pair.b.qp.number());
    equal("pkey_index", received.pkey_index, 0);
}

fn completion_has_a_route_header(device: &Device) {
    let pair = Datagrams::new(device);
    pair.b.receive(2, 0, 64);
    pair.a.qp.post(pair.to_b(8));
    let received = pair.b.cq.success(2);
    // IBTA annex A17: in RoCE every datagram has a GRH.
    assert!(
        received.wc_flags & WcFlag::IBV_WC_GRH.0 != 0,
        "the flag is missing"
    );
}

fn route_header_names_sender_and_receiver(device: &Device) {
    let pair = Datagrams::new(device);
    pair.b.receive(2, 0, 64);
    pair.a.qp.post(pair.to_b(8));
    pair.b.cq.success(2);
    let own = unsafe { device.gid().gid.raw };
    let header = pair.b.mr.read(0, GRH);
    if own[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] {
        // IBTA annex A17: an IPv4 header in the last twenty bytes.
        equal("the version", header[20] >> 4, 4);
        equal("the source", &header[32..36], &own[12..]);
        equal("the destination", &header[36..40], &own[12..]);
    } else {
        equal("the version", header[0] >> 4, 6);
        equal("the source", &header[8..24], &own[..]);
        equal("the destination", &header[24..40], &own[..]);
    }
}

fn immediate_data_arrives(device: &Device) {
    let pair = Datagrams::new(device);
    pair.b.receive(2, 0, 64);
    pair.a.qp.post(pair.to_b(8).immediate(0xcafe));
    equal("the data", immediate(&pair.b.cq.success(2)), 0xcafe);
}

fn inline_datagram_arrives(device: &Device) {
    let pair = Datagrams::new(device);
    pair.a.mr.write(0, b"inline");
    pair.b.receive(2, 0, 64);
    pair.a
        .qp
        .post(pair.to_b(6).flag(ibv_send_flags::IBV_SEND_INLINE));
    pair.a.mr.write(0, b"behind");
    pair.b.cq.success(2);
    equal("the message", pair.b.mr.read(GRH, 6), b"inline".to_vec());
}

fn datagrams_from_many_to_one(device: &Device) {
    let pair = Datagrams::new(device);
    let senders: Vec<_> = (0..4)
        .map(|_| End::new(&pair.pd, &Plan::new(Service::IBV_QPT_UD), 4096))
        .collect();
    let mut expected = Vec::new();
    for sender in &senders {
        sender.qp.connect(0);
        pair.b.receive(2, 0, 64);
        let send = sender
            .send(0, 8)
            .to(pair.ah.raw(), pair.b.qp.number(), QKEY);
        sender.qp.post(send);
        expected.push(sender.qp.number());
    }
    let mut found: Vec<_> = senders
        .iter()
        .map(|_| pair.b.cq.success(2).src_qp)
        .collect();
    found.sort_unstable();
    expected.sort_unstable();
    equal("the senders", found, expected);
}

fn datagram_without_a_receive_is_lost(device: &Device) {
    let pair = Datagrams::new(device);
    pair.a.qp.post(pair.to_b(8));
    pair.a.cq.success(1);
    // A later datagram to another queue pair takes the same path.
    let third = End::new(&pair.pd, &Plan::new(Service::IBV_QPT_UD), 4096);
    third.qp.connect(0);
    third.receive(3, 0, 64);
    pair.a
        .qp
        .post(pair.a.send(0, 8).to(pair.ah.raw(), third.qp.number(), QKEY));
    third.cq.success(3);
    pair.b.receive(2, 0, 64);
    pair.b.cq.stays_empty();
}

fn datagram_with_a_wrong_key_is_lost(device: &Device) {
    // IBTA 10.2.5: a packet whose Q_Key does not match is dropped silently.
    let pair = Datagrams::new(device);
    pair.b.receive(2, 0, 64);
    let send = pair
        .a
        .send(0, 8)
        .to(pair.ah.raw(), pair.b.qp.number(), QKEY + 1);
    pair.a.qp.post(send);
    pair.a.cq.success(1);
    pair.b.cq.stays_empty();
}

fn datagram_with_a_privileged_key_takes_the_queue_pair_s(device: &Device) {
    // IBTA 10.2.5: with the high bit set, the Q_Key of the sending queue pair is sent.
    let pair = Datagrams::new(device);
    pair.b.receive(2, 0, 64);
    let send = pair
        .a
        .send(0, 8)
        .to(pair.ah.raw(), pair.b.qp.number(), 0x8000_0001);
    pair.a.qp.post(send);
    pair.a.cq.success(1);
    pair.b.cq.success(2);
}

fn datagram_to_nobody_is_lost(device: &Device) {
    let pair = Datagrams::new(device);
    let nobody = {
        let end = End::new(&pair.pd, &Plan::new(Service::IBV_QPT_UD), 4096);
        end.qp.number()
    };
    pair.a
        .qp
        .post(pair.a.send(0, 8).to(pair.ah.raw(), nobody, QKEY));
    pair.a.cq.success(1);
}

fn datagram_to_itself_arrives(device: &Device) {
    let pair = Datagrams::new(device);
    pair.a.receive(2, 100, 64);
    pair.a.qp.post(
        pair.a
            .send(0, 8)
            .to(pair.ah.raw(), pair.a.qp.number(), QKEY),
    );
    let mut ids = [pair.a.cq.next(), pair.a.cq.next()].map(|wc| wc.wr_id);
    ids.sort_unstable();
    equal("the requests", ids, [1, 2]);
}

fn receive_too_short_fails(device: &Device) {
    let pair = Datagrams::new(device);
    pair.b.receive(2, 0, GRH + 7);
    pair.a.qp.post(pair.to_b(8));
    pair.a.cq.success(1);
    pair.b.cq.expect(2, ibv_wc_status::IBV_WC_LOC_LEN_ERR);
}

fn receive_of_the_header_scatters(device: &Device) {
    let pair = Datagrams::new(device);
    pair.a.mr.write(0, b"scatter");
    let mr = &pair.b.mr;
    pair.b
        .qp
        .receive(2, &[mr.sge(0, 30), mr.sge(100, 14), mr.sge(200, 100)]);
    pair.a.qp.post(pair.to_b(7));
    pair.b.cq.success(2);
    equal("the first bytes", mr.read(110, 4), b"scat".to_vec());
    equal("the last bytes", mr.read(200, 3), b"ter".to_vec());
}

fn write_is_refused(device: &Device) {
    let pair = Datagrams::new(device);
    crate::uc::refused(
        &pair.a,
        pair.to_b(8).opcode(ibv_wr_opcode::IBV_WR_RDMA_WRITE),
    );
}

fn read_is_refused(device: &Device) {
    let pair = Datagrams::new(device);
    crate::uc::refused(
        &pair.a,
        pair.to_b(8).opcode(ibv_wr_opcode::IBV_WR_RDMA_READ),
    );
}

fn atomic_is_refused(device: &Device) {
    let pair = Datagrams::new(device);
    let opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
    crate::uc::refused(&pair.a, pair.to_b(8).opcode(opcode));
}

fn handle_outlives_its_requests(device: &Device) {
    let pair = Datagrams::new(device);
    for _ in 0..10 {
        let ah = Ah::own(&pair.pd);
        pair.b.receive(2, 0, 64);
        pair.a
            .qp
            .post(pair.a.send(0, 8).to(ah.raw(), pair.b.qp.number(), QKEY));
        pair.a.cq.success(1);
        pair.b.cq.success(2);
    }
}

fn handle_needs_a_port_that_exists(device: &Device) {
    let pd = Pd::new(device);
    let mut attr = path(device);
    attr.port_num = device.attr().phys_port_cnt + 1;
    Ah::create(&pd, attr)
        .map(drop)
        .fails("ibv_create_ah", &[libc::EINVAL]);
}

fn handle_needs_a_source_address_that_exists(device: &Device) {
    let pd = Pd::new(device);
    let used: Vec<_> = gid_table(device.context())
        .iter()
        .map(|gid| gid.gid_index)
        .collect();
    let Some(unused) = (0..=255).find(|index| !used.contains(index)) else {
        ignore("every index that a handle can name is in use");
    };
    let mut attr = path(device);
    attr.grh.sgid_index = unused as u8;
    Ah::create(&pd, attr).map(drop).fails(
        "ibv_create_ah",
        &[libc::EINVAL, libc::ENOENT, libc::ENODATA],
    );
}

fn handle_of_roce_needs_a_route(device: &Device) {
    if u32::from(device.port().link_layer) != IBV_LINK_LAYER_ETHERNET {
        ignore("the port is not of Ethernet");
    }
    // IBTA annex A16: a RoCE packet always has a GRH.
    let pd = Pd::new(device);
    let mut attr = path(device);
    attr.is_global = 0;
    Ah::create(&pd, attr)
        .map(drop)
        .fails("ibv_create_ah", &[libc::EINVAL]);
}

fn a_handle_is_created_from_a_completion(device: &Device) {
    let pair = Datagrams::new(device);
    pair.b.receive(2, 0, 64);
    pair.a.qp.post(pair.to_b(8));
    let mut received = pair.b.cq.success(2);
    let header = pair.b.mr.at(0) as *mut ibv_grh;
    let raw = unsafe { ibv_create_ah_from_wc(pair.pd.raw(), &mut received, header, PORT) };
    let back = Ah::from_raw(&pair.pd, raw.succeeds("ibv_create_ah_from_wc"));
    pair.a.receive(3, 100, 64);
    pair.b.qp.post(
        pair.b
            .send(0, 8)
            .to(back.raw(), received.src_qp, QKEY)
            .id(4),
    );
    pair.b.cq.success(4);
    pair.a.cq.success(1);
    pair.a.cq.success(3);
}

fn attributes_are_initialized_from_a_completion(device: &Device) {
    let pair = Datagrams::new(device);
    pair.b.receive(2, 0, 64);
    pair.a.qp.post(pair.to_b(8));
    let mut received = pair.b.cq.success(2);
    let header = pair.b.mr.at(0) as *mut ibv_grh;
    let mut attr = ibv_ah_attr::default();
    unsafe { ibv_init_ah_from_wc(device.context(), PORT, &mut received, header, &mut attr) }
        .succeeds("ibv_init_ah_from_wc");
    equal("is_global", attr.is_global, 1);
    equal("port_num", attr.port_num, PORT);
    equal("the GID", unsafe { attr.grh.dgid.raw }, unsafe {
        device.gid().gid.raw
    });
    equal(
        "sgid_index",
        u32::from(attr.grh.sgid_index),
        device.gid().gid_index,
    );
}

fn queue_key_can_be_changed(device: &Device) {
    let pair = Datagrams::new(device);
    let attr = ibv_qp_attr {
        qkey: 0x2222,
        ..Default::default()
    };
    pair.b
        .qp
        .modify(&attr, ibv_qp_attr_mask::IBV_QP_QKEY)
        .succeeds("ibv_modify_qp(QKEY)");
    pair.b.receive(2, 0, 64);
    pair.a.qp.post(pair.to_b(8));
    pair.a.cq.success(1);
    pair.b.cq.stays_empty();
    pair.a.qp.post(
        pair.a
            .send(0, 8)
            .to(pair.ah.raw(), pair.b.qp.number(), 0x2222),
    );
    pair.b.cq.success(2);
}

fn one_queue_pair_sends_to_two(device: &Device) {
    let pair = Datagrams::new(device);
    let third = End::new(&pair.pd, &Plan::new(Service::IBV_QPT_UD), 4096);
    third.qp.connect(0);
    third.receive(3, 0, 64);
    pair.b.receive(2, 0, 64);
    let mut sends = [
        pair.to_b(8),
        pair.a
            .send(0, 16)
            .to(pair.ah.raw(), third.qp.number(), QKEY)
            .id(2),
    ];
    Request::post_all(&pair.a.qp, &mut sends)
        .map_err(|(number, _)| number)
        .succeeds("ibv_post_send");
    equal(
        "the length",
        pair.b.cq.success(2).byte_len as usize,
        GRH + 8,
    );
    equal(
        "the length",
        third.cq.success(3).byte_len as usize,
        GRH + 16,
    );
}
