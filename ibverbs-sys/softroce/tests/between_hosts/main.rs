//! Conformance of two softroce processes on two hosts: two network namespaces that a pair of
//! interfaces joins, with the MTU of Ethernet and with that of jumbo frames. All bytes, lengths,
//! immediate data, atomics and errors are checked.
//!
//! Needs no root rights. If the system does not allow the namespaces, every case is reported as
//! ignored with the reason.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block is a call of C with the arguments that its manual page asks for"
)]

#[path = "../interop/connected.rs"]
mod connected;
#[path = "../interop/datagrams.rs"]
mod datagrams;
mod failures;
mod network;
#[path = "../interop/script.rs"]
mod script;
#[path = "../interop/talk.rs"]
mod talk;
mod unreliable;
#[path = "../interop/verbs.rs"]
mod verbs;

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use failures::Failure;
use ibverbs_sys::ibv_qp_type;
use libtest_mimic::{Arguments, Completion, Trial};
use network::{Link, Network};
use talk::{Place, Talk};
use verbs::{Connection, Device, Memory, Result, Settings};

/// Name of the device of both ends.
const DEVICE: &str = "softroce0";
/// TCP port of the control connection.
const PORT: u16 = 7777;
/// Maximum time of a case, which takes less than a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Number of operations of a case.
const OPERATIONS: usize = 500;
/// Number of operations that follow a failure.
const OPERATIONS_AFTER_FAILURE: usize = 50;

/// Case of the test, which both ends play together.
#[derive(Clone, Copy, Debug)]
struct Case {
    scenario: Scenario,
    link: Link,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    Reliable,
    SharedReceive,
    /// Reliable operations while both ends lose packets.
    Loss,
    Unreliable,
    Datagrams,
    Failure(Failure),
}

const SCENARIOS: [(&str, Scenario); 10] = [
    ("rc", Scenario::Reliable),
    ("rc_with_srq", Scenario::SharedReceive),
    ("rc_with_2_percent_loss", Scenario::Loss),
    ("uc", Scenario::Unreliable),
    ("ud", Scenario::Datagrams),
    ("wrong_key", Scenario::Failure(Failure::WrongKey)),
    ("short_receive", Scenario::Failure(Failure::ShortReceive)),
    ("late_receive", Scenario::Failure(Failure::LateReceive)),
    (
        "missing_receive",
        Scenario::Failure(Failure::MissingReceive),
    ),
    ("killed_peer", Scenario::Failure(Failure::KilledPeer)),
];

/// One of the two ends of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Initiator,
    Target,
}

impl Case {
    /// Returns all cases with their names.
    fn all() -> impl Iterator<Item = (String, Self)> {
        Link::ALL.into_iter().flat_map(|link| {
            SCENARIOS.map(|(name, scenario)| (format!("{name}_{link}"), Self { scenario, link }))
        })
    }

    fn settings(self) -> Settings {
        Settings {
            transport: match self.scenario {
                Scenario::Unreliable => ibv_qp_type::IBV_QPT_UC,
                Scenario::Datagrams => ibv_qp_type::IBV_QPT_UD,
                _ => ibv_qp_type::IBV_QPT_RC,
            },
            shared_receive: self.scenario == Scenario::SharedReceive,
            mtu: self.link.path_mtu(),
            rnr_retries: match self.scenario {
                Scenario::Failure(Failure::MissingReceive) => 1,
                _ => 7,
            },
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let end = match arguments.first().map(String::as_str) {
        Some("--end=initiator") => End::Initiator,
        Some("--end=target") => End::Target,
        _ => return test(),
    };
    match play(end, &arguments[1..].concat()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{end:?}: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn test() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let reason = match network::enter() {
        Ok(Some(status)) => return ExitCode::from(status),
        Ok(None) => None,
        Err(reason) => Some(reason),
    };
    // All cases share the network.
    arguments.test_threads = Some(1);
    let network: Arc<OnceLock<Result<Network>>> = Arc::default();
    let trials = Case::all().map(|(name, case)| {
        let network = Arc::clone(&network);
        let reason = reason.clone();
        Trial::ignorable_test(name.clone(), move || match reason {
            Some(reason) => Ok(Completion::ignored_with(reason)),
            None => match network.get_or_init(Network::new) {
                Ok(network) => Ok(play_both(network, &name, case).map(|()| Completion::Completed)?),
                Err(problem) => Err(problem.into()),
            },
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// Plays both ends of a case, each in a process of its own. Ends both processes if one fails.
fn play_both(network: &Network, name: &str, case: Case) -> Result<()> {
    let program = env::current_exe().map_err(|error| format!("this program's path: {error}"))?;
    let loss = match case.scenario {
        Scenario::Loss => "2%",
        _ => "0",
    };
    let start = |mut command: Command, end: &str| {
        for (variable, _) in env::vars_os() {
            if variable.to_string_lossy().starts_with("SOFTROCE_") {
                command.env_remove(variable);
            }
        }
        command.args([end, name]).stdin(Stdio::null());
        command.env("SOFTROCE_LOSS", loss).env("SOFTROCE_SEED", "1");
        let started = command.spawn();
        started
            .map(Process)
            .map_err(|error| format!("starting an end: {error}"))
    };
    let mut initiator = start(Command::new(&program), "--end=initiator")?;
    let mut target = start(network.far_command(&program), "--end=target")?;
    let is_killed = case.scenario == Scenario::Failure(Failure::KilledPeer);
    let deadline = Instant::now() + LIMIT;
    loop {
        let ended = (initiator.status()?, target.status()?);
        for (status, may_be_killed) in [(ended.0, false), (ended.1, is_killed)] {
            match status {
                Some(status) if may_be_killed && status.signal() == Some(libc::SIGKILL) => {}
                Some(status) if may_be_killed || !status.success() => {
                    return Err(format!("an end failed: {status}"));
                }
                _ => {}
            }
        }
        if let (Some(_), Some(_)) = ended {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("the ends take longer than {LIMIT:?}"));
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Process of one end, which is killed when this value is dropped.
struct Process(Child);

impl Process {
    /// Returns the status of the process if it has ended.
    fn status(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.0.try_wait();
        status.map_err(|error| format!("waiting for an end: {error}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Connection of an end with its memory.
struct Ready {
    connection: Connection,
    memory: Memory,
    peer: Place,
}

/// Creates memory and a queue pair, and connects the queue pair to that of the other end.
fn connect(device: &Device, talk: &mut Talk, end: End, settings: Settings) -> Result<Ready> {
    let memory = device.memory(match (settings.uses_datagrams(), end) {
        (true, _) => datagrams::MEMORY,
        (false, End::Initiator) => connected::INITIATOR,
        (false, End::Target) => connected::TARGET,
    })?;
    let mut connection = device.connection(settings)?;
    // The sequence numbers wrap within the first operations.
    let own = device.place(&connection, &memory, 0xff_fff0 + end as u32);
    let peer = talk.exchange(&own)?;
    connection.connect(&own, &peer)?;
    talk.meet()?;
    Ok(Ready {
        connection,
        memory,
        peer,
    })
}

/// Plays one end of the case with the name `name`.
fn play(end: End, name: &str) -> Result<()> {
    let mut cases = Case::all();
    let found = cases.find(|(found, _)| found == name);
    let (_, case) = found.ok_or("there is no such case")?;
    softroce::install();
    let [near, far] = case.link.addresses();
    let (own, control) = match end {
        End::Initiator => (near, Talk::connect(&Link::socket(far).to_string())),
        End::Target => (far, Talk::accept(&Link::socket(far).to_string())),
    };
    let (device, mut talk) = (Device::open(DEVICE, own)?, control?);
    let settings = case.settings();
    let mut ready = connect(&device, &mut talk, end, settings)?;
    let Ready {
        connection,
        memory,
        peer,
    } = &mut ready;
    match (case.scenario, end) {
        (Scenario::Unreliable, End::Initiator) => {
            unreliable::initiate(connection, memory, &mut talk, peer, OPERATIONS)
        }
        (Scenario::Unreliable, End::Target) => {
            unreliable::target(connection, memory, &mut talk, OPERATIONS)
        }
        (Scenario::Datagrams, End::Initiator) => {
            let what = (OPERATIONS, case.link.path_mtu() as usize);
            datagrams::initiate(connection, memory, &mut talk, peer, what)
        }
        (Scenario::Datagrams, End::Target) => {
            let what = (OPERATIONS, case.link.path_mtu() as usize);
            datagrams::target(connection, memory, &mut talk, peer, what)
        }
        (Scenario::Failure(failure), _) => {
            match end {
                End::Initiator => failure.initiate(connection, memory, &mut talk, peer)?,
                End::Target => failure.target(connection, memory, &mut talk)?,
            }
            if failure == Failure::KilledPeer {
                return Ok(());
            }
            // The failure concerns no other queue pair of the two devices.
            let mut next = connect(&device, &mut talk, end, settings)?;
            operate(&mut next, &mut talk, end, OPERATIONS_AFTER_FAILURE, false)
        }
        (scenario, _) => {
            let is_small = scenario == Scenario::Loss;
            operate(&mut ready, &mut talk, end, OPERATIONS, is_small)
        }
    }
}

/// Executes `count` operations on a reliable connection, or checks them at the target.
fn operate(
    ready: &mut Ready,
    talk: &mut Talk,
    end: End,
    count: usize,
    is_small: bool,
) -> Result<()> {
    let operations = script::operations(count as u64, count, is_small);
    let Ready {
        connection,
        memory,
        peer,
    } = ready;
    match end {
        End::Initiator => {
            talk.meet()?;
            connected::initiate(connection, memory, peer, &operations)?;
            talk.meet()
        }
        End::Target => {
            connected::prepare(memory);
            connected::target(connection, memory, talk, &operations)
        }
    }
}
