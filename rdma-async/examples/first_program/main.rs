//! The introductory program of async-rdma, with only the name of the crate changed.
//!
//! `server.rs` and `client.rs` are unchanged modules. The `main` of the client awaits the server,
//! which is a blocking function because of `#[tokio::main]`. The function awaited here therefore
//! runs the server on a thread of its own.
//!
//! ```text
//! cargo run -p rdma-async --example first_program
//! Received data: [0, 0, 0, 0, 1, 1, 1, 1]
//! ```

#[allow(
    unused_imports,
    clippy::uninlined_format_args,
    reason = "the program is kept as it is"
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
    reason = "the program is kept as it is"
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
