//! [`Hostile`]: a peer that consists of verbs objects and can send any bytes.

use std::net::SocketAddr;

use rdma_core::{
    Buffer, ConnectOptions, Endpoint, PreparedQueuePair, ProtectionDomain, QueuePair, ReceiveQueue,
    RemoteMemory, SendQueue, SendRequest, WorkCompletion,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) const HELLO_LEN: usize = 18 + Endpoint::ENCODED_LEN;
const READY: u8 = 6;
const RECEIVES: usize = 96;

/// Returns a valid hello, the first message of a handshake.
pub(crate) fn hello(endpoint: &Endpoint) -> [u8; HELLO_LEN] {
    let mut bytes = [0; HELLO_LEN];
    bytes[..8].copy_from_slice(b"RDMAsync");
    bytes[9] = 2;
    bytes[11] = 64;
    bytes[13] = 32;
    bytes[14..18].copy_from_slice(&4096_u32.to_be_bytes());
    bytes[18..].copy_from_slice(&endpoint.to_bytes());
    bytes
}

/// Creates a queue pair that is not yet connected.
pub(crate) fn prepared() -> (ProtectionDomain, PreparedQueuePair) {
    let domain = super::context().protection_domain().expect("a domain");
    let builder = domain.queue_pair().send_requests(256);
    let prepared = builder.receive_requests(RECEIVES as u32).build();
    (domain.clone(), prepared.expect("a queue pair"))
}

/// Kinds of frames: the values of the first byte of a message.
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 1;
    pub(crate) const RENDEZVOUS: u8 = 2;
    pub(crate) const RENDEZVOUS_DONE: u8 = 3;
    pub(crate) const REQUEST: u8 = 4;
    pub(crate) const GRANT: u8 = 5;
    pub(crate) const REFUSE: u8 = 6;
    pub(crate) const OFFER: u8 = 7;
    pub(crate) const RETURN: u8 = 8;
    pub(crate) const RELEASE: u8 = 9;
    pub(crate) const CREDIT: u8 = 10;
    pub(crate) const REVOKE: u8 = 11;
    pub(crate) const CLOSE: u8 = 12;
    pub(crate) const RING: u8 = 13;
    pub(crate) const RETURNED: u8 = 14;
}

/// Encodes a frame, valid or invalid.
pub(crate) fn frame(kind: u8, (data, control): (u16, u16), id: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, 0];
    bytes.extend(data.to_be_bytes());
    bytes.extend(control.to_be_bytes());
    bytes.extend([0; 2]);
    bytes.extend(id.to_be_bytes());
    bytes.extend(body);
    bytes
}

/// End of a connection whose messages a test creates byte by byte.
pub(crate) struct Hostile {
    pub(crate) domain: ProtectionDomain,
    pub(crate) queue_pair: QueuePair,
    sends: SendQueue<Buffer>,
    receives: ReceiveQueue<Buffer>,
    pub(crate) stream: TcpStream,
}

impl Hostile {
    /// Connects to a listener with a valid handshake.
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::with(address, RECEIVES).await
    }

    /// Connects without posting receives, so that messages to this end stay in flight.
    pub(crate) async fn without_receives(address: SocketAddr) -> Self {
        Self::with(address, 0).await
    }

    async fn with(address: SocketAddr, receives_posted: usize) -> Self {
        let mut stream = TcpStream::connect(address).await.expect("TCP");
        let (domain, prepared) = prepared();
        let mut receives = prepared.receive_queue();
        for _ in 0..receives_posted {
            receives
                .post(domain.allocate(8192).expect("memory"))
                .expect("a receive");
        }
        let own = hello(&prepared.endpoint());
        stream.write_all(&own).await.expect("saying hello");
        let mut theirs = [0; HELLO_LEN];
        stream.read_exact(&mut theirs).await.expect("a hello");
        let endpoint = theirs[18..].try_into().expect("an endpoint");
        let remote = Endpoint::from_bytes(endpoint).expect("an endpoint");
        let queue_pair = prepared
            .connect(&remote, &ConnectOptions::default())
            .expect("a connection");
        stream.write_all(&[READY]).await.expect("being ready");
        assert_eq!(stream.read_u8().await.expect("readiness"), READY);
        let sends = queue_pair.send_queue();
        Self {
            domain,
            queue_pair,
            sends,
            receives,
            stream,
        }
    }

    /// Sends bytes as a message, and ignores errors.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let mut buffer = self.domain.allocate(bytes.len()).expect("memory");
        buffer.copy_from_slice(bytes);
        drop(self.sends.post(SendRequest::send(buffer)));
    }

    /// Writes bytes to memory of the peer, with immediate data, and ignores errors.
    pub(crate) fn write(&mut self, bytes: &[u8], to: RemoteMemory, immediate: u32) {
        let mut buffer = self.domain.allocate(bytes.len()).expect("memory");
        buffer.copy_from_slice(bytes);
        let request = SendRequest::write_with_immediate(buffer, to, immediate);
        drop(self.sends.post(request));
    }

    /// Polls the completion queue, and returns the messages that were received.
    pub(crate) fn poll(&mut self) -> Vec<Vec<u8>> {
        let mut room = [WorkCompletion::default(); 32];
        let mut messages = Vec::new();
        for queue in [
            self.queue_pair.receive_completions().clone(),
            self.queue_pair.send_completions().clone(),
        ] {
            for completion in queue.poll(&mut room).expect("polling") {
                drop(self.sends.complete(completion));
                if let Some(memory) = self.receives.complete(completion)
                    && completion.result().is_ok()
                {
                    messages.push(memory[..completion.len()].to_vec());
                    drop(self.receives.post(memory));
                }
            }
        }
        messages
    }

    /// Returns the number of requests that have not completed.
    pub(crate) fn in_flight(&self) -> usize {
        self.sends.in_flight()
    }

    /// Waits for the next message, and returns it.
    pub(crate) async fn receive(&mut self) -> Vec<u8> {
        loop {
            if let Some(message) = self.poll().pop() {
                return message;
            }
            tokio::task::yield_now().await;
        }
    }
}
