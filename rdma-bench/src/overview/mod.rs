//! A table of the performance of every layer on this machine, without goals.
//!
//! Each [`Row`] is an operation with messages of one size, over one [`Subject`]: a layer, or
//! perftest if it is installed. A row has latency, message rate and bandwidth.
//! [`compare`](crate::compare) and [`limits`](crate::limits) have goals.

mod figures;
mod row;
mod table;

pub use figures::{Figures, measure};
pub use row::{Row, Subject, rows};
pub use table::{FOOTNOTES, table};
