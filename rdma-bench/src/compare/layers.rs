//! The layers side by side.

use std::path::Path;

use serde_json::{Value, json};

use super::outcome::middle;
use super::run::measure;
use super::{Case, Effort, Goals, Network, Program};
use crate::error::Result;
use crate::machine::Machine;
use crate::plan::Layer;
use crate::statistics::Bandwidth;
use crate::test::{Metric, Verb};

/// Every run of a case over each layer that has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Layered {
    /// What was measured.
    pub case: Case,
    /// For each layer its runs in the order of time: microseconds, or messages each second.
    pub figures: Vec<(Layer, Vec<f64>)>,
}

impl Layered {
    /// The form of the document; another number when its meaning changes.
    pub const SCHEMA: &'static str = "rdma-bench/layers/1";

    /// The median of what was measured over a layer.
    pub fn figure(&self, layer: Layer) -> Option<f64> {
        middle(self.runs(layer).iter().copied())
    }

    /// The median of the ratios async / core of runs that followed each other, with the least and the
    /// most.
    pub fn ratio(&self) -> Option<(f64, f64, f64)> {
        let (core, futures) = (self.runs(Layer::Core), self.runs(Layer::Async));
        let ratios = || futures.iter().zip(core).map(|(above, below)| above / below);
        let least = ratios().fold(f64::INFINITY, f64::min);
        let most = ratios().fold(0.0, f64::max);
        Some((middle(ratios())?, least, most))
    }

    fn runs(&self, layer: Layer) -> &[f64] {
        let found = self.figures.iter().find(|(of, _)| *of == layer);
        found.map_or(&[], |(_, runs)| runs.as_slice())
    }

    /// It as a document.
    pub fn document(&self, network: &Network, machine: &Machine) -> Value {
        let case = &self.case;
        let runs: serde_json::Map<_, _> = self
            .figures
            .iter()
            .map(|(layer, runs)| (layer.to_string(), runs.clone().into()))
            .collect();
        let findings = json!({
            "runs": runs,
            "async_by_core": self.ratio().map(|(middle, ..)| middle),
        });
        case.document(Self::SCHEMA, network, machine, findings)
    }
}

/// Measures a case over each layer that has it, in turns, with the program at `path`.
///
/// # Errors
///
/// [`crate::Error::Program`] when a run fails.
pub fn layered(case: Case, network: &Network, path: &Path, effort: Effort) -> Result<Layered> {
    let layers: &[Layer] = match case.test.verb {
        Verb::Echo => &[Layer::Rpc],
        _ => &[Layer::Core, Layer::Async],
    };
    let mut figures: Vec<_> = layers.iter().map(|layer| (*layer, Vec::new())).collect();
    for _ in 0..effort.pairs(Goals::Wide) {
        for (layer, runs) in &mut figures {
            let program = Program::Ours(path.to_owned(), *layer);
            runs.push(measure(&program, &case, network, &[])?.figure);
        }
    }
    Ok(Layered { case, figures })
}

/// The heads of the columns.
pub fn layers_heading() -> String {
    format!(
        "{:<12}{:>9}{:>7}  {:<7}{:>12}{:>12}{:>12}  {:<14}{:>12}{:>6}",
        "test", "bytes", "iters", "unit", "core", "async", "async/core", "min..max", "rpc", "runs"
    )
}

/// The line of a case.
pub fn layers_line(layered: &Layered) -> String {
    let case = &layered.case;
    let (unit, factor) = match case.test.metric {
        Metric::Latency => ("usec", 1.0),
        // Calls are counted whatever their size.
        Metric::Bandwidth if case.size >= 4096 && case.test.verb != Verb::Echo => {
            ("MiB/s", Bandwidth::mebibytes(1.0, case.size))
        }
        Metric::Bandwidth => ("kmsg/s", 1e-3),
    };
    let figure = |layer| match layered.figure(layer) {
        Some(value) => format!("{:.2}", value * factor),
        None => "-".into(),
    };
    let (ratio, spread) = match layered.ratio() {
        Some((ratio, least, most)) => (format!("{ratio:.3}"), format!("{least:.2}..{most:.2}")),
        None => ("-".into(), "-".into()),
    };
    format!(
        "{:<12}{:>9}{:>7}  {unit:<7}{:>12}{:>12}{ratio:>12}  {spread:<14}{:>12}{:>6}",
        case.test.to_string(),
        case.size,
        case.iterations,
        figure(Layer::Core),
        figure(Layer::Async),
        figure(Layer::Rpc),
        layered.figures.first().map_or(0, |(_, runs)| runs.len()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::Test;

    fn of(verb: Verb, metric: Metric, size: usize, figures: Vec<(Layer, Vec<f64>)>) -> Layered {
        let case = Case {
            test: Test { verb, metric },
            size,
            iterations: 1000,
        };
        Layered { case, figures }
    }

    #[test]
    fn lines_stand_under_the_heads() {
        let runs = |factor: f64| [10.0, 30.0, 12.0].map(|run| run * factor).to_vec();
        let figures = vec![(Layer::Core, runs(1.0)), (Layer::Async, runs(1.5))];
        let send = of(Verb::Send, Metric::Latency, 8, figures);
        let figures = vec![(Layer::Rpc, vec![4000.0])];
        let echo = of(Verb::Echo, Metric::Bandwidth, 65536, figures);
        assert_eq!(
            format!("{}\n{}\n{}", layers_heading(), layers_line(&send), layers_line(&echo)),
            "\
test            bytes  iters  unit           core       async  async/core  min..max               rpc  runs
send_lat            8   1000  usec          12.00       18.00       1.500  1.50..1.50               -     3
echo_bw         65536   1000  kmsg/s            -           -           -  -                     4.00     1"
        );
    }

    #[test]
    fn documents_name_the_layers() {
        let network = Network {
            device: "rxe_0".into(),
            port: 1,
            gid_index: 1,
            mtu: 4096,
        };
        let figures = vec![(Layer::Core, vec![10.0]), (Layer::Async, vec![12.0])];
        let read = of(Verb::Read, Metric::Latency, 8, figures);
        let document = read.document(&network, &Machine::look());
        assert_eq!(document["runs"]["async"][0], 12.0);
        assert_eq!(document["async_by_core"], 1.2);
        assert_eq!(document["unit"], "usec");
    }
}
