//! The result lines of a report, with the columns that perftest 4.5 prints.

use std::io::{self, Write};

use super::general::General;
use super::{Listing, Units};
use crate::statistics::{Bandwidth, Latency};
use crate::test::Metric;

/// The line that separates the sections of a report.
pub const RULE: &str =
    "---------------------------------------------------------------------------------------";

/// Returns the line with the names of the columns. `over_time` is set if the test runs for a given
/// duration. Latency tests then have fewer columns.
pub fn heading(metric: Metric, over_time: bool, units: Units) -> &'static str {
    match (metric, over_time, units) {
        (Metric::Latency, false, _) => {
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
             t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] "
        }
        (Metric::Latency, true, _) => " #bytes        #iterations       t_avg[usec]    tps average",
        (Metric::Bandwidth, _, Units::Mebibytes) => {
            " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
        }
        (Metric::Bandwidth, _, Units::Gigabits) => {
            " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
        }
    }
}

/// Returns the result line of a latency test with messages of `size` bytes, in perftest's columns.
pub fn latency(latency: &Latency, size: usize) -> String {
    if latency.duration.is_some() {
        return format!(
            " {size:<7}       {}            {:<7.2}        {:<7.2}",
            latency.iterations,
            latency.average,
            latency.rate()
        );
    }
    format!(
        " {size:<7} {}          {:<7.2}        {:<7.2}      {:<7.2}  \t       {:<7.2}     \t{:<7.2}\t\t{:<7.2} \t\t{:<7.2}",
        latency.iterations,
        latency.min,
        latency.max,
        latency.typical,
        latency.average,
        latency.deviation,
        latency.percentile_99,
        latency.percentile_99_9,
    )
}

/// Returns the result line of a bandwidth test with messages of `size` bytes. The line gives the
/// bandwidth in `units`.
pub fn bandwidth(bandwidth: &Bandwidth, size: usize, units: Units) -> String {
    let Bandwidth {
        iterations,
        average,
        peak,
        calls_per_message: _,
    } = bandwidth;
    let rate = average / 1e6;
    match units {
        Units::Mebibytes => format!(
            " {size:<7}    {iterations:<10}       {:<7.2}            {:<7.2}\t\t   {rate:<7.6}",
            Bandwidth::mebibytes(*peak, size),
            Bandwidth::mebibytes(*average, size),
        ),
        Units::Gigabits => format!(
            " {size:<7}    {iterations:<10}     {:<7.6}            {:<7.6}            {rate:<7.6}",
            Bandwidth::gigabits(*peak, size),
            Bandwidth::gigabits(*average, size),
        ),
    }
}

/// Writes the latency samples to `out`, one per line, in microseconds. With [`Listing::Sorted`],
/// the samples are in ascending order without the slowest two, else in chronological order.
///
/// # Errors
///
/// The errors of writing.
pub fn write_samples(latency: &Latency, listing: Listing, out: &mut dyn Write) -> io::Result<()> {
    let mut samples = latency.samples.clone();
    if listing == Listing::Sorted {
        samples.sort_unstable_by(f64::total_cmp);
        samples.truncate(samples.len().saturating_sub(2));
    }
    writeln!(out, "#, usec")?;
    for (number, sample) in samples.into_iter().enumerate() {
        writeln!(out, "{}, {}", number + 1, General(sample))?;
    }
    Ok(())
}

/// Writes a message to `out`: the benchmark server waits for its client.
///
/// # Errors
///
/// The errors of writing.
pub fn write_waiting(out: &mut dyn Write) -> io::Result<()> {
    let frame = "************************************";
    writeln!(
        out,
        "\n{frame}\n* Waiting for client to connect... *\n{frame}"
    )?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Checks that the result lines of latency tests equal the lines that perftest's program
    /// `ib_write_lat` printed for the same values.
    #[test]
    fn latency_columns_are_perftests() {
        let measured = Latency {
            iterations: 20,
            min: 10251.841,
            max: 13780.03,
            typical: 10525.64,
            average: 10992.939,
            deviation: 896.63,
            percentile_99: 13780.03,
            percentile_99_9: 13780.03,
            samples: Vec::new(),
            duration: None,
        };
        assert_eq!(
            latency(&measured, 1 << 20),
            " 1048576 20          10251.84        13780.03      10525.64  \t       10992.94     \t896.63 \t\t13780.03 \t\t13780.03"
        );
        let short = Latency {
            min: 9.61,
            max: 63.44,
            typical: 9.82,
            average: 13.46,
            deviation: 10.36,
            percentile_99: 63.44,
            percentile_99_9: 63.44,
            ..measured
        };
        assert_eq!(
            latency(&short, 32),
            " 32      20          9.61           63.44        9.82     \t       13.46       \t10.36  \t\t63.44   \t\t63.44  "
        );
        let over_time = Latency {
            iterations: 71125,
            average: 14.09,
            duration: Some(Duration::from_secs_f64(71125.0 / 35496.58)),
            ..short
        };
        assert_eq!(
            latency(&over_time, 8),
            " 8             71125            14.09          35496.58"
        );
    }

    /// Checks that the result lines of bandwidth tests equal the lines that perftest's program
    /// `ib_write_bw` printed for the same values.
    #[test]
    fn bandwidth_columns_are_perftests() {
        let measured = |iterations, average, peak| Bandwidth {
            iterations,
            average,
            peak,
            calls_per_message: None,
        };
        let line = bandwidth(&measured(1000, 23682.0, 51118.0), 8, Units::Mebibytes);
        assert_eq!(
            line,
            " 8          1000             0.39               0.18   \t\t   0.023682"
        );
        let line = bandwidth(&measured(20, 55.69, 55.97), 1 << 20, Units::Mebibytes);
        assert_eq!(
            line,
            " 1048576    20               55.97              55.69  \t\t   0.000056"
        );
        let line = bandwidth(&measured(1000, 38593.0, 47500.0), 8, Units::Gigabits);
        assert_eq!(
            line,
            " 8          1000           0.003040            0.002470            0.038593"
        );
    }

    #[test]
    fn samples_are_listed_from_one() {
        let measured = Latency {
            iterations: 5,
            min: 0.0,
            max: 0.0,
            typical: 0.0,
            average: 0.0,
            deviation: 0.0,
            percentile_99: 0.0,
            percentile_99_9: 0.0,
            samples: vec![1435.06, 68.268, 143.6312, 66.885],
            duration: None,
        };
        let listed = |listing| {
            let mut out = Vec::new();
            write_samples(&measured, listing, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(listed(Listing::Sorted), "#, usec\n1, 66.885\n2, 68.268\n");
        assert_eq!(
            listed(Listing::Unsorted),
            "#, usec\n1, 1435.06\n2, 68.268\n3, 143.631\n4, 66.885\n"
        );
    }
}
