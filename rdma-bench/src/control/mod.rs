//! The control connection: the TCP connection on which server and client agree on a plan (the
//! parameters of a test), wait for each other, and notice that the peer has exited.
//!
//! Every message is a length of four bytes in network byte order, followed by that many bytes of
//! JSON.

mod listen;
mod message;
mod watch;

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::{SockRef, TcpKeepalive};

pub use listen::{accept, connect, listen};
pub use message::Message;
pub use watch::Watch;

use crate::error::{Error, Result};
use crate::statistics::Bandwidth;

/// Maximum length in bytes of a message on the control connection. A greater length means that the
/// peer is another program, which does not use this protocol.
const MAX_MESSAGE: usize = 1 << 16;

/// This process's end of the control connection: the TCP connection by which server and client
/// exchange the parameters of the test, addresses and results.
#[derive(Debug)]
pub struct Control {
    stream: TcpStream,
    timeout: Duration,
}

impl Control {
    /// Maximum time that this process, after an error of its own, waits for a failure report of the
    /// peer. The error is perhaps a consequence of the peer's failure.
    const PEER_FAILURE_WAIT: Duration = Duration::from_millis(200);

    /// Creates the control connection, on which server and client coordinate a test, from a
    /// connected TCP stream. `timeout` limits each wait for the peer.
    ///
    /// # Errors
    ///
    /// [`Error::Control`] if the socket's options cannot be set.
    pub fn new(stream: TcpStream, timeout: Duration) -> Result<Self> {
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(5))
            .with_interval(Duration::from_secs(2));
        let set = stream
            .set_nodelay(true)
            .and_then(|()| stream.set_write_timeout(Some(timeout)))
            .and_then(|()| SockRef::from(&stream).set_tcp_keepalive(&keepalive));
        set.map_err(Error::control("setting up the control connection"))?;
        Ok(Self { stream, timeout })
    }

    /// Returns the maximum time of a single wait for the peer, for example for a message.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the IP address of this machine on the control connection. A server of rdma-async or
    /// rdma-rpc listens for the connections under test at the same address.
    ///
    /// # Errors
    ///
    /// [`Error::Control`] if the system cannot determine the address.
    pub fn local_ip(&self) -> Result<IpAddr> {
        self.stream
            .local_addr()
            .map(|address| address.ip().to_canonical())
            .map_err(lost)
    }

    /// Returns the IP address of the peer. The client opens further connections to this address.
    ///
    /// # Errors
    ///
    /// [`Error::Control`] if the system cannot determine the address.
    pub fn peer_ip(&self) -> Result<IpAddr> {
        self.stream
            .peer_addr()
            .map(|address| address.ip().to_canonical())
            .map_err(lost)
    }

    /// Sends `message` to the peer.
    ///
    /// # Errors
    ///
    /// [`Error::PeerGone`] if the peer has exited, else [`Error::Control`].
    pub fn send(&mut self, message: &Message) -> Result<()> {
        let body = serde_json::to_vec(message).map_err(protocol)?;
        let mut bytes = u32::try_from(body.len())
            .map_err(protocol)?
            .to_be_bytes()
            .to_vec();
        bytes.extend(body);
        self.stream.write_all(&bytes).map_err(lost)
    }

    /// Receives the next message from the peer.
    ///
    /// # Errors
    ///
    /// [`Error::Peer`] if the peer reports a failure. [`Error::TimedOut`] if no message arrives in
    /// time. [`Error::PeerGone`] if the peer has exited. [`Error::Protocol`] if the message is not
    /// valid. Otherwise [`Error::Control`].
    pub fn receive(&mut self) -> Result<Message> {
        self.receive_within(Some(self.timeout))
    }

    /// Receives the next message from the peer within `limit`. Without a limit, waits until a
    /// message arrives or the peer exits.
    fn receive_within(&mut self, limit: Option<Duration>) -> Result<Message> {
        self.stream.set_read_timeout(limit).map_err(lost)?;
        let result = self.receive_body();
        match result {
            Err(Error::Control { source, .. }) if is_timeout(&source) => Err(Error::TimedOut {
                what: "answer of the peer",
                limit: self.timeout,
            }),
            Ok(Message::Failed(reason)) => Err(Error::Peer(reason)),
            result => result,
        }
    }

    fn receive_body(&mut self) -> Result<Message> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).map_err(lost)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_MESSAGE {
            let reason = format!("a message of {length} bytes; is the peer an rdma-bench?");
            return Err(Error::Protocol(reason));
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).map_err(lost)?;
        serde_json::from_slice(&body).map_err(protocol)
    }

    /// Returns the root cause of `error`, an error of this process. The root cause is the failure
    /// or exit of the peer, if the peer has failed or exited first. Otherwise, the root cause is
    /// `error` itself.
    pub fn root_cause(&mut self, error: Error) -> Error {
        if matches!(error, Error::Peer(_) | Error::PeerGone) {
            return error;
        }
        match self.receive_within(Some(Self::PEER_FAILURE_WAIT)) {
            Err(cause @ (Error::Peer(_) | Error::PeerGone)) => cause,
            _ => error,
        }
    }

    /// Reports to the peer that this process failed because of `error`. Sends nothing if `error`
    /// itself is the failure or the exit of the peer.
    pub fn fail(&mut self, error: &Error) {
        if !matches!(error, Error::Peer(_) | Error::PeerGone) {
            // If sending fails, the peer notices the closed connection.
            let _ = self.send(&Message::Failed(error.to_string()));
        }
    }

    /// Sends `own`, the data that the peer needs to connect, and returns the data that the peer
    /// sent.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::send`] and [`Self::receive`].
    pub fn exchange<T: Serialize + DeserializeOwned>(&mut self, own: &T) -> Result<T> {
        let own = serde_json::to_value(own).map_err(protocol)?;
        self.send(&Message::Offer(own))?;
        match self.receive()? {
            Message::Offer(offer) => serde_json::from_value(offer).map_err(protocol),
            other => Err(unexpected("an offer", &other)),
        }
    }

    /// Waits until both processes have called this function, so that neither sends the first
    /// message of a test before its peer is ready.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::send`] and [`Self::receive`].
    pub fn barrier(&mut self) -> Result<()> {
        self.send(&Message::Ready)?;
        match self.receive()? {
            Message::Ready => Ok(()),
            other => Err(unexpected("readiness", &other)),
        }
    }

    /// Reports to the peer that this process has finished measuring, with the result `own`. Waits
    /// until the peer has also finished, and returns the peer's result.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::send`] and [`Self::receive`].
    pub fn finish(&mut self, own: Option<Bandwidth>) -> Result<Option<Bandwidth>> {
        self.send(&Message::Finished(own))?;
        self.await_finish()
    }

    /// Waits until the peer has finished measuring, and returns the peer's result; `None` if the
    /// peer reports no bandwidth. A process that measures nothing itself calls this method instead
    /// of [`Self::finish`].
    ///
    /// # Errors
    ///
    /// The errors of [`Self::send`] and [`Self::receive`].
    pub fn wait_for_result(&mut self) -> Result<Option<Bandwidth>> {
        let theirs = self.await_finish()?;
        self.send(&Message::Finished(None))?;
        Ok(theirs)
    }

    fn await_finish(&mut self) -> Result<Option<Bandwidth>> {
        match self.receive_within(None)? {
            Message::Finished(theirs) => Ok(theirs),
            other => Err(unexpected("the end of the test", &other)),
        }
    }

    /// Returns a [`Watch`], by which a polling process checks that its peer is alive.
    /// `ends_with_peer` is set if this process measures until the peer has finished.
    ///
    /// # Errors
    ///
    /// [`Error::Control`] if the socket cannot be set to non-blocking mode.
    pub fn watch(&self, ends_with_peer: bool) -> Result<Watch> {
        Watch::new(&self.stream, self.timeout, ends_with_peer)
    }
}

fn protocol(error: impl std::fmt::Display) -> Error {
    Error::Protocol(error.to_string())
}

fn unexpected(wanted: &str, found: &Message) -> Error {
    Error::Protocol(format!("expected {wanted}, received {}", found.name()))
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn lost(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => Error::PeerGone,
        _ => Error::control("the control connection")(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (Control, Control) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        let control = |stream| Control::new(stream, Duration::from_millis(300)).unwrap();
        (control(server), control(client))
    }

    #[test]
    fn a_failure_is_reported_to_the_peer() {
        let (mut server, mut client) = pair();
        server.fail(&Error::Unsupported("no such thing".into()));
        let error = client.receive().unwrap_err().to_string();
        assert_eq!(error, "the peer failed: no such thing");
    }

    #[test]
    fn a_closed_connection_and_silence_are_distinguished() {
        let (server, mut client) = pair();
        assert!(matches!(client.receive(), Err(Error::TimedOut { .. })));
        drop(server);
        assert!(matches!(client.receive(), Err(Error::PeerGone)));
    }

    #[test]
    fn garbage_is_refused() {
        let (mut server, mut client) = pair();
        server.stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(matches!(client.receive(), Err(Error::Protocol(_))));
    }

    #[test]
    fn a_watch_notices_the_end_and_the_death_of_the_peer() {
        let (mut server, client) = pair();
        let mut watch = client.watch(true).unwrap();
        server.send(&Message::Finished(None)).unwrap();
        while !watch.idle().unwrap() {}
        let (server, client) = pair();
        let mut watch = client.watch(false).unwrap();
        drop(server);
        let error = loop {
            match watch.idle() {
                Ok(ended) => assert!(!ended),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::PeerGone), "{error}");
    }

    #[test]
    fn a_watch_gives_up() {
        let (_server, client) = pair();
        let mut watch = client.watch(false).unwrap();
        let error = loop {
            match watch.idle() {
                Ok(ended) => assert!(!ended),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    }
}
