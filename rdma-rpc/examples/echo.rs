//! An echo server and its client.
//!
//! ```text
//! cargo run -p rdma-rpc --example echo -- server rdma://0.0.0.0:7471
//! cargo run -p rdma-rpc --example echo -- client rdma://10.77.0.1:7471 hello
//! ```
//!
//! Without arguments, the server and the client run in one process, over RDMA, TCP and memory.

use std::error::Error;
use std::{env, process};

use rdma_rpc::{Address, Server, ToAddress};

#[rdma_rpc::service]
trait Echo {
    /// Returns `text`; fails if it is empty.
    async fn echo(&self, text: String) -> Result<String, String>;
}

struct EchoService;

impl Echo for EchoService {
    async fn echo(&self, text: String) -> Result<String, String> {
        match text.as_str() {
            "" => Err("there is nothing to echo".to_owned()),
            _ => Ok(text),
        }
    }
}

async fn serve(address: &str) -> Result<(), Box<dyn Error>> {
    let server = Server::new(EchoServer::new(EchoService))
        .listen(address)
        .await?;
    println!("serving at {}; end it with ctrl-c", server.address());
    tokio::signal::ctrl_c().await?;
    server.shutdown().await;
    Ok(())
}

async fn call(address: impl ToAddress, text: &str) -> Result<(), Box<dyn Error>> {
    let client = EchoClient::connect(address).await?;
    println!("{}", client.echo(text.to_owned()).await?);
    Ok(())
}

/// Runs the server and a client in this process, and returns the lines that they print.
pub(crate) async fn run(address: Address) -> Result<Vec<String>, Box<dyn Error>> {
    let server = Server::new(EchoServer::new(EchoService))
        .listen(address)
        .await?;
    let client = EchoClient::connect(server.address()).await?;
    let refused = client.echo(String::new()).await;
    let lines = vec![
        client.echo("hello".to_owned()).await?,
        format!("and for nothing: {}", refused.expect_err("it is refused")),
    ];
    server.shutdown().await;
    Ok(lines)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => {
            let (rdma, tcp) = ("rdma://127.0.0.1:0".parse()?, "tcp://127.0.0.1:0".parse()?);
            for address in [rdma, tcp, Address::memory()] {
                println!("at {address}:\n{}", run(address.clone()).await?.join("\n"));
            }
            Ok(())
        }
        ["server", address] => serve(address).await,
        ["client", address, text] => call(address, text).await,
        _ => {
            eprintln!("usage: echo [server ADDRESS | client ADDRESS TEXT]");
            process::exit(2);
        }
    }
}
