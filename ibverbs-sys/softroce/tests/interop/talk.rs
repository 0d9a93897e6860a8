//! Control connection between both ends: fixed records over TCP, beside the device.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Maximum time that one end waits for the other.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// Addresses of a queue pair and of its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) gid: [u8; 16],
    pub(crate) queue_pair: u32,
    pub(crate) sequence: u32,
    pub(crate) address: u64,
    pub(crate) key: u32,
}

/// Control connection to the other end.
#[derive(Debug)]
pub(crate) struct Talk(TcpStream);

impl Talk {
    pub(crate) fn accept(address: &str) -> Result<Self, String> {
        let listener = TcpListener::bind(address).map_err(|e| format!("{address}: {e}"))?;
        let (stream, _) = listener.accept().map_err(|e| format!("{address}: {e}"))?;
        Self::new(stream)
    }

    /// Connects as soon as the other end listens.
    pub(crate) fn connect(address: &str) -> Result<Self, String> {
        let deadline = Instant::now() + MAX_WAIT;
        loop {
            match TcpStream::connect(address) {
                Ok(stream) => return Self::new(stream),
                Err(error) if Instant::now() > deadline => {
                    return Err(format!("{address}: {error}"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn new(stream: TcpStream) -> Result<Self, String> {
        let prepared = stream
            .set_read_timeout(Some(MAX_WAIT))
            .and_then(|()| stream.set_nodelay(true));
        prepared.map_err(|e| e.to_string())?;
        Ok(Self(stream))
    }

    /// Sends the own place, and returns the place of the other end.
    pub(crate) fn exchange(&mut self, own: &Place) -> Result<Place, String> {
        let mut bytes = own.gid.to_vec();
        bytes.extend(own.queue_pair.to_be_bytes());
        bytes.extend(own.sequence.to_be_bytes());
        bytes.extend(own.address.to_be_bytes());
        bytes.extend(own.key.to_be_bytes());
        self.write(&bytes)?;
        let mut read = [0; 36];
        self.read(&mut read)?;
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| read[at + i]));
        Ok(Place {
            gid: std::array::from_fn(|i| read[i]),
            queue_pair: word(16),
            sequence: word(20),
            address: u64::from_be_bytes(std::array::from_fn(|i| read[24 + i])),
            key: word(32),
        })
    }

    /// Waits until the other end has called this function, too.
    pub(crate) fn meet(&mut self) -> Result<(), String> {
        self.write(b"!")?;
        self.read(&mut [0])
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        let written = self.0.write_all(bytes);
        written.map_err(|e| format!("telling the other end: {e}"))
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        let read = self.0.read_exact(bytes);
        read.map_err(|e| format!("hearing from the other end: {e}"))
    }
}
