//! A queue pair: the owner of its `ibv_qp`, and the verbs that query and modify it.

use std::any::Any;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ibverbs_sys as sys;
use parking_lot::Mutex;

use super::completion_queue::CompletionQueueHandle;
use super::context::positive;
use super::protection_domain::ProtectionDomainHandle;
use super::queue_pair_destruction::QueuePairDestruction;
use super::queue_pair_plan::{Created, QueuePairPlan};
use super::shared_receive_queue::SharedReceiveQueueHandle;
use super::xrc_domain::XrcDomainHandle;
use crate::error::{Errno, Error, Result};
use crate::queue_pair::{
    AttributeMask, Modification, QueuePairState, SendOperations, Transport, modify,
};

/// The sizes of a queue pair: maximum numbers of requests and elements, and the maximum length of
/// inline data. Depending on the context, these are the sizes that the program requests or that the
/// device grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct QueuePairSizes {
    pub(crate) send_requests: u32,
    pub(crate) receive_requests: u32,
    pub(crate) send_elements: u32,
    pub(crate) receive_elements: u32,
    pub(crate) inline_data: u32,
}

/// The owner of a queue pair (`ibv_qp`), and of the memory that the device may use until the queue
/// pair is destroyed.
pub(crate) struct QueuePairHandle {
    raw: NonNull<sys::ibv_qp>,
    /// The queue pair as the functions `ibv_wr_*` need it; `None` if it was not created for them.
    extended: Option<NonNull<sys::ibv_qp_ex>>,
    number: u32,
    kind: Transport,
    sizes: QueuePairSizes,
    granted: QueuePairSizes,
    operations: SendOperations,
    signals_all: bool,
    domain: Arc<ProtectionDomainHandle>,
    /// The completion queues of sends and of receives, which must outlive the queue pair.
    completions: [Arc<CompletionQueueHandle>; 2],
    shared_receive_queue: Option<Arc<SharedReceiveQueueHandle>>,
    xrc_domain: Option<Arc<XrcDomainHandle>>,
    send_queues: AtomicU32,
    /// Number of requested moves of the queue pair to the states RESET or RTS: see
    /// [`Self::beginnings`].
    beginnings: AtomicU32,
    /// Number of those moves whose request has returned.
    finished_beginnings: AtomicU32,
    /// Memory of requests that were still in flight when their queue was dropped. The device may
    /// use it until the queue pair is destroyed.
    abandoned: Mutex<Vec<Box<dyn Any + Send>>>,
}

// SAFETY: verbs are thread-safe on a queue pair.
unsafe impl Send for QueuePairHandle {}
// SAFETY: verbs are thread-safe on a queue pair.
unsafe impl Sync for QueuePairHandle {}

impl std::fmt::Debug for QueuePairHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePairHandle")
            .field("number", &self.number)
            .field("kind", &self.kind)
            .field("sizes", &self.sizes)
            .finish_non_exhaustive()
    }
}

impl QueuePairHandle {
    pub(crate) fn create(plan: QueuePairPlan) -> Result<Self> {
        let created = plan.create()?;
        Ok(Self::adopt(plan, created))
    }

    /// Takes ownership of the queue pair `created`, which was created from `plan`.
    pub(super) fn adopt(plan: QueuePairPlan, created: Created) -> Self {
        // SAFETY: the queue pair is valid, and the new handle owns it; its number does not change.
        let number = unsafe { created.raw.as_ref().qp_num };
        let QueuePairPlan {
            domain,
            kind,
            sizes,
            send_completions,
            receive_completions,
            shared_receive_queue,
            xrc_domain,
            operations,
            signals_all,
            ..
        } = plan;
        let extended = operations.and_then(|_| {
            // SAFETY: the queue pair is valid; the result is the same object, or null.
            NonNull::new(unsafe { sys::ibv_qp_to_qp_ex(created.raw.as_ptr()) })
        });
        let granted = created.granted;
        Self {
            raw: created.raw,
            extended,
            number,
            kind,
            sizes: QueuePairSizes {
                // Devices round these numbers up, but the completion queues are sized for the
                // requested numbers.
                send_requests: sizes.send_requests,
                receive_requests: sizes.receive_requests,
                ..granted
            },
            granted,
            operations: operations.unwrap_or(SendOperations::empty()),
            signals_all,
            domain,
            completions: [send_completions, receive_completions],
            shared_receive_queue,
            xrc_domain,
            send_queues: AtomicU32::new(0),
            beginnings: AtomicU32::new(0),
            finished_beginnings: AtomicU32::new(0),
            abandoned: Mutex::default(),
        }
    }

    /// Replaces the stored sizes of this queue pair by `sizes`. Called for a queue pair that other
    /// code created, after its sizes were queried.
    pub(super) fn set_sizes(&mut self, sizes: QueuePairSizes) {
        self.sizes = sizes;
        self.granted = sizes;
    }

    /// Returns the completion queues of sends (index 0) and of receives (index 1).
    pub(super) fn completions(&self) -> &[Arc<CompletionQueueHandle>; 2] {
        &self.completions
    }

    #[inline]
    pub(crate) fn as_raw(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the `ibv_qp_ex` of the queue pair, which the functions `ibv_wr_*` take, or `None` if
    /// the queue pair was not created for these functions.
    #[inline]
    #[allow(dead_code, reason = "queues and shared objects ask for it")]
    pub(crate) fn as_extended(&self) -> Option<*mut sys::ibv_qp_ex> {
        self.extended.map(NonNull::as_ptr)
    }

    /// Returns the transport type of the queue pair.
    #[inline]
    pub(crate) fn kind(&self) -> Transport {
        self.kind
    }

    /// Returns whether requests to this queue pair can be posted on the fast path, which makes few
    /// checks. The transport must be connected (reliable or unreliable). The queue pair must allow
    /// at least one element in a send, and must post by `ibv_post_send`.
    #[inline]
    pub(super) fn is_fast_path(&self) -> bool {
        let is_connection = matches!(
            self.kind,
            Transport::ReliableConnected | Transport::UnreliableConnected
        );
        is_connection && self.is_posted_plainly()
    }

    /// Returns whether datagrams of this queue pair can be posted with few, inlined checks. The
    /// queue pair must be of the datagram transport, allow at least one element in a send, and post
    /// by `ibv_post_send`.
    #[inline]
    pub(super) fn is_fast_path_for_datagrams(&self) -> bool {
        self.kind == Transport::Datagram && self.is_posted_plainly()
    }

    #[inline]
    fn is_posted_plainly(&self) -> bool {
        self.extended.is_none() && self.sizes.send_elements > 0
    }

    /// Returns the sizes of the queue pair: the numbers of requests as requested by the program,
    /// and all other sizes as granted by the device.
    #[inline]
    pub(crate) fn sizes(&self) -> QueuePairSizes {
        self.sizes
    }

    /// Returns all sizes of the queue pair (numbers of requests and elements, length of inline
    /// data) as granted by the device.
    #[allow(dead_code, reason = "queues and shared objects ask for it")]
    pub(crate) fn granted(&self) -> QueuePairSizes {
        self.granted
    }

    /// Returns the operations that this queue pair posts by the functions `ibv_wr_*`. Empty if the
    /// queue pair posts by `ibv_post_send`.
    #[inline]
    pub(crate) fn operations(&self) -> SendOperations {
        self.operations
    }

    /// Returns whether every send request of the queue pair generates a completion, even a request
    /// without the signaled flag.
    #[inline]
    #[allow(dead_code, reason = "queues and shared objects ask for it")]
    pub(crate) fn signals_all(&self) -> bool {
        self.signals_all
    }

    /// Returns the shared receive queue from which this queue pair takes receives, or `None` if the
    /// queue pair has its own receive queue.
    #[allow(dead_code, reason = "queues and shared objects ask for it")]
    pub(crate) fn shared_receive_queue(&self) -> Option<&Arc<SharedReceiveQueueHandle>> {
        self.shared_receive_queue.as_ref()
    }

    /// Returns the XRC domain of the queue pair, or `None` if the queue pair belongs to no XRC
    /// domain.
    #[allow(dead_code, reason = "queues and shared objects ask for it")]
    pub(crate) fn xrc_domain(&self) -> Option<&Arc<XrcDomainHandle>> {
        self.xrc_domain.as_ref()
    }

    pub(crate) fn domain(&self) -> &Arc<ProtectionDomainHandle> {
        &self.domain
    }

    /// Returns the description of this queue pair for error messages.
    pub(crate) fn describe(&self) -> String {
        format!(
            "queue pair {:#x} of {}",
            self.number,
            self.domain.context().describe()
        )
    }

    /// Returns whether the calling thread is iterating over an extended completion queue of this
    /// queue pair. If so, the thread must not reset the queue pair or wait for its completions.
    pub(crate) fn is_polled_here(&self) -> bool {
        self.completions.iter().any(|queue| queue.is_polled_here())
    }

    /// Returns [`Error::InUse`] if the calling thread is iterating over an extended completion
    /// queue of this queue pair. The driver holds a lock during the iteration. Operations that need
    /// the same lock call this function first, to avoid a deadlock.
    pub(crate) fn refuse_within_poll(&self) -> Result<()> {
        if self.is_polled_here() {
            let holder = "a poll of its completions that has not ended";
            return Err(Error::in_use(self.describe(), holder));
        }
        Ok(())
    }

    /// Sets the attributes that `mask` selects to their values in `attributes`, by `ibv_modify_qp`.
    /// If the new state is RESET or RTS, first increments the restart count [`Self::beginnings`].
    /// The count stays incremented if the device refuses the change.
    pub(crate) fn apply(
        &self,
        attributes: &mut sys::ibv_qp_attr,
        mask: AttributeMask,
    ) -> Result<(), Errno> {
        let begins = matches!(
            attributes.qp_state,
            sys::ibv_qp_state::IBV_QPS_RESET | sys::ibv_qp_state::IBV_QPS_RTS
        );
        let begins = mask.contains(AttributeMask::STATE) && begins;
        if begins {
            self.beginnings.fetch_add(1, Ordering::AcqRel);
        }
        // SAFETY: the queue pair and the attributes are valid.
        let errno = unsafe { sys::ibv_modify_qp(self.raw.as_ptr(), attributes, mask.bits() as _) };
        if begins {
            self.finished_beginnings.fetch_add(1, Ordering::AcqRel);
        }
        if errno == 0 {
            Ok(())
        } else {
            Err(positive(errno))
        }
    }

    /// Returns the restart count: how many times the program has requested a move of the queue pair
    /// to the state RESET or RTS. After a work request has failed, the queue pair executes no
    /// further work requests until such a move. Therefore the success of a work request proves that
    /// all earlier work requests have succeeded, if the count has not changed since they were
    /// posted.
    pub(crate) fn beginnings(&self) -> u32 {
        self.beginnings.load(Ordering::Acquire)
    }

    /// Returns the restart count of the queue pair ([`Self::beginnings`]), or `None` while a move
    /// to RESET or RTS is in progress. A request that is posted during the move can still fail in
    /// the previous state.
    pub(crate) fn settled_beginnings(&self) -> Option<u32> {
        // Read first: each move is counted as finished after it is counted as requested, so equal
        // counts show that no move was in progress at the second read.
        let finished = self.finished_beginnings.load(Ordering::Acquire);
        let requested = self.beginnings();
        (requested == finished).then_some(requested)
    }

    /// Modifies the attributes that `mask` selects. If the device refuses, the error names the
    /// attributes that are wrong.
    pub(crate) fn modify_raw(
        &self,
        attributes: &sys::ibv_qp_attr,
        mask: sys::ibv_qp_attr_mask,
    ) -> Result<()> {
        let mask = AttributeMask::from_bits_retain(mask.0);
        modify(self, &Modification::from_raw(attributes, mask))
    }

    /// Queries the attributes that `mask` selects, and the parameters of the queue pair's creation.
    pub(crate) fn query(
        &self,
        mask: AttributeMask,
    ) -> Result<(sys::ibv_qp_attr, sys::ibv_qp_init_attr)> {
        // SAFETY: all-zero bytes are valid values of these plain C structs.
        let (mut attributes, mut init): (sys::ibv_qp_attr, sys::ibv_qp_init_attr) =
            unsafe { (mem::zeroed(), mem::zeroed()) };
        // SAFETY: the queue pair and both places are valid.
        let errno = unsafe {
            let mask = mask.bits() as _;
            sys::ibv_query_qp(self.raw.as_ptr(), &mut attributes, mask, &mut init)
        };
        self.checked("ibv_query_qp", errno)?;
        Ok((attributes, init))
    }

    /// Returns the guarantees of the device about the order in which the data of a message becomes
    /// visible in memory, as bits of `ibv_query_qp_data_in_order_caps`.
    pub(crate) fn data_in_order(&self, operation: sys::ibv_wr_opcode) -> u32 {
        /// The flag of `ibv_query_qp_data_in_order` that requests one bit for each guarantee about
        /// the order of data: `IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS`. The headers from which the
        /// bindings were generated lack this flag.
        const RETURN_CAPS: u32 = 1;
        // SAFETY: the queue pair is valid.
        let ask =
            |flags| unsafe { sys::ibv_query_qp_data_in_order(self.raw.as_ptr(), operation, flags) };
        // Older libraries do not know the flag and return 0 if it is set.
        let answer = match ask(RETURN_CAPS) {
            0 => i32::from(ask(0) > 0),
            bits => bits,
        };
        u32::try_from(answer).unwrap_or(0)
    }

    /// Returns the enhanced connection establishment (ECE) options of the queue pair: the offered
    /// options or, after the negotiation, the options on which both sides have agreed.
    pub(crate) fn query_ece(&self) -> Result<sys::ibv_ece> {
        let mut ece = sys::ibv_ece {
            vendor_id: 0,
            options: 0,
            comp_mask: 0,
        };
        // SAFETY: the queue pair and the place are valid.
        let errno = unsafe { sys::ibv_query_ece(self.raw.as_ptr(), &mut ece) };
        self.checked("ibv_query_ece", errno)?;
        Ok(ece)
    }

    /// Sets the enhanced connection establishment (ECE) options on which both sides have agreed.
    pub(crate) fn set_ece(&self, mut ece: sys::ibv_ece) -> Result<()> {
        // SAFETY: the queue pair and the value are valid.
        let errno = unsafe { sys::ibv_set_ece(self.raw.as_ptr(), &mut ece) };
        self.checked("ibv_set_ece", errno)
    }

    /// Limits the rate at which the queue pair sends. `rate` is in kilobits per second, `burst` and
    /// `packet` are the maximum burst and the typical packet size in bytes.
    pub(crate) fn limit_rate(&self, rate: u32, burst: u32, packet: u16) -> Result<()> {
        // SAFETY: all-zero bytes are a valid value of this plain C struct.
        let mut limit: sys::ibv_qp_rate_limit_attr = unsafe { mem::zeroed() };
        limit.rate_limit = rate;
        limit.max_burst_sz = burst;
        limit.typical_pkt_sz = packet;
        // SAFETY: the queue pair and the limit are valid.
        let errno = unsafe { sys::ibv_modify_qp_rate_limit(self.raw.as_ptr(), &mut limit) };
        self.checked("ibv_modify_qp_rate_limit", errno)
    }

    fn checked(&self, verb: &'static str, errno: i32) -> Result<()> {
        if errno == 0 {
            Ok(())
        } else {
            let errno = positive(errno);
            Err(Error::verb(verb, self.describe(), errno))
        }
    }

    /// Modifies the queue pair as `change` describes. A move to RESET also frees the memory of
    /// requests that were in flight when their queue was dropped. In RESET the device discards all
    /// requests (IBTA volume 1, 10.3.1), even if other threads post at the same time. Queues that
    /// still exist keep the memory of their requests.
    pub(crate) fn reset(&self, change: &Modification) -> Result<()> {
        if change.state() != Some(QueuePairState::Reset) {
            return modify(self, change);
        }
        let forgotten = mem::take(&mut *self.abandoned.lock());
        let outcome = modify(self, change);
        if outcome.is_err() {
            self.abandoned.lock().extend(forgotten);
        }
        outcome
    }

    /// Increments the number of queues that post sends to this queue pair, and returns the new
    /// number. The number is needed because these queues share the capacity of the queue pair.
    pub(super) fn count_send_queue(&self) -> u32 {
        self.send_queues.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the number of queues that were created to post sends to this queue pair, including
    /// queues that were dropped.
    #[inline]
    pub(super) fn send_queues(&self) -> u32 {
        self.send_queues.load(Ordering::Relaxed)
    }

    /// Keeps `memory` until the queue pair is destroyed. The memory belongs to requests that were
    /// in flight when their queue was dropped. The device can use the memory until then.
    pub(super) fn abandon(&self, memory: Box<dyn Any + Send>) {
        self.abandoned.lock().push(memory);
    }
}

/// Returns queue pair attributes with all fields zero, to be filled in by the caller or by a query.
pub(crate) fn empty_attributes() -> sys::ibv_qp_attr {
    // SAFETY: all-zero bytes are a valid value of this plain C struct.
    unsafe { mem::zeroed() }
}

/// Sets the destination GID of the address vector `vector`, and sets the flag `is_global`, which
/// marks the GID as present.
pub(crate) fn set_destination(vector: &mut sys::ibv_ah_attr, gid: [u8; 16]) {
    vector.is_global = 1;
    vector.grh.dgid.raw = gid;
}

/// Returns the 16 bytes of a GID.
pub(crate) fn gid_bytes(gid: &sys::ibv_gid) -> [u8; 16] {
    // SAFETY: every variant of this union is 16 plain bytes.
    unsafe { gid.raw }
}

impl Drop for QueuePairHandle {
    fn drop(&mut self) {
        let parents = (
            Arc::clone(&self.domain),
            self.shared_receive_queue.clone(),
            self.xrc_domain.clone(),
        );
        let remains = QueuePairDestruction {
            raw: self.raw,
            name: self.describe(),
            completions: self.completions.to_vec(),
            parents: Box::new(parents),
            memory: mem::take(self.abandoned.get_mut()),
        };
        remains.destroy();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Context;
    use crate::ffi::WindowHandle;
    use crate::ffi::lease::Lease;
    use crate::memory::{AccessFlags, Buffer, WindowType};
    use crate::queue_pair::Outcome;

    /// Checks the outcome of a request that was prepared while its queue pair was being restarted.
    /// The request must count as failed even if a later request succeeds, because the request can
    /// have failed before the restart.
    #[test]
    fn a_later_success_proves_nothing_about_a_request_of_a_restart() {
        let context = Context::open("softroce0").unwrap();
        let domain = context.protection_domain().unwrap();
        let prepared = domain.queue_pair().build().unwrap();
        let queue_pair = prepared.handle();
        let registration = domain.registration().access(AccessFlags::WINDOW_BIND);
        let span = Buffer::into_span(registration.allocate(64).unwrap());
        let window = WindowHandle::allocate(Arc::clone(domain.handle()), WindowType::Two).unwrap();
        let change = Lease::new(window, span, AccessFlags::REMOTE)
            .bind()
            .unwrap();
        change.check(queue_pair).unwrap();
        let later = Outcome::Succeeded;
        assert_eq!(change.inferred(later, queue_pair), Outcome::Succeeded);
        // Simulates that another thread is within `apply` during the check.
        queue_pair.beginnings.fetch_add(1, Ordering::AcqRel);
        assert_eq!(change.inferred(later, queue_pair), Outcome::Failed);
        change.check(queue_pair).unwrap();
        queue_pair
            .finished_beginnings
            .fetch_add(1, Ordering::AcqRel);
        assert_eq!(change.inferred(later, queue_pair), Outcome::Failed);
        change.check(queue_pair).unwrap();
        assert_eq!(change.inferred(later, queue_pair), Outcome::Succeeded);
    }
}
