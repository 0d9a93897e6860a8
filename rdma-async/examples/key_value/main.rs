//! A key-value store whose readers do not involve the server's processor.
//!
//! ```text
//! key_value serve --listen 127.0.0.1:7472
//! key_value put 127.0.0.1:7472 KEY VALUE
//! key_value get 127.0.0.1:7472 KEY...
//! ```
//!
//! The server publishes one value for each bucket of its hash table, and sends the tokens of all
//! buckets to each client that connects. To get a value, a client reads the bucket of the key by
//! RDMA. To change a value, a client sends a message. The server executes changes one at a time.

mod bucket;
mod client;
mod server;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A key-value store.
#[derive(Debug, Parser)]
enum CommandLine {
    /// Serves a store until standard input ends.
    Serve {
        /// Address to listen at.
        #[arg(long, default_value = "127.0.0.1:7472")]
        listen: String,
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
        /// Connect, print `connected`, and wait for a line on standard input before reading.
        #[arg(long)]
        wait: bool,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match CommandLine::parse() {
        CommandLine::Serve { listen } => server::serve(&listen).await,
        CommandLine::Client(Request::Put { server, key, value }) => {
            client::put(&server, &key, &value).await
        }
        CommandLine::Client(Request::Get { server, keys, wait }) => {
            client::get(&server, &keys, wait).await
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
