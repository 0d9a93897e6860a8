//! A log service: callers append lines by a stream to the server, and follow the log by a stream
//! from the server.
//!
//! ```text
//! cargo run -p rdma-rpc --example log_tail
//! ```

use std::error::Error;
use std::sync::Mutex;

use rdma_rpc::{Address, Context, Receiver, Sender, Server};
use tokio::sync::watch;

#[rdma_rpc::service]
trait Log {
    /// Appends the lines from the caller, and returns their number.
    async fn append(&self, lines: Receiver<String>) -> Result<u64, String>;

    /// Sends all present and future lines from number `first` on, each with its number, until the
    /// caller drops the stream.
    async fn follow(
        &self,
        cx: &Context,
        first: u64,
        lines: Sender<(u64, String)>,
    ) -> Result<(), String>;

    /// Removes all lines. The caller does not wait for the handler.
    #[rpc(oneway)]
    async fn clear(&self);
}

struct Lines {
    lines: Mutex<Vec<String>>,
    /// Number of lines. Handlers of `follow` wait for changes of this number.
    count: watch::Sender<u64>,
}

impl Lines {
    fn new() -> Self {
        Self {
            lines: Mutex::default(),
            count: watch::Sender::new(0),
        }
    }

    fn line(&self, number: u64) -> Option<String> {
        let lines = self.lines.lock().expect("no holder of the lock panics");
        lines.get(usize::try_from(number).ok()?).cloned()
    }
}

impl Log for Lines {
    async fn append(&self, mut lines: Receiver<String>) -> Result<u64, String> {
        let mut appended = 0;
        while let Some(line) = lines.next().await {
            let line = line.map_err(|error| error.to_string())?;
            let count = {
                let mut lines = self.lines.lock().expect("no holder of the lock panics");
                lines.push(line);
                lines.len() as u64
            };
            self.count.send_replace(count);
            appended += 1;
        }
        Ok(appended)
    }

    async fn follow(
        &self,
        _: &Context,
        first: u64,
        mut lines: Sender<(u64, String)>,
    ) -> Result<(), String> {
        let mut count = self.count.subscribe();
        let mut next = first;
        // When the caller drops the call, this handler is dropped at an `await`.
        loop {
            while let Some(line) = self.line(next) {
                let sent = lines.send((next, line)).await;
                sent.map_err(|error| error.to_string())?;
                next += 1;
            }
            let grown = count.wait_for(|&count| count > next).await;
            grown.map_err(|closed| closed.to_string())?;
        }
    }

    async fn clear(&self) {
        self.lines
            .lock()
            .expect("no holder of the lock panics")
            .clear();
        self.count.send_replace(0);
    }
}

/// Runs the server and a client in this process, and returns the lines that they print.
pub(crate) async fn run(address: Address) -> Result<Vec<String>, Box<dyn Error>> {
    let server = Server::new(LogServer::new(Lines::new()))
        .listen(address)
        .await?;
    let client = LogClient::connect(server.address()).await?;
    let mut said = Vec::new();

    // The follower begins before the first line exists.
    let mut follower = client.follow(2).await?;
    let (mut lines, appended) = client.append().await?;
    for line in ["one", "two", "three", "four", "five"] {
        lines.send(line.to_owned()).await?;
    }
    for _ in 0..3 {
        let (number, line) = follower.next().await.ok_or("the log has ended")??;
        said.push(format!("line {number}: {line}"));
    }
    drop(lines);
    said.push(format!("{} lines were appended", appended.await?));

    // Dropping the stream ends the follower's handler.
    drop(follower);
    client.clear().await?;
    server.shutdown().await;
    Ok(said)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (rdma, tcp) = ("rdma://127.0.0.1:0".parse()?, "tcp://127.0.0.1:0".parse()?);
    for address in [rdma, tcp, Address::memory()] {
        println!("at {address}:\n{}", run(address.clone()).await?.join("\n"));
    }
    Ok(())
}
