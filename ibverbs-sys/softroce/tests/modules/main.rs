//! Layers of the crate's modules: each module imports only from modules below it.

mod imports;
mod layers;
mod source;
mod tokens;

use std::path::Path;

/// Top-level modules, the lowest first. A module is above all modules that it imports from, and as low
/// as its content allows: tools, then the transport, then what a process has, then a program's
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
    // Paths to peers: packets go through shared memory if it exists, and queue pairs choose the path.
    "same_host",
    "net",
    "queue_pair",
    // The engine's thread, and the NIC, which connects all modules.
    "engine",
    "nic",
    // Interfaces for programs and tests, which no other module imports.
    "path",
    "abi",
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
