//! Attack on the connection of two processes: a third process sends both of them packets of every
//! opcode, each in the name of the other process. The third process runs as another user if the
//! test may change the user. Checks that the bytes of the connection stay right, and that no queue
//! pair fails.
//!
//! `SOFTROCE_TEST_ATTACK_SECONDS` is the duration of the attack in seconds.

mod attack;
mod live;
#[path = "../same_host/node.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod node;

use std::env;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};

/// Variable with the part of a process of this program. The variable is not set in the process of
/// the tests.
const PART: &str = "SOFTROCE_TEST_PART";

/// Time limit of each step except for the attack.
const LIMIT: Duration = Duration::from_secs(120);

fn main() {
    match env::var(PART).as_deref() {
        Ok("attacker") => attacker(),
        Ok("near") => live::near(),
        Ok("far") => live::far(),
        _ => tests(),
    }
}

fn tests() {
    let trial = |name: &str, path: &'static str| {
        Trial::test(name, move || {
            connection_survives(path).map_err(Failed::from)
        })
    };
    let trials = vec![
        trial("a_connection_by_packets_survives_an_attack", "udp"),
        trial("a_connection_by_shared_memory_survives_an_attack", "shared"),
    ];
    // The tests run one by one, because each of them uses all processors.
    let arguments = Arguments {
        test_threads: Some(1),
        ..Arguments::from_args()
    };
    libtest_mimic::run(&arguments, trials).exit();
}

fn attacker() {
    let attack = attack::Attack::of(env::args().skip(1)).expect(attack::USAGE);
    println!("{}", attack.run().expect("sending"));
}

/// Returns the duration of an attack in seconds.
fn seconds() -> u64 {
    let seconds = env::var("SOFTROCE_TEST_ATTACK_SECONDS");
    seconds.map_or(3, |seconds| seconds.parse().expect("a number of seconds"))
}

/// Returns the command for another process of this program.
fn part(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.env(PART, name);
    command
}

fn connection_survives(path: &str) -> Result<(), String> {
    let process = part("near")
        .env("SOFTROCE_PATH", path)
        .stdin(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    finish(process, LIMIT + Duration::from_secs(seconds()))
}

/// Waits for the end of a process. A failure or a process that exceeds `limit` is an error.
fn finish(mut process: Child, limit: Duration) -> Result<(), String> {
    let deadline = Instant::now() + limit;
    loop {
        match process.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("the connection failed: {status}")),
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = process.kill();
                let _ = process.wait();
                return Err(format!("no end within {limit:?}"));
            }
        }
    }
}
