//! The overview as a table of text.

use std::fmt::Write;

use super::figures::Figures;
use super::row::{Row, bytes, verb_name};
use crate::statistics::Bandwidth;

/// The text below the overview table, which explains the columns.
pub const FOOTNOTES: &str = "\
Latency: send and write, half of a round trip; read and fetch-and-add, from posting to completion; call,
the whole round trip. Rate and bandwidth: one way, 128 operations in flight (64 calls). Memory: the
device's own, or malloc's. imm: writes with immediate data, which the receiver notices, as all writes over
rdma-async do here. Messages over rdma-async above 4 KiB are read by the receiver, not sent.
";

/// Returns a text table of the latency and the rate of operations over each layer (crate). Each
/// element of `rows` becomes one line: operation, message size and layer, and the measured values.
/// The values are `None` if the row could not be measured.
pub fn table(rows: &[(Row, Option<Figures>)]) -> String {
    let mut text = format!(
        "{:<14}{:>8}  {:<18}{:>12}{:>12}{:>12}{:>12}\n",
        "operation", "size", "layer", "p50 usec", "p99 usec", "op/s", "MiB/s"
    );
    let mut before: Option<(&'static str, usize)> = None;
    for (row, figures) in rows {
        let this = (verb_name(row.verb), row.size);
        // Rows of the same operation and size form a group; only the first row names them.
        let (name, size) = match before {
            Some(before) if before == this => (String::new(), String::new()),
            Some((verb, _)) if verb == this.0 => (String::new(), bytes(row.size)),
            _ => (this.0.to_owned(), bytes(row.size)),
        };
        if before.is_some_and(|before| before != this) {
            text.push('\n');
        }
        before = Some(this);
        let [p50, p99, rate, bandwidth] = columns(row, figures.as_ref());
        let line = format!(
            "{name:<14}{size:>8}  {:<18}{p50:>12}{p99:>12}{rate:>12}{bandwidth:>12}",
            row.subject.to_string()
        );
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn columns(row: &Row, figures: Option<&Figures>) -> [String; 4] {
    let Some(figures) = figures else {
        return ["failed".into(), String::new(), String::new(), String::new()];
    };
    let bandwidth = Bandwidth::mebibytes(figures.rate, row.size);
    [
        format!("{:.2}", figures.latency_p50),
        format!("{:.2}", figures.latency_p99),
        rate(figures.rate),
        format!("{bandwidth:.0}"),
    ]
}

/// Returns `per_second`, a number of operations per second, as text with three significant digits
/// and a unit prefix.
fn rate(per_second: f64) -> String {
    let (value, unit) = match per_second {
        rate if rate >= 1e6 => (rate / 1e6, " M"),
        rate if rate >= 1e3 => (rate / 1e3, " k"),
        rate => (rate, ""),
    };
    let digits = match value {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::super::row::Subject;
    use super::*;
    use crate::plan::Memory;
    use crate::test::Verb;

    #[test]
    fn figures_are_aligned_and_operations_are_named_once() {
        let row = |verb, size, subject| Row {
            verb,
            size,
            subject,
        };
        let figures = |latency_p50, rate| {
            Some(Figures {
                latency_p50,
                latency_p99: latency_p50 * 2.0,
                rate,
            })
        };
        let rows = [
            (
                row(Verb::Send, 8, Subject::Core(Memory::Device)),
                figures(0.334, 5.17e6),
            ),
            (
                row(Verb::Send, 8, Subject::Perftest),
                figures(10.0, 51_700.0),
            ),
            (row(Verb::Send, 1 << 20, Subject::Async), None),
            (row(Verb::Echo, 8, Subject::Rpc), figures(7.5, 780.0)),
        ];
        assert_eq!(
            table(&rows),
            "\
operation         size  layer                 p50 usec    p99 usec        op/s       MiB/s
send               8 B  rdma-core                 0.33        0.67      5.17 M          39
                        perftest, malloc         10.00       20.00      51.7 k           0

                 1 MiB  rdma-async              failed

call               8 B  rdma-rpc                  7.50       15.00         780           0
"
        );
    }
}
