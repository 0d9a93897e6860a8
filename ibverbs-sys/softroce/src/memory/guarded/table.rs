//! The table of instructions that may fault. Each entry contains the address at which the thread
//! continues after the fault.
//!
//! The assembly of an access adds its entry, with [`entry!`], to a section of the program. The
//! linker concatenates all entries, and provides symbols for the start and the end of the section.
//! Each field of an entry is the distance from the field to an address, so the table needs no
//! relocation when the program is loaded.

/// An entry of the table of instructions that may fault. The entry contains a range of
/// instructions, from `start` to before `end`, and the address at which a thread continues after a
/// fault in the range.
#[derive(Debug)]
#[repr(C)]
struct Entry {
    start: Distance,
    end: Distance,
    recovery: Distance,
}

/// Address of an instruction in the table of instructions that may fault. The address is stored as
/// the distance in bytes from this field to the instruction, so that the table needs no relocation.
#[derive(Debug)]
#[repr(transparent)]
struct Distance(i32);

impl Distance {
    fn address(&self) -> usize {
        let distance = self.0 as isize;
        (&raw const self.0).addr().wrapping_add_signed(distance)
    }
}

/// Returns the assembly that adds an entry to the table of instructions that may fault. The first
/// two arguments are the labels before and after these instructions. The third argument is the
/// operand with the address at which a thread continues after a fault.
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

// An entry without instructions ensures that the section exists. The symbols for its start and end
// are hidden, because a program may link and preload this library at the same time.
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

/// Returns the address at which a thread continues after a fault of the instruction at `address`.
/// Returns `None` if the table of instructions that may fault does not contain this instruction.
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
