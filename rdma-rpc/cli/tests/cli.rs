//! Tests of the command `rdma-rpc` with a server in the process of the test.

use std::collections::BTreeMap;
use std::process::{Command, Output};

use rdma_rpc::{HealthServer, HealthStates, Payload, Server, ServerHandle};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Shape {
    Circle { radius: f64 },
    Square(u32),
    Nothing,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Drawing {
    name: String,
    shapes: Vec<Shape>,
    scale: Option<i64>,
    marks: BTreeMap<u16, (bool, char)>,
}

#[rdma_rpc::service]
trait Board {
    /// Returns its argument.
    async fn echo(&self, drawing: Drawing) -> Result<Drawing, String>;
    async fn add(&self, left: i32, right: i32) -> Result<i32, String>;
    async fn nothing(&self) -> Result<(), String>;
    #[rpc(once)]
    async fn pay(&self, amount: u32) -> Result<u32, String>;
    #[rpc(raw)]
    async fn reverse(&self, bytes: Payload) -> Result<Vec<u8>, String>;
}

struct Blank;

impl Board for Blank {
    async fn echo(&self, drawing: Drawing) -> Result<Drawing, String> {
        Ok(drawing)
    }

    async fn add(&self, left: i32, right: i32) -> Result<i32, String> {
        left.checked_add(right).ok_or("too much".to_owned())
    }

    async fn nothing(&self) -> Result<(), String> {
        Ok(())
    }

    async fn pay(&self, amount: u32) -> Result<u32, String> {
        match amount {
            0 => Err("nothing to pay".to_owned()),
            _ => Ok(amount),
        }
    }

    async fn reverse(&self, bytes: Payload) -> Result<Vec<u8>, String> {
        Ok(bytes.iter().rev().copied().collect())
    }
}

async fn serve() -> ServerHandle {
    let server = Server::new(BoardServer::new(Blank))
        .service(HealthServer::new(HealthStates::default()))
        .reflection();
    server
        .listen("tcp://127.0.0.1:0")
        .await
        .expect("a free port")
}

async fn run(server: &ServerHandle, command: &str, arguments: &[&str]) -> Output {
    let mut process = Command::new(env!("CARGO_BIN_EXE_rdma-rpc"));
    process
        .arg(command)
        .arg(server.address().to_string())
        .args(arguments);
    let run = tokio::task::spawn_blocking(move || process.output());
    run.await
        .expect("the command does not panic")
        .expect("the command runs")
}

async fn stdout(server: &ServerHandle, command: &str, arguments: &[&str]) -> String {
    let output = run(server, command, arguments).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn methods_are_listed_and_called() {
    let server = serve().await;
    let list = stdout(&server, "list", &["--types"]).await;
    for line in [
        "Board.add(left: i32, right: i32) -> Result<i32, String>",
        "Board.nothing() -> Result<(), String>",
        "Board.reverse(bytes) -> Result<bytes, String>",
        "Health.watch(service: String, states: Sender<HealthState>) -> Result<(), ()>",
        "enum Shape { Circle { radius: f64 }, Square(u32), Nothing }",
        "struct Drawing { name: String, shapes: Vec<Shape>, scale: Option<i64>, marks: Map<u16, (bool, char)> }",
    ] {
        assert!(
            list.lines().any(|other| other == line),
            "{line:?} in {list}"
        );
    }
    assert_eq!(
        stdout(&server, "call", &["Board.add", "[-3, 70000]"]).await,
        "69997"
    );
    assert_eq!(stdout(&server, "call", &["Board.nothing"]).await, "null");
    assert_eq!(stdout(&server, "call", &["Board.pay", "7"]).await, "7");
    assert_eq!(
        stdout(&server, "call", &["Board.reverse", "\"abc\""]).await,
        "\"cba\""
    );
    let drawing = r#"{"marks":{"7":[true,"x"],"700":[false,"é"]},"name":"a \"name\"","scale":-9223372036854775808,"shapes":[{"Circle":{"radius":1.5}},{"Square":4000000000},"Nothing"]}"#;
    let echoed = stdout(&server, "call", &["Board.echo", drawing]).await;
    let values =
        [drawing, &echoed].map(|text| serde_json::from_str::<serde_json::Value>(text).unwrap());
    assert_eq!(values[0], values[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_printed() {
    let server = serve().await;
    for (arguments, reason) in [
        (&["Board.add", "[2147483647, 1]"][..], "too much"),
        (&["Board.add", "[1]"], "2 arguments"),
        (&["Board.add", "[1, 2147483648]"], "right"),
        (&["Board.add", "what"], "not valid JSON"),
        (&["Board.none"], "no method Board.none"),
        (&["Health.watch", "\"\""], "not a unary method"),
        (&["Board.echo", r#"{"name":1}"#], "is not a string"),
    ] {
        let output = run(&server, "call", arguments).await;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && stderr.contains(reason),
            "{reason:?} in {stderr}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_measured_and_monitored() {
    let server = serve().await;
    let ping = stdout(&server, "ping", &["--count", "50"]).await;
    assert!(ping.starts_with("50 calls: min "), "{ping}");
    assert!(ping.contains("p99 ") && ping.contains('#'), "{ping}");
    let failed = run(&server, "call", &["Board.pay", "0"]).await;
    assert!(!failed.status.success());
    let watched = stdout(&server, "watch", &["--interval", "20", "--count", "2"]).await;
    let numbers = |method: &str| {
        let line = watched.lines().find(|line| line.starts_with(method));
        let words = line.expect("a line").split_whitespace();
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    let checks = numbers("Health.check");
    assert_eq!((&*checks[1], &*checks[3]), ("50", "0"), "{watched}");
    // The mean is that since the start of the server, in the first table.
    let mean: f64 = checks[5].parse().expect("a number");
    assert!(checks[4] == "0" && mean >= 0.0, "{watched}");
    let payments = numbers("Board.pay");
    assert_eq!((&*payments[1], &*payments[4]), ("1", "1"), "{watched}");
}
