//! Memory for the requests of a batch (requests that are posted in one call). Each thread allocates
//! the memory once and reuses it.
//!
//! The C structs of requests are needed only until the requests are posted, so this memory does not
//! belong to a queue: the memory of many queues would together exceed the processor's cache. Each
//! thread keeps up to two unused blocks of memory for send batches, and two for receive batches.
//! Two batches of each kind can therefore be built at the same time without an allocation.

use std::cell::Cell;
use std::mem::{self, MaybeUninit};
use std::ptr::NonNull;
use std::thread::LocalKey;

use ibverbs_sys as sys;

use super::elements::MAX_ELEMENTS;
use super::request::Room;

/// The C struct of a work request: `ibv_send_wr` or `ibv_recv_wr`. The struct contains a pointer to
/// the next request, so that one verb call posts a linked list of requests.
///
/// # Safety
///
/// The implementation of `link` must write only the pointer to the next request, and must read
/// nothing.
pub(crate) unsafe trait Linked: Sized + 'static {
    /// Makes `next` the successor of the request at `this` in a linked list of requests. A null
    /// `next` ends the list.
    ///
    /// # Safety
    ///
    /// `this` must be valid for writes of a request. The request need not be initialised.
    unsafe fn link(this: *mut Self, next: *mut Self);

    /// Returns the thread-local variable that stores the thread's unused memory for requests of
    /// this type. Later batches of the thread reuse that memory.
    fn spare() -> &'static LocalKey<Cell<SpareMemory<Self>>>;
}

// SAFETY: `link` only writes the pointer `next`.
unsafe impl Linked for sys::ibv_send_wr {
    #[inline]
    unsafe fn link(this: *mut Self, next: *mut Self) {
        // SAFETY: the caller guarantees that `this` is valid for writes.
        unsafe { (&raw mut (*this).next).write(next) };
    }

    #[inline]
    fn spare() -> &'static LocalKey<Cell<SpareMemory<Self>>> {
        thread_local!(static SPARE: Cell<SpareMemory<sys::ibv_send_wr>> = const { Cell::new(SpareMemory::NONE) });
        &SPARE
    }
}

// SAFETY: `link` only writes the pointer `next`.
unsafe impl Linked for sys::ibv_recv_wr {
    #[inline]
    unsafe fn link(this: *mut Self, next: *mut Self) {
        // SAFETY: the caller guarantees that `this` is valid for writes.
        unsafe { (&raw mut (*this).next).write(next) };
    }

    #[inline]
    fn spare() -> &'static LocalKey<Cell<SpareMemory<Self>>> {
        thread_local!(static SPARE: Cell<SpareMemory<sys::ibv_recv_wr>> = const { Cell::new(SpareMemory::NONE) });
        &SPARE
    }
}

/// Allocated memory for the requests of a batch and for the scatter/gather elements of these
/// requests.
///
/// The memory is accessed only through raw pointers, because the requests contain pointers to each
/// other and to elements.
pub(crate) struct BatchMemory<W> {
    requests: NonNull<MaybeUninit<W>>,
    elements: NonNull<MaybeUninit<sys::ibv_sge>>,
    /// The numbers of requests and of elements for which memory is allocated.
    counts: (usize, usize),
}

impl<W> BatchMemory<W> {
    const NONE: Self = Self {
        requests: NonNull::dangling(),
        elements: NonNull::dangling(),
        counts: (0, 0),
    };

    #[cold]
    #[inline(never)]
    fn new(requests: usize, elements: usize) -> Self {
        let counts = (requests, elements);
        let requests = Box::<[W]>::new_uninit_slice(requests);
        let elements = Box::<[sys::ibv_sge]>::new_uninit_slice(elements);
        let (requests, elements) = (Box::into_raw(requests), Box::into_raw(elements));
        Self {
            requests: NonNull::new(requests.cast()).expect("a box is not null"),
            elements: NonNull::new(elements.cast()).expect("a box is not null"),
            counts,
        }
    }

    #[inline]
    fn has(&self, requests: usize, elements: usize) -> bool {
        self.counts.0 >= requests && self.counts.1 >= elements
    }
}

impl<W> Default for BatchMemory<W> {
    #[inline]
    fn default() -> Self {
        Self::NONE
    }
}

impl<W> Drop for BatchMemory<W> {
    #[inline]
    fn drop(&mut self) {
        let (requests, elements) = self.counts;
        if (requests, elements) == (0, 0) {
            return;
        }
        let requests = std::ptr::slice_from_raw_parts_mut(self.requests.as_ptr(), requests);
        let elements = std::ptr::slice_from_raw_parts_mut(self.elements.as_ptr(), elements);
        // SAFETY: `new` has created both pointers from boxes of these lengths, which are freed
        // once, here. (An empty box has no memory, and neither has a dangling pointer.) The plain C
        // structs in them need no drop.
        unsafe {
            drop(Box::from_raw(requests));
            drop(Box::from_raw(elements));
        }
    }
}

/// Up to two unused blocks of memory that a thread keeps for its next batches, so that a batch need
/// not allocate. `W` is the C struct of a request.
///
/// The most recently used block is the first.
pub(crate) struct SpareMemory<W> {
    first: BatchMemory<W>,
    second: BatchMemory<W>,
}

impl<W> SpareMemory<W> {
    const NONE: Self = Self {
        first: BatchMemory::NONE,
        second: BatchMemory::NONE,
    };

    /// Removes and returns one of the two unused blocks of memory. Prefers a block with room for
    /// `requests` requests and `elements` scatter/gather elements. The caller must check the size
    /// of the returned block, because the block can be too small.
    #[inline]
    fn take(&mut self, requests: usize, elements: usize) -> BatchMemory<W> {
        if self.first.has(requests, elements) {
            mem::take(&mut self.first)
        } else {
            mem::take(&mut self.second)
        }
    }

    /// Keeps `places`, the memory of a finished batch, for later batches of this thread. The thread
    /// keeps at most two blocks of memory: `places`, and the larger of the two blocks kept before.
    #[inline]
    fn keep(&mut self, places: BatchMemory<W>) {
        let last = mem::replace(&mut self.first, places);
        if last.counts > self.second.counts {
            self.second = last;
        }
    }
}

impl<W> Default for SpareMemory<W> {
    #[inline]
    fn default() -> Self {
        Self::NONE
    }
}

/// The memory of one batch under construction: its work requests and their scatter/gather elements.
pub(super) struct BatchStorage<W: Linked> {
    places: BatchMemory<W>,
    /// Maximum number of requests, or 0 while no memory is assigned.
    capacity: usize,
    /// Maximum number of elements of each request.
    width: usize,
}

// SAFETY: the pointers in the requests are used only from filling in to posting, both of which
// borrow the room exclusively.
unsafe impl<W: Linked> Send for BatchStorage<W> {}
// SAFETY: a shared reference gives no access to the storage.
unsafe impl<W: Linked> Sync for BatchStorage<W> {}

impl<W: Linked> BatchStorage<W> {
    /// A storage without memory, for initialisation. A storage also has no memory while no batch is
    /// being built.
    pub(super) const CLOSED: Self = Self {
        places: BatchMemory::NONE,
        capacity: 0,
        width: 0,
    };

    /// Gets memory for a batch of `capacity` requests with at most `width` scatter/gather elements
    /// each. Reuses the memory of an earlier batch if that memory is large enough, and otherwise
    /// allocates new memory.
    #[inline]
    pub(super) fn open(&mut self, capacity: usize, width: usize) {
        let width = MAX_ELEMENTS.min(width);
        let elements = capacity * width;
        if !self.places.has(capacity, elements) {
            let lent = W::spare().try_with(|cell| {
                let mut spare = cell.take();
                let places = spare.take(capacity, elements);
                cell.set(spare);
                places
            });
            // If the thread is terminating, its thread-local storage may already be destroyed.
            self.places = lent.unwrap_or_default();
        }
        if !self.places.has(capacity, elements) {
            let (requests, all) = self.places.counts;
            self.places = BatchMemory::new(requests.max(capacity), all.max(elements));
        }
        (self.capacity, self.width) = (capacity, width);
    }

    /// Ends the current batch, and removes the memory from this storage. The current thread keeps
    /// the memory for its later batches.
    #[inline]
    pub(super) fn close(&mut self) {
        self.capacity = 0;
        let places = mem::take(&mut self.places);
        // If the thread is terminating, this memory is freed instead of kept.
        let _ = W::spare().try_with(|cell| {
            let mut spare = cell.take();
            spare.keep(places);
            cell.set(spare);
        });
    }

    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the uninitialised memory for the request at `index`, and the uninitialised memory
    /// for its scatter/gather elements. The caller fills in both.
    ///
    /// # Panics
    ///
    /// Panics if `index` is not less than the capacity.
    #[inline]
    pub(super) fn place(&mut self, index: usize) -> (&mut MaybeUninit<W>, &mut Room) {
        assert!(index < self.capacity, "place {index} of {}", self.capacity);
        // SAFETY: the place is inside the allocations: `open` has allocated as many as the
        // capacity, of that width, and `close` sets the capacity to 0. The room owns the
        // allocations, `self` is borrowed exclusively, and no two places overlap.
        unsafe {
            let room = self.places.elements.add(index * self.width);
            (
                self.places.requests.add(index).as_mut(),
                std::slice::from_raw_parts_mut(room.as_ptr(), self.width),
            )
        }
    }

    /// Links `count` consecutive requests into a linked list, beginning with the request at index
    /// `first`. Returns the first request.
    ///
    /// # Safety
    ///
    /// The requests must be filled in as far as their operations need. `count` must be at least 1.
    #[inline]
    pub(super) unsafe fn chain(&mut self, first: usize, count: usize) -> &mut W {
        debug_assert!(count > 0 && first + count <= self.capacity);
        // SAFETY: the places are inside the allocation; the caller guarantees filled-in requests.
        unsafe {
            let start: *mut W = self.places.requests.add(first).as_ptr().cast();
            for index in 0..count - 1 {
                W::link(start.add(index), start.add(index + 1));
            }
            W::link(start.add(count - 1), std::ptr::null_mut());
            &mut *start
        }
    }

    /// Returns the index in this storage of the request at the address `request`, or `None` if the
    /// request is not in this storage.
    pub(super) fn index_of(&self, request: *mut W) -> Option<usize> {
        let start = self.places.requests.as_ptr() as usize;
        let bytes = (request as usize).checked_sub(start)?;
        let index = bytes / size_of::<W>();
        (bytes.is_multiple_of(size_of::<W>()) && index < self.capacity).then_some(index)
    }
}

/// Returns the number of requests of a list that were posted before the driver refused a request.
/// The list consists of the `count` requests from index `first` on. `bad` is the index of the first
/// request that was not posted. If `bad` is not in the list, returns `count`, because each request
/// of the list may have been posted. The memory of all requests must then be kept.
#[cold]
pub(super) fn posted_before(bad: Option<usize>, first: usize, count: usize) -> usize {
    match bad {
        Some(bad) if (first..first + count).contains(&bad) => bad - first,
        // The driver reported a failure but no request of the list as refused. Each request may
        // have been posted, so the memory of all requests is kept.
        _ => {
            tracing::error!("the driver refused a list of requests and named none of them");
            count
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(capacity: usize, width: usize) -> BatchStorage<sys::ibv_recv_wr> {
        let mut room = BatchStorage::CLOSED;
        room.open(capacity, width);
        room
    }

    fn empty() -> sys::ibv_recv_wr {
        sys::ibv_recv_wr {
            wr_id: 0,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
        }
    }

    #[test]
    fn requests_are_chained_in_their_order() {
        let mut room = open(4, 2);
        for index in 0..4 {
            let (place, elements) = room.place(index);
            assert_eq!(elements.len(), 2);
            place.write(sys::ibv_recv_wr {
                wr_id: index as u64,
                ..empty()
            });
        }
        // SAFETY: all four requests have been written.
        let mut next: *mut sys::ibv_recv_wr = unsafe { room.chain(1, 3) };
        let mut ids = Vec::new();
        // SAFETY: the list is in the room, which is not changed meanwhile.
        while let Some(request) = unsafe { next.as_ref() } {
            assert_eq!(room.index_of(next), Some(request.wr_id as usize));
            ids.push(request.wr_id);
            next = request.next;
        }
        assert_eq!(ids, [1, 2, 3]);
    }

    #[test]
    fn a_request_outside_of_the_storage_has_no_index() {
        let mut room = open(2, 1);
        let mut other = empty();
        assert_eq!(room.index_of(&mut other), None);
        assert_eq!(room.index_of(std::ptr::null_mut()), None);
        room.place(0).0.write(empty());
        // SAFETY: the first request has been written.
        let first: *mut sys::ibv_recv_wr = unsafe { room.chain(0, 1) };
        assert_eq!(room.index_of(first), Some(0));
        assert_eq!(room.index_of(first.wrapping_byte_add(1)), None);
        assert_eq!(room.index_of(first.wrapping_add(2)), None);
    }

    #[test]
    fn a_storage_for_no_request_is_empty() {
        assert_eq!(open(0, 4).capacity(), 0);
        drop(open(4, 0));
        let mut room = open(4, 1);
        room.close();
        assert_eq!(room.capacity(), 0);
    }

    #[test]
    fn batches_of_a_thread_reuse_its_memory() {
        let place = |room: &mut BatchStorage<_>| room.place(0).0.as_ptr();
        let (mut one, mut other) = (open(8, 2), BatchStorage::CLOSED);
        let here = place(&mut one);
        one.close();
        other.open(4, 4);
        assert_eq!(place(&mut other), here);
        // The other batch is still under construction.
        one.open(4, 4);
        let there = place(&mut one);
        assert_ne!(there, here);
        // The storage of a leaked batch is reused.
        other.open(8, 2);
        assert_eq!(place(&mut other), here);
        // From now on, two batches under construction at the same time use these two storages.
        for _ in 0..3 {
            one.close();
            other.close();
            other.open(3, 1);
            one.open(4, 4);
            assert_eq!((place(&mut one), place(&mut other)), (there, here));
        }
        // A batch that is larger than both storages gets memory of its own.
        let mut more = open(9, 1);
        more.place(8).0.write(empty());
        more.close();
    }

    #[test]
    fn memory_moves_with_a_batch_to_another_thread() {
        let mut room = open(4, 1);
        room.place(3).0.write(empty());
        let here = room.place(0).0.as_ptr() as usize;
        let elsewhere = std::thread::spawn(move || {
            room.close();
            let mut next = open(2, 2);
            let place = next.place(0).0.as_ptr() as usize;
            next.close();
            place
        });
        assert_eq!(elsewhere.join().unwrap(), here);
    }

    #[test]
    fn a_terminating_thread_can_build_a_batch() {
        struct Late;
        impl Drop for Late {
            fn drop(&mut self) {
                let mut room = open(2, 1);
                room.place(1).0.write(empty());
                room.close();
            }
        }
        thread_local!(static LATE: Late = const { Late });
        // Checks both orders in which the two thread-local values can be destroyed.
        for late_first in [true, false] {
            let thread = std::thread::spawn(move || {
                if late_first {
                    LATE.with(|_| {});
                }
                open(2, 1).close();
                LATE.with(|_| {});
            });
            thread.join().unwrap();
        }
    }
}
