//! Checks that processes on one address lose nothing while other processes on the address, also the
//! first one, start and are killed at any time.
//!
//! The environment variable `SEED` repeats the random choices of a run; `PROCESSES` is the number
//! of processes that are killed, and `CONCURRENT` how many of them are alive at the same time.

mod common;

use std::env;
use std::io::Read;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::namespace::{ROLE, again, must_skip, report_ready, wait_until_ready};
use common::{LIMIT, builder, bytes, pattern, run_within, two_threads, variable};
use rdma_async::{LocalMrReadAccess, Rdma, RdmaDevice};
use tokio::sync::mpsc::Sender;

const TEST: &str = "killed_processes_do_not_disturb_others_on_their_address";
/// The address of all processes: any loopback address exists, without privileges.
const ADDRESS: &str = "127.94.73.1";
const PORT: u16 = 7841;
/// Default number of processes that are killed.
const PROCESSES: u64 = 100;
/// Default number of short-lived processes that run at the same time. An address has ports for 255
/// processes.
const CONCURRENT: u64 = 20;
/// Maximum lifetime of a short-lived process in milliseconds, for each process that runs at the
/// same time. So the rate at which processes start does not depend on their number.
const LIFETIME_MS: u64 = 120;
/// Content of the first message of the persistent client.
const PERSISTENT: u8 = 0xa5;

#[test]
fn killed_processes_do_not_disturb_others_on_their_address() {
    let processes = variable("PROCESSES", PROCESSES);
    let lifetime = Duration::from_millis(LIFETIME_MS * concurrent());
    let limit = Duration::from_secs(120) + Duration::from_millis(500) * processes as u32 + lifetime;
    match env::var(ROLE).as_deref() {
        Ok("server") => run_within(limit, two_threads(), serve()),
        Ok("client") => run_within(limit, two_threads(), exchange_until_input_ends()),
        Ok("first") => run_within(limit, two_threads(), open_first()),
        Ok(_) => run_within(limit, two_threads(), exchange_until_killed()),
        Err(_) if must_skip(&["true"]) => {}
        Err(_) => supervise(processes),
    }
}

/// Starts a process with the role `role`, which may use only packets if `by_packets` is set.
fn start(role: &str, by_packets: bool) -> Child {
    let mut command = again(TEST, role, &["env"]);
    command
        .env("SOFTROCE_ADDRESS", ADDRESS)
        .stdin(Stdio::piped());
    if by_packets {
        command.env("SOFTROCE_PATH", "udp");
    }
    command.spawn().unwrap()
}

/// Returns the number of short-lived processes that run at the same time.
fn concurrent() -> u64 {
    variable("CONCURRENT", CONCURRENT)
}

/// Starts the first process on the address, the server, the persistent client, and all short-lived
/// processes. Kills the short-lived processes, and the first process after half of them. No process
/// is killed before as many as may run at the same time are connected.
fn supervise(processes: u64) {
    let seed = variable("SEED", 1);
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 16) % limit
    };
    let mut first = Some(start("first", below(2) == 0));
    let _from_first = first.as_mut().map(wait_until_ready);
    let mut server = start("server", below(2) == 0);
    let from_server = wait_until_ready(&mut server);
    let mut client = start("client", false);
    let from_client = wait_until_ready(&mut client);
    let concurrent = concurrent().min(processes);
    let mut start_short_lived = || {
        let process = start("short-lived", below(2) == 0);
        let lifetime = below(LIFETIME_MS * concurrent);
        (process, Duration::from_millis(lifetime))
    };
    let mut all: Vec<_> = (0..concurrent).map(|_| start_short_lived()).collect();
    let _outputs: Vec<_> = (all.iter_mut())
        .map(|(process, _)| wait_until_ready(process))
        .collect();
    let begin = Instant::now();
    let all = all.into_iter();
    let mut running: Vec<(Child, Instant)> = all
        .map(|(process, lifetime)| (process, begin + lifetime))
        .collect();
    let mut started = concurrent;
    while started < processes || !running.is_empty() {
        if started < processes && (running.len() as u64) < concurrent {
            started += 1;
            let (process, lifetime) = start_short_lived();
            running.push((process, Instant::now() + lifetime));
        }
        running.retain_mut(|(process, end)| {
            // A process that ends by itself has failed.
            assert!(process.try_wait().unwrap().is_none(), "seed {seed}");
            let is_over = *end <= Instant::now();
            if is_over {
                process.kill().unwrap();
                process.wait().unwrap();
            }
            !is_over
        });
        if let Some(mut process) = first.take_if(|_| started > processes / 2) {
            assert!(process.try_wait().unwrap().is_none(), "seed {seed}");
            process.kill().unwrap();
            process.wait().unwrap();
        }
        for permanent in [&mut server, &mut client] {
            assert!(permanent.try_wait().unwrap().is_none(), "seed {seed}");
        }
        thread::sleep(Duration::from_millis(5));
    }
    // The client ends when its standard input does.
    drop(client.stdin.take());
    for (mut process, mut output) in [(client, from_client), (server, from_server)] {
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        assert!(process.wait().unwrap().success(), "seed {seed}: {text}");
        print!("{text}");
    }
}

/// Accepts connections, and sends each message back, until the persistent client has ended.
async fn serve() {
    let mut listener = builder().bind((ADDRESS, PORT)).await.unwrap();
    report_ready();
    let (ended, mut end) = tokio::sync::mpsc::channel(1);
    let answered = Arc::new(AtomicU64::new(0));
    loop {
        tokio::select! {
            // A peer may be killed before its connection is complete.
            accepted = listener.accept() => if let Ok(connection) = accepted {
                tokio::spawn(answer(connection, Arc::clone(&answered), ended.clone()));
            },
            _ = end.recv() => break,
        }
    }
    let answered = answered.load(Ordering::Relaxed);
    println!("{answered} messages of processes that were killed");
    assert!(answered > 0);
}

/// Sends each message of a connection back, and checks it. Counts the messages of processes that
/// are killed in `answered`, and sends to `ended` when the persistent client has ended.
async fn answer(connection: Rdma, answered: Arc<AtomicU64>, ended: Sender<()>) {
    let Ok(first) = connection.receive().await else {
        return;
    };
    let is_persistent = first.as_slice() == [PERSISTENT];
    for number in 0.. {
        let Ok(message) = connection.receive().await else {
            break;
        };
        assert!(message.as_slice() == bytes(length(number), number as u8));
        if connection.send(&message).await.is_err() {
            break;
        }
        answered.fetch_add(u64::from(!is_persistent), Ordering::Relaxed);
    }
    if is_persistent {
        ended.send(()).await.unwrap();
    }
}

/// Exchanges messages with the server until the standard input ends.
async fn exchange_until_input_ends() {
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        over.store(true, Ordering::Relaxed);
    });
    let connection = connect(PERSISTENT).await;
    report_ready();
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        exchange(&connection, number).await;
        number += 1;
    }
    connection.close().await.unwrap();
    println!("{number} messages of the persistent client");
}

/// Opens the device as the first process on the address, and then exchanges messages with the
/// server until this process is killed.
async fn open_first() {
    let device = RdmaDevice::open("softroce0").unwrap();
    report_ready();
    let end = Instant::now() + LIMIT;
    let connection = loop {
        match device.builder().connect((ADDRESS, PORT)).await {
            Ok(connection) => break connection,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    // The highest bits are the index of the port.
    assert_eq!(connection.queue_pair().number() >> 16, 0);
    introduce(&connection, 0).await;
    for number in 0.. {
        exchange(&connection, number).await;
    }
}

/// Exchanges messages with the server until this process is killed.
async fn exchange_until_killed() {
    let connection = connect(0).await;
    report_ready();
    // All processes together leave processor time for the others to start.
    let pause = Duration::from_micros(100 * concurrent());
    for number in 0.. {
        exchange(&connection, number).await;
        tokio::time::sleep(pause).await;
    }
}

/// Connects to the server, and sends a message that contains `kind`.
async fn connect(kind: u8) -> Rdma {
    let connection = builder().connect((ADDRESS, PORT)).await.unwrap();
    introduce(&connection, kind).await;
    connection
}

/// Sends the first message of a connection, which contains `kind`.
async fn introduce(connection: &Rdma, kind: u8) {
    let first = pattern(connection, 1, kind);
    connection.send(&first).await.unwrap();
}

/// Sends the message with the number `number`, and receives it again.
async fn exchange(connection: &Rdma, number: u64) {
    let sent = pattern(connection, length(number), number as u8);
    connection.send(&sent).await.unwrap();
    let message = connection.receive().await.unwrap();
    assert!(message.as_slice() == sent.as_slice());
}

/// Returns the length in bytes of the message with the number `number`.
fn length(number: u64) -> usize {
    1 + (number * 7919 % 40_000) as usize
}
