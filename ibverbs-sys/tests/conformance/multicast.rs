//! Multicast groups.

use ibverbs_sys::ibv_qp_type as Service;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        message_reaches_a_member,
        message_reaches_every_member,
        a_detached_member_receives_nothing,
        sender_gets_its_own_message_as_a_member,
        datagrams_to_other_groups_are_not_received,
        joining_twice_is_no_error,
        leaving_a_group_of_others_is_refused,
        address_that_is_no_group_is_refused,
        connected_queue_pair_may_not_join,
        member_is_busy,
        queue_pair_in_several_groups,
    ]
}

/// The multicast QP number, IBTA 3.4.2: all of a group.
const EVERYONE: u32 = 0x00ff_ffff;

/// Returns the GID of the group 239.77.0.`last`, or of an IPv6 group if the device's address is
/// IPv6.
fn group(device: &Device, last: u8) -> ibv_gid {
    let ipv4 = unsafe { device.gid().gid.raw }[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    let raw = if ipv4 {
        [
            0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 77, 0, last,
        ]
    } else {
        [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x77, last]
    };
    ibv_gid { raw }
}

/// A group membership, which ends when the value is dropped, before the queue pair is destroyed.
struct Member<'a>(&'a End, ibv_gid);

impl<'a> Member<'a> {
    fn new(device: &Device, end: &'a End, group: ibv_gid) -> Self {
        if device.attr().max_mcast_grp == 0 {
            ignore("the device claims no multicast groups (max_mcast_grp)");
        }
        unsafe { ibv_attach_mcast(end.qp.raw(), &group, 0) }.succeeds("ibv_attach_mcast");
        Self(end, group)
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        let left = unsafe { ibv_detach_mcast(self.0.qp.raw(), &self.1, 0) };
        must("ibv_detach_mcast", left);
    }
}

fn end(pd: &Pd) -> End {
    let end = End::new(pd, &Plan::new(Service::IBV_QPT_UD), 4096);
    end.qp.connect(0);
    end
}

fn way(pd: &Pd, group: ibv_gid) -> Ah {
    let mut attr = path(pd.device());
    attr.grh.dgid = group;
    Ah::create(pd, attr).succeeds("ibv_create_ah")
}

/// Sends a message to the group.
#[track_caller]
fn tell(pd: &Pd, from: &End, group: ibv_gid) {
    let ah = way(pd, group);
    from.mr.write(0, b"everyone");
    from.qp.post(from.send(0, 8).to(ah.raw(), EVERYONE, QKEY));
    from.cq.success(1);
}

#[track_caller]
fn hears(end: &End) {
    let received = end.cq.success(2);
    equal("the length", received.byte_len as usize, GRH + 8);
    equal(
        "the message",
        end.mr.read(100 + GRH, 8),
        b"everyone".to_vec(),
    );
}

fn message_reaches_a_member(device: &Device) {
    let pd = Pd::new(device);
    let (from, to) = (end(&pd), end(&pd));
    let _member = Member::new(device, &to, group(device, 1));
    to.receive(2, 100, 64);
    tell(&pd, &from, group(device, 1));
    hears(&to);
}

fn message_reaches_every_member(device: &Device) {
    let pd = Pd::new(device);
    let from = end(&pd);
    let ends: Vec<_> = (0..4).map(|_| end(&pd)).collect();
    let _members: Vec<_> = ends
        .iter()
        .map(|end| Member::new(device, end, group(device, 2)))
        .collect();
    ends.iter().for_each(|end| end.receive(2, 100, 64));
    tell(&pd, &from, group(device, 2));
    ends.iter().for_each(hears);
}

fn a_detached_member_receives_nothing(device: &Device) {
    let pd = Pd::new(device);
    let (from, stays, leaves) = (end(&pd), end(&pd), end(&pd));
    let _member = Member::new(device, &stays, group(device, 3));
    drop(Member::new(device, &leaves, group(device, 3)));
    stays.receive(2, 100, 64);
    leaves.receive(2, 100, 64);
    tell(&pd, &from, group(device, 3));
    hears(&stays);
    leaves.cq.stays_empty();
}

fn sender_gets_its_own_message_as_a_member(device: &Device) {
    let pd = Pd::new(device);
    let end = end(&pd);
    let _member = Member::new(device, &end, group(device, 4));
    end.receive(2, 100, 64);
    let ah = way(&pd, group(device, 4));
    end.qp.post(end.send(0, 8).to(ah.raw(), EVERYONE, QKEY));
    let mut ids = [end.cq.next(), end.cq.next()].map(|wc| wc.wr_id);
    ids.sort_unstable();
    equal("the requests", ids, [1, 2]);
}

fn datagrams_to_other_groups_are_not_received(device: &Device) {
    let pd = Pd::new(device);
    let (from, to) = (end(&pd), end(&pd));
    let _member = Member::new(device, &to, group(device, 5));
    to.receive(2, 100, 64);
    tell(&pd, &from, group(device, 6));
    to.cq.stays_empty();
}

fn joining_twice_is_no_error(device: &Device) {
    // The kernel and the specification (IBTA 11.3.1) permit the second join. One detach ends the
    // membership.
    let pd = Pd::new(device);
    let (from, to) = (end(&pd), end(&pd));
    let member = Member::new(device, &to, group(device, 7));
    unsafe { ibv_attach_mcast(to.qp.raw(), &group(device, 7), 0) }
        .succeeds("ibv_attach_mcast, again");
    to.receive(2, 100, 64);
    to.receive(2, 100, 64);
    tell(&pd, &from, group(device, 7));
    hears(&to);
    to.cq.stays_empty();
    drop(member);
}

fn leaving_a_group_of_others_is_refused(device: &Device) {
    let pd = Pd::new(device);
    let (one, two) = (end(&pd), end(&pd));
    let _member = Member::new(device, &one, group(device, 8));
    unsafe { ibv_detach_mcast(two.qp.raw(), &group(device, 8), 0) }
        .fails("ibv_detach_mcast", &[libc::EINVAL, libc::ENOENT]);
}

fn address_that_is_no_group_is_refused(device: &Device) {
    let end = end(&Pd::new(device));
    drop(Member::new(device, &end, group(device, 9)));
    unsafe { ibv_attach_mcast(end.qp.raw(), &device.gid().gid, 0) }
        .fails("ibv_attach_mcast", &[libc::EINVAL]);
}

fn connected_queue_pair_may_not_join(device: &Device) {
    // The manual of ibv_attach_mcast: only queue pairs of UD.
    let pair = Pair::rc(device);
    unsafe { ibv_attach_mcast(pair.a.qp.raw(), &group(device, 10), 0) }.fails(
        "ibv_attach_mcast",
        &[libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS],
    );
}

fn member_is_busy(device: &Device) {
    // The manual of ibv_destroy_qp: fails if the queue pair is attached to a multicast group.
    let end = end(&Pd::new(device));
    let _member = Member::new(device, &end, group(device, 11));
    unsafe { ibv_destroy_qp(end.qp.raw()) }.fails("ibv_destroy_qp", &[libc::EBUSY]);
}

fn queue_pair_in_several_groups(device: &Device) {
    let pd = Pd::new(device);
    let (from, to) = (end(&pd), end(&pd));
    let groups = [12, 13, 14].map(|last| group(device, last));
    let _members = groups.map(|group| Member::new(device, &to, group));
    for group in groups {
        to.receive(2, 100, 64);
        tell(&pd, &from, group);
        hears(&to);
    }
}
