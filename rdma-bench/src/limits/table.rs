//! Results of the judge as lines of a table.

use super::goal::Goal;
use super::outcome::Judged;
use super::row::Row;
use crate::error::Error;

/// Returns the header line of the table of comparisons: the names of the columns.
pub fn heading() -> String {
    format!(
        "{:<6}{:<51}{:<7}{:>11}{:>11}{:>12}  {:<22}{:<21}{:<6}{:<25}{}",
        "row",
        "what",
        "unit",
        "figure",
        "yardstick",
        "judged",
        "95 % interval",
        "pairs",
        "cores",
        "goal",
        "verdict"
    )
}

/// Returns the line of the result table for one measured comparison. The line contains the number
/// that the goal bounds: a ratio, a difference (with a sign), or the value under test.
pub fn line(judged: &Judged) -> String {
    let row = &judged.row;
    let (unit, factor) = row.unit.name_and_factor();
    let figure = |value: f64| format!("{:.3}", value * factor);
    let number = |value: f64| match row.goal {
        Goal::Ratio(_) => format!("{value:.3}"),
        Goal::Difference(_) => format!("{value:+.3}"),
        Goal::Value(_) => figure(value),
    };
    let interval = judged.interval().map(|interval| {
        let [low, high] = [interval.low, interval.high].map(number);
        format!("{low}..{high}")
    });
    let mut pairs = judged.pairs.len().to_string();
    if !judged.repeated.is_empty() {
        pairs += &format!(", {} again", judged.repeated.len());
    }
    if judged.moved_pairs() > 0 {
        pairs += &format!(", {} moved", judged.moved_pairs());
    }
    let absent = || String::from("-");
    format!(
        "{:<6}{:<51}{unit:<7}{:>11}{:>11}{:>12}  {:<22}{pairs:<21}{:<6}{:<25}{}",
        row.id,
        row.what,
        figure(judged.figure()),
        judged.yardstick().map_or_else(absent, figure),
        number(judged.median()),
        interval.unwrap_or_else(absent),
        judged.distance().to_string(),
        row.goal_text(),
        judged.verdict().map_or("-", |verdict| verdict.word()),
    )
}

/// Returns the table line of the comparison `row`, which could not be measured. The line contains
/// the first and the last line of the text of `error`.
pub fn failed(row: &Row, error: &Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let last = lines.next_back().map(|last| format!("; {last}"));
    format!(
        "{:<6}{:<51}not measured: {first}{}",
        row.id,
        row.what,
        last.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::super::goal::Bound;
    use super::super::outcome::tests::{judged, pair, row};
    use super::super::row::Unit;
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        let error = Error::Program {
            program: "rdma-bench (client)".into(),
            reason: "ended with 1\n---\n a header\n\nretry count exceeded\n".into(),
        };
        let line = failed(&row("G1"), &error);
        let end = "not measured: rdma-bench (client): ended with 1; retry count exceeded";
        assert!(
            line.starts_with("G1    write 1 MiB") && line.ends_with(end),
            "{line}"
        );
    }

    #[test]
    fn lines_are_aligned_with_the_heading() {
        let figures = [1.5, 1.3, 2.1, 1.4, 1.6, 1.7, 1.45];
        let mut write = judged(row("G3"), &figures);
        write.repeated.push(pair(write.row.goal, 1.0, [0.1, 0.4]));
        let more = Row {
            what: "the same, by difference",
            goal: Goal::Difference(Bound::AtMost(0.2)),
            ..row("G3")
        };
        let count = Row {
            what: "requests",
            unit: Unit::Count,
            yardstick: &[],
            goal: Goal::Value(Bound::AtMost(4.0)),
            ..row("G3")
        };
        let mut counted = judged(count, &[3.0; 7]);
        for pair in &mut counted.pairs {
            pair.yardstick = None;
        }
        let lines = [
            heading(),
            line(&write),
            line(&judged(more, &figures)),
            line(&counted),
            line(&judged(row("G1"), &[0.5; 3])),
        ];
        assert_eq!(
            lines.join("\n"),
            "\
row   what                                               unit        figure  yardstick      judged  95 % interval         pairs                cores goal                     verdict
G3    write_lat 8 B, device memory / UCX put_lat         usec         1.500      1.000       1.500  1.300..2.100          7, 1 again           near  ratio at most 2.00       undecided
G3    the same, by difference                            usec         1.500      1.000      +0.500  +0.300..+1.100        7                    near  at most 0.200 usec more  missed
G3    requests                                           count        3.000          -       3.000  3.000..3.000          7                    near  at most 4                met
G1    write 1 MiB, device memory / memcpy into a memfd   MB/s         0.524      1.049       0.500  -                     3                    near  ratio at least 0.90      -"
        );
    }
}
