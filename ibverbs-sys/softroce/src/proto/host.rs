use std::time::Duration;

use super::{
    AccessFlags, Completion, Data, ReceiveRequest, Remote, Segment, SendRequest, Upcoming,
    WindowBinding,
};

/// Reason why a queue pair could not access local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalFault {
    /// The key is invalid, has another protection domain or lacks the access right, or the bytes
    /// are out of bounds.
    Protection,
    /// The memory window cannot be bound as requested, or the key cannot be invalidated.
    Bind,
}

/// Reason why a request of a peer may not access memory. Each reason has its own negative
/// acknowledgement (NAK), which the peer receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteFault {
    /// The key is invalid, has another protection domain or lacks the access right, or the bytes
    /// are out of bounds.
    Access,
    /// The request itself is invalid: an atomic on an address that is not a multiple of eight.
    Invalid,
}

/// Result of an attempt to withdraw a memory key: to end the access of other processes of the host
/// to memory by this key. A copy that another process has already begun must end first. The caller
/// does not wait for the end of the copy, because the caller holds the lock of a queue pair.
/// Instead, the caller tries again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// No other process accesses the memory by the withdrawn key any more.
    Complete,
    /// Another process is still copying bytes of the memory. The caller must try again later.
    Pending {
        /// Time to wait before the next attempt.
        delay: Duration,
    },
    /// The withdrawal has failed: another process has been copying bytes of the memory for so long
    /// that it may have stopped. The key stays valid.
    Refused,
}

/// Destination of bytes of a message in the receiver's memory.
#[derive(Clone, Copy, Debug)]
pub enum Sink<'a> {
    /// Memory that the sender's request names by an address and a remote key.
    Remote(Remote),
    /// The scatter/gather list of a receive, and the offset of the bytes within the message.
    Local(&'a [Segment], u32),
}

/// Reason why bytes could not be copied between two queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// The memory of this process cannot be used: its key, bounds or access rights are invalid.
    Local,
    /// The memory of the peer cannot be used: its key, bounds or access rights are invalid.
    Peer,
}

/// Memory that a queue pair can access. An implementation must check the key and the protection
/// domain for every access. An implementation must also prevent the deregistration of a region
/// between the check and the copy.
pub trait Memory {
    /// Copies bytes of a message to `out`, beginning with byte `offset` of the message. The
    /// scatter/gather list `list` names the memory of the message.
    fn gather(&self, list: &[Segment], offset: u32, out: &mut [u8]) -> Result<(), LocalFault>;

    /// Copies `length` bytes of a message to the buffers `parts`, beginning with byte `offset` of
    /// the message. The scatter/gather list `list` names the memory of the message. The buffers
    /// together have `length` bytes.
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

    /// Copies `data` to the memory of the scatter/gather list `list`, beginning at byte `offset` of
    /// that memory.
    fn scatter(&self, list: &[Segment], offset: u32, data: &[u8]) -> Result<(), LocalFault>;

    /// Copies the buffers `parts` to the memory of the scatter/gather list `list`, beginning at
    /// byte `offset` of that memory. The buffers together have `length` bytes.
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

    /// Checks that a peer may access `length` bytes at `address` by the remote key `key` with the
    /// rights `access`. An access to zero bytes needs no key (IBTA 9.7.4.1.5).
    fn check_remote(
        &self,
        key: u32,
        address: u64,
        length: u32,
        access: AccessFlags,
    ) -> Result<(), RemoteFault>;

    /// Copies bytes from the address `address` to `out`. Fails unless the remote key `key` permits
    /// a peer to read these bytes.
    fn read_remote(&self, key: u32, address: u64, out: &mut [u8]) -> Result<(), RemoteFault>;

    /// Copies `data` to the address `address`, in ascending order of addresses. Fails unless the
    /// remote key `key` permits a peer to write there.
    fn write_remote(&self, key: u32, address: u64, data: &[u8]) -> Result<(), RemoteFault>;

    /// Copies the buffers `parts` to the address `address`. The buffers together have `length`
    /// bytes. Fails unless the remote key `key` permits a peer to write there. The bytes are
    /// written in ascending order, because a program may detect a message by polling its last byte.
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

    /// Compares the eight bytes at `address` with `compare`, replaces them by `swap` if they are
    /// equal, and returns the previous value. The operation is atomic, and uses the byte order of
    /// this machine. `key` is the remote key.
    fn compare_swap(
        &self,
        key: u32,
        address: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, RemoteFault>;

    /// Adds `add` to the eight bytes at `address`, and returns the previous value. The operation is
    /// atomic, and uses the byte order of this machine. `key` is the remote key.
    fn fetch_add(&self, key: u32, address: u64, add: u64) -> Result<u64, RemoteFault>;

    /// Writes eight bytes at `address` atomically. `address` must be a multiple of eight, and `key`
    /// is the remote key.
    fn write_word(&self, key: u32, address: u64, bytes: [u8; 8]) -> Result<(), RemoteFault>;

    /// Makes all earlier writes of the peer visible to the program of this side. First checks that
    /// the remote key `key` permits a flush with the rights `access`. `range` is the address and
    /// the length in bytes of the flushed memory; `None` stands for the whole region or window.
    fn flush(
        &self,
        key: u32,
        range: Option<(u64, u32)>,
        access: AccessFlags,
    ) -> Result<(), RemoteFault>;

    /// Prevents new uses of a memory window's present key by other processes, before the window is
    /// bound again. While the result is [`Withdrawal::Pending`], the caller must call this function
    /// again later. Afterwards, the caller must [bind](Self::bind) the window, or permit other
    /// processes to use the key again by [`restore_window`](Self::restore_window). The default
    /// implementation returns [`Withdrawal::Complete`].
    fn withdraw_window(&self, _binding: &WindowBinding) -> Withdrawal {
        Withdrawal::Complete
    }

    /// Prevents new uses of a memory key by other processes, before the key is
    /// [invalidated](Self::invalidate). While the result is [`Withdrawal::Pending`], other
    /// processes still use the key, and the caller must call this function again later. The default
    /// implementation returns [`Withdrawal::Complete`].
    fn withdraw(&self, _key: u32) -> Withdrawal {
        Withdrawal::Complete
    }

    /// Permits other processes to use a memory key again after
    /// [`withdraw_window`](Self::withdraw_window) or [`withdraw`](Self::withdraw). The transport
    /// calls this function if the window will not be bound, or the key will not be invalidated. The
    /// default implementation does nothing.
    fn restore_window(&self, _key: u32) {}

    /// Binds a memory window to a range of a memory region, as `binding` describes.
    fn bind(&self, binding: &WindowBinding) -> Result<(), LocalFault>;

    /// Invalidates a memory key of this side for a local invalidate, which is a send request of
    /// this side.
    fn invalidate(&self, key: u32) -> Result<(), LocalFault>;

    /// Invalidates a memory key of this side for a send with invalidate, which is a message of the
    /// peer.
    fn invalidate_remote(&self, key: u32) -> Result<(), RemoteFault>;

    /// Checks that `length` bytes can be read from the memory of the scatter/gather list `list`,
    /// beginning with the byte `offset` of that memory.
    ///
    /// # Errors
    /// Returns the error with which [`gather`](Self::gather) of the same bytes would fail.
    fn check_local(&self, list: &[Segment], offset: u32, length: u32) -> Result<(), LocalFault> {
        let mut bytes = vec![0; length as usize];
        self.gather(list, offset, &mut bytes)
    }

    /// Copies `length` bytes of the message `message` from this process's memory to the memory `to`
    /// of `peer`. Begins with byte `offset` of the message, and writes in ascending order of
    /// addresses. All keys are checked before the first byte is copied: first those of the message,
    /// then those of `to`.
    fn copy_message(
        &self,
        message: Data<'_>,
        offset: u32,
        length: u32,
        peer: &Self,
        to: Sink<'_>,
    ) -> Result<(), CopyError>
    where
        Self: Sized,
    {
        let mut bytes = vec![0; length as usize];
        match message {
            Data::Inline(inline) => {
                let end = offset as usize + length as usize;
                let part = inline.get(offset as usize..end).ok_or(CopyError::Local)?;
                bytes.copy_from_slice(part);
            }
            Data::Gathered(list) => self
                .gather(list, offset, &mut bytes)
                .map_err(|_| CopyError::Local)?,
        }
        match to {
            Sink::Remote(Remote { address, key }) => peer
                .write_remote(key, address, &bytes)
                .map_err(|_| CopyError::Peer),
            Sink::Local(list, offset) => peer
                .scatter(list, offset, &bytes)
                .map_err(|_| CopyError::Peer),
        }
    }

    /// Copies `length` bytes of the peer's memory `from` to the local memory of the scatter/gather
    /// list `list`, beginning at byte `offset` of the local memory. All keys are checked before the
    /// first byte is copied: first those of the peer, then those of this side.
    fn fetch(
        &self,
        list: &[Segment],
        offset: u32,
        length: u32,
        peer: &Self,
        from: Remote,
    ) -> Result<(), CopyError>
    where
        Self: Sized,
    {
        let mut bytes = vec![0; length as usize];
        peer.read_remote(from.key, from.address, &mut bytes)
            .map_err(|_| CopyError::Peer)?;
        self.scatter(list, offset, &bytes)
            .map_err(|_| CopyError::Local)
    }
}

/// Asynchronous event that concerns one queue pair (IBTA 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A packet arrived while the queue pair was ready to receive, but not ready to send.
    CommunicationEstablished,
    /// The send queue is drained: all started requests have completed.
    SendQueueDrained,
    /// The queue pair failed because of a local error that no completion reports.
    Fatal,
    /// A request of the peer violated the protocol.
    InvalidRequest,
    /// A request of the peer named memory without a valid key or access right.
    AccessViolation,
    /// The queue pair is in the error state and takes no more receives from its shared receive
    /// queue.
    LastRequestReached,
}

/// Statistics counter of the device, for example of packets, messages or errors. The names are
/// those of the hardware counters of the kernel and of vendors.
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
    /// Subset of `SharedWakings`: wakeups of application threads that were waiting on a completion
    /// channel.
    SharedChannelWakings,
}

impl Counter {
    /// Number of statistics counters: the length of an array with one value for each counter.
    pub const COUNT: usize = Self::SharedChannelWakings as usize + 1;
}

/// Environment of a queue pair. Through the environment, the transport accesses memory, takes
/// receive requests, and reports completions, events and counts.
pub trait Host: Memory {
    /// Removes and returns the next receive request of the queue pair, from its own or its shared
    /// receive queue. For an XRC target (receiving half of an XRC connection), takes the request
    /// from the shared receive queue with the number `xrc_srq`. Returns `None` if the queue is
    /// empty.
    fn next_receive(&mut self, xrc_srq: Option<u32>) -> Option<ReceiveRequest>;

    /// Returns whether the XRC shared receive queue `number` exists and belongs to the queue pair's
    /// XRC domain. If not, a request that names the queue is invalid.
    fn has_xrc_srq(&self, number: u32) -> bool;

    /// Reports the completion of a send request to the program.
    fn complete_send(&mut self, completion: Completion);

    /// Reports the completion of a receive to the program. For an XRC target, `xrc_srq` is the
    /// number of the shared receive queue from which the receive was taken. For all other queue
    /// pairs, `xrc_srq` is `None`.
    fn complete_receive(&mut self, completion: Completion, xrc_srq: Option<u32>);

    /// Returns whether another process of the host can map the memory that contains the bytes of
    /// the request. Such a process copies the bytes without a system call. The transport calls this
    /// function once, when the request starts, and stores the result in [`Upcoming::is_mappable`].
    /// An implementation may return `false` if the result makes no difference for the request.
    fn is_mappable(&self, _request: &SendRequest) -> bool {
        false
    }

    /// Returns whether the next bytes of the request, at the position `upcoming`, must be copied to
    /// the peer without packets. If so, these bytes are never sent as packets, even if the copy
    /// must wait: for example, a direct copy to the peer's memory waits until earlier requests are
    /// acknowledged. The default implementation returns `false`: all bytes may be sent as packets.
    fn excludes_packets(&self, _request: &SendRequest, _upcoming: &Upcoming) -> bool {
        false
    }

    /// Informs the host that the requests of this queue pair are about to complete with an error.
    /// This queue pair may have published the locations of message bytes in this process's memory,
    /// from which peers copy the bytes. The implementation must withdraw these locations, because
    /// the program may change the bytes after a completion. The transport calls this function
    /// before the first completion. The default implementation does nothing.
    fn fails(&mut self) {}

    /// Raises an asynchronous event of the queue pair, which the program gets by
    /// `ibv_get_async_event`.
    fn raise(&mut self, event: Event);

    /// Adds `by` to the statistics counter `counter` of the device.
    fn count(&mut self, counter: Counter, by: u64);
}
