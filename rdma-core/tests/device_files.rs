//! The files of a device under `/sys` and `/dev`, as other programs see them.

mod common;

use std::process::Command;

use common::context;
use common::program::with_device;
use rdma_core::Context;

/// Files of a RoCE device; with the text of the file if it is the same for all devices.
const FILES: &[(&str, Option<&str>)] = &[
    ("fw_ver", None),
    ("node_desc", None),
    ("node_guid", None),
    ("node_type", Some("1: CA")),
    ("sys_image_guid", None),
    ("uevent", None),
    ("ports/1/cap_mask", None),
    ("ports/1/gid_attrs/ndevs/0", None),
    ("ports/1/gid_attrs/types/0", None),
    ("ports/1/gids/0", None),
    ("ports/1/lid", Some("0x0")),
    ("ports/1/lid_mask_count", Some("0")),
    ("ports/1/link_layer", Some("Ethernet")),
    ("ports/1/phys_state", None),
    ("ports/1/pkeys/0", Some("0xffff")),
    ("ports/1/rate", None),
    ("ports/1/sm_lid", Some("0x0")),
    ("ports/1/sm_sl", Some("0")),
    ("ports/1/state", None),
];

/// Runs a program with the device under test. Returns the output of the program; `None` if the
/// program fails.
fn printed(context: &Context, words: &[&str]) -> Option<String> {
    let mut command = Command::new(words[0]);
    let output = with_device(command.args(&words[1..]), context).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", words[0]));
    let text = String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned();
    output.status.success().then_some(text)
}

#[test]
fn files_are_where_the_kernel_has_them() {
    let context = context();
    for (file, expected) in FILES {
        let path = format!("/sys/class/infiniband/{}/{file}", context.name());
        let text = printed(&context, &["cat", &path]);
        let text = text.unwrap_or_else(|| panic!("{path} cannot be read"));
        if let Some(expected) = expected {
            assert_eq!(text, *expected, "{path}");
        }
    }
}

#[test]
fn the_device_is_found_with_its_node() {
    let context = context();
    let name = context.name();
    let list = |directory: &str| printed(&context, &["ls", directory]).unwrap_or_default();
    let devices = list("/sys/class/infiniband");
    assert!(devices.lines().any(|found| found == name), "{devices}");
    let device = format!("/sys/class/infiniband/{name}");
    let place = printed(&context, &["realpath", &device]).unwrap();
    assert!(place.ends_with(&format!("/infiniband/{name}")), "{place}");

    let nodes = list("/sys/class/infiniband_verbs");
    let file = |node: &str, file: &str| {
        let path = format!("/sys/class/infiniband_verbs/{node}/{file}");
        printed(&context, &["cat", &path])
    };
    let mut nodes = nodes.lines();
    let node = nodes.find(|node| file(node, "ibdev").as_deref() == Some(name));
    let node = node.unwrap_or_else(|| panic!("no entry of infiniband_verbs belongs to {name}"));
    let path = format!("/dev/infiniband/{node}");
    let status = printed(&context, &["stat", "--format=%F, %t:%T", &path]).unwrap();
    let number = file(node, "dev").unwrap();
    let (major, minor) = number.split_once(':').unwrap();
    let hexadecimal = |number: &str| format!("{:x}", number.parse::<u32>().unwrap());
    assert_eq!(
        status,
        format!(
            "character special file, {}:{}",
            hexadecimal(major),
            hexadecimal(minor)
        )
    );
    for right in ["-r", "-w"] {
        assert!(
            printed(&context, &["test", right, &path]).is_some(),
            "{path}: {right}"
        );
    }
}
