//! The Rust programs of the README, as crates outside of the workspace.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::markdown;
use crate::process::{Ended, Process};

const BUILD_LIMIT: Duration = Duration::from_secs(600);
const RUN_LIMIT: Duration = Duration::from_secs(30);

/// The layers that have a program in the README, each with the other crates that the program needs.
const LAYERS: [(&str, &str); 4] = [
    ("ibverbs-sys", ""),
    ("rdma-core", ""),
    ("rdma-async", TOKIO),
    ("rdma-rpc", TOKIO),
];

const TOKIO: &str = "tokio = { version = \"1\", features = [\"macros\", \"rt-multi-thread\"] }\n";

#[test]
fn the_programs_of_the_readme_run_with_and_without_a_device() {
    let crates = Crates::write();
    crates.build(&[]);
    for (layer, _) in LAYERS {
        let ended = crates.run_without_device(layer);
        println!("{layer} without a device:\n{}", ended.output);
        assert_eq!(ended.status.signal(), None, "{layer}: {}", ended.output);
        check_without_device(layer, &ended);
    }
    let features = LAYERS.map(|(layer, _)| format!("{}/softroce", package(layer)));
    crates.build(&["--features", &features.join(",")]);
    for (layer, _) in LAYERS {
        let ended = crates.run_on_softroce(layer);
        println!("{layer} on softroce:\n{}", ended.output);
        assert!(
            ended.status.success(),
            "{layer}: {}: {}",
            ended.status,
            ended.output
        );
        let lists_device = ended.output.contains("\nsoftroce0\n");
        assert!(lists_device || layer != "ibverbs-sys", "{}", ended.output);
    }
}

/// Checks that the program of `layer` reported the missing device and what to do about it.
fn check_without_device(layer: &str, ended: &Ended) {
    let Ended { status, output } = ended;
    let parts: &[&str] = match (layer, machine_has_devices()) {
        ("ibverbs-sys", _) => &["RDMA devices"],
        (_, true) => &["Error: no RDMA device named \"=absent\"; available: "],
        (_, false) => &[
            "Error: no RDMA device found: ",
            "feature `softroce`",
            "`cargo xtask softroce-setup --check`",
        ],
    };
    for part in parts {
        assert!(output.contains(part), "{layer}: no {part:?} in: {output}");
    }
    // On the bindings, an empty list of devices counts as success if the kernel's modules are
    // loaded.
    let may_succeed = layer == "ibverbs-sys" && !output.contains("(os error ");
    assert_eq!(status.success(), may_succeed, "{layer}: {status}: {output}");
}

fn machine_has_devices() -> bool {
    fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

/// A workspace with a crate for each program.
struct Crates {
    root: PathBuf,
}

impl Crates {
    /// Writes the crates with the first Rust block of each layer's section.
    fn write() -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme");
        let members = LAYERS.map(|(layer, _)| format!("{:?}", package(layer)));
        let workspace = format!(
            "[workspace]\nresolver = \"3\"\nmembers = [{}]\n",
            members.join(", ")
        );
        write(&root.join("Cargo.toml"), &workspace);
        for (layer, others) in LAYERS {
            let directory = root.join(package(layer));
            write(&directory.join("Cargo.toml"), &manifest(layer, others));
            write(&directory.join("src/main.rs"), &program(layer));
        }
        // The same versions as those of the workspace, which are on this machine.
        let lock = crate::workspace().join("Cargo.lock");
        fs::copy(lock, root.join("Cargo.lock")).expect("copying Cargo.lock");
        Self { root }
    }

    fn build(&self, arguments: &[&str]) {
        let mut command = Command::new(env!("CARGO"));
        command
            .args([
                "build",
                "--quiet",
                "--offline",
                "--workspace",
                "--manifest-path",
            ])
            .arg(self.root.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(self.root.join("target"))
            .args(arguments);
        let ended = Process::start("cargo build", &mut command).end(BUILD_LIMIT);
        assert!(
            ended.status.success(),
            "building the README's programs:\n{}",
            ended.output
        );
    }

    fn program(&self, layer: &str) -> PathBuf {
        self.root.join("target/debug").join(package(layer))
    }

    fn run_without_device(&self, layer: &str) -> Ended {
        let mut command = Command::new(self.program(layer));
        command.env_remove("LD_PRELOAD").env_remove("RDMA_DEVICE");
        if machine_has_devices() {
            command.env("RDMA_DEVICE", "=absent");
        }
        Process::start(layer, &mut command).end(RUN_LIMIT)
    }

    fn run_on_softroce(&self, layer: &str) -> Ended {
        let mut command = match layer {
            // A program that uses only the bindings runs with softroce preloaded.
            "ibverbs-sys" => {
                let mut command = Command::new(env!("CARGO"));
                command
                    .args(["xtask", "on", "softroce", "--"])
                    .arg(self.program(layer));
                command
            }
            _ => Command::new(self.program(layer)),
        };
        command.env("RDMA_DEVICE", "softroce0");
        let limit = if layer == "ibverbs-sys" {
            BUILD_LIMIT
        } else {
            RUN_LIMIT
        };
        Process::start(layer, &mut command).end(limit)
    }
}

fn package(layer: &str) -> String {
    format!("readme-{layer}")
}

fn manifest(layer: &str, others: &str) -> String {
    let path = crate::workspace().join(layer);
    let path = path.display();
    // The bindings have no such feature.
    let softroce = match layer {
        "ibverbs-sys" => "",
        _ => &format!("\"{layer}/softroce\""),
    };
    let package = package(layer);
    format!(
        "[package]\nname = \"{package}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [features]\nsoftroce = [{softroce}]\n\n\
         [dependencies]\n{layer} = {{ path = \"{path}\" }}\n{others}"
    )
}

/// Returns the first Rust block of the layer's section of the README.
fn program(layer: &str) -> String {
    let (_, readme) = crate::pages().swap_remove(0);
    let heading = format!("\n### {layer}\n");
    let (_, section) = readme
        .split_once(&heading)
        .unwrap_or_else(|| panic!("no section {layer}"));
    let section = section.split("\n### ").next().unwrap_or_default();
    let mut blocks = markdown::blocks(section).into_iter();
    let block = blocks.find(|block| block.language == "rust");
    let code = block
        .unwrap_or_else(|| panic!("no program in section {layer}"))
        .code;
    assert!(
        code.contains("fn main()"),
        "the program of {layer} is not complete:\n{code}"
    );
    code
}

/// Writes a file, unless the text is in it: a newer file would be built again.
fn write(path: &Path, text: &str) {
    if fs::read_to_string(path).is_ok_and(|present| present == text) {
        return;
    }
    fs::create_dir_all(path.parent().expect("a file is in a directory")).expect("a directory");
    fs::write(path, text).unwrap_or_else(|error| panic!("writing {}: {error}", path.display()));
}
