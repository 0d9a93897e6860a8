//! Iteration over the entries of an extended completion queue: the functions behind
//! `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll` and `ibv_wc_read_*`.

use std::cell::UnsafeCell;
use std::time::{SystemTime, UNIX_EPOCH};

use ibverbs_sys::{ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_opcode, ibv_wc_tm_info};
use libc::{c_int, c_uint};
use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;

use super::completion::QueueHandle;
use super::{fork, guard, number, verb, work_completion};
use crate::completion::Entry;
use crate::fault::Verb;

/// State of a program's iteration over the entries of an extended completion queue. The iterating
/// thread holds the lock from `ibv_start_poll` to `ibv_end_poll`. The lock gives the thread
/// exclusive access to the current entry. Queues that were created for a single thread have no
/// lock.
pub(super) struct Iteration {
    lock: Option<RawMutex>,
    entry: UnsafeCell<Option<Entry>>,
}

// SAFETY: only the thread that is between start and end of an iteration uses the entry. This thread
// holds the lock, or the program has guaranteed by IBV_CREATE_CQ_ATTR_SINGLE_THREADED that there is
// no other thread.
unsafe impl Sync for Iteration {}

impl Iteration {
    pub(super) fn new(single_threaded: bool) -> Self {
        Self {
            lock: (!single_threaded).then_some(RawMutex::INIT),
            entry: UnsafeCell::new(None),
        }
    }

    fn begin(&self) {
        if let Some(lock) = &self.lock {
            lock.lock();
        }
    }

    fn end(&self) {
        if let Some(lock) = &self.lock
            && lock.is_locked()
        {
            // SAFETY: the C API requires the caller of ibv_end_poll to have started an iteration,
            // so this thread holds the lock.
            unsafe { lock.unlock() };
        }
    }
}

/// Sets all function pointers of an `ibv_cq_ex`, by which C code polls an extended completion
/// queue. No pointer may be null: C code calls them without a check.
pub(super) fn set_functions(public: &mut ibv_cq_ex) {
    public.start_poll = Some(start);
    public.next_poll = Some(next);
    public.end_poll = Some(end);
    public.read_opcode = Some(read_opcode);
    public.read_vendor_err = Some(read_vendor_err);
    public.read_byte_len = Some(read_byte_len);
    public.read_imm_data = Some(read_imm_data);
    public.read_qp_num = Some(read_qp_num);
    public.read_src_qp = Some(read_src_qp);
    public.read_wc_flags = Some(read_wc_flags);
    public.read_slid = Some(read_slid);
    public.read_sl = Some(read_sl);
    public.read_dlid_path_bits = Some(read_dlid_path_bits);
    public.read_completion_ts = Some(read_completion_ts);
    public.read_cvlan = Some(read_cvlan);
    public.read_flow_tag = Some(read_flow_tag);
    public.read_tm_info = Some(read_tm_info);
    public.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// Returns the [`QueueHandle`] whose first field is the extended completion queue `cq`.
///
/// # Safety
/// `cq` must belong to this device, and must not be destroyed while the reference is used.
unsafe fn handle<'a>(cq: *const ibv_cq_ex) -> &'a QueueHandle {
    // SAFETY: the caller guarantees an object of this device, and each such object is the first
    // field of a `QueueHandle`.
    unsafe { &*cq.cast::<QueueHandle>() }
}

unsafe extern "C" fn start(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    verb(Verb::PollCq, number, || {
        // SAFETY: the C API requires valid attributes. Only queues of this device have this
        // function.
        unsafe {
            if fork::is_inherited((*cq).context) {
                return libc::EIO;
            }
            if (*attr).comp_mask != 0 {
                return libc::EINVAL;
            }
            let handle = handle(cq);
            if handle.queue.is_empty() {
                handle.nic.progress();
            }
            handle.iteration.begin();
            let answer = advance(cq);
            if answer != 0 {
                // After an error, the program does not call `ibv_end_poll`.
                handle.iteration.end();
            }
            answer
        }
    })
}

unsafe extern "C" fn next(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: only queues of this device have this function, and the C API requires a started
    // iteration.
    guard(libc::EIO, || unsafe { advance(cq) })
}

unsafe extern "C" fn end(cq: *mut ibv_cq_ex) {
    // SAFETY: only queues of this device have this function, and the C API requires a started
    // iteration.
    guard((), || unsafe { handle(cq) }.iteration.end());
}

/// Moves the iteration over the completion queue `cq` to the next entry, and returns 0. If the
/// queue has no more entries, returns `EIO` if the queue has overrun, and otherwise `ENOENT`.
///
/// # Safety
/// `cq` must belong to this device, and the caller must have begun an iteration.
unsafe fn advance(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller has begun an iteration, so this thread has exclusive access to the entry
    // and the fields of `cq`.
    unsafe {
        let handle = handle(cq);
        let place = handle.iteration.entry.get();
        let mut found = None;
        handle.queue.poll(1, |entry| found = Some(*entry));
        let Some(entry) = found else {
            return if handle.queue.has_overrun() {
                libc::EIO
            } else {
                libc::ENOENT
            };
        };
        (*cq).status = work_completion::status(&entry);
        (*cq).wr_id = entry.completion.id;
        *place = Some(entry);
        0
    }
}

/// Calls `read` for the current entry of the iteration over the completion queue `cq`. Returns the
/// result of `read`, or the default value if there is no current entry.
///
/// # Safety
/// `cq` must belong to this device, and the caller must have begun an iteration.
unsafe fn read<T: Default>(cq: *mut ibv_cq_ex, read: impl FnOnce(&Entry) -> T) -> T {
    // SAFETY: the caller has begun an iteration, so this thread has exclusive access to the entry.
    let entry = unsafe { &*handle(cq).iteration.entry.get() };
    entry.as_ref().map(read).unwrap_or_default()
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    // SAFETY: only queues of this device have this function, and the C API requires a started
    // iteration.
    ibv_wc_opcode(unsafe { read(cq, |entry| work_completion::opcode(entry).0) })
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: only queues of this device have this function, and the C API requires a started
    // iteration.
    unsafe { read(cq, work_completion::vendor_error) }
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: only queues of this device have this function, and the C API requires a started
    // iteration.
    unsafe { read(cq, |entry| entry.completion.length) }
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: only queues of this device have this function, and the C API requires a started
    // iteration.
    unsafe { read(cq, work_completion::immediate) }
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: only queues of this device have this function, and the C API requires a started
    // iteration.
    unsafe { read(cq, |entry| entry.queue_pair) }
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: only queues of this device have this function, and the C API requires a started
    // iteration.
    unsafe { read(cq, |entry| entry.completion.source) }
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: only queues of this device have this function, and the C API requires a started
    // iteration.
    unsafe { read(cq, work_completion::flags) }
}

unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: only queues of this device have this function, and the C API requires a started
    // iteration.
    unsafe { read(cq, |entry| entry.timestamp) }
}

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: only queues of this device have this function, and the C API requires a started
    // iteration.
    unsafe {
        let nic = &handle(cq).nic;
        read(cq, |entry| {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
            now.saturating_sub(nic.now().as_nanos().saturating_sub(entry.timestamp))
        })
    }
}

/// Returns the LID of the sender. Always returns 0, because RoCE has no LIDs.
unsafe extern "C" fn read_slid(_: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: only queues of this device have this function, and the C API requires a started
    // iteration.
    unsafe { read(cq, work_completion::service_level) }
}

unsafe extern "C" fn read_dlid_path_bits(_: *mut ibv_cq_ex) -> u8 {
    0
}

/// Returns the VLAN tag of the message. Always returns 0, because `ibv_create_cq_ex` rejects
/// requests for this field.
unsafe extern "C" fn read_cvlan(_: *mut ibv_cq_ex) -> u16 {
    0
}

/// Returns the flow tag of the message. Always returns 0, because `ibv_create_cq_ex` rejects
/// requests for this field.
unsafe extern "C" fn read_flow_tag(_: *mut ibv_cq_ex) -> u32 {
    0
}

/// Stores the tag matching data of the message. Always stores zeros, because `ibv_create_cq_ex`
/// rejects requests for this field.
unsafe extern "C" fn read_tm_info(_: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    // SAFETY: the C API requires `info` to be valid for writes.
    unsafe { info.write(ibv_wc_tm_info { tag: 0, priv_: 0 }) };
}
