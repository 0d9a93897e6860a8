//! Attacker: a program without privileges that uses its own sockets to send packets of all kinds to
//! two devices of its host. Each packet claims to be from the queue pair of the other device.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use softroce::wire::ip::Route;
use softroce::wire::{
    Aeth, AtomicEth, Bth, Deth, Feth, Header, Nak, Opcode, Operation, Reth, Syndrome, Transport,
};

pub(crate) const USAGE: &str = "attacker TARGET TARGET [--seconds N] [--span N] [--follow] [--unused] [--user UID]

  TARGET         ADDRESS:PORT of a device, and what is known of it: /QUEUE PAIR, /SEQUENCE NUMBER that it expects, /KEY,
                 /MEMORY ADDRESS
  --seconds N    how long to send [3]
  --span N       how many sequence numbers around the known one are sent [65536]
  --follow       reads from its input, line by line, which sequence numbers the two targets expect now
  --unused       sends the same packets to an unused port of the same addresses
  --user UID     becomes this user first";

/// Device that is attacked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    address: SocketAddrV4,
    queue_pair: Option<u32>,
    sequence: Option<u32>,
    key: Option<u32>,
    memory: Option<u64>,
}

/// Settings of an attack.
#[derive(Clone, Debug)]
pub(crate) struct Attack {
    targets: [Target; 2],
    /// Sequence numbers that the targets expect, as far as the attacker knows them.
    sequences: Arc<[AtomicU32; 2]>,
    duration: Duration,
    span: u32,
    unused: bool,
}

/// Number of packets between two readings of the clock.
const BATCH: u32 = 64;

/// Path MTU in bytes: the payload of packets in the middle of a message.
const MTU: usize = 4096;

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |_| format!("not understood: {text}");
        let mut parts = text.split('/');
        let address = parts
            .next()
            .unwrap_or_default()
            .parse()
            .map_err(|_| wrong(()))?;
        let mut number = || -> Result<Option<u64>, String> {
            let part = parts.next().map(str::parse).transpose();
            part.map_err(|_: std::num::ParseIntError| wrong(()))
        };
        let mut word = || number().map(|number| number.map(|number| number as u32));
        let (queue_pair, sequence, key) = (word()?, word()?, word()?);
        Ok(Self {
            address,
            queue_pair,
            sequence,
            key,
            memory: number()?,
        })
    }
}

impl Attack {
    /// Parses the command line, and changes to the user that it names.
    pub(crate) fn of(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = arguments;
        let (mut targets, mut seconds, mut span) = (Vec::<Target>::new(), 3, 1 << 16);
        let (mut unused, mut follows) = (false, false);
        while let Some(argument) = arguments.next() {
            let mut number = || -> Result<u32, String> {
                let value = arguments.next().ok_or("a number is missing")?;
                value.parse().map_err(|_| format!("no number: {value}"))
            };
            match argument.as_str() {
                "--seconds" => seconds = number()?,
                "--span" => span = number()?.max(1),
                "--user" => become_user(number()?).map_err(|error| format!("--user: {error}"))?,
                "--unused" => unused = true,
                "--follow" => follows = true,
                target => targets.push(target.parse()?),
            }
        }
        let targets: [Target; 2] = targets.try_into().map_err(|_| "two targets are needed")?;
        let known = targets.map(|target| AtomicU32::new(target.sequence.unwrap_or(0)));
        let sequences = Arc::new(known);
        if follows {
            let sequences = Arc::clone(&sequences);
            thread::spawn(move || follow(&sequences));
        }
        Ok(Self {
            targets,
            sequences,
            duration: Duration::from_secs(seconds.into()),
            span,
            unused,
        })
    }

    /// Sends packets for the duration of the attack. Returns their number.
    pub(crate) fn run(&self) -> io::Result<u64> {
        let [one, other] = self.targets;
        let victims = [
            Victim::new(0, one, other, self.unused)?,
            Victim::new(1, other, one, self.unused)?,
        ];
        let mut random = Random(0x5eed);
        let mut bytes = Vec::with_capacity(2 * MTU);
        let end = Instant::now() + self.duration;
        let mut sent = 0;
        for opcode in (0..=u8::MAX).cycle() {
            if sent % u64::from(BATCH) == 0 && Instant::now() > end {
                break;
            }
            let victim = &victims[random.below(2) as usize];
            let socket = &victim.sockets[random.below(victim.sockets.len() as u32) as usize];
            bytes.clear();
            self.write(opcode, victim, &mut random, &mut bytes);
            let icrc = victim.icrc(socket, &bytes)?;
            bytes.extend(icrc.to_le_bytes());
            match socket.send_to(&bytes, victim.to) {
                Ok(_) => sent += 1,
                // The queue of the network interface is full.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Appends a packet without its ICRC.
    fn write(&self, byte: u8, victim: &Victim, random: &mut Random, out: &mut Vec<u8>) {
        let opcode = Opcode::from_byte(byte);
        // A packet with an unknown opcode is built like a message.
        let shape = opcode.unwrap_or(Opcode::new(
            Transport::ReliableConnection,
            Operation::SendOnly,
        ));
        let known = |known: Option<u32>, random: &mut Random| match known {
            Some(known) if random.below(8) > 0 => known,
            _ => random.word() as u32,
        };
        // A response has a sequence number of the victim's own packets, which the peer expects.
        let whose = victim.index ^ usize::from(shape.is_response());
        let sequence = match victim.target.sequence {
            Some(_) if random.below(8) > 0 => {
                let known = self.sequences[whose].load(Ordering::Relaxed);
                known
                    .wrapping_sub(self.span / 4)
                    .wrapping_add(random.below(self.span))
            }
            _ => random.word() as u32,
        };
        let Target {
            queue_pair,
            key,
            memory,
            ..
        } = victim.target;
        let low_24 = |number: u32| number & 0xff_ffff;
        let length = match random.below(8) {
            _ if !shape.has_payload() || byte == Opcode::SKIP.to_byte() => 0,
            0 if shape.is_first() || shape.is_middle() => MTU,
            _ => 4 * random.below(16) as usize,
        };
        let key = known(key, random);
        let address = match memory {
            Some(memory) if random.below(8) > 0 => memory + u64::from(random.below(1 << 16)) * 8,
            _ => random.word(),
        };
        let mut header = Header::new(Bth {
            acknowledge: random.below(2) == 0,
            ..Bth::new(shape, low_24(known(queue_pair, random)), low_24(sequence))
        });
        header.xrc_srq = shape.has_xrc_srq().then_some(1);
        header.deth = shape.has_deth().then(|| Deth {
            queue_key: 0x1111_1111,
            source: low_24(known(victim.peer.queue_pair, random)),
        });
        header.reth = shape.has_reth().then(|| Reth {
            // This field holds the number of skipped packets.
            address: if shape == Opcode::SKIP {
                random.below(self.span).into()
            } else {
                address
            },
            key,
            length: if shape.is_first() {
                3 * MTU as u32
            } else {
                length as u32
            },
        });
        header.feth = shape.has_feth().then(|| Feth {
            placement: random.below(16) as u8,
            level: random.below(4) as u8,
        });
        header.atomic = shape.has_atomic().then(|| AtomicEth {
            address: address & !7,
            key,
            swap_or_add: random.word(),
            compare: 0,
        });
        header.aeth = shape.has_aeth().then(|| Aeth {
            syndrome: match random.below(6) {
                0 => Syndrome::Nak(Nak::SequenceError),
                1 => Syndrome::Nak(Nak::InvalidRequest),
                2 => Syndrome::Nak(Nak::RemoteAccessError),
                3 => Syndrome::ReceiverNotReady { timer: 0 },
                _ => Syndrome::Ack { credits: 31 },
            },
            message_sequence: random.below(1 << 24),
        });
        header.original = shape.has_original().then(|| random.word());
        header.immediate = shape.has_immediate().then_some([0xee; 4]);
        header.invalidate = shape.has_invalidate().then_some(key);
        let begin = out.len();
        header.emit(out);
        out[begin] = byte;
        out.resize(out.len() + length, 0xee);
    }
}

/// A target, and the sockets to attack it from.
struct Victim {
    index: usize,
    target: Target,
    /// Target that the packets claim to be from.
    peer: Target,
    to: SocketAddrV4,
    sockets: Vec<UdpSocket>,
}

impl Victim {
    fn new(index: usize, target: Target, peer: Target, unused: bool) -> io::Result<Self> {
        let mut sockets = vec![
            // Address of the peer with another port.
            UdpSocket::bind((*peer.address.ip(), 0))?,
            // Another address and port.
            UdpSocket::bind((Ipv4Addr::new(127, 0, 66, 6), 0))?,
        ];
        // Another address with the port of the peer. Other attackers may use the first addresses.
        let same_port = (1..=u8::MAX)
            .map(|last| (Ipv4Addr::new(127, 0, 67, last), peer.address.port()))
            .find_map(|address| UdpSocket::bind(address).ok());
        // Address of the peer with the port of a device that does not exist.
        let same_address = (1..=14)
            .map(|slot| {
                (
                    *peer.address.ip(),
                    peer.address.port().wrapping_add(slot * 100),
                )
            })
            .find_map(|address| UdpSocket::bind(address).ok());
        sockets.extend(same_port);
        sockets.extend(same_address);
        let mut to = target.address;
        if unused {
            let free = UdpSocket::bind((*to.ip(), 0))?;
            to.set_port(free.local_addr()?.port());
        }
        Ok(Self {
            index,
            target,
            peer,
            to,
            sockets,
        })
    }

    fn icrc(&self, socket: &UdpSocket, transport: &[u8]) -> io::Result<u32> {
        let SocketAddr::V4(from) = socket.local_addr()? else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let route = Route {
            source: from.ip().to_ipv6_mapped(),
            destination: self.to.ip().to_ipv6_mapped(),
            source_port: from.port(),
            destination_port: self.to.port(),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        Ok(route.headers(transport.len()).icrc(transport))
    }
}

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn below(&mut self, limit: u32) -> u32 {
        (((self.word() >> 32) * u64::from(limit)) >> 32) as u32
    }
}

/// Reads the sequence numbers that the targets expect from the standard input.
fn follow(sequences: &[AtomicU32; 2]) {
    for line in io::stdin().lines().map_while(Result::ok) {
        let words = line.split_whitespace().map_while(|word| word.parse().ok());
        for (sequence, now) in sequences.iter().zip(words) {
            sequence.store(now, Ordering::Relaxed);
        }
    }
}

/// Changes to a user, with only the group of the same number.
fn become_user(user: u32) -> io::Result<()> {
    // SAFETY: the list of groups is empty, so that the call reads no memory.
    let done = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setgid(user) == 0
            && libc::setuid(user) == 0
    };
    if done {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
