//! Rows as lines of a table.

use super::outcome::Judged;
use super::row::Row;
use crate::error::Error;

/// The heads of the columns.
pub fn heading() -> String {
    format!(
        "{:<6}{:<51}{:<7}{:>11}{:>11}{:>9}  {:<17} {:<6}{:<20}{}",
        "goal",
        "what",
        "unit",
        "softroce",
        "yardstick",
        "ratio",
        "min..max",
        "cores",
        "pairs",
        "verdict"
    )
}

/// The line of a row.
pub fn line(judged: &Judged) -> String {
    let row = &judged.row;
    let (unit, factor) = row.unit.shown();
    let [figure, yardstick] = judged
        .figures()
        .map(|value| format!("{:.3}", value * factor));
    let (ratio, least, most) = judged.ratio();
    let mut pairs = judged.pairs.len().to_string();
    if !judged.repeated.is_empty() {
        pairs += &format!(", {} again", judged.repeated.len());
    }
    if judged.flipped() > 0 {
        pairs += &format!(", {} moved", judged.flipped());
    }
    let verdict = if judged.is_met() { "met" } else { "MISSED" };
    format!(
        "{:<6}{:<51}{unit:<7}{figure:>11}{yardstick:>11}{ratio:>9.3}  {:<17} {:<6}{pairs:<19} {} {verdict}",
        row.id,
        row.what,
        format!("{least:.2}..{most:.2}"),
        judged.regime().to_string(),
        row.goal,
    )
}

/// The line of a row that could not be measured: what went wrong, and the last that was said of it.
pub fn failed(row: &Row, error: &Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let last = lines.next_back().map(|last| format!("; {last}"));
    format!(
        "{:<6}{:<51}FAILED: {first}{}",
        row.id,
        row.what,
        last.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::{judged, pair};
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        let row = judged("G1", &[]).row;
        let error = Error::Program {
            program: "rdma-bench (client)".into(),
            reason: "ended with 1\n---\n a header\n\nretry count exceeded\n".into(),
        };
        let line = failed(&row, &error);
        let end = "FAILED: rdma-bench (client): ended with 1; retry count exceeded";
        assert!(
            line.starts_with("G1    write 1 MiB") && line.ends_with(end),
            "{line}"
        );
    }

    #[test]
    fn lines_stand_under_the_heads() {
        let mut write = judged("G3", &[(0.21, 0.1), (0.13, 0.1), (0.15, 0.1)]);
        write.repeated.push(pair(1.0, 1.0, [0.1, 0.4]));
        let rate = judged("G1", &[(20_000.0, 40_000.0)]);
        assert_eq!(
            format!("{}\n{}\n{}", heading(), line(&write), line(&rate)),
            "\
goal  what                                               unit      softroce  yardstick    ratio  min..max          cores pairs               verdict
G3    write_lat 8 B, our memory / UCX put_lat            usec         0.150      0.100    1.500  1.30..2.10        near  3, 1 again          <= 2.00 met
G1    write 1 MiB, our memory / memcpy into a memfd      MB/s     20971.520  41943.040    0.500  0.50..0.50        near  1                   >= 0.90 MISSED"
        );
    }
}
