//! Measures the reads of a client of rdma-async's example `key_value`.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::run::{RUN_TIMEOUT, Reading};
use super::source::WITHOUT_PRELOAD;
use crate::compare::ends::{free_port, run_with_servers};
use crate::error::{Error, Result};

const NAME: &str = "key_value";

/// Runs a server and a client of the example `key_value`, whose path is `program`. The client reads
/// values from the server for about `time`; `args` are further options of the client. Returns the
/// number of reads per second.
pub(super) fn measure(program: &Path, args: &[&str], time: Duration) -> Result<Reading> {
    let port = free_port()?;
    let address = format!("127.0.0.1:{port}");
    let line = |words: &[&str]| {
        let mut line: Vec<OsString> = WITHOUT_PRELOAD.map(OsString::from).to_vec();
        line.push(program.into());
        line.extend(words.iter().map(OsString::from));
        line
    };
    let server = line(&["serve", "--listen", &address, "--once"]);
    let millis = time.as_millis().to_string();
    let client = line(&[&["measure", &address, "--time", &millis], args].concat());
    let printed = run_with_servers(&[(server, port)], &client, NAME, RUN_TIMEOUT, None)?;
    let rate = printed.trim().strip_suffix(" reads/s");
    let figure = rate.and_then(|text| text.parse().ok());
    let figure = figure.ok_or_else(|| Error::Program {
        program: NAME.into(),
        reason: format!("no rate in {printed:?}"),
    })?;
    Ok(Reading {
        figure,
        document: Value::String(printed),
    })
}
