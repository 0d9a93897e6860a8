//! [`Raw`]: a peer over RDMA or TCP that does not implement the protocol, and sends and receives
//! arbitrary bytes.

use std::alloc::Layout;

use rdma_async::{LocalMrReadAccess, LocalMrWriteAccess, Rdma};
use rdma_rpc::{Address, Client, ServerHandle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::frames::{frame, message};
use super::{client, transport, within};

pub(crate) enum Raw {
    Rdma(Rdma),
    Tcp(TcpStream),
}

impl Raw {
    /// Connects to a server, and receives its settings.
    pub(crate) async fn connect(server: &ServerHandle) -> Self {
        Self::connect_with_settings(server).await.0
    }

    /// Connects to a server, and returns the message with its settings, too.
    pub(crate) async fn connect_with_settings(server: &ServerHandle) -> (Self, Vec<u8>) {
        let address = server.address().to_string();
        let (scheme, address) = address.split_once("://").unwrap();
        let mut raw = if scheme == "rdma" {
            let connecting = transport().connect(address);
            Self::Rdma(within("connecting", connecting).await.unwrap())
        } else {
            let connecting = TcpStream::connect(address);
            Self::Tcp(within("connecting", connecting).await.unwrap())
        };
        let settings = within("the settings", raw.hear()).await.unwrap();
        assert_eq!((settings[0], settings[4]), (2, 8), "{settings:x?}");
        (raw, settings)
    }

    /// Accepts a connection as a server that does not implement the protocol, over the transport of
    /// `address`. Sends the settings of the server, and receives the settings of the client. Returns
    /// the server's end of the connection, and the client.
    pub(crate) async fn accept(address: Address) -> (Self, Client) {
        let is_rdma = address.to_string().starts_with("rdma");
        let settings = [1 << 16, 8, 0, 0_u32].map(u32::to_be_bytes).concat();
        let settings = message(&[frame(8, 0, 0, (0, 0), &settings)]);
        let connecting = async |address: String| {
            let connecting = client().connect(address);
            within("connecting", connecting).await.unwrap()
        };
        let greeting = async |mut raw: Self| {
            assert!(within("the settings", raw.say(&settings)).await);
            let theirs = within("the client's settings", raw.hear()).await.unwrap();
            assert_eq!(theirs[4], 8);
            raw
        };
        if is_rdma {
            let mut listener = transport().bind("127.0.0.1:0").await.unwrap();
            let address = format!("rdma://{}", listener.local_address().unwrap());
            let accepting = async { greeting(Self::Rdma(listener.accept().await.unwrap())).await };
            tokio::join!(accepting, connecting(address))
        } else {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = format!("tcp://{}", listener.local_addr().unwrap());
            let accepting = async { greeting(Self::Tcp(listener.accept().await.unwrap().0)).await };
            tokio::join!(accepting, connecting(address))
        }
    }

    /// Sends a message. Returns `false` if the server does not receive the message: over RDMA, the
    /// server may refuse the message, and it may end the connection.
    pub(crate) async fn say(&mut self, message: &[u8]) -> bool {
        match self {
            Self::Rdma(rdma) => {
                let layout = Layout::from_size_align(message.len(), 1).unwrap();
                let mut region = rdma.alloc_local_mr(layout).unwrap();
                region.as_mut_slice().copy_from_slice(message);
                rdma.send(&region).await.is_ok()
            }
            Self::Tcp(stream) => {
                let len = u32::try_from(message.len()).unwrap().to_be_bytes();
                stream.write_all(&[&len, message].concat()).await.is_ok()
            }
        }
    }

    /// Receives the next message; returns `None` at the end of the connection.
    pub(crate) async fn hear(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::Rdma(rdma) => {
                let received = rdma.receive().await.ok()?;
                Some(received.as_slice().to_vec())
            }
            Self::Tcp(stream) => {
                let mut len = [0; 4];
                stream.read_exact(&mut len).await.ok()?;
                let mut message = vec![0; u32::from_be_bytes(len) as usize];
                stream.read_exact(&mut message).await.ok()?;
                Some(message)
            }
        }
    }

    /// Waits for the end of the connection, and returns the reason in the server's goodbye.
    pub(crate) async fn farewell(&mut self) -> Option<String> {
        let mut reason = None;
        let ending = async {
            while let Some(message) = self.hear().await {
                reason = goodbye(&message).or(reason.take());
            }
        };
        within("the end of the connection", ending).await;
        reason
    }
}

/// Returns the reason in the goodbye frame at the end of a message; `None` without a goodbye.
fn goodbye(message: &[u8]) -> Option<String> {
    let mut frames = message.get(4..)?;
    loop {
        let len = u32::from_be_bytes(*frames.get(4..)?.first_chunk()?) as usize;
        let (frame, rest) = frames.split_at_checked(16 + len)?;
        if frame[0] == 9 {
            return Some(String::from_utf8_lossy(&frame[16..]).into_owned());
        }
        frames = rest;
    }
}
