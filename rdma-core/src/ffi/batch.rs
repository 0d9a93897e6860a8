//! Room for the requests of a doorbell batch, allocated once.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use ibverbs_sys as sys;

use super::elements::MAX_ELEMENTS;
use super::request::Room;

/// A work request that points at the next of its list.
///
/// # Safety
///
/// `link` does nothing but to set that pointer, and reads nothing.
pub(crate) unsafe trait Linked {
    /// # Safety
    ///
    /// `this` is the place of one, which need not be whole.
    unsafe fn link(this: *mut Self, next: *mut Self);
}

// SAFETY: it does nothing else.
unsafe impl Linked for sys::ibv_send_wr {
    #[inline]
    unsafe fn link(this: *mut Self, next: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { (&raw mut (*this).next).write(next) };
    }
}

// SAFETY: it does nothing else.
unsafe impl Linked for sys::ibv_recv_wr {
    #[inline]
    unsafe fn link(this: *mut Self, next: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { (&raw mut (*this).next).write(next) };
    }
}

/// Work requests in a row, each with its elements.
///
/// The places are reached through raw pointers only: requests point at each other and at elements.
pub(super) struct BatchRoom<W: Linked> {
    requests: NonNull<MaybeUninit<W>>,
    elements: NonNull<MaybeUninit<sys::ibv_sge>>,
    capacity: usize,
    /// How many elements each request has room for.
    width: usize,
    owns: PhantomData<W>,
}

// SAFETY: the pointers in the requests mean something only between description and posting, both of
// which take the room exclusively.
unsafe impl<W: Linked> Send for BatchRoom<W> {}
// SAFETY: a shared room gives out nothing.
unsafe impl<W: Linked> Sync for BatchRoom<W> {}

impl<W: Linked> BatchRoom<W> {
    /// Room for `capacity` requests of at most `width` elements. It takes no physical memory before
    /// it is used.
    pub(super) fn new(capacity: usize, width: u32) -> Self {
        let width = MAX_ELEMENTS.min(width as usize);
        let requests = Box::into_raw(Box::<[W]>::new_uninit_slice(capacity));
        let elements = Box::into_raw(Box::<[sys::ibv_sge]>::new_uninit_slice(capacity * width));
        Self {
            requests: NonNull::new(requests.cast()).expect("a box is not null"),
            elements: NonNull::new(elements.cast()).expect("a box is not null"),
            capacity,
            width,
            owns: PhantomData,
        }
    }

    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The place of a request, and the room for its elements.
    ///
    /// # Panics
    ///
    /// If there is no such place.
    #[inline]
    pub(super) fn place(&mut self, index: usize) -> (&mut MaybeUninit<W>, &mut Room) {
        assert!(index < self.capacity, "place {index} of {}", self.capacity);
        // SAFETY: the place is inside of the allocations, which this owns, and borrowed exclusively
        // with `self`; no two places overlap.
        unsafe {
            let room = self.elements.add(index * self.width);
            (
                self.requests.add(index).as_mut(),
                std::slice::from_raw_parts_mut(room.as_ptr(), self.width),
            )
        }
    }

    /// Makes a list of the requests at `first` and the `count - 1` places behind it, and returns
    /// its first.
    ///
    /// # Safety
    ///
    /// They have been described, as much of each as its operation needs, and there is at least one.
    #[inline]
    pub(super) unsafe fn chain(&mut self, first: usize, count: usize) -> &mut W {
        debug_assert!(count > 0 && first + count <= self.capacity);
        // SAFETY: the places are inside of the allocation, and described, as the caller promises.
        unsafe {
            let start: *mut W = self.requests.add(first).as_ptr().cast();
            for index in 0..count - 1 {
                W::link(start.add(index), start.add(index + 1));
            }
            W::link(start.add(count - 1), std::ptr::null_mut());
            &mut *start
        }
    }

    /// Which place a request is at, if at any.
    pub(super) fn index_of(&self, request: *mut W) -> Option<usize> {
        let start = self.requests.as_ptr() as usize;
        let bytes = (request as usize).checked_sub(start)?;
        let index = bytes / size_of::<W>();
        (bytes.is_multiple_of(size_of::<W>()) && index < self.capacity).then_some(index)
    }
}

/// How many of the `count` requests at `first` and behind were posted, if the one at `bad` is the
/// first that was not.
#[cold]
pub(super) fn posted_before(bad: Option<usize>, first: usize, count: usize) -> usize {
    match bad {
        Some(bad) if (first..first + count).contains(&bad) => bad - first,
        // It names none of them: any may have been posted, so the memory of all of them is kept.
        _ => {
            tracing::error!("the driver refused a list of requests and named none of them");
            count
        }
    }
}

impl<W: Linked> Drop for BatchRoom<W> {
    fn drop(&mut self) {
        let requests = std::ptr::slice_from_raw_parts_mut(self.requests.as_ptr(), self.capacity);
        let elements =
            std::ptr::slice_from_raw_parts_mut(self.elements.as_ptr(), self.capacity * self.width);
        // SAFETY: both came out of boxes of these lengths in `new`, and are freed once, here. The
        // plain C structs in them need no drop.
        unsafe {
            drop(Box::from_raw(requests));
            drop(Box::from_raw(elements));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut room = BatchRoom::<sys::ibv_recv_wr>::new(4, 2);
        for index in 0..4 {
            let (place, elements) = room.place(index);
            assert_eq!(elements.len(), 2);
            place.write(sys::ibv_recv_wr {
                wr_id: index as u64,
                ..empty()
            });
        }
        // SAFETY: all four have been written.
        let mut next: *mut sys::ibv_recv_wr = unsafe { room.chain(1, 3) };
        let mut ids = Vec::new();
        // SAFETY: the list is of the room, which is not touched meanwhile.
        while let Some(request) = unsafe { next.as_ref() } {
            assert_eq!(room.index_of(next), Some(request.wr_id as usize));
            ids.push(request.wr_id);
            next = request.next;
        }
        assert_eq!(ids, [1, 2, 3]);
    }

    #[test]
    fn what_is_not_in_the_room_has_no_index() {
        let mut room = BatchRoom::<sys::ibv_recv_wr>::new(2, 1);
        let mut other = empty();
        assert_eq!(room.index_of(&mut other), None);
        assert_eq!(room.index_of(std::ptr::null_mut()), None);
        room.place(0).0.write(empty());
        // SAFETY: the first has been written.
        let first: *mut sys::ibv_recv_wr = unsafe { room.chain(0, 1) };
        assert_eq!(room.index_of(first), Some(0));
        assert_eq!(room.index_of(first.wrapping_byte_add(1)), None);
        assert_eq!(room.index_of(first.wrapping_add(2)), None);
    }

    #[test]
    fn room_for_nothing_is_none() {
        let room = BatchRoom::<sys::ibv_send_wr>::new(0, 4);
        assert_eq!(room.capacity(), 0);
        drop(room);
        drop(BatchRoom::<sys::ibv_send_wr>::new(4, 0));
    }
}
