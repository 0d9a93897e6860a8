//! Connection identifiers: the owner of an `rdma_cm_id`, and the lock that protects it.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys as sys;
use parking_lot::Mutex;

use super::channel::{EventChannelHandle, Ids};
use super::{checked, failed, socket_address};
use crate::cm::{ConnectionId, EventChannel};
use crate::error::{Error, Result};

/// The owner of a connection identifier (`rdma_cm_id`). Dropping this value destroys the
/// identifier.
#[derive(Debug)]
pub(crate) struct IdHandle {
    raw: NonNull<sys::rdma_cm_id>,
    /// The channel on which the identifier's events arrive. A thread takes this lock before the
    /// lock of the channel.
    channel: Mutex<Arc<EventChannelHandle>>,
    /// The multicast groups that the identifier has joined and not left.
    groups: Mutex<Vec<SocketAddr>>,
}

// SAFETY: the identifier is used only under its channel's lock, and any thread may use it.
unsafe impl Send for IdHandle {}
// SAFETY: the identifier is used only under its channel's lock.
unsafe impl Sync for IdHandle {}

impl IdHandle {
    pub(crate) fn create(
        channel: &Arc<EventChannelHandle>,
        space: sys::rdma_port_space,
    ) -> Result<Arc<Self>> {
        let mut ids = channel.lock();
        let mut raw = ptr::null_mut();
        // SAFETY: the new handle keeps the handle of the channel, which keeps the channel valid.
        let returned =
            unsafe { sys::rdma_create_id(channel.as_raw(), &mut raw, ptr::null_mut(), space) };
        match NonNull::new(raw).filter(|_| returned == 0) {
            // SAFETY: the identifier was just created, and no other code owns it.
            Some(raw) => Ok(unsafe { Self::adopt(raw, channel, &mut ids) }),
            None => Err(failed("rdma_create_id", "an event channel")),
        }
    }

    /// Takes ownership of an identifier on `channel`. `ids` must be the locked map of that
    /// channel's identifiers.
    ///
    /// # Safety
    ///
    /// The identifier must be valid and on this channel, and no other code may use or destroy it.
    pub(super) unsafe fn adopt(
        raw: NonNull<sys::rdma_cm_id>,
        channel: &Arc<EventChannelHandle>,
        ids: &mut Ids,
    ) -> Arc<Self> {
        let handle = Arc::new(Self {
            raw,
            channel: Mutex::new(Arc::clone(channel)),
            groups: Mutex::default(),
        });
        ids.insert(raw.as_ptr() as usize, Arc::downgrade(&handle));
        handle
    }

    pub(crate) fn as_raw(&self) -> *mut sys::rdma_cm_id {
        self.raw.as_ptr()
    }

    pub(crate) fn channel(&self) -> Arc<EventChannelHandle> {
        Arc::clone(&self.channel.lock())
    }

    /// Locks the identifier's event channel, and calls `use_it` with the `rdma_cm_id`. No other
    /// thread can use the identifier during the call.
    pub(super) fn with<R>(&self, use_it: impl FnOnce(*mut sys::rdma_cm_id) -> R) -> R {
        let channel = self.channel.lock();
        let _ids = channel.lock();
        use_it(self.raw.as_ptr())
    }

    /// Locks the identifier's event channel, and calls the librdmacm function `call` with the
    /// `rdma_cm_id`. Returns an error without the call if the identifier has no device yet:
    /// librdmacm would dereference the null device pointer.
    pub(super) fn with_device(
        &self,
        verb: &'static str,
        call: impl FnOnce(*mut sys::rdma_cm_id) -> c_int,
    ) -> Result<()> {
        self.with(|id| {
            // SAFETY: the identifier is valid, and the lock prevents writes to the field.
            if unsafe { (*id).verbs }.is_null() {
                let reason = "it has no device yet: resolve an address, or bind it to one";
                return Err(Error::invalid(
                    "connection identifier",
                    format!("{verb}: {reason}"),
                ));
            }
            checked(call(id), verb, || describe(id))
        })
    }

    /// Returns the name of the device that the connection identifier uses, or `None` if the
    /// identifier has no device yet.
    pub(crate) fn device_name(&self) -> Option<String> {
        self.with(|id| {
            // SAFETY: the identifier is valid, and the lock prevents writes to it. A context and
            // its device exist as long as an identifier uses them.
            unsafe {
                let device = (*id).verbs.as_ref()?.device;
                let name = std::ffi::CStr::from_ptr(sys::ibv_get_device_name(device));
                Some(name.to_string_lossy().into_owned())
            }
        })
    }

    /// Returns the number of the device port that the identifier uses, or `None` if the identifier
    /// has no device yet.
    pub(crate) fn port(&self) -> Option<u8> {
        // SAFETY: the identifier is valid, and the lock prevents writes to it.
        self.with(|id| unsafe { (!(*id).verbs.is_null()).then_some((*id).port_num) })
    }

    /// Returns the local GID of the identifier, or all zeroes if the identifier has no device yet.
    pub(crate) fn local_gid(&self) -> [u8; 16] {
        self.with(|id| {
            // SAFETY: the identifier is valid, and the lock prevents writes to it; both variants of
            // the union are plain bytes.
            unsafe { (*id).route.addr.addr.ibaddr.sgid.raw }
        })
    }

    pub(crate) fn port_space(&self) -> sys::rdma_port_space {
        // SAFETY: the identifier is valid; the field is set at creation and never changes.
        unsafe { (*self.raw.as_ptr()).ps }
    }

    pub(crate) fn is_datagram(&self) -> bool {
        // SAFETY: the identifier is valid; the field is set at creation and never changes.
        unsafe { (*self.raw.as_ptr()).qp_type == sys::ibv_qp_type::IBV_QPT_UD }
    }

    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is valid and contains a whole address; the lock prevents writes.
        self.with(|id| unsafe { socket_address::from_raw(sys::rdma_get_local_addr(id)) })
    }

    pub(crate) fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is valid and contains a whole address; the lock prevents writes.
        self.with(|id| unsafe { socket_address::from_raw(sys::rdma_get_peer_addr(id)) })
    }

    /// Moves the connection identifier to the event channel `channel`. Later events of the
    /// identifier arrive on that channel, and so do events that are already pending.
    pub(crate) fn migrate(self: &Arc<Self>, channel: &Arc<EventChannelHandle>) -> Result<()> {
        let mut current = self.channel.lock();
        if Arc::ptr_eq(&current, channel) {
            return Ok(());
        }
        let key = self.raw.as_ptr() as usize;
        let old = Arc::clone(&current);
        // Threads that migrate between the same channels must take the locks in the same order.
        let (mut from, mut to);
        if Arc::as_ptr(&old) < Arc::as_ptr(channel) {
            from = old.lock();
            to = channel.lock();
        } else {
            to = channel.lock();
            from = old.lock();
        }
        // SAFETY: identifier and channel are valid, and both channels are locked. Every event that
        // was taken is acknowledged, so the call does not wait for one.
        let returned = unsafe { sys::rdma_migrate_id(self.raw.as_ptr(), channel.as_raw()) };
        checked(returned, "rdma_migrate_id", || describe(self.raw.as_ptr()))?;
        from.remove(&key);
        to.insert(key, Arc::downgrade(self));
        drop((from, to));
        *current = Arc::clone(channel);
        Ok(())
    }

    /// Starts to join a multicast group. The event that reports the result contains `token`. If
    /// `send_only` is `true`, the identifier can only send to the group.
    pub(crate) fn join(&self, group: SocketAddr, send_only: bool, token: usize) -> Result<()> {
        let flags = if send_only {
            sys::rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER
        } else {
            sys::rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_FULLMEMBER
        };
        let mask = sys::rdma_cm_join_mc_attr_mask::RDMA_CM_JOIN_MC_ATTR_ADDRESS
            | sys::rdma_cm_join_mc_attr_mask::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        let mut raw = socket_address::to_raw(group);
        let mut attributes = sys::rdma_cm_join_mc_attr_ex {
            comp_mask: mask.0,
            join_flags: flags.0,
            addr: (&raw mut raw).cast(),
        };
        self.with_device("rdma_join_multicast_ex", |id| {
            // SAFETY: the identifier and the attributes are valid during the call, which copies
            // them. The token is a number that is never dereferenced.
            unsafe { sys::rdma_join_multicast_ex(id, &mut attributes, token as *mut c_void) }
        })?;
        self.groups.lock().push(group);
        Ok(())
    }

    /// Leaves a multicast group. Fails if this identifier has not joined the group.
    pub(crate) fn leave(&self, group: SocketAddr) -> Result<()> {
        {
            let mut groups = self.groups.lock();
            let Some(at) = groups.iter().position(|joined| *joined == group) else {
                let reason = format!("{group} was not joined by this identifier");
                return Err(Error::invalid("multicast group", reason));
            };
            groups.swap_remove(at);
        }
        self.with(|id| leave(id, group))
    }
}

/// Leaves a multicast group that the identifier has joined. The caller must have acknowledged all
/// events of the join that were read, because the call waits for these acknowledgements.
fn leave(id: *mut sys::rdma_cm_id, group: SocketAddr) -> Result<()> {
    let mut raw = socket_address::to_raw(group);
    // SAFETY: the identifier and the address are valid; every event of the join that was taken is
    // acknowledged, so the call does not wait for one.
    let returned = unsafe { sys::rdma_leave_multicast(id, (&raw mut raw).cast()) };
    checked(returned, "rdma_leave_multicast", || group.to_string())
}

/// Returns the description of a connection identifier for error messages. The caller must hold the
/// lock of the identifier's event channel.
pub(super) fn describe(id: *mut sys::rdma_cm_id) -> String {
    // SAFETY: the identifier is valid and contains whole addresses.
    let (local, peer) = unsafe {
        (
            socket_address::from_raw(sys::rdma_get_local_addr(id)),
            socket_address::from_raw(sys::rdma_get_peer_addr(id)),
        )
    };
    match (local, peer) {
        (Some(local), Some(peer)) => format!("the connection from {local} to {peer}"),
        (None, Some(peer)) => format!("the connection to {peer}"),
        (Some(local), None) => format!("the connection identifier at {local}"),
        (None, None) => "an unbound connection identifier".to_owned(),
    }
}

impl ConnectionId {
    /// Takes ownership of a connection identifier that other code created, for example a vendor's
    /// extension.
    ///
    /// # Safety
    ///
    /// `raw` must be a valid identifier on `channel`, without a queue pair of its own and without
    /// unacknowledged events. No other code may use or destroy it.
    ///
    /// # Panics
    ///
    /// Panics if `raw` is null.
    pub unsafe fn from_raw(channel: &EventChannel, raw: *mut sys::rdma_cm_id) -> Self {
        let raw = NonNull::new(raw).expect("a connection identifier");
        let channel = channel.handle();
        // SAFETY: the caller guarantees that the identifier is valid and not used by other code.
        Self::from_handle(unsafe { IdHandle::adopt(raw, channel, &mut channel.lock()) })
    }
}

impl Drop for IdHandle {
    fn drop(&mut self) {
        let id = self.raw.as_ptr();
        let channel = Arc::clone(self.channel.get_mut());
        let mut ids = channel.lock();
        ids.remove(&(id as usize));
        // librdmacm leaks the memory of groups that were not left.
        for group in self.groups.get_mut().drain(..) {
            if let Err(error) = leave(id, group) {
                tracing::error!(%error, "leaving a multicast group with its identifier");
            }
        }
        let name = describe(id);
        // SAFETY: the identifier is valid and destroyed once, here. Every event that was taken is
        // acknowledged, so the call does not wait for one, and the lock prevents other threads from
        // taking events.
        if unsafe { sys::rdma_destroy_id(id) } != 0 {
            let error = failed("rdma_destroy_id", name);
            tracing::error!(%error, "a connection identifier is lost");
        }
    }
}
