//! A key-value store whose readers do not involve the server's processor.
//!
//! ```text
//! key_value serve --listen 127.0.0.1:7472
//! key_value put 127.0.0.1:7472 KEY VALUE
//! key_value get 127.0.0.1:7472 KEY...
//! key_value measure 127.0.0.1:7472
//! ```
//!
//! The server publishes one value for each bucket of its hash table, and sends the tokens of all
//! buckets to each client that connects. To get a value, a client reads the bucket of the key by
//! RDMA. To change a value, a client sends a message. The server executes changes one at a time.

mod bucket;
mod client;
mod measure;
mod server;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

/// A key-value store.
#[derive(Debug, Parser)]
enum CommandLine {
    /// Serves a store until standard input ends.
    Serve {
        /// Address to listen at.
        #[arg(long, default_value = "127.0.0.1:7472")]
        listen: String,
        /// End when the first client has gone, instead of when standard input ends.
        #[arg(long)]
        once: bool,
    },
    #[command(flatten)]
    Client(Request),
}

#[derive(Debug, Subcommand)]
enum Request {
    /// Sets the value of a key.
    Put {
        /// Address of the server.
        server: String,
        key: String,
        value: String,
    },
    /// Prints the values of keys.
    Get {
        /// Address of the server.
        server: String,
        keys: Vec<String>,
    },
    /// Sets some values, reads them again and again, and prints the number of reads per second.
    Measure {
        /// Address of the server.
        server: String,
        /// Time to measure, in milliseconds.
        #[arg(long, default_value_t = 500)]
        time: u64,
        /// Read the same memory without finding a value.
        #[arg(long)]
        raw: bool,
    },
}

// A reader whose tasks share one thread needs no other thread to complete a read.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let done = match CommandLine::parse() {
        CommandLine::Serve { listen, once } => server::serve(&listen, once).await,
        CommandLine::Client(Request::Put { server, key, value }) => {
            client::put(&server, &key, &value).await
        }
        CommandLine::Client(Request::Get { server, keys }) => client::get(&server, &keys).await,
        CommandLine::Client(Request::Measure { server, time, raw }) => {
            measure::measure(&server, Duration::from_millis(time), raw).await
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("key_value: {error:#}");
            ExitCode::FAILURE
        }
    }
}
