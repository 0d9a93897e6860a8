use std::time::Duration;

use super::{
    AccessFlags, Completion, Data, ReceiveRequest, Remote, Segment, SendRequest, Upcoming,
    WindowBinding,
};

/// Reason why local memory could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalFault {
    /// Invalid key, wrong protection domain, out of bounds, or missing access right.
    Protection,
    /// The window cannot be bound as requested, or the key cannot be invalidated.
    Bind,
}

/// Reason why a peer may not use memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteFault {
    /// Invalid key, wrong protection domain, out of bounds, or missing access right.
    Access,
    /// The request itself is invalid: an atomic on an address that is not a multiple of eight.
    Invalid,
}

/// Progress of the withdrawal of a key from other processes of the host. Those processes end their running copies by
/// themselves; a thread that holds the lock of a queue pair does not wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// No copy uses the key any more.
    Complete,
    /// A copy is still running. The caller tries again after a pause.
    Pending {
        /// Time to wait before the next attempt.
        again: Duration,
    },
    /// A copy has run for so long that it may never end. The key stays valid.
    Refused,
}

/// Destination of the bytes of a part at the peer.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// Memory that the sender named by address and remote key.
    Remote(Remote),
    /// The segments of a receive, from this byte of the message on.
    Local(&'a [Segment], u32),
}

/// Reason why bytes could not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// The memory of this side cannot be used.
    Here,
    /// The memory of the peer cannot be used.
    There,
}

/// Access to the memory of a queue pair. Implementations check every access against the keys and the protection domain of the
/// queue pair. The check and the copy are one step: the memory of a deregistered region is not touched afterwards.
pub trait Memory {
    /// Copies bytes of a message that is gathered from `list`, beginning at byte `offset`, to `out`.
    fn gather(&self, list: &[Segment], offset: u32, out: &mut [u8]) -> Result<(), LocalFault>;

    /// Copies the `length` bytes from byte `offset` on of a message that is gathered from `list` to several buffers. The
    /// buffers together have `length` bytes.
    fn gather_parts<'p>(
        &self,
        list: &[Segment],
        mut offset: u32,
        length: u32,
        parts: impl Iterator<Item = &'p mut [u8]>,
    ) -> Result<(), LocalFault> {
        let end = u64::from(offset) + u64::from(length);
        for part in parts {
            self.gather(list, offset, part)?;
            offset += part.len() as u32;
        }
        debug_assert_eq!(u64::from(offset), end, "the places take the bytes");
        Ok(())
    }

    /// Copies `data` to the memory of a message that is scattered over `list`, beginning at byte `offset`.
    fn scatter(&self, list: &[Segment], offset: u32, data: &[u8]) -> Result<(), LocalFault>;

    /// Copies several buffers, together `length` bytes, to the memory of a message that is scattered over `list`, beginning at
    /// byte `offset`.
    fn scatter_parts<'p>(
        &self,
        list: &[Segment],
        mut offset: u32,
        length: u32,
        parts: impl Iterator<Item = &'p [u8]>,
    ) -> Result<(), LocalFault> {
        let end = u64::from(offset) + u64::from(length);
        for part in parts {
            self.scatter(list, offset, part)?;
            offset += part.len() as u32;
        }
        debug_assert_eq!(u64::from(offset), end, "the parts are so many bytes");
        Ok(())
    }

    /// Checks that a peer may access `length` bytes with the rights `access`. Zero bytes need no key (IBTA 9.7.4.1.5).
    fn check_remote(
        &self,
        key: u32,
        address: u64,
        length: u32,
        access: AccessFlags,
    ) -> Result<(), RemoteFault>;

    /// Copies bytes of memory that a peer may read to `out`.
    fn read_remote(&self, key: u32, address: u64, out: &mut [u8]) -> Result<(), RemoteFault>;

    /// Copies `data` to memory that a peer may write, in ascending order of addresses.
    fn write_remote(&self, key: u32, address: u64, data: &[u8]) -> Result<(), RemoteFault>;

    /// Copies several buffers, together `length` bytes, to memory that a peer may write, in ascending order of addresses.
    fn write_remote_parts<'p>(
        &self,
        key: u32,
        mut address: u64,
        length: u32,
        parts: impl Iterator<Item = &'p [u8]> + Clone,
    ) -> Result<(), RemoteFault> {
        let end = address.checked_add(u64::from(length));
        end.ok_or(RemoteFault::Access)?;
        for part in parts {
            self.write_remote(key, address, part)?;
            address += part.len() as u64;
        }
        debug_assert_eq!(Some(address), end, "the parts are so many bytes");
        Ok(())
    }

    /// Compares and swaps eight bytes atomically, in this machine's byte order. Returns the previous value.
    fn compare_swap(
        &self,
        key: u32,
        address: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, RemoteFault>;

    /// Adds to eight bytes atomically, in this machine's byte order. Returns the previous value.
    fn fetch_add(&self, key: u32, address: u64, add: u64) -> Result<u64, RemoteFault>;

    /// Withdraws the present key of a window that is about to be bound again: no other process can start to use the key. The
    /// caller repeats this until the result is not [`Withdrawal::Pending`], and then [binds](Self::bind) the window or
    /// [keeps](Self::keep) the key.
    fn withdraw_window(&self, _binding: &WindowBinding) -> Withdrawal {
        Withdrawal::Complete
    }

    /// Withdraws a key that is about to be [invalidated](Self::invalidate): no other process can start to use the key. The
    /// caller repeats this until the result is not [`Withdrawal::Pending`].
    fn withdraw(&self, _key: u32) -> Withdrawal {
        Withdrawal::Complete
    }

    /// Publishes a withdrawn key again, because the key is neither bound again nor invalidated.
    fn keep(&self, _key: u32) {}

    /// Binds a memory window.
    fn bind(&self, binding: &WindowBinding) -> Result<(), LocalFault>;

    /// Invalidates a key at the request of this side (a local invalidate).
    fn invalidate(&self, key: u32) -> Result<(), LocalFault>;

    /// Invalidates a key at the request of the peer (a send with invalidate).
    fn invalidate_remote(&self, key: u32) -> Result<(), RemoteFault>;

    /// Checks that the `length` bytes from byte `offset` on of a message can be gathered from `list`.
    fn check_local(&self, list: &[Segment], offset: u32, length: u32) -> Result<(), LocalFault> {
        let mut bytes = vec![0; length as usize];
        self.gather(list, offset, &mut bytes)
    }

    /// Copies the `length` bytes from byte `offset` on of a message of this side to memory of `peer`, in ascending order of
    /// addresses. All keys are checked before the first byte is copied, the keys of this side first.
    fn carry(
        &self,
        message: Data<'_>,
        offset: u32,
        length: u32,
        peer: &Self,
        to: Place<'_>,
    ) -> Result<(), Misplaced>
    where
        Self: Sized,
    {
        let mut bytes = vec![0; length as usize];
        match message {
            Data::Inline(inline) => {
                let end = offset as usize + length as usize;
                let part = inline.get(offset as usize..end).ok_or(Misplaced::Here)?;
                bytes.copy_from_slice(part);
            }
            Data::Gathered(list) => self
                .gather(list, offset, &mut bytes)
                .map_err(|_| Misplaced::Here)?,
        }
        match to {
            Place::Remote(Remote { address, key }) => peer
                .write_remote(key, address, &bytes)
                .map_err(|_| Misplaced::There),
            Place::Local(list, offset) => peer
                .scatter(list, offset, &bytes)
                .map_err(|_| Misplaced::There),
        }
    }

    /// Copies `length` bytes of memory that `peer` allows to be read to the memory of a message that is scattered over `list`
    /// on this side, beginning at byte `offset`. All keys are checked before the first byte is copied, the peer's keys first.
    fn fetch(
        &self,
        list: &[Segment],
        offset: u32,
        length: u32,
        peer: &Self,
        from: Remote,
    ) -> Result<(), Misplaced>
    where
        Self: Sized,
    {
        let mut bytes = vec![0; length as usize];
        peer.read_remote(from.key, from.address, &mut bytes)
            .map_err(|_| Misplaced::There)?;
        self.scatter(list, offset, &bytes)
            .map_err(|_| Misplaced::Here)
    }
}

/// Affiliated asynchronous event of a queue pair (IBTA 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A packet came while the queue pair was ready to receive, but not ready to send.
    CommunicationEstablished,
    /// The send queue is drained.
    SendQueueDrained,
    /// The queue pair failed because of a local error that no completion reports.
    Fatal,
    /// A request of the peer was invalid.
    InvalidRequest,
    /// A request of the peer had no right to access the memory.
    AccessViolation,
    /// The queue pair is in the error state and takes no more receives from its shared receive queue.
    LastRequestReached,
}

/// Statistics counter, named after the hardware counters of the kernel and of vendors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
#[expect(missing_docs, reason = "the kernel's own names")]
pub enum Counter {
    SentPackets,
    ReceivedPackets,
    SentBytes,
    ReceivedBytes,
    DuplicateRequest,
    OutOfSequenceRequest,
    ReceivedRnr,
    SentRnr,
    ReceivedSequenceNak,
    ImpliedNak,
    AcknowledgementTimeout,
    RetryExceeded,
    RnrRetryExceeded,
    Retransmitted,
    Malformed,
    WrongIcrc,
    Unaddressed,
    ReceiveDropped,
    RemoteAccessErrors,
    RemoteInvalidRequests,
    SendDiscarded,
    /// Messages that were delivered to queue pairs of the same process without packets.
    DirectMessages,
    DirectBytes,
    DirectCopies,
    /// RDMA reads, writes and atomics that were executed directly in the memory of another process.
    SharedMessages,
    OneSidedBytes,
    OneSidedCopies,
    /// Subset of `SentPackets` that was sent through memory shared with other processes.
    SharedSentPackets,
    /// Subset of `ReceivedPackets` that was received through memory shared with other processes.
    SharedReceivedPackets,
    SlotSentMessages,
    SlotSentBytes,
    SlotReceivedMessages,
    SlotReceivedBytes,
    DescriptorSentMessages,
    DescriptorSentBytes,
    DescriptorReceivedMessages,
    DescriptorReceivedBytes,
    DescriptorReceivedCopies,
    WrittenSentMessages,
    WrittenSentBytes,
    WrittenSentCopies,
    WrittenReceivedMessages,
    WrittenReceivedBytes,
    RingSentMessages,
    RingSentBytes,
    RingReceivedMessages,
    RingReceivedBytes,
    SharedWakings,
    /// Subset of `SharedWakings` that woke an application thread waiting on a completion channel.
    SharedChannelWakings,
}

impl Counter {
    /// Number of counters.
    pub const COUNT: usize = Self::SharedChannelWakings as usize + 1;
}

/// Environment of a queue pair: memory, receives, completions, events and counters.
pub trait Host: Memory {
    /// Takes a receive from the queue pair's own or shared receive queue or, for an XRC target, from the shared receive queue
    /// with the number `xrc_srq`.
    fn next_receive(&mut self, xrc_srq: Option<u32>) -> Option<ReceiveRequest>;

    /// Returns whether the XRC shared receive queue `number` exists and belongs to the queue pair's XRC domain.
    fn has_xrc_srq(&self, number: u32) -> bool;

    /// Generates the completion of a send request.
    fn complete_send(&mut self, completion: Completion);

    /// Generates the completion of a receive; for an XRC target, of a receive of the shared receive queue `xrc_srq`.
    fn complete_receive(&mut self, completion: Completion, xrc_srq: Option<u32>);

    /// Returns whether a peer that shares memory with this process can map the memory of the request's bytes. Called once, when
    /// the request starts. May return `false` where the result makes no difference to the path of the request.
    fn is_mappable(&self, _request: &SendRequest) -> bool {
        false
    }

    /// Returns whether the next part of a request must not be sent as packets, because the part takes another path.
    fn holds_back(&self, _request: &SendRequest, _upcoming: &Upcoming) -> bool {
        false
    }

    /// Withdraws what was published to peers about the queue pair, because its requests fail. Called before the first of their
    /// completions: after a completion, the program may change the bytes of its message.
    fn fails(&mut self) {}

    /// Raises an asynchronous event of the queue pair.
    fn raise(&mut self, event: Event);

    /// Adds `by` to a counter.
    fn count(&mut self, counter: Counter, by: u64);
}
