//! The program as two processes on an RDMA device: the one that `RDMA_DEVICE` selects, or the first
//! usable one. The tests fail if there is no device.

#![forbid(unsafe_code)]

#[path = "../../rdma-async/tests/common/server_host.rs"]
mod server_host;

use std::env;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// Output of a program, collected by a thread.
struct Printed {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Printed {
    fn collect(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::<Mutex<Vec<u8>>>::default();
        let all = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut room = [0; 4096];
            loop {
                match pipe.read(&mut room).unwrap() {
                    0 => return,
                    count => all.lock().unwrap().extend_from_slice(&room[..count]),
                }
            }
        });
        Self { bytes, reader }
    }

    fn has_a_line(&self) -> bool {
        self.bytes.lock().unwrap().contains(&b'\n')
    }

    /// Waits until the program has ended, and returns all of its output.
    fn all(self) -> Vec<u8> {
        self.reader.join().unwrap();
        std::mem::take(&mut *self.bytes.lock().unwrap())
    }
}

/// Run of the program, which is killed when it takes too long or the test fails.
struct Run {
    child: Child,
    /// Standard output and standard error, until the run is over.
    printed: Option<[Printed; 2]>,
}

impl Run {
    /// Starts the program. Without an address of a server in `words`, the program is a server, and
    /// runs on the host of the servers if the test runs between two hosts.
    fn start(words: &[&str]) -> Self {
        let program = env!("CARGO_BIN_EXE_rdma-bench");
        let is_server = !words.contains(&"127.0.0.1");
        let mut command = match is_server {
            true => server_host::command(program),
            false => Command::new(program),
        };
        let words = server_host::with_address(words);
        command.args(words).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let out = Printed::collect(child.stdout.take().unwrap());
        let err = Printed::collect(child.stderr.take().unwrap());
        Self {
            child,
            printed: Some([out, err]),
        }
    }

    /// Waits until the program has a connection and prints the head of its report.
    fn has_begun(&mut self) {
        let deadline = Instant::now() + LIMIT;
        while !self
            .printed
            .as_ref()
            .is_some_and(|[out, _]| out.has_a_line())
        {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended before it began");
            assert!(Instant::now() < deadline, "it did not begin in {LIMIT:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the program has ended by itself, and returns its output.
    fn finish(mut self) -> Output {
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "it did not end in {LIMIT:?}");
            thread::sleep(Duration::from_millis(10));
        };
        let [stdout, stderr] = self.printed.take().expect("it runs").map(Printed::all);
        Output {
            status,
            stdout,
            stderr,
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Fails if the program has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs server and client with these arguments. Returns the output of both.
fn both(words: &str) -> [String; 2] {
    both_with(words, &[])
}

/// Runs [`both`] with additional arguments for the client.
fn both_with(words: &str, client_args: &[&str]) -> [String; 2] {
    let port = free_port();
    let mut words: Vec<&str> = words.split_whitespace().collect();
    words.extend(["-p", &port]);
    let server = Run::start(&words);
    words.extend(client_args);
    words.push("127.0.0.1");
    let client = Run::start(&words);
    [server, client].map(|run| {
        let output = run.finish();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{words:?}:\n{out}{err}");
        out
    })
}

/// Returns the columns of each line of figures, which belongs to one message size.
fn figures(printed: &str) -> Vec<Vec<f64>> {
    let columns = |line: &str| -> Option<Vec<f64>> {
        let columns: Vec<_> = line.split_whitespace().collect();
        let numbers = columns.iter().map(|word| word.parse().ok());
        numbers.collect::<Option<_>>().filter(|_| columns.len() > 3)
    };
    printed.lines().filter_map(columns).collect()
}

/// Runs a latency test and checks the output of both ends.
fn latency(words: &str, size: f64, at_server: bool) {
    let [server, client] = both(&format!("{words} -n 20"));
    assert!(client.contains(" t_typical[usec] "), "{client}");
    let lines = figures(&client);
    assert_eq!(lines.len(), 1, "{client}");
    let [bytes, count, min, max, typical, average, _, p99, p999] = lines[0][..] else {
        panic!("{client}");
    };
    assert_eq!((bytes, count), (size, 20.0), "{client}");
    assert!(min > 0.0 && min <= typical && typical <= max, "{client}");
    assert!(min <= average && average <= max, "{client}");
    assert!(p99 <= p999 && p999 <= max, "{client}");
    assert_eq!(figures(&server).len(), usize::from(at_server), "{server}");
}

/// Runs a bandwidth test, checks the output of both ends, and returns the client's peak.
fn rates(words: &str, size: f64) -> f64 {
    rates_over(words, size, 1.0)
}

/// Runs [`rates`] with this number of queue pairs.
fn rates_over(words: &str, size: f64, queue_pairs: f64) -> f64 {
    let ends = both(&format!("{words} -n 300"));
    for printed in &ends {
        let lines = figures(printed);
        assert_eq!(lines.len(), 1, "{printed}");
        let [bytes, count, peak, average, rate] = lines[0][..] else {
            panic!("{printed}");
        };
        assert_eq!((bytes, count), (size, 300.0 * queue_pairs), "{printed}");
        let expected = rate * 1e6 * size / f64::from(1 << 20);
        // The rate has six digits after the point, which are imprecise for a low rate.
        let rounding = 0.5 * size / f64::from(1 << 20);
        assert!(
            (average - expected).abs() <= 0.01 + expected * 0.01 + rounding,
            "{printed}"
        );
        assert!(peak == 0.0 || peak >= average - 0.01, "{printed}");
    }
    figures(&ends[1])[0][2]
}

/// Runs a bandwidth test that measures a peak. For short messages the peak may be 0.00 on a machine
/// with few processors.
fn bandwidth(words: &str, size: f64) {
    let peak = rates(words, size);
    assert!(peak > 0.0 || size < 64.0, "{words}");
}

#[test]
fn send_latency() {
    latency("send_lat -s 8", 8.0, true);
    latency("send_lat -s 64K", 65536.0, true);
    latency("send_lat -s 8 -e", 8.0, true);
}

#[test]
fn send_latency_beside_other_messages() {
    // On an emulated kernel each sample waits for all outstanding messages: 46 ms for 128 of 64
    // KiB.
    for (options, size) in [("", 4096.0), ("-t 4 -r 8 --memory malloc", 65536.0)] {
        let words = format!("send_lat -s 8 -n 100 --beside {size} {options}");
        let [server, client] = both(&words).map(|printed| {
            assert!(printed.contains(" Number of qps   : 2\t"), "{printed}");
            let line = format!(" Beside          : {size}[B]\n");
            assert!(printed.contains(&line), "{printed}");
            let lines = figures(&printed);
            let [latency, beside] = &*lines else {
                panic!("{printed}");
            };
            assert_eq!(latency[..2], [8.0, 100.0], "{printed}");
            assert!(latency[2..].iter().all(|time| *time >= 0.0), "{printed}");
            let [bytes, count, peak, average, _] = beside[..] else {
                panic!("{printed}");
            };
            assert_eq!((bytes, peak), (size, 0.0), "{printed}");
            assert!(count > 0.0 && average > 0.0, "{printed}");
            count
        });
        // The client does not count the messages that were outstanding at the last answer.
        assert!(server >= client, "{words}: {client} of {server} messages");
    }
    let [_, client] = both("send_lat -s 8 --beside 64K -t 4 -r 8 -D 1");
    let lines = figures(&client);
    assert_eq!(lines.len(), 2, "{client}");
    assert!(lines.iter().all(|line| line[1] > 0.0), "{client}");
}

#[test]
fn write_latency() {
    latency("write_lat -s 8", 8.0, true);
    latency("write_lat -s 64K", 65536.0, true);
    latency("write_lat -s 8 -I 64", 8.0, true);
}

#[test]
fn read_latency() {
    latency("read_lat -s 8", 8.0, false);
    latency("read_lat -s 4K -m 1024 -e", 4096.0, false);
}

#[test]
fn atomic_latency() {
    latency("atomic_lat", 8.0, false);
    latency("atomic_lat -A CMP_AND_SWAP", 8.0, false);
}

#[test]
fn send_bandwidth() {
    bandwidth("send_bw -s 512", 512.0);
    bandwidth("send_bw -s 4096 -r 16 -e", 4096.0);
}

#[test]
fn write_bandwidth() {
    bandwidth("write_bw -s 512", 512.0);
    bandwidth("write_bw -s 8192 -t 16 -Q 4", 8192.0);
}

#[test]
fn lists_of_requests() {
    bandwidth("write_bw -s 512 -l 32", 512.0);
    bandwidth("send_bw -s 512 -l 7 -t 16 -Q 5", 512.0);
    bandwidth("read_bw -s 512 -l 4", 512.0);
    bandwidth("atomic_bw -l 16", 8.0);
}

#[test]
fn memory_of_the_device_and_of_the_program() {
    for memory in ["device", "malloc"] {
        let option = format!("--memory {memory}");
        for word in ["send_lat", "write_lat", "read_lat"] {
            let at_server = word != "read_lat";
            latency(&format!("{word} -s 64 {option}"), 64.0, at_server);
        }
        latency(&format!("atomic_lat {option}"), 8.0, false);
        for word in ["send_bw", "write_bw", "read_bw"] {
            rates(&format!("{word} -s 65536 {option}"), 65536.0);
        }
        rates(&format!("write_bw -s 64 --regions 3 {option}"), 64.0);
        let [server, client] = both(&format!("send_lat -s 8 -n 5 {option}"));
        for printed in [server, client] {
            let line = format!(" Memory          : {memory}\n");
            assert!(printed.contains(&line), "{printed}");
        }
    }
}

#[test]
fn many_queue_pairs() {
    for words in [
        "send_bw -s 8 -q 4",
        "send_bw -s 4096 -q 4 -r 16 -t 8 -e",
        "write_bw -s 8 -q 4",
        "write_bw -s 65536 -q 4 -t 16",
        "read_bw -s 512 -q 4",
    ] {
        let size = words.split(' ').nth(2).unwrap().parse().unwrap();
        rates_over(words, size, 4.0);
    }
    rates_over("atomic_bw -q 4", 8.0, 4.0);
    rates_over("send_bw -s 8 -q 3 -l 7 -t 16 -Q 5", 8.0, 3.0);
    rates_over("write_bw -s 8 -q 5 -l 33", 8.0, 5.0);
}

#[test]
fn many_queue_pairs_for_a_certain_time() {
    for words in [
        "send_bw -q 4",
        "write_bw -q 4",
        "write_bw -q 4 --write_with_imm",
    ] {
        let [server, client] = both(&format!("{words} -s 8 -D 1"));
        let counts = [&server, &client].map(|printed| figures(printed)[0][1]);
        assert!(counts[0] > 4.0, "{words}: {server}");
        assert_eq!(counts[0], counts[1], "{words}: {server}{client}");
    }
}

#[test]
fn shared_receive_queues() {
    latency("send_lat -s 8 --use-srq", 8.0, true);
    latency("send_lat -s 64K --use-srq -e -r 4", 65536.0, true);
    rates("send_bw -s 8 --use-srq", 8.0);
    rates_over("send_bw -s 8 -q 4 --use-srq", 8.0, 4.0);
    rates_over("send_bw -s 4096 -q 4 --use-srq -r 16 -t 8 -e", 4096.0, 4.0);
    let [server, client] = both("send_bw -s 8 -q 4 --use-srq -D 1");
    let counts = [&server, &client].map(|printed| figures(printed)[0][1]);
    assert_eq!(counts[0], counts[1], "{server}{client}");
    for printed in [server, client] {
        assert!(printed.contains("Using SRQ      : ON\n"), "{printed}");
        assert!(printed.contains(" Number of qps   : 4\t"), "{printed}");
    }
}

#[test]
fn writes_with_immediate_data() {
    latency("write_lat -s 8 --write_with_imm", 8.0, true);
    latency("write_lat -s 64K --write_with_imm -e -r 4", 65536.0, true);
    bandwidth("write_bw -s 512 --write_with_imm", 512.0);
    rates_over("write_bw -s 8 --write_with_imm -q 4 -r 16 -t 8", 8.0, 4.0);
    for ends in [
        both("write_lat -s 8 -n 5 --write_with_imm"),
        both("write_lat -s 8 -n 5 --layer async"),
    ] {
        for printed in ends {
            assert!(printed.contains("RDMA_Write Latency Test with Immediate"));
        }
    }
}

#[test]
fn writes_with_immediate_data_of_futures() {
    let option = "--write_with_imm --layer async";
    latency(&format!("write_lat -s 8 {option}"), 8.0, true);
    for size in [8.0, 65536.0] {
        rates(&format!("write_bw -s {size} {option}"), size);
    }
    rates(
        &format!("write_bw -s 8 -r 16 {option} --completion event"),
        8.0,
    );
}

#[test]
fn many_regions() {
    rates_over("write_bw -s 64 -q 2 --regions 300", 64.0, 2.0);
    rates("write_bw -s 8 --regions 7 -l 32 -t 32", 8.0);
}

#[test]
fn many_servers() {
    let ports = [free_port(), free_port(), free_port()];
    let words = ["write_bw", "-s", "8", "-n", "300", "-q", "2", "-l", "4"];
    let servers = ports.each_ref().map(|port| {
        let words = [&words[..], &["-p", port]].concat();
        Run::start(&words)
    });
    let [first, also @ ..] = &ports;
    let also = also.join(",");
    let client = Run::start(&[&words[..], &["-p", first, "--also", &also, "127.0.0.1"]].concat());
    for run in servers.into_iter().chain([client]) {
        let output = run.finish();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{out}{err}");
        // 300 messages over each of two queue pairs with each of three servers.
        assert_eq!(figures(&out)[0][..2], [8.0, 1800.0], "{out}");
    }
}

#[test]
fn read_bandwidth() {
    bandwidth("read_bw -s 512", 512.0);
    bandwidth("read_bw -s 8192 -o 4", 8192.0);
}

#[test]
fn atomic_bandwidth() {
    bandwidth("atomic_bw", 8.0);
    bandwidth("atomic_bw -A CMP_AND_SWAP", 8.0);
}

#[test]
fn latency_of_futures() {
    latency("send_lat --layer async -s 8", 8.0, true);
    latency("send_lat --layer async -s 64K", 65536.0, true);
    latency("send_lat --layer async -s 8 --completion event", 8.0, true);
    latency("write_lat --layer async -s 8", 8.0, true);
    latency("write_lat --layer async -s 64K --threads 2", 65536.0, true);
    latency("read_lat --layer async -s 4K -m 1024", 4096.0, false);
    latency("atomic_lat --layer async", 8.0, false);
    latency(
        "atomic_lat --layer async -A CMP_AND_SWAP --completion busy",
        8.0,
        false,
    );
}

#[test]
fn bandwidth_of_futures() {
    for words in [
        "send_bw -s 512",
        "send_bw -s 64K -t 16",
        "write_bw -s 512",
        "read_bw -s 512",
        "read_bw -s 64K",
    ] {
        let size = if words.contains("64K") {
            65536.0
        } else {
            512.0
        };
        assert_eq!(rates(&format!("{words} --layer async"), size), 0.0);
    }
    assert_eq!(rates("atomic_bw --layer async", 8.0), 0.0);
    let swap = "atomic_bw --layer async -A CMP_AND_SWAP --completion event";
    assert_eq!(rates(swap, 8.0), 0.0);
}

#[test]
fn calls() {
    latency("echo_lat -s 2", 2.0, false);
    latency("echo_lat -s 1M", 1_048_576.0, false);
    latency("echo_lat -s 8 --threads 2", 8.0, false);
    assert_eq!(rates("echo_bw -s 512", 512.0), 0.0);
    assert_eq!(rates("echo_bw -s 64K -t 8", 65536.0), 0.0);
    rates_over("echo_bw -s 32 -q 4", 32.0, 4.0);
}

#[test]
fn call_latency_beside_bulk_memory() {
    // So many calls that a transfer ends meanwhile. With an emulated processor, a call takes as
    // long as a transfer.
    let is_softroce = env::var_os("RDMA_DEVICE").is_none_or(|device| device == "softroce0");
    let calls = if is_softroce { 2000 } else { 100 };
    let [server, client] = both(&format!("echo_lat -s 32 -n {calls} --beside 64K"));
    for printed in [&server, &client] {
        assert!(printed.contains(" Number of qps   : 1\t"), "{printed}");
        assert!(
            printed.contains(" Beside          : 65536[B]\n"),
            "{printed}"
        );
    }
    assert!(figures(&server).is_empty(), "{server}");
    let lines = figures(&client);
    let [latency, beside] = &*lines else {
        panic!("{client}");
    };
    assert_eq!(latency[..2], [32.0, f64::from(calls)], "{client}");
    assert_eq!(beside[0], 65536.0, "{client}");
    assert!(beside[1] > 0.0 && beside[3] > 0.0, "{client}");
}

#[test]
fn streamed_items() {
    assert_eq!(rates("bulk_bw -s 256K -t 8", 262_144.0), 0.0);
    assert_eq!(rates("item_bw -s 64", 64.0), 0.0);
    assert_eq!(rates("item_bw -s 64K --completion busy", 65536.0), 0.0);
}

#[test]
fn every_size() {
    let [_, client] = both("write_lat -a -n 5");
    let sizes: Vec<f64> = figures(&client).iter().map(|line| line[0]).collect();
    let expected: Vec<f64> = (1..=23).map(|power| f64::from(1 << power)).collect();
    assert_eq!(sizes, expected, "{client}");
}

#[test]
fn a_certain_time() {
    let words = [
        "send_lat",
        "write_lat",
        "read_lat",
        "send_bw",
        "write_bw",
        "write_lat --write_with_imm",
        "write_bw --write_with_imm --layer async",
        "send_lat --layer async",
        "send_bw --layer async",
        "read_bw --layer async",
        "echo_lat",
        "echo_bw",
    ];
    for word in words {
        // On a machine with other work one second may be too short for more than a few messages.
        let counts = [1, 10].into_iter().map(|seconds| {
            let [_, client] = both(&format!("{word} -s 8 -D {seconds}"));
            let lines = figures(&client);
            assert_eq!(lines.len(), 1, "{word}: {client}");
            lines[0][1]
        });
        assert!(counts.into_iter().any(|count| count > 5.0), "{word}");
    }
}

#[test]
fn samples_and_json() {
    let path = env::temp_dir().join(format!("rdma-bench-test-{}.json", std::process::id()));
    let name = path.to_str().unwrap();
    let json = ["--out_json", "--out_json_file", name];
    let document = || -> serde_json::Value {
        let document = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        serde_json::from_str(&document).unwrap()
    };
    both_with("send_lat -s 8 -n 100 --beside 64K -t 4 -r 8", &json);
    let beside = document();
    assert_eq!(beside["test_info"]["Beside"], 65536);
    let results = &beside["results"];
    assert!(results["percentile_99"].as_f64().unwrap() > 0.0);
    assert_eq!(results["beside"]["MsgSize"], 65536);
    assert!(results["beside"]["MsgRate"].as_f64().unwrap() > 0.0);

    let [_, client] = both_with("read_lat -s 8 -n 20 -U", &json);
    assert!(client.contains("#, usec\n1, "), "{client}");
    assert!(client.contains("\n19, "), "{client}");
    let document = document();
    assert_eq!(document["test_info"]["test"], "RDMA_Read_Latency_Test");
    assert_eq!(document["test_info"]["memory"], "device");
    let results = &document["results"];
    assert_eq!(results["n_iterations"], 20);
    assert_eq!(results["samples"].as_array().unwrap().len(), 19);
    assert!(results["t_typical"].as_f64().unwrap() > 0.0);
}

/// Starts a test that runs for longer than this test waits, kills one end in the middle of it, and
/// returns the error output of the other end.
fn survivor(test: &str, server_dies: bool) -> String {
    let port = free_port();
    let mut words: Vec<&str> = test.split_whitespace().collect();
    words.extend(["-D", "100", "-s", "8", "-p", &port]);
    let mut server = Run::start(&words);
    words.push("127.0.0.1");
    let mut client = Run::start(&words);
    server.has_begun();
    client.has_begun();
    thread::sleep(Duration::from_secs(1));
    let (dies, lives) = if server_dies {
        (server, client)
    } else {
        (client, server)
    };
    dies.kill();
    let output = lives.finish();
    let said = text(&output.stderr);
    assert!(!output.status.success(), "{test}: {said}");
    // softroce may have written a notice before, about another process with this host's address.
    let reports = said.lines().any(|line| line.starts_with("rdma-bench: "));
    assert!(reports, "{test}: {said}");
    said
}

#[test]
fn the_death_of_a_peer_ends_the_other_process() {
    let tests = [
        "send_lat",
        "send_lat --beside 64K",
        "write_lat",
        "send_bw",
        "write_bw",
        "read_lat",
        "send_lat --layer async",
        "write_bw --layer async",
        "echo_bw",
    ];
    for test in tests {
        for server_dies in [false, true] {
            let said = survivor(test, server_dies);
            assert!(
                said.contains("the peer closed the connection") || said.contains("retry count"),
                "{test}: {said}"
            );
        }
    }
}

/// Returns the error output of the program with these arguments, which must fail.
fn failure(words: &[&str]) -> String {
    let output = Run::start(words).finish();
    assert!(!output.status.success(), "{words:?}");
    text(&output.stderr)
}

#[test]
fn errors_name_the_mistake() {
    let port = free_port();
    let nobody = failure(&["send_lat", "-p", &port, "127.0.0.1"]);
    let expected = format!("connecting to {} port", server_host::address());
    assert!(nobody.contains(&expected), "{nobody}");
    let nobody = failure(&["send_lat", "-p", &port, "--timeout", "1"]);
    assert!(nobody.contains("no client for 1 s"), "{nobody}");

    for (wrong, expected) in [
        ("-d nosuch_0", "no RDMA device named \"nosuch_0\""),
        ("-i 200", "has no port 200"),
        ("-x 255", "no GID at index 255"),
    ] {
        let port = free_port();
        let mut words = vec!["send_lat", "-n", "5", "-p", &port];
        let server = Run::start(&words);
        words.extend(wrong.split(' '));
        words.push("127.0.0.1");
        let said = failure(&words);
        assert!(said.contains(expected), "{said}");
        let told = text(&server.finish().stderr);
        assert!(
            told.contains("the peer failed") && told.contains(expected),
            "{told}"
        );
    }
}

#[test]
fn the_ends_must_agree() {
    let port = free_port();
    let server = Run::start(&["send_lat", "-n", "10", "-p", &port]);
    let client = Run::start(&["send_lat", "-n", "20", "-p", &port, "127.0.0.1"]);
    for run in [server, client] {
        let said = text(&run.finish().stderr);
        assert!(said.contains("the two ends differ in length"), "{said}");
    }
}
