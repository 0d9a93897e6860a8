use std::cell::{Cell, RefCell};
use std::sync::Arc;

use ibverbs_sys::ibv_event_type;

use super::device::Adapter;
use super::handles::Handles;
use crate::completion::{CompletionQueue, Entry};
use crate::context::{DomainId, InUse, ProtectionDomain};
use crate::memory::{Piece, View};
use crate::proto::{
    AccessFlags, Completion, CopyError, Counter, Data, Event, Host, LocalFault, Memory, Payload,
    ReceiveRequest, Remote, RemoteFault, Segment, SendRequest, Sink, Upcoming, WindowBinding,
    Withdrawal,
};
use crate::receive::{ReceiveQueue, SharedReceiveQueue};
use crate::transfer::{
    ChunkedRange, Kind, Peer, RequestProperties, Transfer, TransferHost, choose, depends_on_memory,
};
use crate::xrc::XrcDomain;

/// Objects that a queue pair uses, such as its completion queues. These objects cannot be destroyed
/// before the queue pair.
#[derive(Debug)]
pub(super) struct UsedObjects {
    /// Protection domain. `None` for an XRC target, whose requests name shared receive queues with
    /// their own domains.
    pub(super) domain: Option<InUse<ProtectionDomain>>,
    pub(super) send_queue: Option<InUse<CompletionQueue>>,
    pub(super) receive_queue: Option<InUse<CompletionQueue>>,
    pub(super) receives: Receives,
    pub(super) xrc: Option<InUse<XrcDomain>>,
    /// Protection domain of the XRC shared receive queue that the peer's last request named. The
    /// memory keys in that request belong to this domain.
    pub(super) named: Cell<Option<DomainId>>,
}

/// The receive queue from which a queue pair takes its receive requests.
#[derive(Debug)]
pub(super) enum Receives {
    /// Receive queue of the queue pair itself, protected by the queue pair's lock.
    Own(RefCell<ReceiveQueue>),
    Shared(InUse<SharedReceiveQueue>),
    /// Shared receive queues of the XRC domain, one of which each XRC request names. Also used for
    /// an XRC initiator, which receives no requests.
    Named,
}

/// State of a queue pair that its transport (protocol code) reads and changes by callbacks. The
/// state contains the location of the peer. It also contains the work that the queue pair must do
/// after the transport has returned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HostState {
    /// Set while started requests are in progress in the state SQD (send queue drained).
    pub(super) draining: bool,
    /// Set if the program has requested an event for the end of the draining: when no started
    /// request is in progress any more.
    pub(super) notify_drained: bool,
    /// Set if a completion of the queue pair was lost because its completion queue was full.
    pub(super) overrun: bool,
    /// Location of the peer that receives the next request: in this process, on this host, or
    /// elsewhere. The location determines how the request is transferred.
    pub(super) peer: Peer,
    /// Set if the last one-sided request (RDMA read, write or atomic) could not be executed
    /// directly in the memory of the peer process, so that it must be sent as packets.
    pub(super) is_out_of_reach: bool,
}

impl HostState {
    /// Returns the way in which the next bytes of a request of this queue pair are transferred:
    /// from memory to memory, through a ring in shared memory, or as packets. The request can be
    /// one that is being posted, or one in the send queue.
    #[inline(always)]
    pub(super) fn transfer(&self, request: &RequestProperties) -> Transfer {
        let is_out_of_reach = self.is_out_of_reach && request.kind == Kind::OneSided;
        let request = RequestProperties {
            is_declined: request.is_declined || is_out_of_reach,
            ..*request
        };
        choose(&request, self.peer)
    }
}

/// Parts of the queue pair and the device that the transport (protocol code) uses during one call.
pub(super) struct Environment<'a> {
    pub(super) number: u32,
    pub(super) device: &'a dyn Adapter,
    pub(super) handles: &'a Handles,
    pub(super) objects: &'a UsedObjects,
    pub(super) host_state: &'a mut HostState,
    /// Set while the queue pair sends packets, which may be responses to earlier requests of the
    /// peer. The memory keys in those requests may belong to other protection domains than the keys
    /// in the latest request.
    pub(super) answering: bool,
}

impl Environment<'_> {
    /// Adds the completion `completion` of this queue pair to the completion queue `queue`.
    #[inline]
    fn complete_on(&mut self, queue: &CompletionQueue, completion: &Completion) {
        let entry = Entry {
            completion: *completion,
            queue_pair: self.number,
            timestamp: timestamp(queue, self.device),
            partition_index: 0,
        };
        if queue.push(entry).is_err() {
            self.host_state.overrun = true;
        }
    }

    /// Returns the memory regions and windows that requests of this queue pair can access by local
    /// keys. An XRC target queue pair has no protection domain of its own. Such a queue pair uses
    /// the domain of the shared receive queue that the peer's last request has named, and this call
    /// fails if there was no such request.
    fn local(&self) -> Result<View<'_>, LocalFault> {
        let domain = match &self.objects.domain {
            Some(domain) => Some(domain.id()),
            None => self.objects.named.get(),
        };
        let domain = domain.ok_or(LocalFault::Protection)?;
        Ok(self.device.memory().view(domain, self.number))
    }

    /// Calls `access` with the memory that requests of the peer can access, and returns the result
    /// of `access`.
    ///
    /// An XRC target uses the protection domain of the shared receive queue that a request names
    /// (IBTA annex A14). So `access` is first called with the domain of the last named queue. A
    /// response can belong to an earlier request. If `access` fails with [`RemoteFault::Access`]
    /// while responses are sent, `access` is therefore called again with the domains of the other
    /// queues of the XRC domain.
    fn remote<T>(
        &self,
        mut access: impl FnMut(&View<'_>) -> Result<T, RemoteFault>,
    ) -> Result<T, RemoteFault> {
        let mut within = |domain: DomainId| access(&self.device.memory().view(domain, self.number));
        if let Some(domain) = &self.objects.domain {
            return within(domain.id());
        }
        let named = self.objects.named.get();
        let mut result = named.map_or(Err(RemoteFault::Access), &mut within);
        if !matches!(result, Err(RemoteFault::Access)) {
            return result;
        }
        let Some(xrc) = self.objects.xrc.as_ref().filter(|_| self.answering) else {
            return result;
        };
        let queues = self.device.shared_queues().of_xrc_domain(xrc.id());
        let mut others: Vec<_> = queues.iter().map(|queue| queue.domain()).collect();
        others.sort_unstable_by_key(|domain| domain.number());
        others.dedup();
        for domain in others.into_iter().filter(|other| Some(*other) != named) {
            result = within(domain);
            if !matches!(result, Err(RemoteFault::Access)) {
                break;
            }
        }
        result
    }

    /// Calls `act` with the memory of a part of a local message, and returns the result of `act`.
    /// `list` contains the segments of the message. The part has `length` bytes and begins at byte
    /// `offset` of the message. `write` must be set if `act` writes to the memory. Returns `None`
    /// if the queue pair is not permitted to access the memory.
    #[inline]
    pub(super) fn with_segments<T>(
        &self,
        list: &[Segment],
        offset: u32,
        length: u32,
        write: bool,
        act: impl FnOnce(&[Piece<'_>]) -> Option<T>,
    ) -> Option<Option<T>> {
        let memory = self.local().ok()?;
        memory.with_segments(list, offset, length as usize, write, act)
    }

    /// Copies a range of a local message to the memory ranges `to`. `portion` contains the message
    /// and the range. Returns `None` if the bytes cannot be read, for example because their memory
    /// region was deregistered.
    #[inline]
    pub(super) fn copy_out(&self, portion: ChunkedRange<'_>, to: &[Piece<'_>]) -> Option<()> {
        let (offset, length) = (portion.offset, portion.length as usize);
        match portion.data {
            Data::Gathered(list) => self.local().ok()?.copy_out(list, offset, length, to).ok(),
            Data::Inline(bytes) => {
                let bytes = bytes.get(offset as usize..)?.get(..length)?;
                let mut done = 0;
                for part in Piece::parts(to, 0..length) {
                    let end = done + part.length();
                    Piece::of(bytes.get(done..end)?).copy_to(&part)?;
                    done = end;
                }
                Some(())
            }
        }
    }

    /// Copies `length` bytes of a message from the memory ranges `from` to `to`, the memory that
    /// receives the message. Returns `None` if the bytes cannot be written to `to`.
    #[inline]
    pub(super) fn copy_in(&self, to: Sink<'_>, length: u32, from: &[Piece<'_>]) -> Option<()> {
        let length = length as usize;
        match to {
            Sink::Local(list, offset) => {
                let memory = self.local().ok()?;
                memory.copy_in(list, offset, length, from).ok()
            }
            Sink::Remote(remote) => self
                .remote(|memory| memory.copy_in_remote(remote, length, from))
                .ok(),
        }
    }

    /// Returns whether a peer process that shares memory with this process can map the memory of
    /// all segments in `list`. If so, the peer can copy the bytes without a system call.
    pub(super) fn can_map(&self, list: &[Segment]) -> bool {
        self.local().is_ok_and(|memory| memory.is_mappable(list))
    }

    /// Adds completions of send requests to the send queue's completion queue, in order.
    #[inline(always)]
    pub(super) fn complete_sends(&mut self, completions: impl Iterator<Item = Completion>) {
        if let Some(queue) = &self.objects.send_queue {
            complete(
                queue,
                completions,
                self.number,
                self.device,
                self.host_state,
            );
        }
    }

    /// Returns the XRC shared receive queue with the number `number`. Returns `None` if no such
    /// queue belongs to the XRC domain of this queue pair.
    fn xrc_queue(&self, number: u32) -> Option<Arc<SharedReceiveQueue>> {
        let domain = self.objects.xrc.as_ref()?.id();
        self.device
            .shared_queues()
            .find(number)
            .filter(|queue| queue.xrc().is_some_and(|xrc| xrc.domain == domain))
    }
}

/// Adds `completions` of the queue pair with the number `queue_pair` to the completion queue
/// `queue`. If the completion queue is full, sets the flag `overrun` of `host_state` (the state of
/// the queue pair), so that the queue pair fails later.
#[inline]
fn complete(
    queue: &CompletionQueue,
    completions: impl Iterator<Item = Completion>,
    queue_pair: u32,
    device: &dyn Adapter,
    host_state: &mut HostState,
) {
    let timestamp = timestamp(queue, device);
    let entries = completions.map(|completion| Entry {
        completion,
        queue_pair,
        timestamp,
        partition_index: 0,
    });
    if queue.push_all(entries).is_err() {
        host_state.overrun = true;
    }
}

/// Returns the timestamp for a new entry of the completion queue `queue`: the present time of
/// `device`, or 0 if the program does not read timestamps.
#[inline]
fn timestamp(queue: &CompletionQueue, device: &dyn Adapter) -> u64 {
    if queue.is_timed() {
        device.now().as_nanos()
    } else {
        0
    }
}

impl Memory for Environment<'_> {
    fn gather(&self, list: &[Segment], offset: u32, out: &mut [u8]) -> Result<(), LocalFault> {
        self.local()?.gather(list, offset, out)
    }

    fn gather_parts<'p>(
        &self,
        list: &[Segment],
        offset: u32,
        length: u32,
        parts: impl Iterator<Item = &'p mut [u8]>,
    ) -> Result<(), LocalFault> {
        self.local()?.gather_parts(list, offset, length, parts)
    }

    fn scatter(&self, list: &[Segment], offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        self.local()?.scatter(list, offset, data)
    }

    fn scatter_parts<'p>(
        &self,
        list: &[Segment],
        offset: u32,
        length: u32,
        parts: impl Iterator<Item = &'p [u8]>,
    ) -> Result<(), LocalFault> {
        self.local()?.scatter_parts(list, offset, length, parts)
    }

    fn check_remote(
        &self,
        key: u32,
        address: u64,
        length: u32,
        access: AccessFlags,
    ) -> Result<(), RemoteFault> {
        self.remote(|memory| memory.check_remote(key, address, length, access))
    }

    fn read_remote(&self, key: u32, address: u64, out: &mut [u8]) -> Result<(), RemoteFault> {
        self.remote(|memory| memory.read_remote(key, address, out))
    }

    fn write_remote(&self, key: u32, address: u64, data: &[u8]) -> Result<(), RemoteFault> {
        self.remote(|memory| memory.write_remote(key, address, data))
    }

    fn write_remote_parts<'p>(
        &self,
        key: u32,
        address: u64,
        length: u32,
        parts: impl Iterator<Item = &'p [u8]> + Clone,
    ) -> Result<(), RemoteFault> {
        self.remote(|memory| memory.write_remote_parts(key, address, length, parts.clone()))
    }

    fn compare_swap(
        &self,
        key: u32,
        address: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, RemoteFault> {
        self.remote(|memory| memory.compare_swap(key, address, compare, swap))
    }

    fn fetch_add(&self, key: u32, address: u64, add: u64) -> Result<u64, RemoteFault> {
        self.remote(|memory| memory.fetch_add(key, address, add))
    }

    fn write_word(&self, key: u32, address: u64, bytes: [u8; 8]) -> Result<(), RemoteFault> {
        self.remote(|memory| memory.write_word(key, address, bytes))
    }

    fn flush(
        &self,
        key: u32,
        range: Option<(u64, u32)>,
        access: AccessFlags,
    ) -> Result<(), RemoteFault> {
        self.remote(|memory| memory.flush(key, range, access))
    }

    fn withdraw_window(&self, binding: &WindowBinding) -> Withdrawal {
        let memory = self.local();
        memory.map_or(Withdrawal::Complete, |memory| {
            memory.withdraw_window(binding)
        })
    }

    fn withdraw(&self, key: u32) -> Withdrawal {
        let memory = self.local();
        memory.map_or(Withdrawal::Complete, |memory| memory.withdraw(key))
    }

    fn restore_window(&self, key: u32) {
        self.device.memory().restore_window(key);
    }

    fn bind(&self, binding: &WindowBinding) -> Result<(), LocalFault> {
        self.local()?.bind(binding)
    }

    fn invalidate(&self, key: u32) -> Result<(), LocalFault> {
        self.local()?.invalidate(key)
    }

    fn invalidate_remote(&self, key: u32) -> Result<(), RemoteFault> {
        self.remote(|memory| memory.invalidate_remote(key))
    }

    fn check_local(&self, list: &[Segment], offset: u32, length: u32) -> Result<(), LocalFault> {
        self.local()?.check_local(list, offset, length)
    }

    fn copy_message(
        &self,
        message: Data<'_>,
        offset: u32,
        length: u32,
        peer: &Self,
        to: Sink<'_>,
    ) -> Result<(), CopyError> {
        let here = self.local().map_err(|_| CopyError::Local)?;
        let there = peer.local().map_err(|_| CopyError::Peer)?;
        here.copy_message(message, offset, length, &there, to)
    }

    fn fetch(
        &self,
        list: &[Segment],
        offset: u32,
        length: u32,
        peer: &Self,
        from: Remote,
    ) -> Result<(), CopyError> {
        let there = peer.local().map_err(|_| CopyError::Peer)?;
        let here = self.local().map_err(|_| CopyError::Local)?;
        here.fetch(list, offset, length, &there, from)
    }
}

impl TransferHost for Environment<'_> {
    fn transfer(&self, request: &SendRequest, upcoming: &Upcoming) -> Transfer {
        self.host_state
            .transfer(&RequestProperties::of(request, upcoming))
    }
}

impl Host for Environment<'_> {
    fn is_mappable(&self, request: &SendRequest) -> bool {
        let Payload::Gathered(list) = &request.payload else {
            return false;
        };
        self.host_state.peer == Peer::SameHost
            && depends_on_memory(Kind::of(request), request.length)
            && self.can_map(list)
    }

    fn excludes_packets(&self, request: &SendRequest, upcoming: &Upcoming) -> bool {
        self.transfer(request, upcoming).excludes_packets()
    }

    fn next_receive(&mut self, xrc_srq: Option<u32>) -> Option<ReceiveRequest> {
        match (&self.objects.receives, xrc_srq) {
            (Receives::Own(queue), None) => queue.borrow_mut().take(),
            (Receives::Shared(queue), None) => queue.take(),
            (Receives::Named, Some(number)) => self.xrc_queue(number)?.take(),
            _ => None,
        }
    }

    fn has_xrc_srq(&self, number: u32) -> bool {
        let Some(queue) = self.xrc_queue(number) else {
            return false;
        };
        self.objects.named.set(Some(queue.domain()));
        true
    }

    fn complete_send(&mut self, completion: Completion) {
        if let Some(queue) = &self.objects.send_queue {
            self.complete_on(queue, &completion);
        }
    }

    fn complete_receive(&mut self, completion: Completion, xrc_srq: Option<u32>) {
        if let Some(number) = xrc_srq {
            let queue = self.xrc_queue(number);
            if let Some(xrc) = queue.as_deref().and_then(SharedReceiveQueue::xrc) {
                self.complete_on(&xrc.completion_queue, &completion);
            }
        } else if let Some(queue) = &self.objects.receive_queue {
            self.complete_on(queue, &completion);
        }
    }

    fn fails(&mut self) {
        if let Some(host_peers) = self.device.host_peers() {
            host_peers.retract_queue_pair(self.number);
        }
    }

    fn raise(&mut self, event: Event) {
        let kind = match event {
            Event::CommunicationEstablished => ibv_event_type::IBV_EVENT_COMM_EST,
            Event::SendQueueDrained => {
                self.host_state.draining = false;
                if !self.host_state.notify_drained {
                    return;
                }
                ibv_event_type::IBV_EVENT_SQ_DRAINED
            }
            Event::Fatal => ibv_event_type::IBV_EVENT_QP_FATAL,
            Event::InvalidRequest => ibv_event_type::IBV_EVENT_QP_REQ_ERR,
            Event::AccessViolation => ibv_event_type::IBV_EVENT_QP_ACCESS_ERR,
            Event::LastRequestReached => ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED,
        };
        self.handles.raise(kind);
    }

    fn count(&mut self, counter: Counter, by: u64) {
        self.device.count(counter, by);
    }
}
