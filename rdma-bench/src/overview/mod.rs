//! One table of what every layer does on this machine.
//!
//! Each [`Row`] is an operation with messages of one size, over one [`Subject`]: a layer, or perftest
//! where it is installed. A row has latency, message rate and bandwidth. Nothing is judged: the rows are
//! for a reader who wants to know what to expect. [`compare`](crate::compare) and
//! [`limits`](crate::limits) judge.

mod figures;
mod row;
mod table;

pub use figures::{Figures, measure};
pub use row::{Row, Subject, rows};
pub use table::{FOOTNOTES, table};
