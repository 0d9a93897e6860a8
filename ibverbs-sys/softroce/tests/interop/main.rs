//! Interoperability of softroce with the kernel's Soft-RoCE: a veth pair joins two network
//! namespaces, with the kernel's device in one and softroce in the other. Each is initiator and
//! target, with and without loss. All bytes, lengths, immediate data and atomics are checked.
//!
//! Needs root and a kernel with `rdma_rxe`, `veth` and `sch_netem`:
//!
//! ```text
//! cargo xtask on rxe --guest --module veth --module sch_netem -- target/debug/deps/interop-...
//! ```
//!
//! If the network cannot be created, every case is reported as ignored with the reason, or as
//! failed with `INTEROP=required`.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block is a call of C with the arguments that its manual page asks for"
)]

mod connected;
mod datagrams;
mod network;
mod script;
mod talk;
mod verbs;

use std::env;
use std::net::IpAddr;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, OnceLock};

use ibverbs_sys::ibv_qp_type;
use libtest_mimic::{Arguments, Completion, Trial};
use network::{KERNEL_ADDRESS, KERNEL_DEVICE, NAMESPACE, Network, SOFTROCE_ADDRESS};
use talk::Talk;
use verbs::{Device, Result, Settings};

const SOFTROCE_DEVICE: &str = "softroce0";
/// Address at which the kernel's end listens.
const LISTEN: &str = "10.78.0.1:7777";

/// Case of the test, which both ends play together.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    settings: Settings,
    /// Set if softroce is the initiator.
    from_softroce: bool,
    count: usize,
    /// Share of lost packets in percent.
    loss: u32,
    /// Set if softroce sends bursts, which the kernel splits and numbers before they reach its
    /// device.
    bursts: bool,
}

const CASES: &[Case] = &[
    rc("rc_mtu_4096_from_softroce", 4096, true, 10_000, 0),
    rc("rc_mtu_4096_from_kernel", 4096, false, 10_000, 0),
    rc("rc_mtu_1024_from_softroce", 1024, true, 10_000, 0),
    rc("rc_mtu_1024_from_kernel", 1024, false, 10_000, 0),
    srq(rc("rc_srq_from_softroce", 4096, true, 2_000, 0)),
    srq(rc("rc_srq_from_kernel", 4096, false, 2_000, 0)),
    ud("ud_from_softroce", true),
    ud("ud_from_kernel", false),
    rc("rc_2_percent_loss_from_softroce", 4096, true, 1_000, 2),
    rc("rc_2_percent_loss_from_kernel", 4096, false, 1_000, 2),
    rc(
        "rc_mtu_1024_2_percent_loss_from_softroce",
        1024,
        true,
        1_000,
        2,
    ),
    rc(
        "rc_mtu_1024_2_percent_loss_from_kernel",
        1024,
        false,
        1_000,
        2,
    ),
    bursts(rc("rc_bursts_from_softroce", 1024, true, 5_000, 0)),
    bursts(rc("rc_bursts_from_kernel", 1024, false, 5_000, 0)),
    bursts(rc(
        "rc_bursts_2_percent_loss_from_softroce",
        1024,
        true,
        500,
        2,
    )),
];

const fn rc(name: &'static str, mtu: u32, from_softroce: bool, count: usize, loss: u32) -> Case {
    Case {
        name,
        settings: Settings {
            transport: ibv_qp_type::IBV_QPT_RC,
            shared_receive: false,
            mtu,
            rnr_retries: 7,
        },
        from_softroce,
        count,
        loss,
        bursts: false,
    }
}

const fn bursts(case: Case) -> Case {
    Case {
        bursts: true,
        ..case
    }
}

const fn srq(case: Case) -> Case {
    Case {
        settings: Settings {
            shared_receive: true,
            ..case.settings
        },
        ..case
    }
}

const fn ud(name: &'static str, from_softroce: bool) -> Case {
    let case = rc(name, 4096, from_softroce, 10_000, 0);
    Case {
        settings: Settings {
            transport: ibv_qp_type::IBV_QPT_UD,
            ..case.settings
        },
        ..case
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [end, case] = &arguments[..]
        && let Some(end) = end.strip_prefix("--end=")
    {
        return match play(end == "softroce", case) {
            Ok(()) => ExitCode::SUCCESS,
            Err(problem) => {
                eprintln!("{end}: {problem}");
                ExitCode::FAILURE
            }
        };
    }
    let mut arguments = Arguments::from_args();
    // All cases share the network.
    arguments.test_threads = Some(1);
    let network: Arc<OnceLock<Result<Network>>> = Arc::default();
    let trials = CASES.iter().map(|case| {
        let network = Arc::clone(&network);
        Trial::ignorable_test(case.name, move || match network.get_or_init(Network::new) {
            Ok(network) => Ok(together(network, case).map(|()| Completion::Completed)?),
            Err(problem) if env::var_os("INTEROP").is_none() => {
                Ok(Completion::ignored_with(problem))
            }
            Err(problem) => Err(problem.into()),
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    // Removes the network.
    drop(network);
    conclusion.exit_code()
}

/// Plays both ends of a case, each in a process of its own.
fn together(network: &Network, case: &Case) -> Result<()> {
    network.lose(case.loss)?;
    let program = env::current_exe().map_err(|error| format!("this program's path: {error}"))?;
    let mut kernel = Command::new(&program);
    kernel.args(["--end=kernel", case.name]);
    let mut softroce = Command::new("ip");
    softroce.args(["netns", "exec", NAMESPACE]).arg(&program);
    softroce
        .args(["--end=softroce", case.name])
        .env("SOFTROCE_ADDRESS", SOFTROCE_ADDRESS)
        .env("SOFTROCE_GSO", if case.bursts { "always" } else { "peers" });
    let start = |command: &mut Command| {
        let started = command.stdin(Stdio::null()).spawn();
        started.map_err(|error| format!("starting an end: {error}"))
    };
    let ends = [start(&mut kernel)?, start(&mut softroce)?];
    let ended: Vec<Result<()>> = ends.into_iter().map(end_of).collect();
    ended.into_iter().collect()
}

/// Waits for one end, which ends by itself because each of its waits is bounded.
fn end_of(mut child: Child) -> Result<()> {
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("an end failed: {status}")),
        Err(error) => Err(format!("waiting for an end: {error}")),
    }
}

/// Plays one end of the case with this name.
fn play(softroce: bool, name: &str) -> Result<()> {
    let case = CASES.iter().find(|case| case.name == name);
    let case = case.ok_or("there is no such case")?;
    let (device, address) = if softroce {
        softroce::install();
        (SOFTROCE_DEVICE, SOFTROCE_ADDRESS)
    } else {
        (KERNEL_DEVICE, KERNEL_ADDRESS)
    };
    let address: IpAddr = address.parse().map_err(|_| "an address")?;
    let device = Device::open(device, address)?;
    let mut talk = if softroce {
        Talk::connect(LISTEN)?
    } else {
        Talk::accept(LISTEN)?
    };
    let initiator = softroce == case.from_softroce;
    let mut memory = device.memory(match (case.settings.uses_datagrams(), initiator) {
        (true, _) => datagrams::MEMORY,
        (false, true) => connected::INITIATOR,
        (false, false) => connected::TARGET,
    })?;
    let mut connection = device.connection(case.settings)?;
    // The sequence numbers wrap within the first operations.
    let own = device.place(&connection, &memory, 0xff_fff0 + u32::from(softroce));
    let peer = talk.exchange(&own)?;
    connection.connect(&own, &peer)?;
    if case.settings.uses_datagrams() {
        let what = (case.count, 4096);
        return if initiator {
            talk.meet()?;
            datagrams::initiate(&connection, &mut memory, &mut talk, &peer, what)
        } else {
            talk.meet()?;
            datagrams::target(&connection, &mut memory, &mut talk, &peer, what)
        };
    }
    let operations = script::operations(case.count as u64, case.count, case.loss > 0);
    if initiator {
        talk.meet()?;
        connected::initiate(&connection, &mut memory, &peer, &operations)?;
        talk.meet()
    } else {
        connected::prepare(&mut memory);
        connected::target(&connection, &mut memory, &mut talk, &operations)
    }
}
