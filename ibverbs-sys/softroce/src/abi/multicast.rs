use std::net::Ipv6Addr;

use ibverbs_sys::{ibv_gid, ibv_qp};
use libc::c_int;

use super::queue_pair::object;
use super::{forward, number, verb};
use crate::fault::Verb;
use crate::proto::Service;

/// `ibv_attach_mcast(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    lid: u16,
) -> c_int {
    // SAFETY: the caller gives a queue pair.
    unsafe { forward!((*qp).context, ibv_attach_mcast(qp, gid, lid)) };
    verb(Verb::AttachMcast, number, || {
        // SAFETY: the queue pair is ours, and the caller gives a GID, which any bytes are.
        let (object, gid) = unsafe { (object(qp), Ipv6Addr::from((*gid).raw)) };
        let (nic, queue_pair) = (object.nic(), object.queue_pair());
        if queue_pair.service() != Service::UnreliableDatagram {
            return libc::EINVAL;
        }
        // A RoCE port has no LIDs: whatever it is, it is not looked at (IBTA annex A16.4.3).
        let join = |group| nic.network.join(group);
        match nic.groups.attach(gid, queue_pair, join) {
            Ok(()) => 0,
            Err(error) => error.errno(),
        }
    })
}

/// `ibv_detach_mcast(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    lid: u16,
) -> c_int {
    // SAFETY: the caller gives a queue pair.
    unsafe { forward!((*qp).context, ibv_detach_mcast(qp, gid, lid)) };
    verb(Verb::DetachMcast, number, || {
        // SAFETY: the queue pair is ours, and the caller gives a GID, which any bytes are.
        let (object, gid) = unsafe { (object(qp), Ipv6Addr::from((*gid).raw)) };
        let nic = object.nic();
        let leave = |group| nic.network.leave(group);
        match nic.groups.detach(gid, object.queue_pair(), leave) {
            Ok(()) => 0,
            Err(refusal) => refusal.errno(),
        }
    })
}
