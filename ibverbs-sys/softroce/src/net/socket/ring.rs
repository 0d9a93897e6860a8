use std::alloc::{self, Layout};
use std::ptr::NonNull;

use libc::{iovec, mmsghdr};

use super::Message;
use super::control::{Control, Controls};
use super::name::Name;
use crate::net::{FRONT, GRAIN};

/// Messages that come in one system call at most. What they fill shall still be in the processor's cache when it
/// is looked at.
pub(super) const MESSAGES: usize = 8;

/// Room for what comes as one: the system puts datagrams together up to this size.
pub(super) const ROOM: usize = 1 << 16;

/// Messages that came together, and the room for them.
pub(crate) struct Ring {
    /// Owned, from the allocator. Reached by this pointer only, as the headers in it point into it.
    storage: NonNull<Storage>,
    /// How many headers the kernel has filled since they were prepared.
    filled: usize,
}

// SAFETY: the allocation belongs to the ring alone; what points into it is inside.
unsafe impl Send for Ring {}

#[repr(C)]
struct Storage {
    headers: [mmsghdr; MESSAGES],
    vectors: [iovec; MESSAGES],
    names: [Name; MESSAGES],
    controls: [Controls; MESSAGES],
    /// Pages that nothing came into yet take no memory.
    places: [Place; MESSAGES],
}

/// Where a message comes.
#[repr(C, align(16))]
struct Place {
    front: [u8; FRONT],
    bytes: [u8; ROOM],
}

const _: () = assert!(align_of::<Place>() == GRAIN);

impl Ring {
    pub(crate) fn new() -> Self {
        let layout = Layout::new::<Storage>();
        // SAFETY: the layout has a size.
        let allocated = unsafe { alloc::alloc_zeroed(layout) }.cast::<Storage>();
        let Some(storage) = NonNull::new(allocated) else {
            alloc::handle_alloc_error(layout);
        };
        let pointer = storage.as_ptr();
        for i in 0..MESSAGES {
            // SAFETY: all is inside the allocation, which is zeroed: numbers and null pointers.
            unsafe {
                (*pointer).vectors[i] = iovec {
                    iov_base: (&raw mut (*pointer).places[i].bytes).cast(),
                    iov_len: ROOM,
                };
                let header = &mut (*pointer).headers[i].msg_hdr;
                header.msg_name = (&raw mut (*pointer).names[i]).cast();
                header.msg_iov = &raw mut (*pointer).vectors[i];
                header.msg_iovlen = 1;
                header.msg_control = (&raw mut (*pointer).controls[i]).cast();
            }
        }
        Self {
            storage,
            filled: MESSAGES,
        }
    }

    /// The headers for the kernel to fill, with the lengths set again that it changed, and how many. Where nothing came the last
    /// time it is one: who waits for a message then does not pay for a look at whether there is another.
    pub(super) fn prepare(&mut self) -> (*mut mmsghdr, usize) {
        let count = if self.filled == 0 { 1 } else { MESSAGES };
        let storage = self.storage.as_ptr();
        for i in 0..self.filled {
            // SAFETY: `filled` is at most MESSAGES, and the ring is borrowed mutably.
            let header = unsafe { &mut (*storage).headers[i].msg_hdr };
            header.msg_namelen = size_of::<Name>() as _;
            header.msg_controllen = size_of::<Controls>() as _;
        }
        self.filled = 0;
        // SAFETY: the headers are inside the allocation.
        let headers = unsafe { (&raw mut (*storage).headers).cast() };
        (headers, count)
    }

    /// The kernel has filled so many headers, of those that [`prepare`](Self::prepare) gave out.
    pub(super) fn fill(&mut self, filled: usize) {
        self.filled = filled.min(MESSAGES);
    }

    /// The message at an index below what [`super::Socket::receive`] said.
    pub(crate) fn message(&self, index: usize) -> Message<'_> {
        assert!(index < self.filled);
        let storage = self.storage.as_ptr();
        // SAFETY: the index is inside, the kernel is not at it while the ring is borrowed, and what is borrowed here is
        // written only with the ring borrowed mutably.
        let (header, name, controls, bytes) = unsafe {
            (
                &(*storage).headers[index],
                &(*storage).names[index],
                &(*storage).controls[index],
                &(*storage).places[index].bytes,
            )
        };
        let present = header.msg_hdr.msg_controllen / size_of::<Control>();
        let said = Control::read(&controls[..present.min(controls.len())]);
        let bytes = &bytes[..(header.msg_len as usize).min(ROOM)];
        Message {
            bytes,
            segment: said.segment.unwrap_or(bytes.len()).max(1),
            from: name.address(),
            traffic_class: said.traffic_class,
            hop_limit: said.hop_limit,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and holds nothing that needs to be dropped.
        unsafe { alloc::dealloc(self.storage.as_ptr().cast(), Layout::new::<Storage>()) };
    }
}
