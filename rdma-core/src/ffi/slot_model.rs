//! Loom models of the slot table. The models explore every interleaving of the threads, and every
//! value that their loads may return.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test --release -p rdma-core --lib ffi::slot_table
//! ```

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use loom::thread;

use super::{Reserved, SlotTable};

/// A simulated device, which passes ids from one thread to another as a completion queue does. The
/// device imposes no memory ordering, so the table itself must order its memory accesses.
#[derive(Default)]
struct Device(AtomicU64);

impl Device {
    fn post(&self, reserved: &Reserved) {
        self.0.store(reserved.id(), Ordering::Relaxed);
    }

    fn poll(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|id| *id != 0)
    }
}

#[test]
fn memory_goes_from_the_poster_to_the_completer() {
    loom::model(|| {
        let table = Arc::new(SlotTable::<Box<u8>>::new(1));
        let device = Arc::new(Device::default());
        let completer = {
            let (table, device) = (Arc::clone(&table), Arc::clone(&device));
            thread::spawn(move || {
                // The completing thread may not see the launch of the request yet.
                let (index, memory) = table.complete(device.poll()?)?;
                table.release(index);
                Some(*memory)
            })
        };
        let reserved = table.reserve().unwrap();
        table.launch(&reserved, Box::new(7));
        device.post(&reserved);
        // The slot may be free again by now, or still in use.
        if let Some(reserved) = table.reserve() {
            table.launch(&reserved, Box::new(8));
            assert_eq!(table.recall(&reserved), Box::new(8));
            table.cancel(reserved);
        }
        let completed = completer.join().unwrap();
        assert!(matches!(completed, None | Some(7)));
    });
}

#[test]
fn a_completion_passed_by_two_threads_counts_once() {
    loom::model(|| {
        let table = Arc::new(SlotTable::new(1));
        let reserved = table.reserve().unwrap();
        table.launch(&reserved, 7);
        let id = reserved.id();
        let taken = Arc::new(AtomicUsize::new(0));
        let complete = {
            let (table, taken) = (Arc::clone(&table), Arc::clone(&taken));
            move || {
                if let Some((index, memory)) = table.complete(id) {
                    assert_eq!(memory, 7);
                    taken.fetch_add(1, Ordering::Relaxed);
                    table.release(index);
                }
            }
        };
        let other = thread::spawn(complete.clone());
        complete();
        other.join().unwrap();
        assert_eq!(taken.load(Ordering::Relaxed), 1);
        assert!(table.reserve().is_some(), "the slot is free");
        assert!(table.reserve().is_none(), "and once only");
    });
}

#[test]
fn an_untimely_release_frees_nothing_twice() {
    loom::model(|| {
        let table = Arc::new(SlotTable::new(1));
        let reserved = table.reserve().unwrap();
        table.launch(&reserved, 7);
        let id = reserved.id();
        // The second thread may be the one that releases the slot, and may then use the slot again.
        let meddler = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                table.release(0);
                if let Some(reserved) = table.reserve() {
                    table.launch(&reserved, 8);
                    assert_eq!(table.complete(id), None, "an id of an earlier use");
                    assert_eq!(table.complete(reserved.id()), Some((0, 8)));
                    table.release(0);
                }
            })
        };
        let (_, memory) = table.complete(id).expect("it is in flight");
        assert_eq!(memory, 7);
        table.release(0);
        meddler.join().unwrap();
        assert!(table.reserve().is_some() && table.reserve().is_none());
    });
}

#[test]
fn two_posters_have_a_slot_each() {
    loom::model(|| {
        let table = Arc::new(SlotTable::new(2));
        let post = |number: u8| {
            let table = Arc::clone(&table);
            move || {
                let reserved = table.reserve().expect("there are two");
                table.launch(&reserved, number);
                let (index, memory) = table.complete(reserved.id()).expect("its own");
                assert_eq!(memory, number);
                table.release(index);
            }
        };
        let other = thread::spawn(post(1));
        post(2)();
        other.join().unwrap();
        assert!(table.reserve().is_some() && table.reserve().is_some());
        assert!(table.reserve().is_none());
    });
}

#[test]
fn a_recall_and_a_release_do_not_meet() {
    loom::model(|| {
        let table = Arc::new(SlotTable::new(1));
        let meddler = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.release(0))
        };
        let reserved = table.reserve().unwrap();
        table.launch(&reserved, 7);
        assert_eq!(table.withdraw(reserved), 7);
        meddler.join().unwrap();
        assert!(table.reserve().is_some() && table.reserve().is_none());
    });
}
