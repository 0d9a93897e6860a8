use std::time::Duration;

use super::{
    AccessFlags, Completion, Data, ReceiveRequest, Remote, Segment, SendRequest, Upcoming,
    WindowBinding,
};

/// Why local memory could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalFault {
    /// A key that is none, another protection domain, out of bounds, or without the right.
    Protection,
    /// A window cannot be bound so.
    Bind,
}

/// Why a peer may not use memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteFault {
    /// A key that is none, another protection domain, out of bounds, or without the right.
    Access,
    /// The request itself is wrong: an atomic on an address that is not a multiple of eight.
    Invalid,
}

/// Progress of the withdrawal of a key from other processes of the host. Their copies end by themselves; a thread that
/// holds the lock of a queue pair does not wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// No copy uses the key any more.
    Complete,
    /// A copy is still going on: ask again after a time.
    Pending {
        /// Time until then.
        again: Duration,
    },
    /// A copy has taken so long that it may never end. The key is as it was.
    Refused,
}

/// Where the bytes of a part go at the peer.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// To memory that was named by the sender.
    Remote(Remote),
    /// To a message, from this byte on, that is scattered over the segments.
    Local(&'a [Segment], u32),
}

/// Reason why nothing could be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// The memory of this side.
    Here,
    /// The memory of the peer.
    There,
}

/// The memory that a queue pair reaches: every access is checked against the keys, and that of the
/// queue pair's protection domain. A copy and its check are one: a region that is deregistered is
/// not touched afterwards.
pub trait Memory {
    /// Copies the bytes from `offset` on of a message that is gathered from `list` to `out`.
    fn gather(&self, list: &[Segment], offset: u32, out: &mut [u8]) -> Result<(), LocalFault>;

    /// Copies the `length` bytes from `offset` on of a message that is gathered from `list` to several places, which take so many
    /// together.
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

    /// Copies `data` to the places from `offset` on of a message that is scattered over `list`.
    fn scatter(&self, list: &[Segment], offset: u32, data: &[u8]) -> Result<(), LocalFault>;

    /// Copies `length` bytes, in several parts, to the places from `offset` on of a message that is scattered over `list`.
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

    /// Checks that a peer may do `access` to `length` bytes. Zero bytes need no key (IBTA 9.7.4.1.5).
    fn check_remote(
        &self,
        key: u32,
        address: u64,
        length: u32,
        access: AccessFlags,
    ) -> Result<(), RemoteFault>;

    /// Copies bytes that a peer may read to `out`.
    fn read_remote(&self, key: u32, address: u64, out: &mut [u8]) -> Result<(), RemoteFault>;

    /// Copies `data` to where a peer may write, in ascending order of addresses.
    fn write_remote(&self, key: u32, address: u64, data: &[u8]) -> Result<(), RemoteFault>;

    /// Copies `length` bytes, in several parts, to where a peer may write, in ascending order of addresses.
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

    /// Compares and swaps eight bytes atomically, in this machine's byte order; returns what they were.
    fn compare_swap(
        &self,
        key: u32,
        address: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, RemoteFault>;

    /// Adds to eight bytes atomically, in this machine's byte order; returns what they were.
    fn fetch_add(&self, key: u32, address: u64, add: u64) -> Result<u64, RemoteFault>;

    /// Keeps peers from beginning to use the present binding of a window that is to be bound again. The caller repeats
    /// this until it is not pending, and then [binds](Self::bind) the window, or [keeps](Self::keep) it.
    fn withdraw_window(&self, _binding: &WindowBinding) -> Withdrawal {
        Withdrawal::Complete
    }

    /// Withdraws a key that is to be [invalidated](Self::invalidate).
    fn withdraw(&self, _key: u32) -> Withdrawal {
        Withdrawal::Complete
    }

    /// Publishes a withdrawn key again: the key is neither bound anew nor invalidated.
    fn keep(&self, _key: u32) {}

    /// Binds a window.
    fn bind(&self, binding: &WindowBinding) -> Result<(), LocalFault>;

    /// Makes a key invalid at the wish of this side.
    fn invalidate(&self, key: u32) -> Result<(), LocalFault>;

    /// Makes a key invalid at the wish of the peer.
    fn invalidate_remote(&self, key: u32) -> Result<(), RemoteFault>;

    /// Checks that the `length` bytes from `offset` on of a message can be gathered from `list`.
    fn check_local(&self, list: &[Segment], offset: u32, length: u32) -> Result<(), LocalFault> {
        let mut bytes = vec![0; length as usize];
        self.gather(list, offset, &mut bytes)
    }

    /// Copies the `length` bytes from `offset` on of a message of this side to memory of `peer`'s, in ascending order
    /// of addresses. All keys are checked before the first byte goes, those of this side first.
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

    /// Copies `length` bytes that `peer` lets be read to the places from `offset` on of a message that is scattered
    /// over `list` here. All keys are checked before the first byte comes, those of the peer's side first.
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

/// Reports of a queue pair other than completions: affiliated asynchronous events (IBTA 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A packet came before the queue pair was ready to send.
    CommunicationEstablished,
    /// The send queue is drained.
    SendQueueDrained,
    /// The queue pair failed: a local error that no completion tells.
    Fatal,
    /// The peer's request was wrong.
    InvalidRequest,
    /// The peer's request had no right to the memory.
    AccessViolation,
    /// A queue pair in error will take no more from its shared receive queue.
    LastRequestReached,
}

/// The counters, by the names of the kernel's and of vendors' hardware counters.
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
    /// Messages to queue pairs of the same process.
    DirectMessages,
    DirectBytes,
    DirectCopies,
    /// One-sided messages: reads, writes and atomics done in the memory of another process.
    SharedMessages,
    OneSidedBytes,
    OneSidedCopies,
    /// The part of `SentPackets` that went through memory shared with other processes.
    SharedSentPackets,
    /// The part of `ReceivedPackets` that came through memory shared with other processes.
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
    /// The part of `SharedWakings` that woke a thread of the program which waited at a channel.
    SharedChannelWakings,
}

impl Counter {
    /// Number of counters.
    pub const COUNT: usize = Self::SharedChannelWakings as usize + 1;
}

/// Everything that a queue pair needs of the world.
pub trait Host: Memory {
    /// Takes a receive request: of the queue pair's own queue, of its shared one, or, for an XRC
    /// target, of the shared queue with the number `xrc_srq`.
    fn next_receive(&mut self, xrc_srq: Option<u32>) -> Option<ReceiveRequest>;

    /// Returns whether the XRC shared receive queue exists and is of the queue pair's domain.
    fn has_xrc_srq(&self, number: u32) -> bool;

    /// Completes a send request.
    fn complete_send(&mut self, completion: Completion);

    /// Completes a receive request; for an XRC target, one of the shared queue `xrc_srq`.
    fn complete_receive(&mut self, completion: Completion, xrc_srq: Option<u32>);

    /// Returns whether a peer that shares memory with this process can map the memory of the request's bytes. Called once, when
    /// the request starts. May return `false` where the answer makes no difference to the path of the request.
    fn is_mappable(&self, _request: &SendRequest) -> bool {
        false
    }

    /// Returns whether packets must not carry the next part of a request, because it goes by another path.
    fn holds_back(&self, _request: &SendRequest, _upcoming: &Upcoming) -> bool {
        false
    }

    /// Takes back what peers were told of the queue pair: its requests end with errors. This is called before the first of
    /// their completions, after which the program may change the bytes of its messages.
    fn fails(&mut self) {}

    /// Raises an event of the queue pair.
    fn raise(&mut self, event: Event);

    /// Adds to a counter.
    fn count(&mut self, counter: Counter, by: u64);
}
