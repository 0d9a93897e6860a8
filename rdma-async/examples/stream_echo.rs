//! The echo program of async-ucx, over streams of rdma-async. Besides the names, three things
//! differ: server and client run in one process; the client shuts down its direction of the stream,
//! because the server reads up to the end of the stream and would wait for ever otherwise; and
//! `read_to_string` appends to a string, as `AsyncReadExt` of tokio does, instead of returning one.
//!
//! ```text
//! cargo run -p rdma-async --example stream_echo
//! Received message from client: Hello Server!
//! Server echoed back with :Hello Server!
//! ```

use rdma_async::{RdmaBuilder, RdmaListener, RdmaStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn server(mut listener: RdmaListener) {
    while let Ok((mut stream, _)) = listener.accept_stream().await {
        tokio::spawn(async move {
            let mut message = String::new();
            if stream.read_to_string(&mut message).await.is_ok() {
                println!("Received message from client: {message}");
                // Echo back the received message to the client.
                stream.write_all(message.as_bytes()).await.unwrap();
            }
        });
    }
}

async fn client() -> std::io::Result<()> {
    let mut socket = RdmaStream::connect("127.0.0.1:8080").await?;
    const MESSAGE: &str = "Hello Server!";
    socket.write_all(MESSAGE.as_bytes()).await?;
    socket.shutdown().await?;
    let mut buffer = String::new();
    socket.read_to_string(&mut buffer).await?;
    println!("Server echoed back with :{buffer}");
    Ok(())
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = RdmaBuilder::default().bind("0.0.0.0:8080").await?;
    tokio::spawn(server(listener));
    client().await
}
