//! Packet capture: a pcap file of all sent and received packets, for `tshark`, Wireshark and other
//! readers.
//!
//! Each packet is recorded as on the wire: IP, UDP, and BTH to ICRC. For UDP ports other than 4791,
//! a dissector needs a rule: `tshark -d udp.port==4891,rroce`.

#![forbid(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::descriptor::Descriptor;

/// Link type of packets that begin with their IPv4 or IPv6 header (`LINKTYPE_RAW`).
const RAW_IP: u32 = 101;

/// Maximum number of bytes that are recorded of a packet. The rest of a longer packet is cut off.
const MAX_RECORDED_BYTES: u32 = 0xffff;

/// An open pcap file to which packets are appended.
#[derive(Debug)]
pub(crate) struct Capture {
    /// Writer of the file. `None` after a failed write, because readers cannot parse records that
    /// follow an incomplete record.
    writer: Mutex<Option<Writer>>,
}

#[derive(Debug)]
struct Writer {
    file: Descriptor,
    /// Buffer for the next record, which is written by one system call. So no record is incomplete
    /// if a signal ends the process, and records of several processes in the same file are not
    /// mixed.
    record: Vec<u8>,
}

impl Capture {
    /// Opens or creates the capture file at `path`. Packets are appended to an existing capture, so
    /// several processes can record both sides of their connection in one file. Fails if an
    /// existing file is not a capture of this format.
    pub(crate) fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        create_with_header(path)?;
        let is_file = fs::metadata(path)?.is_file();
        // A pipe, for example, cannot be read back.
        let mut options = OpenOptions::new();
        options.read(is_file).append(true);
        let file = Descriptor::open(|| options.open(path).map(Into::into))?;
        if !is_file || rustix::fs::fstat(&file)?.st_size == 0 {
            file.write_all(&file_header())?;
        } else {
            let mut found = [0; 24];
            let read = rustix::io::pread(&file, &mut found, 0);
            if read != Ok(found.len()) || found != file_header() {
                let message = "the file is there and is no capture of this kind";
                return Err(io::Error::new(ErrorKind::AlreadyExists, message));
            }
        }
        let writer = Writer {
            file,
            record: Vec::new(),
        };
        Ok(Self {
            writer: Mutex::new(Some(writer)),
        })
    }

    /// Appends a packet to the capture file. `packet` lists the parts of the packet, beginning with
    /// the IP header, and `time` is the packet's timestamp. Returns the error of the first failed
    /// write. After a failed write, later calls do nothing.
    pub(crate) fn record(&self, time: SystemTime, packet: &[&[u8]]) -> io::Result<()> {
        let mut writer = self.writer.lock();
        let Some(open) = &mut *writer else {
            return Ok(());
        };
        let written = open.write(time, packet);
        if written.is_err() {
            *writer = None;
        }
        written
    }
}

impl Writer {
    fn write(&mut self, time: SystemTime, packet: &[&[u8]]) -> io::Result<()> {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let len: usize = packet.iter().map(|piece| piece.len()).sum();
        let len = u32::try_from(len).map_err(|_| ErrorKind::InvalidInput)?;
        self.record.clear();
        // The format's seconds have 32 bits, which suffices until 2106.
        for field in [
            since.as_secs() as u32,
            since.subsec_nanos(),
            len.min(MAX_RECORDED_BYTES),
            len,
        ] {
            self.record.extend_from_slice(&field.to_ne_bytes());
        }
        for piece in packet {
            self.record.extend_from_slice(piece);
        }
        self.record.truncate(16 + MAX_RECORDED_BYTES as usize);
        self.file.write_all(&self.record)
    }
}

/// Creates the capture file at `path` with its header. Does nothing if the file exists. Other
/// processes must not see the file without its header. So if the file system supports hard links,
/// writes the header to a temporary file, and then links this file to `path`.
fn create_with_header(path: &Path) -> io::Result<()> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    if path.exists() {
        return Ok(());
    }
    let mut name = path.as_os_str().to_owned();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}.{number}", process::id()));
    let unfinished = PathBuf::from(name);
    fs::write(&unfinished, file_header())?;
    let linked = fs::hard_link(&unfinished, path);
    fs::remove_file(&unfinished)?;
    let made = match linked {
        // The file system may not support hard links.
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            File::create_new(path).and_then(|mut file| file.write_all(&file_header()))
        }
        linked => linked,
    };
    match made {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Returns the header of a pcap file in this machine's byte order, with timestamps in nanoseconds.
fn file_header() -> [u8; 24] {
    let mut header = [0; 24];
    header[..4].copy_from_slice(&0xa1b2_3c4d_u32.to_ne_bytes());
    header[4..6].copy_from_slice(&2_u16.to_ne_bytes());
    header[6..8].copy_from_slice(&4_u16.to_ne_bytes());
    header[16..20].copy_from_slice(&MAX_RECORDED_BYTES.to_ne_bytes());
    header[20..].copy_from_slice(&RAW_IP.to_ne_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::process::Command;
    use std::time::Duration;
    use std::{env, thread};

    use super::*;
    use crate::wire::ip::{self, Headers, Route};
    use crate::wire::{
        Aeth, AtomicEth, Bth, Deth, Feth, Header, Opcode, Packet, Reth, Syndrome, icrc,
    };

    /// Temporary directory that is removed when the test ends.
    struct TemporaryDirectory(PathBuf);

    impl TemporaryDirectory {
        fn new(name: &str) -> Self {
            let path = env::temp_dir().join(format!("softroce-{name}-{}", process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn file(&self) -> PathBuf {
            self.0.join("packets.pcap")
        }
    }

    impl Drop for TemporaryDirectory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    /// Returns the packets in the capture file at `path`, each with its timestamp.
    fn records(path: &Path) -> Vec<(Duration, Vec<u8>)> {
        let bytes = fs::read(path).unwrap();
        assert_eq!(bytes[..24], file_header());
        let mut rest = &bytes[24..];
        let mut records = Vec::new();
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(16);
            let len = u32_at(head, 8) as usize;
            assert_eq!(u32_at(head, 12), len as u32);
            let time = Duration::new(u32_at(head, 0).into(), u32_at(head, 4));
            records.push((time, tail[..len].to_vec()));
            rest = &tail[len..];
        }
        records
    }

    fn packet_of(opcode: Opcode, v6: bool) -> (Headers, Vec<u8>) {
        let payload: &[u8] = if opcode.has_payload() { b"hello" } else { b"" };
        let header = Header {
            bth: Bth {
                pad: Header::pad_for(payload.len()),
                acknowledge: true,
                ..Bth::new(opcode, 0x11, 0x1000 + u32::from(opcode.to_byte()))
            },
            xrc_srq: opcode.has_xrc_srq().then_some(3),
            deth: opcode.has_deth().then_some(Deth {
                queue_key: 0x1111_1111,
                source: 0x12,
            }),
            feth: opcode.has_feth().then_some(Feth {
                placement: 1,
                level: 0,
            }),
            reth: opcode.has_reth().then_some(Reth {
                address: 0x7000,
                key: 0x100,
                length: 5,
            }),
            atomic: opcode.has_atomic().then_some(AtomicEth {
                address: 0x7000,
                key: 0x100,
                swap_or_add: 1,
                compare: 0,
            }),
            aeth: opcode.has_aeth().then_some(Aeth {
                syndrome: Syndrome::Ack { credits: 31 },
                message_sequence: 1,
            }),
            original: opcode.has_original().then_some(42),
            immediate: opcode.has_immediate().then_some(*b"imm!"),
            invalidate: opcode.has_invalidate().then_some(0x100),
        };
        let mut transport = Vec::new();
        Packet { header, payload }.emit(&mut transport);
        let address = |last: u8| {
            if v6 {
                Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into())
            } else {
                Ipv4Addr::new(127, 0, 0, last).to_ipv6_mapped()
            }
        };
        let route = Route {
            source: address(1),
            destination: address(2),
            source_port: 0xc001,
            destination_port: ip::PORT,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        (route.headers(transport.len()), transport)
    }

    fn record(capture: &Capture, time: SystemTime, (headers, transport): &(Headers, Vec<u8>)) {
        let icrc = headers.icrc(transport).to_le_bytes();
        let pieces = [headers.ip(), headers.udp(), transport, &icrc];
        capture.record(time, &pieces).unwrap();
    }

    #[test]
    fn packets_and_times_are_written_to_the_file() {
        let directory = TemporaryDirectory::new("capture-bytes");
        let capture = Capture::create(directory.file()).unwrap();
        let create_with_header = Duration::new(1_700_000_000, 123_456_789);
        let mut expected = Vec::new();
        for (index, opcode) in Opcode::all().enumerate() {
            for v6 in [false, true] {
                let time = create_with_header + Duration::from_nanos(index as u64);
                let packet = packet_of(opcode, v6);
                record(&capture, UNIX_EPOCH + time, &packet);
                expected.push((time, packet));
            }
        }
        let found = records(&directory.file());
        assert_eq!(found.len(), expected.len());
        for ((found, bytes), (time, (headers, transport))) in found.iter().zip(&expected) {
            assert_eq!(found, time);
            let (parsed, rest) = Headers::parse(bytes).unwrap();
            assert_eq!(parsed, *headers);
            assert_eq!(
                icrc::split(rest),
                Some((&transport[..], headers.icrc(transport)))
            );
        }
    }

    #[test]
    fn tshark_dissects_every_opcode() {
        if Command::new("tshark").arg("--version").output().is_err() {
            eprintln!("skipped: there is no tshark; the other tests look at the bytes");
            return;
        }
        let directory = TemporaryDirectory::new("capture-tshark");
        let capture = Capture::create(directory.file()).unwrap();
        let mut expected = Vec::new();
        for opcode in Opcode::all() {
            for v6 in [false, true] {
                let packet = packet_of(opcode, v6);
                record(
                    &capture,
                    UNIX_EPOCH + Duration::from_secs(1_700_000_000),
                    &packet,
                );
                let (headers, transport) = packet;
                let icrc = u32::from_be_bytes(headers.icrc(&transport).to_le_bytes());
                let byte = opcode.to_byte();
                let head = format!("{byte}\t{}\t17", 0x1000 + u32::from(byte));
                expected.push((head, format!("{icrc:#010x}")));
            }
        }
        let output = Command::new("tshark")
            .arg("-r")
            .arg(directory.file())
            .args([
                "-T",
                "fields",
                "-e",
                "infiniband.bth.opcode",
                "-e",
                "infiniband.bth.psn",
            ])
            .args([
                "-e",
                "infiniband.bth.destqp",
                "-e",
                "infiniband.invariant.crc",
            ])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let output = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.lines().count(), expected.len());
        let mut with_icrc = 0;
        for (line, (head, icrc)) in output.lines().zip(expected) {
            let (shown, shown_icrc) = line.rsplit_once('\t').unwrap();
            assert_eq!(shown.replace("0x000011", "17"), head);
            // The dissector shows only the BTH of XRC packets and of sends with invalidate, which
            // it does not support.
            if !shown_icrc.is_empty() {
                assert_eq!(shown_icrc, icrc, "{head}");
                with_icrc += 1;
            }
        }
        assert!(with_icrc >= 2 * 30, "{with_icrc}");
    }

    #[test]
    fn several_writers_append_to_one_file() {
        let directory = TemporaryDirectory::new("capture-shared");
        let path = directory.file();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let capture = Capture::create(&path).unwrap();
                    for opcode in Opcode::all() {
                        record(&capture, SystemTime::now(), &packet_of(opcode, false));
                    }
                });
            }
        });
        let found = records(&path);
        assert_eq!(found.len(), 4 * Opcode::all().count());
        assert!(
            found
                .iter()
                .all(|(_, bytes)| Headers::parse(bytes).is_some())
        );
    }

    #[test]
    fn a_file_of_another_format_is_not_changed() {
        let directory = TemporaryDirectory::new("capture-other");
        fs::write(directory.file(), "notes that nobody wants to lose").unwrap();
        let error = Capture::create(directory.file()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(
            fs::read(directory.file()).unwrap(),
            b"notes that nobody wants to lose"
        );
        assert!(Capture::create(directory.0.join("none").join("packets.pcap")).is_err());
    }

    #[test]
    fn a_write_failure_is_logged_once() {
        let capture = Capture::create("/dev/full");
        // The write of the header fails already. The test of a later failure opens the capture
        // itself.
        assert!(capture.is_err());
        let open = || {
            let file = OpenOptions::new().write(true).open("/dev/full")?;
            io::Result::Ok(file.into())
        };
        let writer = Writer {
            file: Descriptor::open(open).unwrap(),
            record: Vec::new(),
        };
        let capture = Capture {
            writer: Mutex::new(Some(writer)),
        };
        assert!(capture.record(SystemTime::now(), &[&[0x45]]).is_err());
        assert!(capture.record(SystemTime::now(), &[&[0x45]]).is_ok());
    }
}
