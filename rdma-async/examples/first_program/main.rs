//! The introductory program of async-rdma. Only the name of the crate differs.
//!
//! `server.rs` and `client.rs` are the original modules. The client's `main` awaits the server,
//! which is a blocking function because of `#[tokio::main]`. The wrapper in this file therefore
//! runs the server on a thread of its own.
//!
//! ```text
//! cargo run -p rdma-async --example first_program
//! Received data: [0, 0, 0, 0, 1, 1, 1, 1]
//! ```
//!
//! The arguments `server ADDRESS` and `client ADDRESS` run one of the two alone.

#[allow(
    unused_imports,
    clippy::uninlined_format_args,
    reason = "the original program is not changed"
)]
mod server {
    include!("server.rs");

    pub(crate) fn run(addr: SocketAddrV4) -> Result<(), String> {
        server(addr).map_err(|error| error.to_string())
    }
}

#[allow(
    unused_imports,
    clippy::unused_io_amount,
    reason = "the original program is not changed"
)]
mod client {
    async fn server(addr: SocketAddrV4) -> Result<(), String> {
        let blocking = tokio::task::spawn_blocking(move || super::server::run(addr));
        blocking.await.map_err(|stopped| stopped.to_string())?
    }

    include!("client.rs");

    pub(crate) fn run() {
        main();
    }

    pub(crate) fn run_alone(addr: SocketAddrV4) -> Result<(), String> {
        let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
        let done = runtime.block_on(client(addr));
        done.map_err(|error| error.to_string())
    }
}

fn main() -> Result<(), String> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let address = |text: &str| text.parse().map_err(|error| format!("{text}: {error}"));
    match *words {
        [] => client::run(),
        ["server", text] => server::run(address(text)?)?,
        ["client", text] => client::run_alone(address(text)?)?,
        _ => return Err("arguments: none, server ADDRESS, or client ADDRESS".into()),
    }
    Ok(())
}
