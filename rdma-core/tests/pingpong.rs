//! The ping-pong examples with the C programs of the same names, in both roles, and with
//! themselves.

#![allow(
    clippy::duplicate_mod,
    reason = "each example is a program of its own, with the part that they share"
)]

mod common;

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::program::with_device;
use rdma_core::completion::CompletionFields;

#[path = "../examples/rc_pingpong.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod rc_pingpong;
#[path = "../examples/srq_pingpong.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod srq_pingpong;
#[path = "../examples/ud_pingpong.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod ud_pingpong;

/// Maximum duration of a game, enough for an emulated machine under load.
const LIMIT: Duration = Duration::from_secs(120);

/// The result of a game: the numbers of sent, received and wrong messages.
type Score = (u64, u64, u64);

/// An example, with its C program.
#[derive(Clone, Copy)]
struct Game {
    /// The name of the C program.
    c: &'static str,
    ours: fn(Vec<String>) -> Result<Score, String>,
}

macro_rules! game {
    ($c:literal, $example:ident) => {
        Game {
            c: $c,
            ours: |arguments| {
                let options = $example::pingpong::Options::parse(&$example::PROGRAM, arguments);
                let report = options.and_then(|options| $example::run(&options));
                let report = report.map_err(|error| error.to_string())?;
                println!("{report}");
                Ok((report.sent, report.received, report.invalid))
            },
        }
    };
}

const RC: Game = game!("ibv_rc_pingpong", rc_pingpong);
const UD: Game = game!("ibv_ud_pingpong", ud_pingpong);
const SRQ: Game = game!("ibv_srq_pingpong", srq_pingpong);

/// Returns the options that both sides have in common: the device, its GID, and the options of the
/// test.
fn arguments(port: u16, words: &str) -> Vec<String> {
    let context = common::context();
    let address = context.address(Default::default()).unwrap();
    let mut arguments: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let device = ["-d", context.name(), "-i", &address.port.to_string()].map(str::to_owned);
    arguments.extend(device);
    arguments.extend(["-g".to_owned(), address.gid_index.to_string()]);
    arguments.extend(["-p".to_owned(), port.to_string()]);
    arguments
}

/// Returns a TCP port at which no program listens.
fn free_port() -> u16 {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port()
}

/// The side of a game that this crate's example plays, on its own thread.
struct Ours(mpsc::Receiver<Result<Score, String>>);

impl Ours {
    fn start(game: Game, mut arguments: Vec<String>, server: Option<&str>) -> Self {
        arguments.extend(server.map(str::to_owned));
        let (tell, hear) = mpsc::channel();
        thread::spawn(move || {
            let mut score = (game.ours)(arguments.clone());
            // The client may start before the server listens.
            let deadline = Instant::now() + LIMIT;
            while score.as_ref().is_err_and(|error| error.contains("refused"))
                && Instant::now() < deadline
            {
                thread::sleep(Duration::from_millis(20));
                score = (game.ours)(arguments.clone());
            }
            // After a failure of the test, no receiver is left.
            let _ = tell.send(score);
        });
        Self(hear)
    }

    #[track_caller]
    fn score(&self) -> Score {
        match self.0.recv_timeout(LIMIT) {
            Ok(score) => score.unwrap_or_else(|error| panic!("our end: {error}")),
            Err(_) => panic!("our end did not end within {LIMIT:?}"),
        }
    }

    /// Returns the score of a game against the program `theirs`. Panics if that program fails.
    #[track_caller]
    fn score_against(&self, theirs: &mut Theirs) -> Score {
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            match self.0.recv_timeout(Duration::from_millis(50)) {
                Ok(score) => return score.unwrap_or_else(|error| panic!("our end: {error}")),
                Err(_) if theirs.has_failed() => panic!("the C program: {}", theirs.output()),
                Err(_) => {}
            }
        }
        panic!("our end did not end within {LIMIT:?}");
    }
}

/// A running C program.
struct Theirs {
    child: Child,
    output: Option<JoinHandle<String>>,
}

impl Theirs {
    fn start(program: &str, arguments: &[String], server: Option<&str>) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).args(server);
        with_device(&mut command, &common::context());
        let (mut reader, writer) = std::io::pipe().unwrap();
        command.stdin(Stdio::null());
        command.stdout(writer.try_clone().unwrap()).stderr(writer);
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => panic!("{program}: {error} (it is in the package ibverbs-utils)"),
        };
        let output = thread::spawn(move || {
            let mut text = String::new();
            // The output before an error is still useful.
            let _ = reader.read_to_string(&mut text);
            text
        });
        Self {
            child,
            output: Some(output),
        }
    }

    fn has_failed(&mut self) -> bool {
        let status = self.child.try_wait().unwrap();
        status.is_some_and(|status| !status.success())
    }

    /// Returns the output of the program after its end.
    fn output(&mut self) -> String {
        let output = self.output.take().map(JoinHandle::join);
        output.and_then(Result::ok).unwrap_or_default()
    }

    /// Waits until the program has ended. Returns whether it succeeded, and its output; `None` if
    /// the program did not end in time.
    fn end(mut self) -> Option<(bool, String)> {
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some((status.success(), self.output()));
            }
            thread::sleep(Duration::from_millis(5));
        }
        None
    }

    #[track_caller]
    fn succeeds(self, says: &str) {
        let (success, output) = self.end().expect("the C program did not end");
        print!("{output}");
        assert!(success, "the C program failed");
        assert!(output.contains(says), "no {says:?}");
        assert!(!output.contains("invalid data"));
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // Fails if the program has already ended, which is the usual case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Plays a game of each kind: with a C server, with a C client, and without C programs.
#[track_caller]
fn play(game: Game, words: &str, messages: u64) {
    let expected = (messages, messages, 0);
    let within = |score: Score| {
        // On several queue pairs the C programs send more messages than required.
        assert!(
            score.0 == expected.0 && score.1 >= expected.1 && score.2 == 0,
            "{score:?}"
        );
    };
    println!("-- ours connects to C: {words}");
    let port = free_port();
    let mut theirs = Theirs::start(game.c, &arguments(port, words), None);
    let ours = Ours::start(game, arguments(port, words), Some("127.0.0.1"));
    within(ours.score_against(&mut theirs));
    theirs.succeeds("usec/iter");

    println!("-- C connects to ours: {words}");
    let port = free_port();
    let ours = Ours::start(game, arguments(port, words), None);
    let deadline = Instant::now() + LIMIT;
    loop {
        let theirs = Theirs::start(game.c, &arguments(port, words), Some("127.0.0.1"));
        let (success, output) = theirs.end().expect("the C program did not end");
        print!("{output}");
        if success {
            assert!(output.contains("usec/iter"), "{output}");
            break;
        }
        // The server of this crate may not listen yet. The C program must not have begun a game,
        // because the server plays only one.
        let begun = output.contains("remote address");
        assert!(!begun && Instant::now() < deadline, "the C program failed");
        thread::sleep(Duration::from_millis(20));
    }
    within(ours.score());

    play_ourselves(game, words, within);
}

/// Plays a game between two examples of this crate.
#[track_caller]
fn play_ourselves(game: Game, words: &str, within: impl Fn(Score)) {
    println!("-- ours connects to ours: {words}");
    let port = free_port();
    let server = Ours::start(game, arguments(port, words), None);
    let client = Ours::start(game, arguments(port, words), Some("127.0.0.1"));
    within(client.score());
    within(server.score());
}

#[test]
fn reliable_connections_polling() {
    play(RC, "-c -n 300", 300);
}

#[test]
fn reliable_connections_with_events() {
    play(RC, "-c -n 300 --events", 300);
}

#[test]
fn reliable_connections_with_large_messages() {
    play(RC, "-c -n 20 -s 1048576 -m 4096 -r 20", 20);
}

#[test]
fn reliable_connections_with_timestamps() {
    let fields = CompletionFields::STANDARD | CompletionFields::TIMESTAMP;
    let timed = common::context()
        .completion_queue(1)
        .extended(fields)
        .build();
    if common::where_supported(timed).is_some() {
        play(RC, "-c -n 100 -t", 100);
    }
}

/// The C program then registers memory of 0 bytes, which not every device allows.
#[test]
fn reliable_connections_with_empty_messages() {
    play_ourselves(RC, "-c -n 100 -s 0", |score| {
        assert_eq!(score, (100, 100, 0));
    });
}

#[test]
fn datagrams_polling() {
    play(UD, "-c -n 300", 300);
}

#[test]
fn datagrams_with_events() {
    play(UD, "-c -n 300 -e -s 100", 300);
}

#[test]
fn shared_receive_queues_polling() {
    play(SRQ, "-c -n 300", 300);
}

#[test]
fn shared_receive_queues_with_events() {
    play(SRQ, "-c -n 300 -e -q 5 --rx-depth=40", 300);
}

#[test]
fn options_are_read_as_the_c_programs_read_them() {
    let parse = |line: &str| {
        let words = line.split(' ').map(str::to_owned);
        srq_pingpong::pingpong::Options::parse(&srq_pingpong::PROGRAM, words)
    };
    let options = parse("-ec -n5 -q 3 --gid-idx 2 --size=77 -m2048 host").unwrap();
    assert!(options.events && options.check);
    assert_eq!(
        (options.iterations, options.queue_pairs, options.size),
        (5, 3, 77)
    );
    assert_eq!((options.gid_index, options.mtu.bytes()), (Some(2), 2048));
    assert_eq!(options.server.as_deref(), Some("host"));
    for wrong in [
        "-x",
        "-n",
        "-n x",
        "--nothing",
        "one two",
        "--events=1",
        "-t",
        "-m 1000",
        "-q 501",
    ] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
    let usage = parse("-x").unwrap_err().to_string();
    assert!(usage.contains("srq_pingpong [options] <server>"), "{usage}");
    assert!(
        usage.contains("-q, --num-qp=<value>") && !usage.contains("--ts"),
        "{usage}"
    );
}
