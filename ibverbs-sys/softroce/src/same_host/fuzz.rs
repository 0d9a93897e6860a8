//! Fuzz targets for a hostile peer process of the same host, which sends messages to the listener
//! and writes to shared memory.

use std::cell::Cell;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
};
use rustix::process::Pid;

use super::access::{Access, CachedRecords, Target};
use super::admission::MAX_BURST;
use super::backlog::DelayedPacket;
use super::handshake_message::{HandshakeMessage, MessageType};
use super::link::{MAX_PACKET, Received};
use super::peer_directory::PeerDirectory;
use super::process;
use super::regions;
use super::segment;
use super::shared::{self, Map, Rights};
use super::testing;
use super::wake::Sleeper;
use crate::descriptor::Descriptor;
use crate::fuzz::Input;
use crate::memory::Piece;
use crate::proto::{Remote, Sequence};
use crate::transfer::{Atomic, MessagePart, PartFlags, PayloadForm, RingMessage};

/// Maximum number of actions, such as messages or accesses, that a fuzz target performs for one
/// input. The limit keeps the time for an input short.
const STEPS: usize = 100;

/// A simulated process that listens for connections, and the file descriptors that simulated
/// hostile processes send to it.
struct Listener {
    directory: PeerDirectory,
    name: SocketAddrUnix,
    segment: Descriptor,
    tables: Descriptor,
    wake_eventfd: OwnedFd,
    socket: OwnedFd,
    /// ID of a thread of this process. A handshake is valid only with a thread that is not the main
    /// thread.
    thread: i32,
}

impl Listener {
    fn of_process() -> &'static Self {
        static LISTENER: OnceLock<Listener> = OnceLock::new();
        LISTENER.get_or_init(|| {
            let id = std::process::id().to_ne_bytes();
            let port = 0x4000 | u16::from(id[2]);
            let address = SocketAddr::from(([127, 99, id[0], id[1]], port));
            let resources = testing::own_resources(address).expect("what it hands over");
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
            Self {
                directory: PeerDirectory::open(resources).expect("a listener"),
                name: SocketAddrUnix::new_abstract_name(format!("softroce/{address}").as_bytes())
                    .expect("a name"),
                segment: segment::create().expect("memory").0,
                tables: shared::create("tables", regions::LENGTH, false)
                    .expect("tables")
                    .0,
                wake_eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                    .expect("a doorbell"),
                socket: socket.expect("a socket"),
                thread: sleeping_thread(),
            }
        })
    }

    /// Returns the file descriptors that a simulated hostile process sends with a handshake
    /// message. The fuzz input `input` determines if they are valid, or if their number or kind is
    /// wrong.
    fn descriptors(&self, input: &mut Input<'_>) -> Vec<BorrowedFd<'_>> {
        let [segment, tables] = [&self.segment, &self.tables].map(AsFd::as_fd);
        let [wake_eventfd, socket] = [&self.wake_eventfd, &self.socket].map(AsFd::as_fd);
        let mut all = vec![
            segment,
            tables,
            tables,
            wake_eventfd,
            wake_eventfd,
            wake_eventfd,
        ];
        match input.below(8) {
            0 => all.clear(),
            1 => all.truncate(input.below(6)),
            2 => all.push(socket),
            3 => all[input.below(6)] = input.one_of(&[segment, tables, wake_eventfd, socket]),
            _ => {}
        }
        all
    }
}

/// Fuzz target: sends handshake messages with file descriptors to a simulated process over several
/// connections. `bytes` determines the messages: valid, slightly changed, or arbitrary bytes. The
/// process must not panic. After the connections have ended, the process must hold no resources for
/// them.
pub fn handshake(bytes: &[u8]) {
    if let Some(handshake_message) = HandshakeMessage::decode(bytes) {
        assert_eq!(handshake_message.encode(), bytes);
    }
    let mut input = Input::new(bytes);
    let listener = Listener::of_process();
    let directory = &listener.directory;
    directory.reset_limits();
    let mut connections = 0;
    let mut handshakes: Vec<Option<OwnedFd>> = (0..4).map(|_| None).collect();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let handshake = &mut handshakes[input.below(4)];
        match (input.below(8), handshake.as_ref()) {
            // No more connections are made than the rate limit accepts in one burst: while this
            // thread waits, no other thread accepts connections.
            (_, None) if connections == MAX_BURST => {}
            (_, None) => {
                connections += 1;
                let flags = SocketFlags::CLOEXEC;
                let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                    .expect("a socket");
                connect(&socket, &listener.name).expect("it listens");
                *handshake = Some(socket);
            }
            (0, _) => *handshake = None,
            (1, Some(socket)) => {
                let length = input.below(256);
                let bytes = input.some(length);
                // A valid message is not sent here: the receiver's check of its access to memory
                // could write to an arbitrary address of this process.
                if HandshakeMessage::decode(bytes).is_none() {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    let _ = rustix::net::send(socket, bytes, flags);
                }
            }
            (2 | 3, Some(socket)) => {
                // Receives the answer. A `Welcome` is valid only if the peer could read the memory
                // of this process.
                if let Ok((handshake_message, _)) = HandshakeMessage::receive(socket.as_fd())
                    && handshake_message.word == MessageType::Welcome
                {
                    let this = rustix::process::getpid();
                    assert_eq!(process::probe(this, handshake_message.probe), Ok(true));
                    let _ = HandshakeMessage::of_type(MessageType::Ready).send(socket.as_fd(), &[]);
                }
            }
            (_, Some(socket)) => {
                let handshake_message = handshake_message(&mut input, listener.thread);
                let _ = handshake_message.send(socket.as_fd(), &listener.descriptors(&mut input));
            }
        }
        directory.handle_events();
        directory.check_limits();
    }
    drop(handshakes);
    for _ in 0..8 {
        directory.handle_events();
    }
    assert!(
        directory.has_no_peers(),
        "nothing is kept of those who are gone"
    );
}

/// Starts a thread that sleeps until the process ends, and returns its ID. A valid handshake must
/// contain the ID of a thread that is not the main thread.
fn sleeping_thread() -> i32 {
    let (tells, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = tells.send(rustix::thread::gettid().as_raw_pid());
        loop {
            std::thread::park();
        }
    });
    told.recv().expect("a thread")
}

fn handshake_message(input: &mut Input<'_>, thread: i32) -> HandshakeMessage {
    let word = input.one_of(&[
        MessageType::Hello,
        MessageType::Hello,
        MessageType::Hello,
        MessageType::Ready,
        MessageType::Ready,
        MessageType::Welcome,
        MessageType::Sorry,
        MessageType::Later,
    ]);
    let addresses = (0..input.one_of(&[1, 1, 1, 0, 2, 16])).map(|number| {
        let ip = match input.flag() {
            true => IpAddr::V4([127, 98, number, input.byte() % 4].into()),
            false => IpAddr::V6(Ipv6Addr::from_bits(u128::from(input.byte()))),
        };
        SocketAddr::new(ip, 4791)
    });
    HandshakeMessage {
        word,
        addresses: addresses.collect(),
        probe: match input.below(4) {
            // These addresses are not mapped. If one were, the check of the access would write to
            // the memory of this process.
            0 => input.one_of(&[0, 8, 1 << 63, u64::MAX, u64::MAX - 15]),
            _ => process::word(),
        },
        thread,
        key_base: input.word(),
        gids: vec![Ipv6Addr::from_bits(input.long().into()); input.below(17)],
    }
}

/// Fuzz target: receives from shared memory while a simulated peer writes arbitrary messages and
/// words to the memory. `bytes` determines the actions of both processes. Panics if a received
/// message is too long or arrives after the end of the link.
pub fn ring(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (here, there, file) = testing::links().expect("a link");
    let all = 0..segment::LENGTH as u64;
    let map = Map::of(file.as_fd(), all, Rights::Write).expect("its memory");
    let limit = Cell::new(0);
    let is_over = Cell::new(false);
    let receive = |most: usize| {
        limit.set(0);
        let count = here.receive(most, |_, said| {
            assert!(!is_over.get(), "nothing comes after the end");
            limit.set(limit.get() + 1);
            match said {
                Received::Packet(bytes, _) => assert!(bytes.len() <= MAX_PACKET),
                Received::RingMessage(ring_message, chunks) => {
                    let message = ring_message.message.as_ref();
                    let length = message.map_or(0, |message| message.length() as usize);
                    let form = message.map(|message| message.form);
                    if form.is_some_and(PayloadForm::has_chunks) {
                        assert!(length <= Piece::total(chunks));
                        let mut bytes = vec![0; length];
                        let all = Piece::of_mut(&mut bytes);
                        let mut done = 0;
                        for from in Piece::parts(chunks, 0..length) {
                            let end = done + from.length();
                            let to = Piece::parts(&[all], done..end).next();
                            to.and_then(|to| from.copy_to(&to))
                                .expect("memory of the link");
                            done = end;
                        }
                    }
                }
            }
        });
        let count = count.expect("nobody else receives");
        assert_eq!(count, limit.get());
        assert!(count <= most);
        if here.is_dead() && count == 0 && most > 0 {
            is_over.set(true);
        }
    };
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.below(12) {
            0 => {
                let length = usize::from(input.half()) % (MAX_PACKET + 1);
                let _ = there.send(
                    input.half() & 0x7fff,
                    u64::from(input.half()),
                    &vec![input.byte(); length],
                );
            }
            1 => {
                let payload = [input.byte(); 32];
                let length = input.below(33);
                let _ = there.send_ring_message(
                    input.half() & 0x7fff,
                    &ring_message(&mut input, &payload[..length]),
                );
            }
            2 => {
                let words = std::array::from_fn(|_| input.long());
                let _ = there.send_words(input.half(), &words);
            }
            3 => {
                let words: [u64; 7] =
                    std::array::from_fn(|_| input.one_of(&[0, 300, 5000, u64::MAX]));
                let chunks = input.one_of(&[0, 1, 5, 68, 8192, u16::MAX]);
                let _ = there
                    .sender()
                    .push(input.half() & 0x7fff, &words, chunks, |_| Ok::<_, ()>(()));
            }
            4..7 => {
                // The write goes to an arbitrary word, or to one of the words that contain
                // positions.
                let at = match input.below(4) {
                    0 => input.word() as usize % (segment::LENGTH / 8),
                    side => (side - 1) * segment::LENGTH / 2 / 8 + input.below(256),
                };
                let value = input.one_of(&[0, 1, 2, u64::MAX, 1 << 32, 2 << 32 | 1]);
                let value = if input.flag() { value } else { input.long() };
                let word = map.word(at % (segment::LENGTH / 8) * 8).expect("inside");
                word.store(value, std::sync::atomic::Ordering::SeqCst);
            }
            7 => receive(input.below(70)),
            8 => {
                let _ = here.send(
                    0x100,
                    0,
                    &vec![7; usize::from(input.half()) % (MAX_PACKET + 1)],
                );
            }
            9 => {
                if !here.may_send(input.word() % 4) {
                    here.delay_packet(
                        0x100,
                        DelayedPacket {
                            bytes: [1; 300].into(),
                            annotation: 0,
                        },
                    );
                }
                here.resume(|_| ());
            }
            10 => {
                here.fall_asleep(Sleeper::Engine);
                here.flush();
                here.wake_up(Sleeper::Engine);
            }
            _ => {
                let _ = (
                    here.is_idle(),
                    here.may_have_messages(),
                    here.copying_peer(),
                );
                let _ = here.check();
            }
        }
    }
    // After the link has ended, the remaining messages must be received, and no more, even if the
    // peer continues to send.
    here.end();
    for _ in 0..100 {
        receive(64);
    }
    assert!(!here.may_have_messages());
}

fn form(input: &mut Input<'_>) -> PayloadForm {
    match (input.flag(), input.flag()) {
        (false, false) => PayloadForm::Whole,
        (false, true) => PayloadForm::Written,
        (true, starts) => {
            let part = PartFlags {
                starts,
                ends: input.flag(),
                invalidates: input.flag(),
            };
            match (input.flag(), input.flag()) {
                (false, false) => PayloadForm::Fetch(part),
                (false, true) => PayloadForm::Chunks(part),
                (true, _) => PayloadForm::Write,
            }
        }
    }
}

fn ring_message<'a>(input: &mut Input<'_>, payload: &'a [u8]) -> RingMessage<'a> {
    RingMessage {
        destination: input.word(),
        partition_key: input.half(),
        acknowledged: input
            .flag()
            .then(|| Sequence::new(input.word() & 0xff_ffff)),
        message: input.flag().then(|| MessagePart {
            form: form(input),
            sequence: Sequence::new(input.word() & 0xff_ffff),
            immediate: input.flag().then_some(*b"imm!"),
            solicited: input.flag(),
            payload,
        }),
    }
}

/// Fuzz target: reads and writes a simulated peer's memory while the peer publishes arbitrary
/// records of its queue pairs and regions. `bytes` determines the records and the accesses. No
/// access may panic or fault.
pub fn tables(bytes: &[u8]) {
    /// Length in bytes of the file of the simulated peer's arena: two segments.
    const FILE_LENGTH: usize = 4 << 20;
    let mut input = Input::new(bytes);
    let (file, map) = shared::create("tables", regions::LENGTH, false).expect("tables");
    let (arena, _) = shared::create("arena", FILE_LENGTH, false).expect("an arena");
    // No process has this ID, so the kernel copies nothing.
    let nobody = Pid::from_raw(i32::MAX).expect("a number");
    let (link, _end) = testing::link_to(&file, arena, nobody).expect("a link");
    let target = Target {
        number: 5,
        gid: Ipv6Addr::LOCALHOST,
        own_number: 9,
        own_gid: Ipv6Addr::LOCALHOST,
        is_unreliable: input.byte() & 1 != 0,
    };
    let mut known = CachedRecords::default();
    let mut memory = vec![0_u8; 1 << 14];
    let gid = u128::from(Ipv6Addr::LOCALHOST) as u64;
    // At first, the records contain a valid connection and a valid region.
    let queue_pair = [2, 0xf << 56 | 5 << 24 | 9, 0, 1, 0, gid, 0, gid];
    let region = [2, 3 << 32 | 0xf << 25, 1, 0, 4096, 0, 0, 1];
    let queue_pairs = [5 * 64, 5 * 64 + 64];
    let regions = [0, 1, 2].map(|slot| regions::REGIONS_AT + 64 * slot);
    let differences = regions::DIFFERENCES_AT;
    let store = |at: usize, word: usize, value: u64| {
        let word = map.word(at + 8 * word).expect("inside");
        word.store(value, std::sync::atomic::Ordering::SeqCst);
    };
    (queue_pair.iter().enumerate()).for_each(|(word, &value)| store(queue_pairs[0], word, value));
    (region.iter().enumerate()).for_each(|(word, &value)| store(regions[0], word, value));
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.below(4) {
            0 => {
                let at = match input.below(5) {
                    0 | 1 => input.one_of(&queue_pairs),
                    2 | 3 => input.one_of(&regions),
                    _ => differences,
                };
                let near = FILE_LENGTH as u64;
                let value =
                    input.one_of(&[0, 1, 2, 4, 1 << 32, 1 << 32 | 1, near - 8, near, u64::MAX]);
                let value = if input.flag() { value } else { input.long() };
                store(at, input.below(8), value);
            }
            1 => {
                let _ = link.connection(&target);
                let _ = link.tables().slot(input.word());
                let _ = link.tables().region(input.word());
                let _ = link.tables().queue_pair(input.word());
            }
            _ => {
                let key = u32::from(input.byte()) << 8 | 3;
                let remote = Remote {
                    address: match input.flag() {
                        true => input.long(),
                        false => u64::from(input.half()),
                    },
                    key: input.one_of(&[3, 0, key]),
                };
                let length = usize::from(input.half()) % memory.len();
                let generation = u32::from(input.byte() % 2);
                let Some(mut session) = link.begin_session(&target, generation, &mut known) else {
                    continue;
                };
                match input.below(3) {
                    0 => drop(session.access(remote, Access::Put(&[Piece::of(&memory[..length])]))),
                    1 => drop(
                        session
                            .access(remote, Access::Get(&[Piece::of_mut(&mut memory[..length])])),
                    ),
                    _ => drop(session.atomic(remote, Atomic::FetchAdd { add: 1 })),
                }
                let _ = session.is_over();
            }
        }
    }
}
