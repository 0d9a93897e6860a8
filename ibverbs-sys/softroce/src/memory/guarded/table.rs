//! Instructions that may fault, each with the address at which the thread goes on then.
//!
//! The assembly of an access adds its entry, with [`entry!`], to a section of the program. The linker puts all entries
//! together, and provides symbols for the section's begin and end. An entry's fields are distances from themselves, so
//! nothing is relocated when the program is loaded.

/// Instructions from `start` to before `end` that go on at `recovery` if they fault.
#[derive(Debug)]
#[repr(C)]
struct Entry {
    start: Distance,
    end: Distance,
    recovery: Distance,
}

/// The address of an instruction, as the distance from this field.
#[derive(Debug)]
#[repr(transparent)]
struct Distance(i32);

impl Distance {
    fn address(&self) -> usize {
        let distance = self.0 as isize;
        (&raw const self.0).addr().wrapping_add_signed(distance)
    }
}

/// Returns the assembly of an entry: labels around the instructions, and the operand with their recovery address.
macro_rules! entry {
    ($start:literal, $end:literal, $recovery:literal) => {
        concat!(
            ".pushsection softroce_guarded, \"aR\", @progbits\n",
            ".balign 4\n.long ",
            $start,
            " - .\n.long ",
            $end,
            " - .\n.long ",
            $recovery,
            " - .\n.popsection"
        )
    };
}
pub(super) use entry;

// An entry of no instructions makes sure that the section exists. The symbols for its begin and end are private to this
// library: a program may link it and preload it at the same time.
std::arch::global_asm!(
    ".hidden __start_softroce_guarded",
    ".hidden __stop_softroce_guarded",
    ".pushsection softroce_guarded, \"aR\", @progbits",
    ".balign 4",
    ".long 0, 0, 0",
    ".popsection"
);

unsafe extern "C" {
    #[link_name = "__start_softroce_guarded"]
    static START: Entry;
    #[link_name = "__stop_softroce_guarded"]
    static END: Entry;
}

/// Returns the address at which the thread goes on after a fault of the instruction at `address`. `None`: the table
/// does not have that instruction.
pub(super) fn recovery(address: usize) -> Option<usize> {
    let (start, end) = (&raw const START, &raw const END);
    let count = (end.addr() - start.addr()) / size_of::<Entry>();
    // SAFETY: the linker puts only entries between the two symbols, and nothing writes to them.
    let entries = unsafe { std::slice::from_raw_parts(start, count) };
    let found = entries
        .iter()
        .find(|entry| (entry.start.address()..entry.end.address()).contains(&address))?;
    Some(found.recovery.address())
}
