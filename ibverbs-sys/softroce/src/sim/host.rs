use std::collections::VecDeque;

use crate::proto::{
    AccessFlags, Completion, Counter, Event, Host, LocalFault, Memory as MemoryAccess,
    ReceiveRequest, RemoteFault, Segment, SendRequest, Upcoming, WindowBinding,
};
use crate::transfer::{Peer, RequestProperties, Transfer, TransferHost, choose};

use super::memory::Memory;
use super::world::{Happening, Notice, QpId};

/// Posted receives of one receive queue, oldest first.
pub(crate) type ReceiveQueue = VecDeque<ReceiveRequest>;

/// Memory, receive queues and counters that a simulated queue pair can use while one of its
/// functions runs. Implements [`Host`], the interface of the protocol code to its environment.
pub(crate) struct View<'a> {
    pub(crate) place: QpId,
    pub(crate) queue_pair: u32,
    pub(crate) memory: &'a Memory,
    /// Receive queue of the queue pair.
    pub(crate) own: &'a mut ReceiveQueue,
    /// Shared receive queues of the node, by number.
    pub(crate) shared: &'a mut [ReceiveQueue],
    /// Number of the shared receive queue from which the queue pair takes receives. `None` if it
    /// uses its own queue.
    pub(crate) from_shared: Option<usize>,
    pub(crate) notices: &'a mut Vec<Notice>,
    pub(crate) counters: &'a mut [u64; Counter::COUNT],
}

impl View<'_> {
    fn tell(&mut self, what: Happening) {
        self.notices.push(Notice::At(self.place, what));
    }
}

impl MemoryAccess for View<'_> {
    fn gather(&self, list: &[Segment], offset: u32, out: &mut [u8]) -> Result<(), LocalFault> {
        self.memory.gather(list, offset, out)
    }

    fn scatter(&self, list: &[Segment], offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        self.memory.scatter(list, offset, data)
    }

    fn check_remote(
        &self,
        key: u32,
        address: u64,
        length: u32,
        access: AccessFlags,
    ) -> Result<(), RemoteFault> {
        if length == 0 {
            return Ok(());
        }
        if access.contains(AccessFlags::REMOTE_ATOMIC) && !address.is_multiple_of(8) {
            return Err(RemoteFault::Invalid);
        }
        let number = self.queue_pair;
        self.memory
            .remote(number, key, address, length, access, |_| ())
    }

    fn read_remote(&self, key: u32, address: u64, out: &mut [u8]) -> Result<(), RemoteFault> {
        if out.is_empty() {
            return Ok(());
        }
        let length = out.len() as u32;
        let access = AccessFlags::REMOTE_READ;
        let number = self.queue_pair;
        self.memory
            .remote(number, key, address, length, access, |bytes| {
                out.copy_from_slice(bytes);
            })
    }

    fn write_remote(&self, key: u32, address: u64, data: &[u8]) -> Result<(), RemoteFault> {
        if data.is_empty() {
            return Ok(());
        }
        let length = data.len() as u32;
        let access = AccessFlags::REMOTE_WRITE;
        let number = self.queue_pair;
        self.memory
            .remote(number, key, address, length, access, |bytes| {
                bytes.copy_from_slice(data);
            })
    }

    fn compare_swap(
        &self,
        key: u32,
        address: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, RemoteFault> {
        self.atomic(key, address, |was| if was == compare { swap } else { was })
    }

    fn fetch_add(&self, key: u32, address: u64, add: u64) -> Result<u64, RemoteFault> {
        self.atomic(key, address, |was| was.wrapping_add(add))
    }

    fn write_word(&self, key: u32, address: u64, bytes: [u8; 8]) -> Result<(), RemoteFault> {
        if !address.is_multiple_of(8) {
            return Err(RemoteFault::Invalid);
        }
        self.write_remote(key, address, &bytes)
    }

    fn flush(
        &self,
        key: u32,
        range: Option<(u64, u32)>,
        access: AccessFlags,
    ) -> Result<(), RemoteFault> {
        // The simulated requests flush ranges.
        let (address, length) = range.ok_or(RemoteFault::Access)?;
        self.check_remote(key, address, length, access)
    }

    fn bind(&self, binding: &WindowBinding) -> Result<(), LocalFault> {
        self.memory.bind(self.queue_pair, binding)
    }

    fn invalidate(&self, key: u32) -> Result<(), LocalFault> {
        let done = self.memory.invalidate(self.queue_pair, key);
        done.then_some(()).ok_or(LocalFault::Bind)
    }

    fn invalidate_remote(&self, key: u32) -> Result<(), RemoteFault> {
        let done = self.memory.invalidate(self.queue_pair, key);
        done.then_some(()).ok_or(RemoteFault::Access)
    }
}

impl View<'_> {
    fn atomic(
        &self,
        key: u32,
        address: u64,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<u64, RemoteFault> {
        if !address.is_multiple_of(8) {
            return Err(RemoteFault::Invalid);
        }
        let access = AccessFlags::REMOTE_ATOMIC;
        let number = self.queue_pair;
        self.memory
            .remote(number, key, address, 8, access, |bytes| {
                let mut eight = [0; 8];
                eight.copy_from_slice(bytes);
                let was = u64::from_ne_bytes(eight);
                bytes.copy_from_slice(&change(was).to_ne_bytes());
                was
            })
    }
}

/// Implementation for simulated nodes, which share no memory. Short messages are sent as
/// [`RingMessage`](crate::transfer::RingMessage)s (messages without packet headers), and all other
/// messages as packets.
impl TransferHost for View<'_> {
    fn transfer(&self, request: &SendRequest, upcoming: &Upcoming) -> Transfer {
        match choose(&RequestProperties::of(request, upcoming), Peer::SameHost) {
            Transfer::Slot => Transfer::Slot,
            _ => Transfer::Packets,
        }
    }
}

impl Host for View<'_> {
    fn next_receive(&mut self, xrc_srq: Option<u32>) -> Option<ReceiveRequest> {
        let number = xrc_srq.map(|number| number as usize).or(self.from_shared);
        match number {
            Some(number) => self.shared.get_mut(number)?.pop_front(),
            None => self.own.pop_front(),
        }
    }

    fn has_xrc_srq(&self, number: u32) -> bool {
        (number as usize) < self.shared.len()
    }

    fn complete_send(&mut self, completion: Completion) {
        self.tell(Happening::Sent(completion));
    }

    fn complete_receive(&mut self, completion: Completion, xrc_srq: Option<u32>) {
        self.tell(Happening::Received(completion, xrc_srq));
    }

    fn raise(&mut self, event: Event) {
        self.tell(Happening::Raised(event));
    }

    fn count(&mut self, counter: Counter, by: u64) {
        self.counters[counter as usize] += by;
    }
}
