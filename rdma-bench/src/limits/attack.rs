//! The forged packets that a process without privileges sends to softroce while a test runs.

use std::ffi::OsString;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

/// The target of forged packets during a test: the ports of the connection under test, or unused
/// ports of the same addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attack {
    /// The ports of both sides of the test's connection.
    Connection,
    /// Ports on which no program listens, at the addresses of the test's connection.
    UnusedPort,
}

/// The UDP port of the first softroce device on a host.
const BASE_PORT: u16 = 4791;
/// Distance between the UDP ports of two successive softroce devices on a host. The top eight bits
/// of a queue pair number are the index of the device. The port of the device with index `n` is
/// [`BASE_PORT`] plus `n` times this distance.
const PORT_STRIDE: u16 = 100;

/// One end of the connection that is attacked with forged packets. The values come from the lines
/// that the attacked program prints at its start.
struct Side {
    queue_pair: u32,
    packet_sequence: u32,
    address: Ipv4Addr,
}

impl Attack {
    /// Returns the command line that starts the program `attacker` (at the path `attacker`) against
    /// the connection of a running test. Reads the addresses of the connection from `printed`, the
    /// output of the test so far. Returns `None` if the output does not have both addresses yet.
    pub(super) fn argv(self, attacker: &Path, printed: &str) -> Option<Vec<OsString>> {
        let mut argv: Vec<OsString> = ["env", "-u", "LD_PRELOAD"].map(OsString::from).to_vec();
        argv.push(attacker.into());
        for name in ["local", "remote"] {
            argv.push(parse_side(printed, name)?.target().into());
        }
        // Longer than any test: the attacker is killed when the test ends.
        argv.extend(["--seconds", "3600"].map(OsString::from));
        if self == Self::UnusedPort {
            argv.push("--unused".into());
        }
        Some(argv)
    }
}

impl Side {
    /// Returns this end of the connection as an argument of the program `attacker`: IP address, UDP
    /// port, queue pair number and packet sequence number (PSN).
    fn target(&self) -> String {
        let slot = (self.queue_pair >> 16) as u16;
        let address = SocketAddrV4::new(self.address, BASE_PORT + PORT_STRIDE * slot);
        format!("{address}/{}/{}", self.queue_pair, self.packet_sequence)
    }
}

/// Parses one end of the connection from `printed`, the output of a test's client so far. `name` is
/// `local` for the client's end, or `remote` for the server's end. Returns `None` if the two header
/// lines of that end are missing or incomplete.
fn parse_side(printed: &str, name: &str) -> Option<Side> {
    let begin = format!(" {name} address: ");
    let mut lines = printed
        .split_inclusive('\n')
        .skip_while(|line| !line.starts_with(&begin));
    let line = lines.next()?;
    let gid = lines.next().filter(|line| line.ends_with('\n'))?;
    let number = |name: &str| {
        let (_, rest) = line.split_once(name)?;
        u32::from_str_radix(rest.split_whitespace().next()?, 16).ok()
    };
    let bytes = gid.trim().strip_prefix("GID: ")?.split(':');
    let bytes: Option<Vec<u8>> = bytes.map(|byte| byte.parse().ok()).collect();
    let address: [u8; 4] = bytes?.get(12..16)?.try_into().ok()?;
    Some(Side {
        queue_pair: number("QPN 0x")?,
        packet_sequence: number("PSN 0x")?,
        address: address.into(),
    })
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connection => "attacked",
            Self::UnusedPort => "beside an attack on unused ports",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "\
 Data ex. method : Ethernet
 local address: LID 0000 QPN 0x01a2b3 PSN 0x280146 RKey 0x00072e VAddr 0x0055f971e98000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:127:07:00:01
 remote address: LID 0000 QPN 0x0015 PSN 0x1 RKey 0x00072e VAddr 0x0055f971e98000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:127:08:00:01
";

    #[test]
    fn the_targets_are_the_ends_of_the_header() {
        let argv = Attack::Connection.argv(Path::new("attacker"), HEADER);
        let argv = argv.unwrap();
        assert_eq!(argv[4], "127.7.0.1:4891/107187/2621766");
        assert_eq!(argv[5], "127.8.0.1:4791/21/1");
        let elsewhere = Attack::UnusedPort.argv(Path::new("attacker"), HEADER);
        assert_eq!(elsewhere.unwrap().last().unwrap(), "--unused");
    }

    #[test]
    fn a_part_of_the_header_is_not_enough() {
        for parse_side in 0..HEADER.len() - 1 {
            let argv = Attack::Connection.argv(Path::new("attacker"), &HEADER[..parse_side]);
            assert!(argv.is_none(), "{parse_side}");
        }
    }
}
