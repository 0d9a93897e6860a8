//! The service, and a process that serves it until it is killed.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use rdma_rpc::{Bulk, HealthServer, HealthStates, Server};
use tokio::time::sleep;

use crate::common::transport;
use crate::process;

#[rdma_rpc::service]
pub(crate) trait Work {
    /// Returns the number after `number`.
    async fn next(&self, number: u64) -> Result<u64, String>;
    /// Records the execution of the call `call`, and returns its number.
    #[rpc(once)]
    async fn record(&self, call: u64, millis: u64) -> Result<u64, String>;
    /// Returns the sum of the bytes.
    async fn sum(&self, bytes: Bulk) -> Result<u64, String>;
    /// Never returns.
    async fn wait(&self) -> Result<(), String>;
}

struct Worker {
    /// File with the number of each recorded call, which a killed process leaves behind.
    record: File,
}

impl Work for Worker {
    async fn next(&self, number: u64) -> Result<u64, String> {
        Ok(number + 1)
    }

    async fn record(&self, call: u64, millis: u64) -> Result<u64, String> {
        let written = (&self.record).write_all(&call.to_le_bytes());
        written.map_err(|error| error.to_string())?;
        if millis > 0 {
            sleep(Duration::from_millis(millis)).await;
        }
        Ok(call)
    }

    async fn sum(&self, bytes: Bulk) -> Result<u64, String> {
        let bytes = bytes.read(..).await.map_err(|error| error.to_string())?;
        Ok(bytes.iter().copied().map(u64::from).sum())
    }

    async fn wait(&self) -> Result<(), String> {
        std::future::pending().await
    }
}

/// Serves at the address in the first argument. The second one is the file for the record.
pub(crate) fn run() {
    let words = process::words();
    let [address, record] = &words[..] else {
        panic!("an address and a file: {words:?}");
    };
    let record = File::options().append(true).create_new(true).open(record);
    let worker = Worker {
        record: record.expect("a new file"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = Server::new(WorkServer::new(worker))
            .service(HealthServer::new(HealthStates::default()))
            .transport(transport());
        let _server = server.listen(address).await.expect("the address is free");
        process::say_ready();
        std::future::pending::<()>().await;
    });
}
