//! The device under test.

use std::cell::Cell;
use std::env;
use std::ffi::{CStr, c_int};
use std::ptr;
use std::rc::Rc;
use std::time::Duration;

use ibverbs_sys::*;

use super::check::{Outcome, ignore, pointer};

/// The port that the cases use.
pub(crate) const PORT: u8 = 1;

thread_local! {
    /// Maximum time that the case of this thread waits for an event.
    static MAX_WAIT: Cell<Duration> = const { Cell::new(Duration::from_secs(60)) };
}

/// Returns the maximum wait for an event that must happen: enough for an emulated machine under
/// load.
pub(crate) fn max_wait() -> Duration {
    MAX_WAIT.get()
}

/// Sets the maximum wait of this thread's next case, which is shorter if the case is known to fail
/// on the driver.
pub(crate) fn set_max_wait(limit: Duration) {
    MAX_WAIT.set(limit);
}

/// Duration of the wait for an event that must not happen.
pub(crate) const QUIET: Duration = Duration::from_millis(30);

/// An open device; clones share the context.
#[derive(Clone)]
pub(crate) struct Device(Rc<Opened>);

struct Opened {
    context: *mut ibv_context,
    name: String,
    attr: ibv_device_attr_ex,
    port: ibv_port_attr,
    gid: ibv_gid_entry,
}

impl Device {
    /// Opens the device `wanted`, else the device that `RDMA_DEVICE` names, else the first device.
    pub(crate) fn open(wanted: Option<&str>) -> Self {
        let wanted = wanted
            .map(str::to_owned)
            .or_else(|| env::var("RDMA_DEVICE").ok());
        let list = DeviceList::new();
        let names: Vec<_> = list.devices().iter().map(|device| name(*device)).collect();
        assert!(!names.is_empty(), "there is no RDMA device here");
        let at = match &wanted {
            Some(wanted) => names
                .iter()
                .position(|name| name == wanted)
                .unwrap_or_else(|| panic!("there is no RDMA device {wanted}, only {names:?}")),
            None => 0,
        };
        let context = unsafe { ibv_open_device(list.devices()[at]) }.succeeds("ibv_open_device");
        let mut attr = ibv_device_attr_ex::default();
        unsafe { ibv_query_device_ex(context, ptr::null(), &mut attr) }
            .succeeds("ibv_query_device_ex");
        let mut port = ibv_port_attr::default();
        unsafe { ibv_query_port(context, PORT, &mut port) }.succeeds("ibv_query_port");
        let gid = first_gid(context);
        Self(Rc::new(Opened {
            context,
            name: names[at].clone(),
            attr,
            port,
            gid,
        }))
    }

    /// Opens another context of the device.
    pub(crate) fn reopened(&self) -> Self {
        Self::open(Some(self.name()))
    }

    pub(crate) fn context(&self) -> *mut ibv_context {
        self.0.context
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn attr(&self) -> &ibv_device_attr {
        &self.0.attr.orig_attr
    }

    pub(crate) fn attr_ex(&self) -> &ibv_device_attr_ex {
        &self.0.attr
    }

    pub(crate) fn port(&self) -> &ibv_port_attr {
        &self.0.port
    }

    /// Returns the GID to use: a RoCE v2 GID of an IPv4 address if there is one.
    pub(crate) fn gid(&self) -> &ibv_gid_entry {
        &self.0.gid
    }

    /// Returns whether the device reports these capabilities.
    pub(crate) fn has(&self, capability: ibv_device_cap_flags) -> bool {
        self.attr().device_cap_flags & capability.0 == capability.0
    }

    /// Ignores the case if the device does not report these capabilities.
    pub(crate) fn needs(&self, capability: ibv_device_cap_flags, name: &str) {
        if !self.has(capability) {
            ignore(format!("the device does not claim {name}"));
        }
    }

    /// Ignores the case if the device has no atomic operations.
    pub(crate) fn needs_atomics(&self) {
        if self.attr().atomic_cap == ibv_atomic_cap::IBV_ATOMIC_NONE {
            ignore("the device does not claim atomic operations");
        }
    }

    /// Ignores the case if the device does not support XRC.
    pub(crate) fn needs_xrc(&self) {
        self.needs(ibv_device_cap_flags::IBV_DEVICE_XRC, "IBV_DEVICE_XRC");
    }

    /// Returns the name of the driver, for the table of deviations and the report. The name of a
    /// kernel driver contains the kernel version, because bugs depend on the version.
    pub(crate) fn driver(&self) -> String {
        // The vendors under which these drivers present themselves.
        match self.attr().vendor_id {
            0x00ff_ffff => format!("rxe {}", kernel()),
            vendor => format!("vendor {vendor:#x} part {}", self.attr().vendor_part_id),
        }
    }

    /// Returns the next asynchronous event, and acknowledges the event. Fails the case if there is
    /// none in time.
    #[track_caller]
    pub(crate) fn event(&self) -> ibv_async_event {
        let event = self.unacknowledged_event();
        unsafe { ibv_ack_async_event(&mut { event }) };
        event
    }

    /// Returns the next asynchronous event without acknowledging it. Fails the case if there is
    /// none in time.
    #[track_caller]
    pub(crate) fn unacknowledged_event(&self) -> ibv_async_event {
        assert!(
            self.has_event(max_wait()),
            "no asynchronous event came within {} s",
            max_wait().as_secs()
        );
        let mut event = ibv_async_event {
            element: ibv_async_event__bindgen_ty_1 { port_num: 0 },
            event_type: ibv_event_type(0),
        };
        unsafe { ibv_get_async_event(self.context(), &mut event) }.succeeds("ibv_get_async_event");
        event
    }

    /// Acknowledges events until one has the type `kind`. Fails the case if there is none in time.
    #[track_caller]
    pub(crate) fn event_of(&self, wanted: ibv_event_type) -> ibv_async_event {
        let mut others = Vec::new();
        while self.has_event(max_wait()) {
            let event = self.event();
            if event.event_type == wanted {
                return event;
            }
            others.push(event.event_type);
        }
        panic!(
            "no event of {wanted:?} came within {} s, only {others:?}",
            max_wait().as_secs()
        )
    }

    /// Returns whether an asynchronous event arrives in time.
    pub(crate) fn has_event(&self, limit: Duration) -> bool {
        readable(unsafe { (*self.context()).async_fd }, limit)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let closed = unsafe { ibv_close_device(self.context) };
        must("ibv_close_device", closed);
    }
}

/// The list of devices, freed at its end.
pub(crate) struct DeviceList {
    list: *mut *mut ibv_device,
    count: usize,
}

impl DeviceList {
    pub(crate) fn new() -> Self {
        let mut count = 0;
        let list = unsafe { ibv_get_device_list(&mut count) };
        let list = pointer(list).succeeds("ibv_get_device_list");
        Self {
            list,
            count: count as usize,
        }
    }

    pub(crate) fn devices(&self) -> &[*mut ibv_device] {
        unsafe { std::slice::from_raw_parts(self.list, self.count) }
    }

    /// Returns the list, which ends with a null pointer.
    pub(crate) fn raw(&self) -> *mut *mut ibv_device {
        self.list
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        unsafe { ibv_free_device_list(self.list) };
    }
}

/// Returns the name of a device.
pub(crate) fn name(device: *mut ibv_device) -> String {
    let name = unsafe { CStr::from_ptr(ibv_get_device_name(device)) };
    name.to_string_lossy().into_owned()
}

/// Returns all GIDs of a context.
pub(crate) fn gid_table(context: *mut ibv_context) -> Vec<ibv_gid_entry> {
    // The kernel returns at most 64 KiB of entries.
    let mut entries = vec![ibv_gid_entry::default(); 1024];
    let count = unsafe { ibv_query_gid_table(context, entries.as_mut_ptr(), entries.len(), 0) };
    assert!(count >= 0, "ibv_query_gid_table returned {count}");
    entries.truncate(count as usize);
    entries
}

fn first_gid(context: *mut ibv_context) -> ibv_gid_entry {
    let mut entries = gid_table(context);
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
    *entries.first().expect("the port has no GID")
}

/// Returns whether a descriptor becomes readable in time.
pub(crate) fn readable(fd: c_int, limit: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let ready = unsafe { libc::poll(&mut poll, 1, limit.as_millis() as c_int) };
    ready == 1 && poll.revents & libc::POLLIN != 0
}

/// Objects of a case go in the order in which that is legal, so this succeeds. A case that has
/// failed already keeps its first reason.
#[track_caller]
pub(crate) fn must(verb: &str, result: c_int) {
    if !std::thread::panicking() {
        result.succeeds(verb);
    }
}

/// Returns the first two numbers of the running kernel's version.
fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release
        .trim()
        .split('.')
        .take(2)
        .collect::<Vec<_>>()
        .join(".")
}
