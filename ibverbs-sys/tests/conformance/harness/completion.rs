//! Completion queues, channels, and checks of completions.

use std::ffi::{CStr, c_int};
use std::ptr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ibverbs_sys::*;

use super::check::{Outcome, pointer, status};
use super::device::{Device, QUIET, max_wait, must, readable};

/// A completion queue. Clones refer to the same queue.
#[derive(Clone)]
pub(crate) struct Cq(Rc<CqHandle>);

struct CqHandle {
    raw: *mut ibv_cq,
    device: Device,
    _channel: Option<Channel>,
}

impl Cq {
    pub(crate) fn new(device: &Device, entries: c_int) -> Self {
        Self::create(device, entries, None, 0).succeeds("ibv_create_cq")
    }

    pub(crate) fn on_channel(channel: &Channel, entries: c_int) -> Self {
        Self::create(&channel.0.device, entries, Some(channel), 0).succeeds("ibv_create_cq")
    }

    pub(crate) fn create(
        device: &Device,
        entries: c_int,
        channel: Option<&Channel>,
        vector: c_int,
    ) -> Result<Self, c_int> {
        let raw = unsafe {
            ibv_create_cq(
                device.context(),
                entries,
                ptr::null_mut(),
                channel.map_or(ptr::null_mut(), Channel::raw),
                vector,
            )
        };
        Ok(Self::from_raw(device, pointer(raw)?, channel))
    }

    pub(crate) fn from_raw(device: &Device, raw: *mut ibv_cq, channel: Option<&Channel>) -> Self {
        Self(Rc::new(CqHandle {
            raw,
            device: device.clone(),
            _channel: channel.cloned(),
        }))
    }

    pub(crate) fn raw(&self) -> *mut ibv_cq {
        self.0.raw
    }

    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    /// Returns the number of entries of the queue.
    pub(crate) fn capacity(&self) -> usize {
        unsafe { (*self.raw()).cqe as usize }
    }

    /// Takes up to so many completions.
    #[track_caller]
    pub(crate) fn poll(&self, room: usize) -> Vec<ibv_wc> {
        let mut completions = vec![ibv_wc::default(); room];
        let found = unsafe { ibv_poll_cq(self.raw(), room as c_int, completions.as_mut_ptr()) };
        assert!(found >= 0, "ibv_poll_cq returned {found}");
        assert!(
            found as usize <= room,
            "ibv_poll_cq returned {found} of {room}"
        );
        completions.truncate(found as usize);
        completions
    }

    /// Polls for a completion for at most `limit`.
    #[track_caller]
    pub(crate) fn within(&self, limit: Duration) -> Option<ibv_wc> {
        let end = Instant::now() + limit;
        loop {
            if let Some(completion) = self.poll(1).pop() {
                return Some(completion);
            }
            if Instant::now() > end {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Returns the next completion, with any status. Fails the case if there is none in time.
    #[track_caller]
    pub(crate) fn next(&self) -> ibv_wc {
        self.within(max_wait())
            .unwrap_or_else(|| panic!("no completion came within {} s", max_wait().as_secs()))
    }

    /// Returns the next completion, which must have the request ID `id` and the status `expected`.
    #[track_caller]
    pub(crate) fn expect(&self, id: u64, expected: ibv_wc_status) -> ibv_wc {
        let completion = self.next();
        assert!(
            completion.status == expected,
            "the completion (of request {}) is {}, not {}",
            completion.wr_id,
            says(completion.status),
            says(expected)
        );
        assert!(
            completion.wr_id == id,
            "the completion is of request {}, not {id}",
            completion.wr_id
        );
        completion
    }

    /// Returns the next completion, which must report the success of the request `id`.
    #[track_caller]
    pub(crate) fn success(&self, id: u64) -> ibv_wc {
        self.expect(id, ibv_wc_status::IBV_WC_SUCCESS)
    }

    /// Checks that no completion is reported for a while.
    #[track_caller]
    pub(crate) fn stays_empty(&self) {
        if let Some(completion) = self.within(QUIET) {
            panic!(
                "request {} completed ({}); nothing may",
                completion.wr_id,
                says(completion.status)
            );
        }
    }

    /// Asks for an event.
    #[track_caller]
    pub(crate) fn arm(&self, solicited_only: bool) {
        unsafe { ibv_req_notify_cq(self.raw(), solicited_only.into()) }
            .succeeds("ibv_req_notify_cq");
    }

    /// Destroys the queue now, if there is no other clone.
    pub(crate) fn destroy(self) -> Result<(), c_int> {
        status(unsafe { ibv_destroy_cq(self.raw()) })?;
        // The C object is destroyed. The objects that it used are dropped now.
        match Rc::try_unwrap(self.0) {
            Ok(mut handle) => handle.raw = ptr::null_mut(),
            Err(_) => panic!("a completion queue was destroyed that is in use"),
        }
        Ok(())
    }
}

impl Drop for CqHandle {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            must("ibv_destroy_cq", unsafe { ibv_destroy_cq(self.raw) });
        }
    }
}

/// A completion channel. Clones refer to the same channel.
#[derive(Clone)]
pub(crate) struct Channel(Rc<ChannelHandle>);

struct ChannelHandle {
    raw: *mut ibv_comp_channel,
    device: Device,
}

impl Channel {
    pub(crate) fn new(device: &Device) -> Self {
        let raw = unsafe { ibv_create_comp_channel(device.context()) }
            .succeeds("ibv_create_comp_channel");
        Self(Rc::new(ChannelHandle {
            raw,
            device: device.clone(),
        }))
    }

    pub(crate) fn raw(&self) -> *mut ibv_comp_channel {
        self.0.raw
    }

    pub(crate) fn fd(&self) -> c_int {
        unsafe { (*self.raw()).fd }
    }

    /// Returns whether an event arrives in time.
    pub(crate) fn has_event(&self, limit: Duration) -> bool {
        readable(self.fd(), limit)
    }

    /// Returns the queue of the next event without acknowledging the event. Fails the case if there
    /// is none in time.
    #[track_caller]
    pub(crate) fn unacknowledged_event(&self) -> *mut ibv_cq {
        assert!(
            self.has_event(max_wait()),
            "no completion event came within {} s",
            max_wait().as_secs()
        );
        let (mut cq, mut cq_context) = (ptr::null_mut(), ptr::null_mut());
        unsafe { ibv_get_cq_event(self.raw(), &mut cq, &mut cq_context) }
            .succeeds("ibv_get_cq_event");
        cq
    }

    /// Returns the queue of the next event, and acknowledges the event. Fails the case if there is
    /// none in time.
    #[track_caller]
    pub(crate) fn event(&self) -> *mut ibv_cq {
        let cq = self.unacknowledged_event();
        unsafe { ibv_ack_cq_events(cq, 1) };
        cq
    }
}

impl Drop for ChannelHandle {
    fn drop(&mut self) {
        let destroyed = unsafe { ibv_destroy_comp_channel(self.raw) };
        must("ibv_destroy_comp_channel", destroyed);
    }
}

/// Returns the text for a status.
pub(crate) fn says(status: ibv_wc_status) -> String {
    let text = unsafe { CStr::from_ptr(ibv_wc_status_str(status)) };
    text.to_string_lossy().into_owned()
}

/// Returns the immediate data of a completion, which must have immediate data.
#[track_caller]
pub(crate) fn immediate(completion: &ibv_wc) -> u32 {
    assert!(
        completion.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0,
        "the completion has no immediate data"
    );
    u32::from_be(unsafe { completion.__bindgen_anon_1.imm_data })
}
