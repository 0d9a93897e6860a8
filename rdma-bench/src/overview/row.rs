//! The rows of the overview: operations, message sizes and layers.

use std::fmt;

use crate::plan::{Layer, Memory};
use crate::test::Verb;

/// The message sizes in bytes for which the overview table shows latency and rate. The comparison
/// with perftest has goals for the same sizes.
const SIZES: [usize; 4] = [8, 4 << 10, 64 << 10, 1 << 20];

/// A layer or program whose performance the overview shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The layer rdma-core, with messages in the given kind of memory.
    Core(Memory),
    /// The layer rdma-core, with memory that the device provides, and with immediate data in all
    /// writes.
    CoreImmediate,
    /// The layer rdma-async, with immediate data in all writes, so that the receiver gets a
    /// completion.
    Async,
    /// The layer rdma-rpc.
    Rpc,
    /// Perftest's C programs, which use ordinary memory of the process.
    Perftest,
}

impl Subject {
    /// All layers and programs that the overview table shows. The lines for one operation and
    /// message size have this order.
    const ALL: [Self; 6] = [
        Self::Core(Memory::Device),
        Self::Core(Memory::Malloc),
        Self::Perftest,
        Self::CoreImmediate,
        Self::Async,
        Self::Rpc,
    ];

    /// Returns the layer (crate) that this row of the overview table measures: rdma-core,
    /// rdma-async or rdma-rpc. Returns `None` for perftest.
    pub fn layer(self) -> Option<Layer> {
        match self {
            Self::Core(_) | Self::CoreImmediate => Some(Layer::Core),
            Self::Async => Some(Layer::Async),
            Self::Rpc => Some(Layer::Rpc),
            Self::Perftest => None,
        }
    }

    /// Returns whether the overview table shows the operation `verb` over this layer (such as
    /// rdma-core) or program (perftest). Not every layer has every operation.
    fn has(self, verb: Verb) -> bool {
        match self {
            Self::Rpc => verb.is_call(),
            Self::CoreImmediate => verb == Verb::Write,
            _ => !verb.is_call(),
        }
    }

    /// Returns the options with which `rdma-bench` measures the operation `verb` over this layer.
    pub(super) fn options(self, verb: Verb) -> &'static [&'static str] {
        match self {
            Self::Core(Memory::Malloc) => &["--memory", "malloc"],
            Self::CoreImmediate => &["--write_with_imm"],
            Self::Async if verb == Verb::Write => &["--write_with_imm"],
            _ => &[],
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Core(Memory::Malloc) => "rdma-core, malloc",
            Self::Core(_) => "rdma-core",
            Self::CoreImmediate => "rdma-core, imm",
            Self::Async => "rdma-async",
            Self::Rpc => "rdma-rpc",
            Self::Perftest => "perftest, malloc",
        })
    }
}

/// A row of the overview table: an operation with messages of one size, performed by one layer
/// (such as rdma-core) or by perftest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The operation to measure.
    pub verb: Verb,
    /// The size of a message in bytes.
    pub size: usize,
    /// The layer or program.
    pub subject: Subject,
}

/// Returns all rows of the overview table, which shows the latency and the rate of operations over
/// each layer (crate) of this workspace. Includes perftest if `with_perftest` is set.
pub fn rows(with_perftest: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    let verbs = [
        Verb::Send,
        Verb::Write,
        Verb::Read,
        Verb::FetchAndAdd,
        Verb::Echo,
    ];
    for verb in verbs {
        let sizes: &[usize] = if verb.is_atomic() { &[8] } else { &SIZES };
        for &size in sizes {
            for subject in Subject::ALL {
                if subject.has(verb) && (with_perftest || subject != Subject::Perftest) {
                    rows.push(Row {
                        verb,
                        size,
                        subject,
                    });
                }
            }
        }
    }
    rows
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            verb,
            size,
            subject,
        } = self;
        write!(f, "{} of {} over {subject}", verb_name(*verb), bytes(*size))
    }
}

/// Returns the name by which the overview's table shows the operation `verb`.
pub(super) fn verb_name(verb: Verb) -> &'static str {
    match verb {
        Verb::Send => "send",
        Verb::Write => "write",
        Verb::Read => "read",
        Verb::FetchAndAdd => "fetch-and-add",
        Verb::CompareAndSwap => "compare-and-swap",
        Verb::Echo => "call",
        Verb::Item => "item",
        Verb::Bulk => "bulk call",
    }
}

/// Returns `size`, a number of bytes, as text in B, KiB or MiB, rounded down.
pub(super) fn bytes(size: usize) -> String {
    match size {
        size if size >= 1 << 20 => format!("{} MiB", size >> 20),
        size if size >= 1 << 10 => format!("{} KiB", size >> 10),
        size => format!("{size} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layer_has_every_operation_that_it_offers() {
        let all = rows(true);
        let count = |subject| all.iter().filter(|row| row.subject == subject).count();
        for subject in [
            Subject::Core(Memory::Device),
            Subject::Core(Memory::Malloc),
            Subject::Async,
            Subject::Perftest,
        ] {
            assert_eq!(count(subject), 3 * SIZES.len() + 1, "{subject}");
        }
        assert_eq!(count(Subject::Rpc), SIZES.len());
        assert_eq!(count(Subject::CoreImmediate), SIZES.len());
        let alone = rows(false);
        assert!(alone.iter().all(|row| row.subject != Subject::Perftest));
        assert_eq!(alone.len() + count(Subject::Perftest), all.len());
    }

    #[test]
    fn writes_that_are_compared_carry_immediate_data_alike() {
        let immediate = ["--write_with_imm"];
        for subject in [Subject::CoreImmediate, Subject::Async] {
            assert_eq!(subject.options(Verb::Write), immediate);
        }
        assert!(Subject::Async.options(Verb::Send).is_empty());
    }

    #[test]
    fn rows_say_what_they_are() {
        assert_eq!(
            rows(true)[1].to_string(),
            "send of 8 B over rdma-core, malloc"
        );
        assert_eq!(
            rows(true).last().unwrap().to_string(),
            "call of 1 MiB over rdma-rpc"
        );
    }
}
