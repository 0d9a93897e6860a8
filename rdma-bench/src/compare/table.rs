//! Comparisons with perftest as lines of a table.

use super::outcome::Comparison;
use crate::limits::Interval;
use crate::statistics::Bandwidth;
use crate::test::Metric;

/// Returns the header line of the table of comparisons with perftest: the names of the columns.
pub fn heading() -> String {
    format!(
        "{:<12}{:>9}{:>7}  {:<7}{:>12}{:>12}{:>9}  {:<14}{:>6}  {}",
        "test", "bytes", "iters", "unit", "ours", "perftest", "ratio", "interval", "pairs", "goal"
    )
}

/// Returns the table line of a comparison: the test, the medians of both programs, their ratio with
/// its confidence interval, and the verdict.
pub fn line(comparison: &Comparison) -> String {
    let case = &comparison.case;
    let (unit, factor) = match case.test.metric {
        Metric::Latency => ("usec", 1.0),
        Metric::Bandwidth if case.size >= 4096 => ("MiB/s", Bandwidth::mebibytes(1.0, case.size)),
        Metric::Bandwidth => ("kmsg/s", 1e-3),
    };
    let figure = |value: f64| format!("{:.2}", value * factor);
    let theirs = comparison.perftest().map_or("-".into(), figure);
    let (ratio, spread) = match (comparison.ratio(), comparison.interval()) {
        (Some((ratio, ..)), Some(Interval { low, high, .. })) => {
            (format!("{ratio:.3}"), format!("{low:.2}..{high:.2}"))
        }
        // With too few pairs for an interval: the minimum and the maximum.
        (Some((ratio, least, most)), None) => {
            (format!("{ratio:.3}"), format!("{least:.2}..{most:.2}"))
        }
        (None, _) => ("-".into(), "-".into()),
    };
    let goal = match (comparison.goal, comparison.verdict()) {
        (Some(goal), Some(verdict)) => format!("{goal} {}", verdict.word()),
        _ => String::new(),
    };
    let line = format!(
        "{:<12}{:>9}{:>7}  {unit:<7}{:>12}{theirs:>12}{ratio:>9}  {spread:<14}{:>6}  {goal}",
        case.test.to_string(),
        case.size,
        case.iterations,
        figure(comparison.ours()),
        comparison.pairs.len(),
    );
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::comparison;
    use super::*;

    #[test]
    fn lines_are_aligned_with_the_heading() {
        let pairs = [(10.0, 10.0), (10.7, 10.0), (10.5, 10.0)];
        let few = line(&comparison(Metric::Latency, &pairs));
        let pairs = [&[(11.0, 10.0)], &[(10.5, 10.0); 6][..]].concat();
        let enough = line(&comparison(Metric::Latency, &pairs));
        assert_eq!(
            format!("{}\n{few}\n{enough}", heading()),
            "\
test            bytes  iters  unit           ours    perftest    ratio  interval       pairs  goal
send_lat            8   1000  usec          10.50       10.00    1.050  1.00..1.07         3
send_lat            8   1000  usec          10.50       10.00    1.050  1.05..1.10         7  <= 1.10 met"
        );
    }
}
