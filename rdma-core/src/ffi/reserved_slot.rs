//! A guard for a reserved slot, which gives the slot back to its table unless a request uses it.

use std::fmt;
use std::mem;

use super::slot_table::{Reserved, SlotTable};

/// A guard of a reserved slot, the place in a slot table for the memory of one request. Dropping
/// the guard gives the slot back to the table.
pub(crate) struct SlotGuard<'t> {
    reserved: Reserved,
    table: &'t (dyn CancelReservation + Sync),
}

/// A slot table (memory of the requests in flight) to which a reserved slot can be given back. The
/// trait hides the type of the memory in the slots.
trait CancelReservation {
    fn cancel(&self, reserved: Reserved);
}

impl<T: Send> CancelReservation for SlotTable<T> {
    fn cancel(&self, reserved: Reserved) {
        Self::cancel(self, reserved);
    }
}

impl fmt::Debug for SlotGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SlotGuard")
            .field(&self.reserved.index())
            .finish()
    }
}

impl<'t> SlotGuard<'t> {
    #[inline]
    pub(super) fn new<T: Send>(table: &'t SlotTable<T>, reserved: Reserved) -> Self {
        Self { reserved, table }
    }

    /// Returns the index of the reserved slot in its table.
    #[inline]
    pub(crate) fn index(&self) -> u32 {
        self.reserved.index()
    }

    #[inline]
    pub(super) fn reserved(&self) -> &Reserved {
        &self.reserved
    }

    /// Ends the guard, and returns the reservation of the slot. The slot is not given back to the
    /// table: the caller must use the slot for a request, or return the slot to the table.
    #[inline]
    pub(crate) fn into_reserved(self) -> Reserved {
        let reserved = self.reserved.duplicate();
        mem::forget(self);
        reserved
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        self.table.cancel(self.reserved.duplicate());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_goes_back_unless_it_was_taken_out() {
        let table = SlotTable::<u8>::new(1);
        let guard = || Some(SlotGuard::new(&table, table.reserve()?));
        for _ in 0..3 {
            assert!(guard().is_some(), "the one before was dropped");
        }
        let reserved = guard().unwrap().into_reserved();
        assert!(guard().is_none());
        table.launch(&reserved, 7);
        assert_eq!(table.withdraw(reserved), 7);
        assert!(guard().is_some());
    }
}
