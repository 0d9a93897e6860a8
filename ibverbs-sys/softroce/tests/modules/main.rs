//! Structure of the crate: each module imports only from modules below it, and one function
//! chooses the path of a request.

mod imports;
mod layers;
mod source;
mod tokens;

use std::path::Path;

/// Top-level modules, the lowest first. A module is above all modules that it imports from, and as
/// low as its content allows: tools, then the transport, then what a process has, then a program's
/// objects, then paths to peers, then the NIC.
const LAYERS: &[&str] = &[
    // Formats and tools, which do not refer to the device.
    "wire",
    "limits",
    "spin",
    "sync",
    "epoch",
    "random",
    "per_process",
    // Numbers and addresses, by which processes find each other's queue pairs.
    "number",
    "address",
    // The transport, which needs only the formats. Settings and counters use its types.
    "proto",
    "transfer",
    "fault",
    "config",
    // Files, clocks and counts of a process, which the objects use.
    "descriptor",
    "counters",
    "capture",
    "object_counts",
    "timers",
    // Objects of programs. All of them use a context; the sharing between processes uses completion
    // and memory.
    "context",
    "completion",
    "receive",
    "memory",
    "xrc",
    "multicast",
    // Paths to peers: packets go through shared memory if it exists, and queue pairs choose the
    // path.
    "same_host",
    "net",
    "queue_pair",
    // The engine's thread, and the NIC, which connects all modules.
    "engine",
    "nic",
    // Interfaces for programs and tests, which no other module imports.
    "path",
    "abi",
    "sysfs",
    "sim",
];

#[test]
fn modules_import_only_from_modules_below_them() {
    let crate_source = source::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(
        crate_source.imports.len() > 200,
        "{} imports were found, so the scanner misses most of them",
        crate_source.imports.len()
    );
    let broken = layers::broken(LAYERS, &crate_source);
    assert!(
        broken.is_empty(),
        "the layers are broken (see LAYERS in {}):\n{}",
        file!(),
        broken.join("\n")
    );
}

/// Checks that only one line of the crate calls the function that chooses the path of a request.
/// The simulation has queue pairs of its own.
#[test]
fn one_function_chooses_the_path_of_a_request() {
    let crate_source = source::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let calls = crate_source.calls.iter();
    let places: Vec<_> = calls
        .filter(|(file, _, name)| name == "choose" && !file.starts_with("src/sim"))
        .map(|(file, line, _)| format!("{}:{line}", file.display()))
        .collect();
    let [place] = &places[..] else {
        panic!("the way is chosen in {places:?}");
    };
    assert!(place.starts_with("src/queue_pair/host.rs:"), "{place}");
}
