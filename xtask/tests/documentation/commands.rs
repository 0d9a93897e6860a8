//! The commands of the documentation's shell blocks.

use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::markdown;
use crate::process::Process;

/// Time limit of a command, which may have to build what it runs.
const LIMIT: Duration = Duration::from_secs(600);

/// Time limit of a server to end after its client.
const SERVER_LIMIT: Duration = Duration::from_secs(30);

/// The commands that this test runs. A command that ends with `&` is a server, which runs in the
/// background during the next command.
const RUN: &[&str] = &[
    "cargo xtask soak --list",
    "cargo xtask softroce-setup --check",
    "cargo xtask on softroce -- ibv_devinfo -v",
    "cargo xtask on softroce --as-library -- ibv_devinfo",
    "cargo xtask on softroce -- ucx_info -d",
    "cargo xtask on softroce -- ib_send_lat &",
    "cargo xtask on softroce -- ib_send_lat 127.0.0.1",
    "cargo xtask on softroce -- ibv_rc_pingpong -g 0 -c &",
    "cargo xtask on softroce -- ibv_rc_pingpong -g 0 -c 127.0.0.1",
    "cargo build --release -p softroce-preload --target-dir target/preload",
    "LD_PRELOAD=$PWD/target/preload/release/libsoftroce.so ibv_devinfo",
    "SOFTROCE_LOSS=2% SOFTROCE_SEED=7 SOFTROCE_PCAP=target/lossy.pcap cargo xtask on softroce -- ib_send_lat &",
    "SOFTROCE_LOSS=2% cargo xtask on softroce -- ib_send_lat 127.0.0.1",
    "cargo run --release -p rdma-bench -- send_lat -s 8 &",
    "cargo run --release -p rdma-bench -- send_lat -s 8 127.0.0.1",
    "cargo run --release -p rdma-bench -- write_bw --layer async -s 64K &",
    "cargo run --release -p rdma-bench -- write_bw --layer async -s 64K 127.0.0.1",
    "cargo run --release -p rdma-bench -- echo_lat --completion busy &",
    "cargo run --release -p rdma-bench -- echo_lat --completion busy 127.0.0.1",
    "cargo run --release -p rdma-bench --bin yardstick -- cache-line",
    "cargo run --release -p rdma-bench --bin yardstick -- vm-write -s 65536",
    "cargo run --release -p rdma-bench --bin connections -- write --layer async",
    "cargo run --release -p rdma-bench --bin connections -- idle",
    "cargo build -p ibverbs-sys --examples",
];

/// The commands that this test does not run, with the reason.
const NOT_RUN: &[(&str, &str)] = &[
    ("cargo xtask bench --quick", MINUTES),
    ("cargo xtask test --quick", ITSELF),
    ("cargo xtask test", ITSELF),
    ("cargo xtask bench --device softroce", "takes an hour"),
    ("cargo xtask bench --device softroce --only G8", MINUTES),
    ("cargo xtask callgrind", MINUTES),
    (
        "cargo run --release -p softroce --example shared_port",
        "takes half a minute",
    ),
    ("cargo xtask fuzz --seconds 600", "takes more than an hour"),
    ("cargo xtask plant", "takes half an hour"),
    ("cargo xtask sanitize", MINUTES),
    ("cargo xtask soak --minutes 60", "takes an hour"),
    ("cargo xtask softroce-setup", ROOT),
    (
        "sudo apt-get install libibverbs-dev librdmacm-dev pkg-config kmod iproute2 ibverbs-providers ibverbs-utils rdmacm-utils",
        ROOT,
    ),
    (
        "sudo modprobe --all ib_core ib_uverbs rdma_ucm rdma_rxe",
        ROOT,
    ),
    ("sudo rdma link add rxe_0 type rxe netdev eth0", ROOT),
    (
        "ibv_devinfo -v -d rxe_0",
        "needs the device of the command before",
    ),
    ("cargo xtask on rxe -- ibv_devinfo", GUEST),
    (
        "cargo xtask on rxe -- target/debug/examples/device_list",
        GUEST,
    ),
    (
        "cargo xtask on rxe --share results -- sh -c 'ibv_devinfo -v > results/devinfo.txt'",
        GUEST,
    ),
    (
        "cargo xtask on rxe --veth --module sch_netem -- sh -c '
    tc qdisc add dev veth0 root netem loss 1%
    ibv_rc_pingpong -d rxe_0 -g 1 -n 200 >/dev/null & sleep 1
    ibv_rc_pingpong -d rxe_1 -g 1 -n 200 10.77.0.1
    rdma statistic show link rxe_0'",
        GUEST,
    ),
    (
        "tshark -r target/lossy.pcap",
        "needs tshark, which nothing else needs",
    ),
    (
        "cargo run -p rdma-async --example first_program -- server 10.77.0.1:7471",
        TESTED,
    ),
    (
        "cargo run -p rdma-async --example first_program -- client 10.77.0.1:7471",
        TESTED,
    ),
    (
        "cargo run -p rdma-rpc --example echo -- server rdma://10.77.0.1:7471",
        TESTED,
    ),
    (
        "cargo run -p rdma-rpc --example echo -- client rdma://10.77.0.1:7471 hello",
        TESTED,
    ),
    ("cargo test -p rdma-async --test containers", TESTED),
    ("cargo test -p ibverbs-sys --test conformance", TESTED),
    (
        "cargo test -p ibverbs-sys --test conformance -- state::rc_",
        TESTED,
    ),
    (
        "cargo test -p ibverbs-sys --test conformance -- --long",
        "takes gigabytes and minutes",
    ),
    (
        "RDMA_DEVICE=mlx5_0 cargo test -p ibverbs-sys --test conformance",
        "needs a network card",
    ),
    (
        "cargo run -p softroce --release --features sim --example simulate -- --schedules 10000",
        MINUTES,
    ),
    (
        "cargo run -p softroce --release --features sim --example simulate -- --seed 4711 --trace",
        TESTED,
    ),
    ("cargo xtask soak kills --minutes 10", MINUTES),
    ("cargo xtask on softroce -- ib_send_bw -x 2", HOST),
    ("cargo xtask on softroce -- ib_send_bw -x 2 SERVER", HOST),
    (
        "UCX_TLS=rc_v cargo xtask on softroce -- ucx_perftest &",
        TESTED,
    ),
    (
        "UCX_TLS=rc_v cargo xtask on softroce -- ucx_perftest 127.0.0.1 -t tag_lat -n 1000",
        TESTED,
    ),
    (
        "UCX_TLS=rc_v cargo xtask on softroce -- mpirun -n 2 --mca pml ucx --mca osc ucx PROGRAM",
        TESTED,
    ),
    ("cd rdma-async/interop", TESTED),
    (
        "cargo run --example greeter -- serve 127.0.0.1:7473 &",
        TESTED,
    ),
    (
        "cargo run --example greeter -- greet 127.0.0.1:7473 world",
        TESTED,
    ),
    (
        "cargo run --release -p rdma-async --features softroce --example rdma_cp -- receive /tmp --listen 127.0.0.1:7471",
        TESTED,
    ),
    (
        "cargo run --release -p rdma-async --features softroce --example rdma_cp -- send FILE 127.0.0.1:7471",
        TESTED,
    ),
    (
        "RUSTFLAGS=\"--cfg loom\" cargo test --release -p softroce --lib models",
        MINUTES,
    ),
];

const MINUTES: &str = "takes minutes";
const ROOT: &str = "needs root, and changes the machine";
const GUEST: &str = "boots a virtual machine, which the tests on the kernel's Soft-RoCE do";
const HOST: &str = "needs another host";
const ITSELF: &str = "runs this test";
const TESTED: &str = "runs what `cargo xtask test` runs";

#[test]
fn every_command_is_run_or_has_a_reason_why_not() {
    let found: Vec<String> = commands().into_iter().map(|(_, command)| command).collect();
    let listed: Vec<&str> = RUN
        .iter()
        .copied()
        .chain(NOT_RUN.iter().map(|(command, _)| *command))
        .collect();
    for command in &found {
        let times = listed.iter().filter(|known| *known == command).count();
        assert_eq!(
            times,
            1,
            "`{command}` must be in RUN or in NOT_RUN of {}",
            file!()
        );
    }
    for known in listed {
        assert!(
            found.iter().any(|command| command == known),
            "no page has `{known}`"
        );
    }
}

#[test]
fn commands_run_as_they_are_written() {
    require_programs();
    let mut server: Option<(String, Process)> = None;
    for (place, command) in commands() {
        if !RUN.contains(&&*command) {
            continue;
        }
        println!("{place}: {command}");
        let title = format!("{place}: {command}");
        match command.strip_suffix(" &") {
            Some(background) => {
                let mut process = start(&title, background);
                process.listens(LIMIT);
                assert!(server.is_none(), "{place}: a server without a client");
                server = Some((title, process));
            }
            None => {
                check(&title, start(&title, &command), LIMIT);
                if let Some((title, process)) = server.take() {
                    check(&title, process, SERVER_LIMIT);
                }
            }
        }
    }
    assert!(server.is_none(), "a server without a client");
}

#[test]
fn the_subcommands_of_xtask_exist() {
    let mut help = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let help = Process::start("xtask --help", help.arg("--help"))
        .end(LIMIT)
        .output;
    for (path, text) in crate::pages() {
        for (_, rest) in text
            .match_indices("cargo xtask ")
            .map(|(at, name)| text.split_at(at + name.len()))
        {
            let word = |letter: char| !(letter.is_ascii_lowercase() || letter == '-');
            let name = rest.split(word).next().unwrap_or_default();
            let named = |line: &str| line.contains(&format!("xtask {name}"));
            assert!(
                !name.is_empty() && help.lines().any(named),
                "{}: `cargo xtask {name}` is no command",
                path.display()
            );
        }
    }
}

/// Returns the commands of all pages, each with its file and the line of its block.
fn commands() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (path, text) in crate::pages() {
        let name = path
            .file_name()
            .expect("a page is a file")
            .to_string_lossy()
            .into_owned();
        for block in markdown::blocks(&text) {
            if ["sh", "bash", "shell", "console"].contains(&&*block.language) {
                let place = format!("{name}:{}", block.line);
                let commands = markdown::commands(&block.code).into_iter();
                found.extend(commands.map(|command| (place.clone(), command)));
            }
        }
    }
    found
}

fn start(title: &str, command: &str) -> Process {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .env_remove("LD_PRELOAD")
        .env("RDMA_DEVICE", "softroce0");
    Process::start(title, &mut shell)
}

fn check(title: &str, process: Process, limit: Duration) {
    let ended = process.end(limit);
    assert!(
        ended.status.success(),
        "`{title}`: {}:\n{}",
        ended.status,
        ended.output
    );
}

/// Checks that the programs of other packages are installed.
fn require_programs() {
    const PROGRAMS: [(&str, &str); 4] = [
        ("ibv_devinfo", "ibverbs-utils"),
        ("ibv_rc_pingpong", "ibverbs-utils"),
        ("ib_send_lat", "perftest"),
        ("ucx_info", "ucx-utils"),
    ];
    let path = env::var_os("PATH").unwrap_or_default();
    let installed = |program: &str| {
        env::split_paths(&path).any(|directory| Path::new(&directory).join(program).exists())
    };
    let missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| !installed(program))
        .map(|(_, package)| *package)
        .collect();
    assert!(
        missing.is_empty(),
        "the documentation's commands need packages that are not installed: sudo apt-get install {}",
        missing.join(" ")
    );
}
