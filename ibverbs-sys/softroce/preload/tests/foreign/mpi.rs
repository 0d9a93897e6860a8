//! A program for Open MPI.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::program::Running;

/// Variables that allow `mpirun` to run as root. The variables do not change what `mpirun` does.
const AS_ROOT: [(&str, &str); 2] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
];

/// Compiles `ranks.c`, and runs it with several ranks over UCX, which uses only `transport`.
pub(crate) fn ranks(transport: &str, ranks: u32) -> Result<(), String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/ranks.c");
    let program = env::temp_dir().join(format!("softroce-ranks-{}", std::process::id()));
    let output = Command::new("mpicc")
        .args(["-O1", "-Wall", "-Wextra"])
        .arg(source)
        .arg("-o")
        .arg(&program)
        .output()
        .map_err(|error| format!("starting mpicc: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let path = program.to_str().ok_or("a path in UTF-8")?;
    let ranks = ranks.to_string();
    // Debian's configuration of Open MPI excludes UCX; these options select it.
    let words = [
        "mpirun",
        "-n",
        &ranks,
        "--oversubscribe",
        "--mca",
        "pml",
        "ucx",
        "--mca",
        "osc",
        "ucx",
        path,
    ];
    let variables = [&AS_ROOT[..], &[("UCX_TLS", transport)]].concat();
    let ended = Running::start(&words, &variables).map(Running::wait);
    // Fails only if the file was removed already.
    let _ = fs::remove_file(&program);
    ended?.judge(&[
        "ping-pong: right",
        "all-reduce: right",
        "fetch-and-add: right",
    ])
}
