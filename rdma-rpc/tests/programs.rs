//! Tests that run the examples as several processes, over RDMA and TCP.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// Time limit of a program, sufficient for an emulated device on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the path of an example, which `cargo test` builds.
fn program(name: &str) -> PathBuf {
    let test = env::current_exe().expect("this program's path");
    test.ancestors()
        .map(|directory| directory.join("examples").join(name))
        .find(|program| program.is_file())
        .unwrap_or_else(|| panic!("no examples/{name}: `cargo test` builds it"))
}

/// A running program, which is killed at the end of the test.
struct Program {
    child: Child,
    _output: Option<BufReader<ChildStdout>>,
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn start(name: &str, words: &[&str]) -> Child {
    Command::new(program(name))
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the example runs")
}

/// Starts a server, and returns its address.
fn serve(name: &str, words: &[&str]) -> (Program, String) {
    let mut child = start(name, words);
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("its first line");
    let address = line.trim_end().strip_prefix("serving at ");
    let address = address.unwrap_or_else(|| {
        let mut stderr = String::new();
        drop(
            child
                .stderr
                .take()
                .map(|mut errors| errors.read_to_string(&mut stderr)),
        );
        panic!("{line:?} {stderr}")
    });
    let address = address.to_owned();
    let output = Some(output);
    (
        Program {
            child,
            _output: output,
        },
        address,
    )
}

/// Runs a program to its end, and returns what it printed.
fn run(name: &str, words: &[&str]) -> String {
    let mut program = Program {
        child: start(name, words),
        _output: None,
    };
    let latest = Instant::now() + LIMIT;
    while program.child.try_wait().expect("its status").is_none() {
        assert!(
            Instant::now() < latest,
            "{name} {words:?} takes longer than {LIMIT:?}"
        );
        thread::sleep(Duration::from_millis(5));
    }
    let (mut printed, mut errors) = (String::new(), String::new());
    drop(
        program
            .child
            .stdout
            .take()
            .map(|mut out| out.read_to_string(&mut printed)),
    );
    drop(
        program
            .child
            .stderr
            .take()
            .map(|mut err| err.read_to_string(&mut errors)),
    );
    let status = program.child.wait().expect("its status");
    assert!(status.success(), "{name} {words:?}: {errors}");
    printed.trim_end().to_owned()
}

fn values_are_returned(scheme: &str) {
    let (_server, address) = serve("bulk_store", &["serve", &format!("{scheme}://127.0.0.1:0")]);
    let directory = env::temp_dir().join(format!("bulk-store-{scheme}-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let [own, copy] = ["own", "copy"].map(|name| directory.join(name));
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(&own, &bytes).unwrap();
    let [own, copy_path] = [&own, &copy].map(|path| path.to_str().unwrap());
    let put = run("bulk_store", &["put", &address, "key", own]);
    assert_eq!(put, "3000000 bytes");
    let put = run("bulk_store", &["put", &address, "key", own]);
    assert_eq!(put, "3000000 bytes in place of 3000000");
    assert_eq!(
        run("bulk_store", &["get", &address, "key", copy_path]),
        "3000000 bytes"
    );
    assert!(fs::read(&copy).unwrap() == bytes);
    let peeked = run("bulk_store", &["peek", &address, "key", "2999997"]);
    assert_eq!(peeked, format!("{:?}", &bytes[2_999_997..]));
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_key_value_store_keeps_long_values_over_rdma() {
    values_are_returned("rdma");
}

#[test]
fn a_key_value_store_keeps_long_values_over_tcp() {
    values_are_returned("tcp");
}

fn rows_are_fitted(scheme: &str) {
    let place = format!("{scheme}://127.0.0.1:0");
    let servers = [(); 2].map(|()| serve("parameter_server", &["serve", &place]));
    let printed = run("parameter_server", &["train", &servers[0].1, &servers[1].1]);
    let mut numbers = printed
        .split_whitespace()
        .filter_map(|word| word.parse::<f64>().ok());
    let (first, last) = (numbers.next().unwrap(), numbers.next().unwrap());
    assert!(first > 0.1 && last < first / 100.0, "{printed}");
}

#[test]
fn a_parameter_server_fits_its_rows_over_rdma() {
    rows_are_fitted("rdma");
}

#[test]
fn a_parameter_server_fits_its_rows_over_tcp() {
    rows_are_fitted("tcp");
}

/// Returns addresses with ports that are currently free.
fn free(scheme: &str, count: usize) -> Vec<String> {
    let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let listeners: Vec<_> = listeners.collect();
    let address = |listener: &TcpListener| {
        let port = listener.local_addr().unwrap().port();
        format!("{scheme}://127.0.0.1:{port}")
    };
    listeners.iter().map(address).collect()
}

fn acknowledged_blocks_are_kept(scheme: &str, kills: usize) {
    let addresses = free(scheme, 3);
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let words = |command: &'static str, index: usize| {
        let peers = addresses.iter().enumerate().filter(|(at, _)| *at != index);
        let peers = peers.map(|(_, address)| *address);
        [command, addresses[index]]
            .into_iter()
            .chain(peers)
            .collect::<Vec<_>>()
    };
    let mut servers: Vec<_> = (0..3)
        .map(|index| Some(serve("block_store", &words("first", index)).0))
        .collect();
    let write = |number: usize, text: &str| {
        let number = number.to_string();
        let words = [&["write", &number, text], &addresses[..]].concat();
        assert_eq!(run("block_store", &words), "acknowledged");
    };
    let read = |number: usize| {
        let number = number.to_string();
        run(
            "block_store",
            &[&["read", &number], &addresses[..]].concat(),
        )
    };
    write(0, "before");
    for kill in 0..kills {
        write(kill + 1, &format!("block {kill}"));
        // Alternates between a server that has the last block and a server that may not.
        let victim = (kill * 2 + 1) % 3;
        servers[victim] = None;
        // The remaining servers continue.
        write(0, &format!("after kill {kill}"));
        assert_eq!(read(0), format!("after kill {kill}"));
        assert_eq!(read(kill + 1), format!("block {kill}"));
        servers[victim] = Some(serve("block_store", &words("serve", victim)).0);
    }
    for kill in 0..kills {
        assert_eq!(read(kill + 1), format!("block {kill}"));
    }
    assert_eq!(read(kills + 10), "no such block");
}

#[test]
fn a_block_store_loses_no_acknowledged_block_over_rdma() {
    acknowledged_blocks_are_kept("rdma", 3);
}

#[test]
fn a_block_store_loses_no_acknowledged_block_over_tcp() {
    acknowledged_blocks_are_kept("tcp", 2);
}
