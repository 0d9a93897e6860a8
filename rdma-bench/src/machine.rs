//! A description of the machine on which a measurement was made.

use std::fs;
use std::hint;
use std::thread;
use std::time::Instant;

use serde::Serialize;

/// The properties of a machine that affect measurements.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The host name.
    pub host: String,
    /// The kernel's release.
    pub kernel: String,
    /// The processor's name.
    pub processor: String,
    /// Number of processors that this process may use.
    pub processors: usize,
    /// The clock source of the kernel.
    pub clock_source: String,
    /// The duration of reading the clock once, in nanoseconds. Each latency sample contains one
    /// such reading.
    pub timestamp_nanos: f64,
    /// The version of this program.
    pub version: &'static str,
}

impl Machine {
    /// Returns the properties of this machine, such as the names of its kernel and its processor. A
    /// property that cannot be read is an empty text.
    pub fn detect() -> Self {
        let read = |path: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.trim().to_owned()
        };
        let processors = read("/proc/cpuinfo");
        let processor = processors
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map_or_else(String::new, |(_, name)| name.to_owned());
        Self {
            host: read("/proc/sys/kernel/hostname"),
            kernel: read("/proc/sys/kernel/osrelease"),
            processor,
            processors: thread::available_parallelism().map_or(1, usize::from),
            clock_source: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            timestamp_nanos: timestamp_nanos(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// Measures the time that a single reading of the clock takes, and returns the time in nanoseconds.
fn timestamp_nanos() -> f64 {
    const COUNT: u32 = 2000;
    let begun = Instant::now();
    for _ in 0..COUNT {
        hint::black_box(Instant::now());
    }
    begun.elapsed().as_nanos() as f64 / f64::from(COUNT)
}
