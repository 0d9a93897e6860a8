use std::alloc::{self, Layout};
use std::ptr::NonNull;

use libc::{iovec, mmsghdr};

use super::Message;
use super::control::{ControlMessage, ControlMessages};
use super::raw_socket_address::RawSocketAddress;
use crate::net::{ALIGN, OFFSET};

/// Maximum number of messages that one system call receives. The number is small, so that the
/// messages are still in the processor's cache when they are processed.
pub(super) const MAX_MESSAGES: usize = 8;

/// Size in bytes of the buffer for one received message, in which the kernel may merge several
/// datagrams. Larger messages do not exist, because the kernel merges only up to this size.
pub(super) const BUFFER_SIZE: usize = 1 << 16;

/// Buffers for the messages that one system call receives.
pub(crate) struct Ring {
    /// Pointer to the owned allocation. All accesses use this pointer, because the headers in the
    /// allocation contain pointers into it.
    storage: NonNull<Storage>,
    /// Number of headers that the kernel has filled since the last [`prepare`](Self::prepare).
    filled: usize,
}

// SAFETY: the ring alone owns the allocation, and all pointers in it point into the allocation.
unsafe impl Send for Ring {}

#[repr(C)]
struct Storage {
    headers: [mmsghdr; MAX_MESSAGES],
    vectors: [iovec; MAX_MESSAGES],
    names: [RawSocketAddress; MAX_MESSAGES],
    controls: [ControlMessages; MAX_MESSAGES],
    /// Buffers for the bytes of the messages. Unused pages of the buffers take no memory.
    places: [MessageBuffer; MAX_MESSAGES],
}

/// Buffer for the bytes of one received message. The message begins at the offset [`OFFSET`], so
/// that the payloads of packets are aligned.
#[repr(C, align(16))]
struct MessageBuffer {
    front: [u8; OFFSET],
    bytes: [u8; BUFFER_SIZE],
}

const _: () = assert!(align_of::<MessageBuffer>() == ALIGN);

impl Ring {
    pub(crate) fn new() -> Self {
        let layout = Layout::new::<Storage>();
        // SAFETY: the size of the layout is not 0.
        let allocated = unsafe { alloc::alloc_zeroed(layout) }.cast::<Storage>();
        let Some(storage) = NonNull::new(allocated) else {
            alloc::handle_alloc_error(layout);
        };
        let pointer = storage.as_ptr();
        for i in 0..MAX_MESSAGES {
            // SAFETY: everything is inside the allocation, which is zeroed: valid integers and null
            // pointers.
            unsafe {
                (*pointer).vectors[i] = iovec {
                    iov_base: (&raw mut (*pointer).places[i].bytes).cast(),
                    iov_len: BUFFER_SIZE,
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
            filled: MAX_MESSAGES,
        }
    }

    /// Prepares the message headers for the next system call that receives datagrams. Returns a
    /// pointer to the headers, and the number of messages to receive. Sets the lengths in the
    /// headers to the buffer sizes again, because the last call has changed the lengths. The number
    /// of messages is 1 if `is_single` is set, because a call for a single message is cheaper.
    pub(super) fn prepare(&mut self, is_single: bool) -> (*mut mmsghdr, usize) {
        let count = if is_single { 1 } else { MAX_MESSAGES };
        let storage = self.storage.as_ptr();
        for i in 0..self.filled {
            // SAFETY: `filled` is at most MESSAGES, and the ring is borrowed mutably.
            let header = unsafe { &mut (*storage).headers[i].msg_hdr };
            header.msg_namelen = size_of::<RawSocketAddress>() as _;
            header.msg_controllen = size_of::<ControlMessages>() as _;
        }
        self.filled = 0;
        // SAFETY: the headers are inside the allocation.
        let headers = unsafe { (&raw mut (*storage).headers).cast() };
        (headers, count)
    }

    /// Records that the kernel has received `filled` messages into these buffers since the call of
    /// [`prepare`](Self::prepare).
    pub(super) fn fill(&mut self, filled: usize) {
        self.filled = filled.min(MAX_MESSAGES);
    }

    /// Returns the received message with the index `index`, which must be below the result of
    /// [`super::Socket::receive`].
    pub(crate) fn message(&self, index: usize) -> Message<'_> {
        assert!(index < self.filled);
        let storage = self.storage.as_ptr();
        // SAFETY: the index is inside the arrays. The kernel does not write while the ring is
        // borrowed, and the referenced fields are written only while the ring is borrowed mutably.
        let (header, name, controls, bytes) = unsafe {
            (
                &(*storage).headers[index],
                &(*storage).names[index],
                &(*storage).controls[index],
                &(*storage).places[index].bytes,
            )
        };
        let present = header.msg_hdr.msg_controllen / size_of::<ControlMessage>();
        let said = ControlMessage::read(&controls[..present.min(controls.len())]);
        let bytes = &bytes[..(header.msg_len as usize).min(BUFFER_SIZE)];
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
        // SAFETY: the storage was allocated with this layout, and contains nothing that needs to be
        // dropped.
        unsafe { alloc::dealloc(self.storage.as_ptr().cast(), Layout::new::<Storage>()) };
    }
}
