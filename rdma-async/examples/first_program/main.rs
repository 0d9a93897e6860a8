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
}

fn main() {
    client::run();
}
