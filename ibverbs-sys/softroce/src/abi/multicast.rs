use std::net::Ipv6Addr;

use ibverbs_sys::{ibv_gid, ibv_qp};
use libc::c_int;

use super::queue_pair::object;
use super::{forward, number, verb};
use crate::fault::Verb;
use crate::proto::Service;

/// Attaches a queue pair to a multicast group (`ibv_attach_mcast(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    lid: u16,
) -> c_int {
    // SAFETY: the C API requires the caller to pass a valid queue pair.
    unsafe { forward!((*qp).context, ibv_attach_mcast(qp, gid, lid)) };
    verb(Verb::AttachMcast, number, || {
        // SAFETY: the queue pair belongs to this device, as `forward!` has checked. The C API
        // requires a valid pointer to a GID, for which any bytes are valid.
        let (object, gid) = unsafe { (object(qp), Ipv6Addr::from((*gid).raw)) };
        let (nic, queue_pair) = (object.nic(), object.queue_pair());
        if queue_pair.service() != Service::UnreliableDatagram {
            return libc::EINVAL;
        }
        // RoCE has no LIDs, so `lid` is ignored (IBTA annex A16.4.3).
        let join = |group| nic.network.join(group);
        match nic.groups.attach(gid, queue_pair, join) {
            Ok(()) => 0,
            Err(error) => error.errno(),
        }
    })
}

/// Detaches a queue pair from a multicast group (`ibv_detach_mcast(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    lid: u16,
) -> c_int {
    // SAFETY: the C API requires the caller to pass a valid queue pair.
    unsafe { forward!((*qp).context, ibv_detach_mcast(qp, gid, lid)) };
    verb(Verb::DetachMcast, number, || {
        // SAFETY: the queue pair belongs to this device, as `forward!` has checked. The C API
        // requires a valid pointer to a GID, for which any bytes are valid.
        let (object, gid) = unsafe { (object(qp), Ipv6Addr::from((*gid).raw)) };
        let nic = object.nic();
        let leave = |group| nic.network.leave(group);
        match nic.groups.detach(gid, object.queue_pair(), leave) {
            Ok(()) => 0,
            Err(refusal) => refusal.errno(),
        }
    })
}
