//! Failure of the device: a failed device sends and receives nothing, and every waiting thread is
//! notified.

use std::any::Any;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ibverbs_sys::ibv_event_type;

use super::Nic;
use crate::engine;
use crate::proto::Time;

impl Nic {
    /// Makes the device fail permanently. The link goes down. All queue pairs enter the error
    /// state, which flushes their requests. Every open context gets `IBV_EVENT_DEVICE_FATAL`.
    /// Afterwards verbs that create or change objects fail with `EIO`.
    ///
    /// The first call writes `reason` to standard error, and returns `true`. Later calls do
    /// nothing, and return `false`.
    ///
    /// Any thread may call this function, with any locks held. A new thread does the steps that
    /// need locks, possibly after this function has returned.
    pub(crate) fn fail_permanently(&self, reason: &str) -> bool {
        if !self.faults.fail_device() {
            return false;
        }
        let _ = writeln!(
            io::stderr(),
            "softroce: the device has failed: {reason}; its queue pairs enter the error state, and it \
             cannot be used again by this process"
        );
        if let Some(nic) = self.this.upgrade() {
            let failing = engine::spawn("softroce-fail_permanently", move || nic.report_failure());
            if failing.is_err() {
                self.report_failure();
            }
        }
        true
    }

    /// Makes the device fail because a thread has panicked in code of the device. `panic` is the
    /// payload of the panic, for the error message. Returns `true` if the device had not
    /// [failed](Self::fail_permanently) before.
    pub(crate) fn panicked(&self, panic: &(dyn Any + Send)) -> bool {
        let message = match panic.downcast_ref::<String>() {
            Some(message) => Some(message.as_str()),
            None => panic.downcast_ref::<&str>().copied(),
        };
        let message = message.unwrap_or("no message");
        self.fail_permanently(&format!("a thread panicked in it ({message})"))
    }

    /// Returns whether the device [has failed](Self::fail_permanently), so that verbs that need the
    /// device must return errors.
    pub(crate) fn has_failed(&self) -> bool {
        self.faults.device_has_failed()
    }

    fn report_failure(&self) {
        for queue_pair in self.queue_pairs.all() {
            // A queue pair that a panic left inconsistent must not keep the others from failing.
            let _ = catch_unwind(AssertUnwindSafe(|| queue_pair.fail()));
        }
        self.deadlines.expire(Time::from_nanos(u64::MAX));
        self.faults.raise(ibv_event_type::IBV_EVENT_DEVICE_FATAL);
    }
}
