//! An echo server and its client.
//!
//! ```text
//! cargo run -p rdma-rpc --example echo -- server 0.0.0.0:7471
//! cargo run -p rdma-rpc --example echo -- client 10.77.0.1:7471 hello
//! ```
//!
//! Without arguments both run in one process.

use std::error::Error;
use std::{env, process};

use rdma_rpc::{ApplicationError, Client, Router, Server};

async fn echo(text: String) -> Result<String, ApplicationError> {
    match text.as_str() {
        "" => Err(ApplicationError::new(1, "there is nothing to echo")),
        _ => Ok(text),
    }
}

fn server() -> Server {
    Server::new(Router::new().route("echo/text", echo))
}

async fn serve(address: &str) -> Result<(), Box<dyn Error>> {
    let serving = server().listen(address).await?;
    println!("serving at {}; end it with ctrl-c", serving.local_address());
    tokio::signal::ctrl_c().await?;
    serving.shutdown().await;
    Ok(())
}

async fn call(address: &str, text: &str) -> Result<(), Box<dyn Error>> {
    let client = Client::connect(address).await?;
    let answer: String = client.call("echo/text", text).await?;
    println!("{answer}");
    Ok(())
}

async fn both() -> Result<(), Box<dyn Error>> {
    let serving = server().listen("127.0.0.1:0").await?;
    let address = serving.local_address().to_string();
    call(&address, "hello").await?;
    let refused = call(&address, "").await;
    println!("and for nothing: {}", refused.expect_err("it is refused"));
    serving.shutdown().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => both().await,
        ["server", address] => serve(address).await,
        ["client", address, text] => call(address, text).await,
        _ => {
            eprintln!("usage: echo [server ADDRESS | client ADDRESS TEXT]");
            process::exit(2);
        }
    }
}
