//! The modules of the crate form layers: each imports only from modules below it.

mod imports;
mod layers;
mod source;
mod tokens;

use std::path::Path;

/// The top-level modules, the lowest first. A module stands above all that it imports from, and as low as its content
/// allows: tools, then the transport, then what a process has, then a program's objects, then ways to peers, then the NIC.
const LAYERS: &[&str] = &[
    // Formats and tools, which know nothing of the device.
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
    // The transport, which needs only the formats, and the paths without packets. Settings and counters have values of it.
    "proto",
    "transfer",
    "fault",
    "config",
    // Files, clocks and counts of a process, which the objects are made of.
    "descriptor",
    "counters",
    "capture",
    "census",
    "timers",
    // Objects of programs. All of them stand on a context; the sharing between processes stands on completion and memory.
    "context",
    "completion",
    "receive",
    "memory",
    "xrc",
    "multicast",
    // Ways to peers: packets go through shared memory where there is some, and queue pairs choose between the ways.
    "same_host",
    "net",
    "queue_pair",
    // The thread, and the NIC, which brings all of these together.
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
