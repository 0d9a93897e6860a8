//! The results as a JSON document: perftest's keys, with units and a description of the machine.

use serde_json::{Map, Value, json};

use super::{Header, Units};
use crate::machine::Machine;
use crate::session::Measured;
use crate::statistics::Bandwidth;

/// Name of the JSON format, which each document contains. The number at its end is incremented when
/// the meaning of a field changes.
pub const SCHEMA: &str = "rdma-bench/result/1";

/// Returns the results `measured` for messages of `size` bytes as a JSON object with perftest's
/// keys. `units` is the unit of its bandwidths. Returns `None` if this process measured
/// nothing.
pub fn row(measured: &Measured, size: usize, units: Units) -> Option<Value> {
    match measured {
        Measured::Nothing => None,
        Measured::Bandwidth(bandwidth) => {
            let figure = |rate| match units {
                Units::Mebibytes => Bandwidth::mebibytes(rate, size),
                Units::Gigabits => Bandwidth::gigabits(rate, size),
            };
            let mut row = json!({
                "MsgSize": size,
                "n_iterations": bandwidth.iterations,
                "BW_peak": figure(bandwidth.peak),
                "BW_average": figure(bandwidth.average),
                "MsgRate": bandwidth.average / 1e6,
            });
            if let Some(calls) = bandwidth.calls_per_message {
                row["calls_per_message"] = calls.into();
            }
            Some(row)
        }
        Measured::Beside(latency, bulk) => {
            let latency = Measured::Latency(latency.clone());
            let bandwidth = Measured::Bandwidth(bulk.bandwidth.clone());
            let mut whole = row(&latency, size, units)?;
            whole["beside"] = row(&bandwidth, bulk.size, units)?;
            Some(whole)
        }
        Measured::Latency(latency) => {
            let mut row = json!({
                "MsgSize": size,
                "n_iterations": latency.iterations,
                "t_min": latency.min,
                "t_max": latency.max,
                "t_typical": latency.typical,
                "t_avg": latency.average,
                "t_stdev": latency.deviation,
                "percentile_99": latency.percentile_99,
                "percentile_99.9": latency.percentile_99_9,
            });
            if latency.duration.is_some() {
                row["tps_average"] = latency.rate().into();
            } else {
                row["samples"] = latency.samples.clone().into();
            }
            Some(row)
        }
    }
}

/// Returns the JSON document of a whole report. The field `results` is a single object, as in
/// perftest, or a list of objects if several sizes were measured. `rows` has one object for each
/// message size.
pub fn document(header: &Header, machine: &Machine, mut rows: Vec<Value>, units: Units) -> Value {
    let properties = &header.properties;
    let mut info = Map::new();
    let title = header.title.replace(' ', "_");
    let mut tell = |key: &str, value: Value| info.insert(key.to_owned(), value);
    tell("test", title.into());
    tell("layer", header.layer.clone().into());
    tell("memory", header.memory.clone().into());
    tell("Dual_port", "OFF".into());
    tell("Device", properties.device.clone().into());
    tell("Number_of_qps", header.queue_pairs.into());
    tell("Transport_type", "IB".into());
    tell("Connection_type", "RC".into());
    tell("Using_SRQ", header.using_srq().into());
    if let Some(size) = header.beside {
        tell("Beside", size.into());
    }
    for (name, depth) in &header.depths {
        tell(&name.replace(' ', "_"), (*depth).into());
    }
    tell("Mtu", properties.mtu.into());
    tell("Link_type", properties.link_layer.clone().into());
    tell("GID_index", properties.gid_index.into());
    let (name, limit) = header.limit();
    tell(&name.replace(' ', "_"), limit.into());
    tell("rdma_cm_QPs", "OFF".into());
    tell("Data_ex_method", "Ethernet".into());
    let results = match rows.len() {
        1 => rows.remove(0),
        _ => Value::Array(rows),
    };
    json!({
        "schema": SCHEMA,
        "units": {
            "MsgSize": "bytes",
            "t_*, percentile_*, samples": "usec",
            "BW_*": match units {
                Units::Mebibytes => "MiB/sec",
                Units::Gigabits => "Gb/sec",
            },
            "MsgRate": "Mpps",
            "tps_average": "1/sec",
        },
        "test_info": info,
        "firmware": properties.firmware,
        "machine": machine,
        "results": results,
    })
}

#[cfg(test)]
mod tests {
    use super::super::header::tests::header;
    use super::*;
    use crate::session::Role;
    use crate::statistics::{Bulk, Latency};
    use crate::test::{Metric, Verb};

    #[test]
    fn messages_beside_have_keys_of_their_own() {
        let latency = Latency {
            iterations: 20,
            min: 1.0,
            max: 4.0,
            typical: 2.0,
            average: 2.0,
            deviation: 0.5,
            percentile_99: 3.0,
            percentile_99_9: 4.0,
            samples: vec![2.0; 19],
            duration: None,
        };
        let bandwidth = Bandwidth {
            iterations: 7,
            average: 5000.0,
            peak: 0.0,
            calls_per_message: None,
        };
        let bulk = Bulk {
            size: 1 << 20,
            bandwidth,
        };
        let row = row(&Measured::Beside(latency, bulk), 8, Units::Mebibytes).unwrap();
        assert_eq!(
            (&row["MsgSize"], &row["percentile_99"]),
            (&json!(8), &json!(3.0))
        );
        let beside = &row["beside"];
        assert_eq!(
            (&beside["MsgSize"], &beside["n_iterations"]),
            (&json!(1 << 20), &json!(7))
        );
        assert_eq!(
            (&beside["BW_average"], &beside["MsgRate"]),
            (&json!(5000.0), &json!(0.005))
        );
    }

    #[test]
    fn keys_are_perftests_and_the_text_is_json() {
        let header = header(Verb::Send, Metric::Bandwidth, Role::Server);
        let bandwidth = Bandwidth {
            iterations: 1000,
            average: 49262.0,
            peak: 0.0,
            calls_per_message: None,
        };
        let row = row(&Measured::Bandwidth(bandwidth), 8, Units::Mebibytes);
        let rows = row.into_iter().collect();
        let document = document(&header, &Machine::detect(), rows, Units::Mebibytes);
        let text = serde_json::to_string_pretty(&document).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["schema"], SCHEMA);
        assert_eq!(read["test_info"]["RX_depth"], 512);
        assert_eq!(read["test_info"]["test"], "Send_BW_Test");
        assert_eq!(read["test_info"]["memory"], "device");
        assert_eq!(read["results"]["n_iterations"], 1000);
        assert_eq!(read["results"]["MsgRate"], 0.049262);
    }
}
