//! The additional state of an extended completion queue (`ibv_cq_ex`). A thread reads the entries
//! of such a queue one after the other.
//!
//! Only one thread at a time may iterate over the entries: [`IterationRight`] is that exclusive
//! right.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::{mem, vec};

use ibverbs_sys as sys;
use parking_lot::Mutex;

use super::channel::ChannelHandle;
use super::completion_queue::CompletionQueueHandle;
use super::completion_session::Session;
use super::context::ContextHandle;
use super::protection_domain::ProtectionDomainHandle;
use crate::completion::{CompletionFields, WorkCompletion};
use crate::error::{Errno, Error, Result};

/// The parameters of a new extended completion queue (`ibv_create_cq_ex`).
#[derive(Debug)]
pub(crate) struct ExtendedSettings {
    pub(crate) entries: u32,
    pub(crate) channel: Option<Arc<ChannelHandle>>,
    pub(crate) vector: u32,
    pub(crate) fields: CompletionFields,
    pub(crate) flags: sys::ibv_create_cq_attr_flags,
    pub(crate) domain: Option<Arc<ProtectionDomainHandle>>,
}

/// The additional state of an extended completion queue (`ibv_cq_ex`).
///
/// Between `ibv_start_poll` and `ibv_end_poll` a driver may hold a lock of its own. Polling or
/// resizing the queue, or resetting or destroying its queue pairs, takes the same lock, and would
/// deadlock on the iterating thread. Therefore this struct records which thread is iterating. On
/// that thread the crate refuses such calls. Only the destruction of a queue pair is not refused
/// but delayed.
pub(crate) struct Extension {
    raw: NonNull<sys::ibv_cq_ex>,
    fields: CompletionFields,
    /// Set if each poll must end after one entry: see [`has_end_poll_defect`].
    entry_by_entry: bool,
    _domain: Option<Arc<ProtectionDomainHandle>>,
    /// The [`token`] of the thread that has the right to iterate over the entries, or 0 if no
    /// thread has the right. The bit [`VERB_BIT`] is set for [`Holder::Verb`].
    holder: AtomicUsize,
    /// Closures that must run when the iteration has ended.
    run_after_poll: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for Extension {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Extension")
            .field("fields", &self.fields)
            .finish_non_exhaustive()
    }
}

/// The purpose for which a thread holds the right to iterate over the completions of an extended
/// queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The thread runs code of the program between the entries, for an unknown time.
    Program,
    /// The thread only calls a bounded number of verbs, so it soon releases the right.
    Verb,
}

/// Flag in the lowest bit of [`Extension::holder`], the number of the thread that iterates over the
/// queue. The flag is set if that thread only calls a few verbs, and so finishes soon
/// ([`Holder::Verb`]).
const VERB_BIT: usize = 1;

/// Returns a number that identifies the current thread among all running threads. The number is
/// even and not 0, because [`Extension::holder`] uses the lowest bit as a flag, and 0 for no
/// thread.
fn token() -> usize {
    thread_local!(static PLACE: u64 = const { 0 });
    PLACE.with(|place| ptr::from_ref(place).addr())
}

impl CompletionQueueHandle {
    /// Creates an extended completion queue. `id` becomes the context value of the queue, which the
    /// events of the channel contain.
    pub(crate) fn create_extended(
        context: Arc<ContextHandle>,
        settings: ExtendedSettings,
        id: u64,
    ) -> Result<Self> {
        let ExtendedSettings {
            entries,
            channel,
            vector,
            fields,
            flags,
            domain,
        } = settings;
        let object = || {
            format!(
                "an extended completion queue of {entries} entries ({fields}) on {}",
                context.describe()
            )
        };
        let mut attributes = sys::ibv_cq_init_attr_ex {
            cqe: entries,
            cq_context: ptr::without_provenance_mut(id as usize),
            channel: channel
                .as_ref()
                .map_or(ptr::null_mut(), |channel| channel.as_raw()),
            comp_vector: vector,
            wc_flags: fields.bits(),
            ..Default::default()
        };
        type Mask = sys::ibv_cq_init_attr_mask;
        if flags.0 != 0 {
            attributes.comp_mask |= Mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
            attributes.flags = flags.0;
        }
        if let Some(domain) = &domain {
            attributes.comp_mask |= Mask::IBV_CQ_INIT_ATTR_MASK_PD.0;
            attributes.parent_domain = domain.as_raw();
        }
        // SAFETY: the new handle keeps context, channel and domain valid; the context value is a
        // number that is never dereferenced.
        let raw = unsafe { sys::ibv_create_cq_ex(context.as_raw(), &mut attributes) };
        let Some(raw) = NonNull::new(raw) else {
            let errno = Errno::last();
            return Err(Error::verb("ibv_create_cq_ex", object(), errno));
        };
        // SAFETY: the queue was just created from these objects, with these fields.
        unsafe { Self::adopt_extended(raw, context, channel, domain, fields) }
    }

    /// Takes ownership of an extended completion queue. If the driver cannot report all `fields` of
    /// a completion, destroys the queue and returns an error.
    ///
    /// # Safety
    ///
    /// The queue must be valid, must have been created from this context, channel and domain, and
    /// no other code may own it.
    pub(super) unsafe fn adopt_extended(
        raw: NonNull<sys::ibv_cq_ex>,
        context: Arc<ContextHandle>,
        channel: Option<Arc<ChannelHandle>>,
        domain: Option<Arc<ProtectionDomainHandle>>,
        fields: CompletionFields,
    ) -> Result<Self> {
        let device = context.name().to_owned();
        // SAFETY: the queue is valid.
        let missing = missing(unsafe { raw.as_ref() }, fields);
        let extension = Extension {
            raw,
            fields,
            entry_by_entry: has_end_poll_defect(&context),
            _domain: domain,
            holder: AtomicUsize::new(0),
            run_after_poll: Mutex::default(),
        };
        // SAFETY: the caller guarantees the requirements of `adopt`; an extended queue begins with
        // the fields of a plain one.
        let queue = unsafe {
            let raw = NonNull::new_unchecked(sys::ibv_cq_ex_to_cq(raw.as_ptr()));
            Self::adopt(raw, context, channel, Some(Box::new(extension)))
        };
        match missing {
            None => Ok(queue),
            Some(what) => Err(Error::Unsupported { what, device }),
        }
    }

    /// Begins an iteration of the program over the completions of this queue. Fails if the queue is
    /// not an extended queue, or if an earlier iteration has not ended.
    pub(crate) fn session(&self) -> Result<Session<'_>> {
        match self.extension() {
            Some(extension) => extension.session(self, Holder::Program),
            None => Err(Error::invalid(
                "poll",
                "the completion queue is a plain one",
            )),
        }
    }

    /// Returns whether this thread is iterating over the entries of this queue. If so, operations
    /// that take the driver's lock must be deferred until the iteration ends, by
    /// [`Self::run_after_poll`].
    pub(crate) fn is_polled_here(&self) -> bool {
        self.extension()
            .is_some_and(|extension| extension.is_held_here())
    }

    /// Runs `work` immediately or, if the current thread is iterating over the completions of this
    /// queue, after the iteration has ended. For example, the destruction of a queue pair waits for
    /// a lock that the driver may hold during an iteration.
    pub(crate) fn run_after_poll(&self, work: impl FnOnce() + Send + 'static) {
        match self.extension() {
            Some(extension) if extension.is_held_here() => {
                extension.run_after_poll.lock().push(Box::new(work));
            }
            _ => work(),
        }
    }
}

impl Extension {
    pub(crate) fn fields(&self) -> CompletionFields {
        self.fields
    }

    pub(super) fn is_entry_by_entry(&self) -> bool {
        self.entry_by_entry
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_cq_ex {
        self.raw.as_ptr()
    }

    /// Acquires the exclusive right of this thread to iterate over the completions of the queue.
    /// Waits while another thread holds the right only for a few calls ([`Holder::Verb`]). Fails if
    /// this thread already holds the right. Also fails if another thread holds the right for an
    /// iteration of the program ([`Holder::Program`]), which can take long.
    pub(super) fn hold(&self, holder: Holder) -> Result<IterationRight<'_>> {
        let mine = token() | if holder == Holder::Verb { VERB_BIT } else { 0 };
        loop {
            let taken = self
                .holder
                .compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed);
            match taken {
                Ok(_) => {
                    return Ok(IterationRight {
                        extension: self,
                        _this_thread: PhantomData,
                    });
                }
                Err(other) if other & VERB_BIT != 0 && other & !VERB_BIT != token() => {
                    thread::yield_now();
                }
                Err(_) => {
                    let holder = "a poll of it that has not ended";
                    return Err(Error::in_use("an extended completion queue", holder));
                }
            }
        }
    }

    fn is_held_here(&self) -> bool {
        self.holder.load(Ordering::Relaxed) & !VERB_BIT == token()
    }

    fn session<'a>(
        &'a self,
        queue: &'a CompletionQueueHandle,
        holder: Holder,
    ) -> Result<Session<'a>> {
        let held = self.hold(holder)?;
        let stash = queue.stash();
        let put_back = if stash.is_filled() {
            mem::take(&mut *stash.open())
        } else {
            Default::default()
        };
        Ok(Session::new(queue, held, put_back))
    }

    /// Polls completions of this extended queue into `room`, and returns their number, as
    /// `ibv_poll_cq` does for a plain queue.
    pub(super) fn poll(
        &self,
        queue: &CompletionQueueHandle,
        room: &mut [WorkCompletion],
    ) -> Result<usize> {
        let lacking = CompletionFields::STANDARD - self.fields;
        if !lacking.is_empty() {
            return Err(Error::invalid(
                "plain poll",
                format!("the completion queue was made without {lacking}"),
            ));
        }
        let mut session = self.session(queue, Holder::Verb)?;
        for (count, place) in room.iter_mut().enumerate() {
            match session.advance() {
                Ok(true) => *place = session.record().completion,
                Ok(false) => return Ok(count),
                // The next poll reports the failure again. Returning the error now would lose these
                // completions.
                Err(_) if count > 0 => return Ok(count),
                Err(error) => return Err(error),
            }
        }
        Ok(room.len())
    }

    /// Calls `take` with each completion that an earlier poll has stored, and with up to
    /// [`BATCH`](super::completion_queue::BATCH) completions of the device. Completions for which
    /// `take` returns `false` are stored for later polls.
    pub(super) fn sort(
        &self,
        queue: &CompletionQueueHandle,
        take: &mut dyn FnMut(&super::completion_record::CompletionRecord) -> bool,
    ) -> Result<()> {
        let mut session = self.session(queue, Holder::Verb)?;
        session.sort(take)
    }
}

/// Returns whether the driver has a defect in `ibv_end_poll`. A driver with the defect executes
/// `ibv_end_poll` wrongly if the preceding call of `ibv_next_poll` found no entry. The man page of
/// ibv_create_cq_ex requires this order of calls.
///
/// The driver of Linux's Soft-RoCE then removes one entry too many from the queue, and unlocks its
/// lock twice. Later versions of rdma-core have corrected the number of entries (November 2024) and
/// the lock (June 2025).
fn has_end_poll_defect(context: &ContextHandle) -> bool {
    is_soft_roce_of_linux(context)
}

/// Returns whether the device is probably Soft-RoCE of Linux. Soft-RoCE is recognised by its
/// missing vendor ID: all other drivers report a vendor ID. Also returns `true` if the query of the
/// device fails.
pub(super) fn is_soft_roce_of_linux(context: &ContextHandle) -> bool {
    const NO_VENDOR: u32 = 0x00ff_ffff;
    let attributes = context.query_device();
    attributes.map_or(true, |attributes| attributes.vendor_id == NO_VENDOR)
}

/// Returns the description of the first feature that the driver lacks: iterating over the entries,
/// or reading a field in `fields`. Returns `None` if the driver has all these features.
fn missing(queue: &sys::ibv_cq_ex, fields: CompletionFields) -> Option<&'static str> {
    type Field = CompletionFields;
    let always = [
        queue.start_poll.is_some() && queue.next_poll.is_some() && queue.end_poll.is_some(),
        queue.read_opcode.is_some(),
        queue.read_vendor_err.is_some(),
        queue.read_wc_flags.is_some(),
    ];
    let told = [
        (
            Field::LEN,
            queue.read_byte_len.is_some(),
            "completions with a length",
        ),
        (
            Field::IMMEDIATE,
            queue.read_imm_data.is_some(),
            "completions with immediate data",
        ),
        (
            Field::QUEUE_PAIR,
            queue.read_qp_num.is_some(),
            "completions with a queue pair number",
        ),
        (
            Field::SOURCE_QUEUE_PAIR,
            queue.read_src_qp.is_some(),
            "completions with a source queue pair",
        ),
        (
            Field::SOURCE_LID,
            queue.read_slid.is_some(),
            "completions with a source LID",
        ),
        (
            Field::SERVICE_LEVEL,
            queue.read_sl.is_some(),
            "completions with a service level",
        ),
        (
            Field::PATH_BITS,
            queue.read_dlid_path_bits.is_some(),
            "completions with path bits",
        ),
        (
            Field::TIMESTAMP,
            queue.read_completion_ts.is_some(),
            "completions with a timestamp",
        ),
        (
            Field::VLAN,
            queue.read_cvlan.is_some(),
            "completions with a VLAN",
        ),
        (
            Field::FLOW_TAG,
            queue.read_flow_tag.is_some(),
            "completions with a flow tag",
        ),
        (
            Field::TAG_MATCHING,
            queue.read_tm_info.is_some(),
            "completions with a matched tag",
        ),
        (
            Field::WALL_CLOCK,
            queue.read_completion_wallclock_ns.is_some(),
            "completions with the time of day",
        ),
    ];
    if always.contains(&false) {
        return Some("completions that are read one by one");
    }
    let lacking = |(field, is_told, _): &&(Field, bool, _)| fields.contains(*field) && !is_told;
    told.iter().find(lacking).map(|&(_, _, what)| what)
}

/// The exclusive right of the current thread to iterate over the completions of an extended queue.
/// The right ends when this value is dropped.
#[derive(Debug)]
pub(super) struct IterationRight<'a> {
    extension: &'a Extension,
    /// Makes the type `!Send`: the token and the driver's lock belong to this thread.
    _this_thread: PhantomData<*const ()>,
}

impl<'a> IterationRight<'a> {
    pub(super) fn extension(&self) -> &'a Extension {
        self.extension
    }
}

impl Drop for IterationRight<'_> {
    fn drop(&mut self) {
        // Only code of the program defers closures, and such code runs only under
        // [`Holder::Program`].
        let run_after_poll = if self.extension.holder.load(Ordering::Relaxed) & VERB_BIT == 0 {
            mem::take(&mut *self.extension.run_after_poll.lock())
        } else {
            Vec::new()
        };
        self.extension.holder.store(0, Ordering::Release);
        DeferredClosures(run_after_poll.into_iter()).run();
    }
}

/// Closures that run after an iteration over a completion queue, for example to destroy queue
/// pairs. A closure panics if dropping the program's memory panics. The drop of this value then
/// runs the remaining closures. Dropping a closure without running it would free the memory of an
/// object that still exists.
struct DeferredClosures(vec::IntoIter<Box<dyn FnOnce() + Send>>);

impl DeferredClosures {
    fn run(&mut self) {
        for work in self.0.by_ref() {
            work();
        }
    }
}

impl Drop for DeferredClosures {
    fn drop(&mut self) {
        self.run();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn a_closure_that_panics_does_not_keep_the_others_from_running() {
        let count = Arc::new(AtomicU32::new(0));
        let counting = Arc::clone(&count);
        let closures: Vec<Box<dyn FnOnce() + Send>> = vec![
            Box::new(|| panic!("asked to")),
            Box::new(move || {
                counting.fetch_add(1, Ordering::Relaxed);
            }),
        ];
        let run = AssertUnwindSafe(|| DeferredClosures(closures.into_iter()).run());
        let outcome = catch_unwind(run);
        assert!(outcome.is_err());
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}
