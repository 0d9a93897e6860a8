//! Handshake over TCP, in which both ends exchange the addresses of their queue pairs.
//!
//! For each queue pair an end sends one line, `LID:QPN:PSN:GID` in hexadecimal digits with leading
//! zeros, and a zero byte. The client sends first. The server connects to the client's queue pairs
//! and then sends its own lines, and the client ends with the word `done` and a zero byte. The C
//! programs read each line with one call, so each is written with one call.

use std::fmt;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::str::FromStr;

use rdma_core::device::{LinkLayer, LocalAddress};
use rdma_core::{Endpoint, Gid, Mtu};

use super::{Options, Outcome};

/// Address of a queue pair, as one end sends it to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Line {
    pub(crate) lid: u16,
    pub(crate) queue_pair: u32,
    pub(crate) packet_sequence: u32,
    pub(crate) gid: Gid,
}

/// Length of a line in bytes, with its zero byte.
const LINE_LEN: usize = "0000:000000:000000:00000000000000000000000000000000".len() + 1;

const DONE: &[u8] = b"done\0";

impl Line {
    /// Creates the line of a queue pair. On InfiniBand the LID is sufficient unless a GID was asked
    /// for; to the C programs a GID of zeros means no GID.
    pub(crate) fn new(endpoint: &Endpoint, address: &LocalAddress, options: &Options) -> Self {
        let by_gid = address.link_layer == LinkLayer::Ethernet || options.gid_index.is_some();
        Self {
            lid: endpoint.lid,
            queue_pair: endpoint.queue_pair,
            packet_sequence: endpoint.packet_sequence,
            gid: if by_gid { endpoint.gid } else { Gid::default() },
        }
    }

    /// Returns the endpoint to connect to, with one read or atomic at a time, though none are sent.
    pub(crate) fn endpoint(&self, mtu: Mtu) -> Endpoint {
        Endpoint {
            queue_pair: self.queue_pair,
            packet_sequence: self.packet_sequence,
            gid: self.gid,
            lid: self.lid,
            mtu,
            incoming_reads: 1,
            outgoing_reads: 1,
        }
    }

    /// Returns the address in readable form.
    pub(crate) fn described(&self) -> String {
        format!(
            "LID 0x{:04x}, QPN 0x{:06x}, PSN 0x{:06x}, GID {}",
            self.lid, self.queue_pair, self.packet_sequence, self.gid
        )
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:06x}:{:06x}:",
            self.lid, self.queue_pair, self.packet_sequence
        )?;
        self.gid
            .0
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Line {
    type Err = Box<dyn std::error::Error + Send + Sync>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut fields = text.trim_end_matches('\0').split(':');
        let mut field = || fields.next().ok_or("the peer's line is too short");
        Ok(Self {
            lid: u16::from_str_radix(field()?, 16)?,
            queue_pair: u32::from_str_radix(field()?, 16)?,
            packet_sequence: u32::from_str_radix(field()?, 16)?,
            gid: Gid(u128::from_str_radix(field()?, 16)?.to_be_bytes()),
        })
    }
}

/// TCP connection of the handshake.
#[derive(Debug)]
pub(crate) struct Table {
    stream: TcpStream,
    is_client: bool,
}

impl Table {
    /// Connects to the server, or waits for a client to connect.
    pub(crate) fn meet(options: &Options) -> Outcome<Self> {
        let stream = match &options.server {
            Some(server) => TcpStream::connect((server.as_str(), options.port))?,
            None => {
                let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, options.port))
                    .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, options.port)))?;
                listener.accept()?.0
            }
        };
        Ok(Self {
            stream,
            is_client: options.server.is_some(),
        })
    }

    pub(crate) fn is_client(&self) -> bool {
        self.is_client
    }

    /// Sends `own` to the peer and calls `connect` with as many lines of the peer. The server
    /// connects before it sends its lines, so that it is ready for the client's first message.
    pub(crate) fn exchange<T>(
        mut self,
        own: &[Line],
        connect: impl FnOnce(&[Line]) -> Outcome<T>,
    ) -> Outcome<T> {
        for line in own.iter().filter(|line| line.queue_pair != 0) {
            println!("  local address:  {}", line.described());
        }
        let connected;
        if self.is_client {
            self.tell(own)?;
            let peer = self.hear(own.len())?;
            self.stream.write_all(DONE)?;
            connected = connect(&peer)?;
        } else {
            let peer = self.hear(own.len())?;
            connected = connect(&peer)?;
            self.tell(own)?;
            let mut done = [0; DONE.len()];
            self.stream.read_exact(&mut done)?;
            if done != DONE {
                return Err("the client did not say that it is done".into());
            }
        }
        Ok(connected)
    }

    fn tell(&mut self, lines: &[Line]) -> Outcome<()> {
        for line in lines {
            self.stream.write_all(format!("{line}\0").as_bytes())?;
        }
        Ok(())
    }

    fn hear(&mut self, count: usize) -> Outcome<Vec<Line>> {
        let line = |_| {
            let mut bytes = [0; LINE_LEN];
            self.stream.read_exact(&mut bytes)?;
            let line: Line = std::str::from_utf8(&bytes)?.parse()?;
            // Queue pairs that do not exist are lines of zeros.
            if line.queue_pair != 0 {
                println!("  remote address: {}", line.described());
            }
            Ok(line)
        };
        (0..count).map(line).collect()
    }
}
