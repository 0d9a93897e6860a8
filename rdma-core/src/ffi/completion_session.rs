//! Iteration over the entries of an extended completion queue.
//!
//! The verbs read an entry in place, field by field, between `ibv_start_poll` and `ibv_end_poll`.

use std::collections::VecDeque;
use std::hint;

use ibverbs_sys as sys;

use super::completion_queue::{BATCH, CompletionQueueHandle};
use super::completion_record::{
    CompletionDetails, CompletionRecord, empty_completion, raw_immediate,
};
use super::extended_queue::IterationRight;
use crate::completion::{CompletionFields, CompletionTag, WorkCompletion};
use crate::error::{Errno, Result};

/// The bits of a completion's flags that mark the presence of immediate data and of an invalidated
/// key.
const WITH_IMMEDIATE: u32 =
    sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 | sys::ibv_wc_flags::IBV_WC_WITH_INV.0;

/// Maximum number of consecutive failures of `ibv_start_poll` with `EBUSY` before the poll returns
/// the error. Drivers return `EBUSY` while the kernel updates the clock. The update is short, so
/// more failures mean a defect.
const CLOCK_ATTEMPTS: u32 = 1000;

/// An iteration over the completions of an extended queue. The first call of [`Self::advance`]
/// calls `ibv_start_poll`, and dropping the session calls `ibv_end_poll`.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    queue: &'a CompletionQueueHandle,
    phase: Phase,
    /// Completions that an earlier poll has taken and put back. The iteration returns them before
    /// the device's entries.
    put_back: VecDeque<CompletionRecord>,
    /// The copy of the completion to which the session has advanced, if that completion came from
    /// `put_back`.
    current: Option<CompletionRecord>,
    /// The exclusive right to iterate over the entries. The last field of the session, so that the
    /// right is released after `ibv_end_poll` has released the driver's lock.
    held: IterationRight<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Before,
    /// `ibv_start_poll` succeeded, so `ibv_end_poll` must be called.
    Within,
    /// The iteration is over, because the queue had no further entry or because polling failed.
    Through,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        queue: &'a CompletionQueueHandle,
        held: IterationRight<'a>,
        put_back: VecDeque<CompletionRecord>,
    ) -> Self {
        Self {
            queue,
            phase: Phase::Before,
            put_back,
            current: None,
            held,
        }
    }

    /// Advances to the next completion, and returns `true`. Returns `false` if no completion is
    /// left. Every later call then also returns `false`. Skips the completions that other threads
    /// wait for, and stores them in the inboxes of these threads.
    pub(crate) fn advance(&mut self) -> Result<bool> {
        while self.step()? {
            if !self.queue.stash().deliver(self.id(), || self.record()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Advances to the next completion of the queue, even if another thread waits for that
    /// completion. ([`Self::advance`] skips such completions.) Returns `false` if no completion is
    /// left.
    fn step(&mut self) -> Result<bool> {
        self.current = self.put_back.pop_front();
        if self.current.is_some() {
            return Ok(true);
        }
        let (verb, errno) = match self.phase {
            Phase::Before => ("ibv_start_poll", self.start()),
            Phase::Within if self.held.extension().is_entry_by_entry() => {
                self.end();
                ("ibv_start_poll", self.start())
            }
            // SAFETY: the session has begun and not ended.
            Phase::Within => ("ibv_next_poll", unsafe { sys::ibv_next_poll(self.raw()) }),
            Phase::Through => return Ok(false),
        };
        if errno == 0 {
            self.phase = Phase::Within;
            return Ok(true);
        }
        self.end();
        match errno.abs() {
            libc::ENOENT => Ok(false),
            errno => Err(self.queue.error(verb, Errno(errno))),
        }
    }

    fn start(&self) -> i32 {
        let mut attributes = sys::ibv_poll_cq_attr { comp_mask: 0 };
        for _ in 0..CLOCK_ATTEMPTS {
            // SAFETY: the queue and the attributes are valid, and `held` ensures that no other
            // session of this queue is active.
            match unsafe { sys::ibv_start_poll(self.raw(), &mut attributes) } {
                // Returned while the kernel updates the clock, if wall-clock timestamps were
                // requested (man page of ibv_create_cq_ex).
                libc::EBUSY => hint::spin_loop(),
                errno => return errno,
            }
        }
        libc::EBUSY
    }

    fn end(&mut self) {
        if self.phase == Phase::Within {
            // SAFETY: the session has begun and not ended.
            unsafe { sys::ibv_end_poll(self.raw()) };
        }
        self.phase = Phase::Through;
    }

    fn raw(&self) -> *mut sys::ibv_cq_ex {
        self.held.extension().as_raw()
    }

    pub(crate) fn fields(&self) -> CompletionFields {
        self.held.extension().fields()
    }

    /// Calls `take` with the pending completions: all that were put back earlier, and up to
    /// [`BATCH`] from the device. Puts back each completion for which `take` returns `false`.
    pub(super) fn sort(&mut self, take: &mut dyn FnMut(&CompletionRecord) -> bool) -> Result<()> {
        let mut kept = VecDeque::new();
        let count = self.put_back.len() + BATCH;
        let mut outcome = Ok(());
        for _ in 0..count {
            match self.advance() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
            let record = self.record();
            if !take(&record) {
                kept.push_back(record);
            }
        }
        self.put_back = kept;
        outcome
    }
}

/// Defines a method of `Session` that returns one field of the current completion: the completion
/// that the iteration has reached. The method returns `None` if the queue was created without the
/// field. The method calls the verb `$verb`, or reads the stored copy if an earlier poll has put
/// the completion back.
macro_rules! field {
    ($name:ident: $type:ty = $field:ident, $recorded:expr, $verb:ident) => {
        #[inline]
        pub(crate) fn $name(&self) -> Option<$type> {
            if !self.fields().contains(CompletionFields::$field) {
                return None;
            }
            match &self.current {
                Some(record) => $recorded(record),
                // SAFETY: there is a current entry, and the creation of the queue has checked that
                // a read function exists for every requested field.
                None => self.live().map(|queue| unsafe { sys::$verb(queue) }),
            }
        }
    };
}

/// Methods for the fields that every completion has.
impl Session<'_> {
    /// Returns the C struct of the queue if the current completion (the completion that this
    /// iteration has reached) is still in the queue. Returns `None` if the current completion is a
    /// copy that an earlier poll has stored, or if there is no current completion.
    #[inline]
    fn live(&self) -> Option<*mut sys::ibv_cq_ex> {
        (self.phase == Phase::Within && self.current.is_none()).then(|| self.raw())
    }

    /// Returns one field of the current completion: the completion that this iteration has reached.
    /// The caller passes two functions that read the field. `live` reads the field of a completion
    /// in the queue. `recorded` reads the field of a copy that an earlier poll has stored. If there
    /// is no current completion, calls `recorded` with a completion with all fields zero.
    #[inline]
    fn read<T>(
        &self,
        recorded: impl FnOnce(&sys::ibv_wc) -> T,
        live: impl FnOnce(*mut sys::ibv_cq_ex) -> T,
    ) -> T {
        match (&self.current, self.live()) {
            (Some(record), _) => recorded(record.completion.as_raw()),
            (None, Some(queue)) => live(queue),
            (None, None) => recorded(&empty_completion()),
        }
    }

    #[inline]
    pub(crate) fn id(&self) -> u64 {
        // SAFETY: the queue is valid, and only this thread iterates over its entries.
        self.read(|entry| entry.wr_id, |queue| unsafe { (*queue).wr_id })
    }

    #[inline]
    pub(crate) fn status(&self) -> sys::ibv_wc_status {
        // SAFETY: the queue is valid, and only this thread iterates over its entries.
        self.read(|entry| entry.status, |queue| unsafe { (*queue).status })
    }

    #[inline]
    pub(crate) fn opcode(&self) -> sys::ibv_wc_opcode {
        self.read(
            |entry| entry.opcode,
            // SAFETY: there is a current entry; the function was checked when the queue was
            // created.
            |queue| unsafe { sys::ibv_wc_read_opcode(queue) },
        )
    }

    #[inline]
    pub(crate) fn vendor_error(&self) -> u32 {
        self.read(
            |entry| entry.vendor_err,
            // SAFETY: there is a current entry; the function was checked when the queue was
            // created.
            |queue| unsafe { sys::ibv_wc_read_vendor_err(queue) },
        )
    }

    #[inline]
    pub(crate) fn flags(&self) -> u32 {
        self.read(
            |entry| entry.wc_flags,
            // SAFETY: there is a current entry; the function was checked when the queue was
            // created.
            |queue| unsafe { sys::ibv_wc_read_wc_flags(queue) },
        )
    }

    /// Returns a copy of the current completion: the completion that this iteration has reached. If
    /// the request failed, only the id, status, vendor error and queue pair are valid.
    pub(crate) fn record(&self) -> CompletionRecord {
        if let Some(record) = self.current {
            return record;
        }
        let mut entry = empty_completion();
        entry.wr_id = self.id();
        entry.status = self.status();
        entry.qp_num = self.queue_pair().unwrap_or(0);
        let mut details = CompletionDetails::default();
        if entry.status == sys::ibv_wc_status::IBV_WC_SUCCESS {
            entry.opcode = self.opcode();
            entry.wc_flags = self.flags();
            entry.byte_len = self.byte_len().unwrap_or(0);
            match self.immediate() {
                Some(told) => entry.__bindgen_anon_1.imm_data = told,
                // In a plain completion only the flags state whether immediate data or an
                // invalidated key is present.
                None => entry.wc_flags &= !WITH_IMMEDIATE,
            }
            entry.src_qp = self.source_queue_pair().unwrap_or(0);
            entry.sl = self.service_level().unwrap_or(0);
            entry.dlid_path_bits = self.path_bits().unwrap_or(0);
            details = CompletionDetails {
                source_lid: self.source_lid(),
                timestamp: self.timestamp(),
                wall_clock: self.wall_clock(),
                vlan: self.vlan(),
                flow_tag: self.flow_tag(),
                tag: self.tag(),
            };
            // The plain completion has room for 16-bit LIDs only.
            entry.slid = details.source_lid.unwrap_or(0) as u16;
        } else {
            entry.vendor_err = self.vendor_error();
        }
        CompletionRecord {
            completion: WorkCompletion::from_raw_parts(entry),
            details,
        }
    }
}

/// Methods for fields that are present only if the queue was created with them.
impl Session<'_> {
    field!(byte_len: u32 = LEN, |it: &CompletionRecord| Some(it.completion.as_raw().byte_len), ibv_wc_read_byte_len);
    // The immediate data in network byte order or, for a message that invalidated a key, that key.
    field!(immediate: u32 = IMMEDIATE, |it: &CompletionRecord| Some(raw_immediate(it.completion.as_raw())), ibv_wc_read_imm_data);
    field!(queue_pair: u32 = QUEUE_PAIR, |it: &CompletionRecord| Some(it.completion.as_raw().qp_num), ibv_wc_read_qp_num);
    field!(source_queue_pair: u32 = SOURCE_QUEUE_PAIR, |it: &CompletionRecord| Some(it.completion.as_raw().src_qp), ibv_wc_read_src_qp);
    field!(service_level: u8 = SERVICE_LEVEL, |it: &CompletionRecord| Some(it.completion.as_raw().sl), ibv_wc_read_sl);
    field!(path_bits: u8 = PATH_BITS, |it: &CompletionRecord| Some(it.completion.as_raw().dlid_path_bits), ibv_wc_read_dlid_path_bits);
    field!(source_lid: u32 = SOURCE_LID, |it: &CompletionRecord| it.details.source_lid, ibv_wc_read_slid);
    field!(timestamp: u64 = TIMESTAMP, |it: &CompletionRecord| it.details.timestamp, ibv_wc_read_completion_ts);
    field!(wall_clock: u64 = WALL_CLOCK, |it: &CompletionRecord| it.details.wall_clock, ibv_wc_read_completion_wallclock_ns);
    field!(vlan: u16 = VLAN, |it: &CompletionRecord| it.details.vlan, ibv_wc_read_cvlan);
    field!(flow_tag: u32 = FLOW_TAG, |it: &CompletionRecord| it.details.flow_tag, ibv_wc_read_flow_tag);

    pub(crate) fn tag(&self) -> Option<CompletionTag> {
        if !self.fields().contains(CompletionFields::TAG_MATCHING) {
            return None;
        }
        if let Some(record) = &self.current {
            return record.details.tag;
        }
        let queue = self.live()?;
        let mut info = sys::ibv_wc_tm_info { tag: 0, priv_: 0 };
        // SAFETY: there is a current entry, `info` is a valid place, and the creation of the queue
        // has checked that the read function exists.
        unsafe { sys::ibv_wc_read_tm_info(queue, &mut info) };
        Some(CompletionTag {
            tag: info.tag,
            private: info.priv_,
        })
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.end();
        if !self.put_back.is_empty() {
            // The completions that the session has not returned are inserted at the front of the
            // stash, because they are older than completions that were put back meanwhile.
            let mut stash = self.queue.stash().open();
            self.put_back.append(&mut stash);
            *stash = std::mem::take(&mut self.put_back);
        }
    }
}
