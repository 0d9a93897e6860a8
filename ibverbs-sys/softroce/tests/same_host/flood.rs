//! Floods of handshakes: bounds of the resources that other processes of the host can take from a
//! process through its listener.
//!
//! The attackers implement the protocol of `same_host/handshake_message.rs` themselves, so changes
//! of that file must be repeated here.

use std::io::{BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recv, sendmsg, socket_with,
};
use softroce::path::Way;

use crate::node::{LIMIT, Node};
use crate::peer::{Peer, Role};
use crate::resources::{descriptors, mappings, open_files, threads};
use crate::{connected, write};

/// Kinds of attacks. All but `Once` are repeated without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Connects and sends nothing.
    Silent,
    /// Connects and closes the connection.
    Closes,
    /// Sends bytes that are not a message, with 200 descriptors.
    Nonsense,
    /// Begins handshakes that it does not complete.
    Begins,
    /// Completes handshakes under a new address each time, and keeps the links.
    Collects,
    /// Completes handshakes under one address; each link replaces the one before.
    Replaces,
    /// Completes handshakes under the address of another process.
    Impersonates,
    /// Connects as another user, and begins handshakes.
    Foreign,
    /// Completes one handshake, as a well-behaved process does.
    Once,
}

const ATTACKS: [Kind; 8] = [
    Kind::Silent,
    Kind::Closes,
    Kind::Nonsense,
    Kind::Begins,
    Kind::Collects,
    Kind::Replaces,
    Kind::Impersonates,
    Kind::Foreign,
];

/// Variable with the attacker's kind, the name of the victim's listener, and the address of another
/// process.
const VARIABLE: &str = "SOFTROCE_TEST_FLOOD";

/// Number of concurrent attackers of one kind.
const ATTACKERS: usize = 2;

/// Maximum number of descriptors that a flood takes: 64 pending connections, 16 answered handshakes
/// and two links per attacker with eight descriptors each, and a few for the test.
const DESCRIPTORS: usize = 64 + 8 * (16 + 2 * ATTACKERS) + 32;

/// Maximum number of mappings that a flood adds: two per handshake and per link, and those of two
/// well-behaved peers.
const MAPPINGS: usize = 2 * (16 + 2 * ATTACKERS) + 16;

/// Maximum share of one processor that the engine takes during a flood. The usual share is far
/// lower; this limit allows for a debug build on a busy machine.
const SHARE: f64 = 0.5;

/// Duration of the measurement of one flood.
const PERIOD: Duration = Duration::from_millis(1500);

/// Maximum number of connections that an attacker keeps open.
const KEPT: usize = 200;

/// Attacks if this process was started as an attacker. Returns whether it was.
pub(crate) fn attack_if_attacker() -> bool {
    let Ok(text) = env::var(VARIABLE) else {
        return false;
    };
    let mut words = text.split(' ');
    let kind = words.next().expect("a kind");
    let kind = ATTACKS
        .into_iter()
        .find(|known| format!("{known:?}") == kind);
    let victim = words.next().expect("a name");
    let other = words
        .next()
        .expect("an address")
        .parse()
        .expect("an address");
    attack(kind.unwrap_or(Kind::Once), victim, other);
    true
}

fn attack(kind: Kind, victim: &str, other: u32) {
    if kind == Kind::Foreign {
        // SAFETY: the system call takes a number, and this process has one thread.
        assert_eq!(unsafe { libc::setuid(65534) }, 0, "another user");
    }
    let mut kept = std::collections::VecDeque::new();
    let wares = Wares::new();
    let (begin, mut is_told) = (Instant::now(), false);
    for round in 0_u32.. {
        // Some kinds use a new address in each round.
        let own = u32::from(Ipv4Addr::new(127, 200, 0, 0)) + process::id() % 251 * 256;
        let address = match kind {
            Kind::Collects | Kind::Begins | Kind::Foreign => own.wrapping_add(round << 16),
            Kind::Impersonates => other,
            _ => own,
        };
        // `join` waits up to its timeout if the victim accepts no more connections.
        let socket = join(victim);
        if !is_told && (round == 20 || begin.elapsed() > Duration::from_millis(300)) {
            is_told = kind != Kind::Once;
            if is_told {
                say("floods");
            }
        }
        let Some(socket) = socket else { continue };
        match kind {
            Kind::Silent => {}
            Kind::Closes => continue,
            Kind::Nonsense => {
                let many = [wares.wake_eventfd.as_fd(); 200];
                let _ = send(&socket, b"nonsense", &many);
            }
            Kind::Begins | Kind::Foreign => {
                let _ = send(&socket, &wares.hello(address), &wares.all());
            }
            Kind::Collects | Kind::Replaces | Kind::Impersonates | Kind::Once => {
                let is_linked = wares.shake(&socket, address).is_some();
                if kind == Kind::Once && is_linked {
                    say("linked");
                    return;
                }
            }
        }
        kept.push_back(socket);
        let most = if kind == Kind::Replaces { 1 } else { KEPT };
        while kept.len() > most {
            kept.pop_front();
        }
    }
}

fn say(line: &str) {
    // The write fails if the test no longer reads, which it then does not need.
    let _ = writeln!(std::io::stdout(), "{line}");
    let _ = std::io::stdout().flush();
}

fn join(name: &str) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    let timeout = Some(Duration::from_millis(500));
    set_socket_timeout(&socket, Timeout::Send, timeout).ok()?;
    set_socket_timeout(&socket, Timeout::Recv, timeout).ok()?;
    let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
    connect(&socket, &name).ok()?;
    Some(socket)
}

fn send(
    socket: &OwnedFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )
}

/// Starts a thread that sleeps for as long as the process lives. Returns the number of the thread.
fn sleeping_thread() -> i32 {
    let (tells, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let _ = tells.send(rustix::thread::gettid().as_raw_pid());
        loop {
            thread::park();
        }
    });
    told.recv_timeout(LIMIT).expect("a thread")
}

/// Descriptors and memory that an attacker offers, as many as a real peer offers.
struct Wares {
    segment: OwnedFd,
    tables: OwnedFd,
    wake_eventfd: OwnedFd,
    /// Word of the attacker's memory that the victim reads and writes as a test of its access.
    probe: Box<AtomicU64>,
    /// Number of the thread through which the victim reaches this word.
    thread: i32,
}

impl Wares {
    fn new() -> Self {
        let file = |length| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = rustix::fs::memfd_create("attack", flags).expect("a file");
            rustix::fs::ftruncate(&file, length).expect("its length");
            rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).expect("its seal");
            file
        };
        Self {
            segment: file(4 << 20),
            tables: file(1 << 30),
            wake_eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .expect("a doorbell"),
            probe: Box::new(AtomicU64::new(7)),
            thread: sleeping_thread(),
        }
    }

    /// Returns shared memory, tables, arena, and the eventfds of the engine and of two channels.
    fn all(&self) -> [BorrowedFd<'_>; 6] {
        let [segment, tables, wake_eventfd] =
            [&self.segment, &self.tables, &self.wake_eventfd].map(AsFd::as_fd);
        [
            segment,
            tables,
            tables,
            wake_eventfd,
            wake_eventfd,
            wake_eventfd,
        ]
    }

    fn hello(&self, address: u32) -> Vec<u8> {
        let ip = Ipv4Addr::from(address).to_ipv6_mapped().octets();
        let mut bytes = b"sroce\0\0\x05\0".to_vec();
        bytes.extend((self.probe.as_ptr().expose_provenance() as u64).to_ne_bytes());
        bytes.extend(self.thread.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend([1, 4]);
        bytes.extend(ip);
        bytes.extend(4791_u16.to_ne_bytes());
        bytes.push(1);
        bytes.extend(ip);
        bytes
    }

    /// Performs a handshake. Returns `None` if the handshake was refused.
    fn shake(&self, socket: &OwnedFd, address: u32) -> Option<()> {
        send(socket, &self.hello(address), &self.all()).ok()?;
        let mut welcome = [0_u8; 2048];
        let (_, length) = recv(socket, &mut welcome[..], rustix::net::RecvFlags::empty()).ok()?;
        // The kernel closes the descriptors that come with the message, because `recv` has no room
        // for them.
        if length < 17 || welcome[8] != 1 {
            return None;
        }
        let probe = u64::from_ne_bytes(welcome[9..17].try_into().expect("eight"));
        let victim = socket_peercred(socket).ok()?.pid.as_raw_nonzero().get();
        // Reads a word of the victim and writes it back, as the device does.
        let mut word = 0_u64;
        let vector = |base: *mut libc::c_void| libc::iovec {
            iov_base: base,
            iov_len: 8,
        };
        let here = vector((&raw mut word).cast());
        let there = vector(probe as usize as *mut _);
        // SAFETY: the kernel checks the victim's address, and `word` has room for eight bytes.
        let read =
            unsafe { libc::process_vm_readv(victim, &raw const here, 1, &raw const there, 1, 0) };
        // SAFETY: the kernel checks the victim's address, which is the word that the victim has
        // offered; `word` has eight bytes.
        let written =
            unsafe { libc::process_vm_writev(victim, &raw const here, 1, &raw const there, 1, 0) };
        if (read, written) != (8, 8) {
            return None;
        }
        let mut ready = b"sroce\0\0\x05\x02".to_vec();
        ready.extend([0; 18]);
        send(socket, &ready, &[]).ok().map(drop)
    }
}

/// Process of an attacker.
struct Attacker(Child);

impl Attacker {
    fn start(kind: Kind, victim: &str, other: u32) -> Self {
        let child = Command::new(env::current_exe().expect("this program"))
            .env(VARIABLE, format!("{kind:?} {victim} {other}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        Self(child.expect("an attacker"))
    }

    /// Waits for the next line of the attacker, which must be `expected`.
    #[track_caller]
    fn hear(&mut self, expected: &str) {
        let output = self.0.stdout.take().expect("its output");
        let (heard, hears) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(output).read_line(&mut line);
            let _ = heard.send(line);
        });
        let line = hears.recv_timeout(LIMIT);
        assert_eq!(
            line.as_deref().map(str::trim),
            Ok(expected),
            "within {LIMIT:?}"
        );
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the names of this process's listeners.
fn listeners() -> Vec<String> {
    let own: Vec<String> = fs::read_dir("/proc/self/fd")
        .expect("procfs")
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .map(|link| link.to_string_lossy().into_owned())
        .collect();
    let sockets = fs::read_to_string("/proc/net/unix").expect("procfs");
    let lines = sockets.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words.get(7)?.strip_prefix('@')?;
        let is_own = own.contains(&format!("socket:[{}]", words.get(6)?));
        // A listener accepts connections. The sockets that it has accepted have the same name.
        let listens = words.get(3) == Some(&"00010000");
        (is_own && listens && name.starts_with("softroce/127.")).then(|| name.to_owned())
    });
    lines.collect()
}

/// Returns the processor time that the engine has used.
fn engine_time() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").expect("procfs");
    let ticks = tasks.filter_map(|task| {
        let stat = fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (before, after) = stat.rsplit_once(") ")?;
        let words: Vec<&str> = after.split(' ').collect();
        let time = words.get(11)?.parse::<u64>().ok()? + words.get(12)?.parse::<u64>().ok()?;
        before.ends_with("(softroce").then_some(time)
    });
    // SAFETY: the call only returns a number.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    Duration::from_secs_f64(ticks.sum::<u64>() as f64 / per_second)
}

/// Checks for each kind of attack that its costs are bounded, that existing links continue to work,
/// and that new links can be made.
pub(crate) fn floods_of_handshakes_have_a_bound() {
    // SAFETY: the call only returns a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    for kind in ATTACKS {
        if kind == Kind::Foreign && !is_root {
            println!("skipped: {kind:?} needs root to become another user");
            continue;
        }
        flood(kind);
    }
}

fn flood(kind: Kind) {
    let (node, peer) = connected(Role::Idle);
    let request = write(&node, 0, 0, 4096, peer.card.memories[0]);
    node.execute(&request);
    assert_eq!(node.way(), Some(Way::Shared), "{kind:?}");
    let victim = listeners().pop().expect("this process listens");
    let before = (descriptors(), mappings().len());
    let (open_before, mapped_before) = (open_files(), mappings());
    let other = peer.card.address();
    let mut attackers: Vec<_> = (0..ATTACKERS)
        .map(|_| Attacker::start(kind, &victim, other))
        .collect();
    attackers
        .iter_mut()
        .for_each(|attacker| attacker.hear("floods"));

    let (begin, time) = (Instant::now(), engine_time());
    let mut most = (0, 0);
    let mut byte = 0_u8;
    while begin.elapsed() < PERIOD {
        byte = byte.wrapping_add(1);
        node.memories[0].write(0, &[byte; 64]);
        node.execute(&request);
        node.memories[0].write(0, &[0; 64]);
        node.execute(&crate::read(&node, 0, 0, 64, peer.card.memories[0]));
        assert_eq!(node.memories[0].read(0, 64), [byte; 64], "{kind:?}");
        most = (descriptors().max(most.0), mappings().len().max(most.1));
        thread::sleep(Duration::from_millis(5));
    }
    let share = (engine_time() - time).as_secs_f64() / begin.elapsed().as_secs_f64();
    println!(
        "{kind:?}: {share:.2} of a processor, {most:?} descriptors and mappings after {before:?}"
    );
    assert!(share < SHARE, "{kind:?}: {share} of a processor");
    assert!(
        most.0 < before.0 + DESCRIPTORS,
        "{kind:?}: {most:?} descriptors, {before:?} before"
    );
    assert!(
        most.1 < before.1 + MAPPINGS,
        "{kind:?}: {most:?} mappings, {before:?} before"
    );
    assert_eq!(
        node.way(),
        Some(Way::Shared),
        "{kind:?}: the link that was there"
    );

    // Another process begins a handshake with this one. After that, this process meets new peers.
    Attacker::start(Kind::Once, &victim, other).hear("linked");
    let deadline = Instant::now() + LIMIT;
    loop {
        let newcomer = Node::new();
        let mut peer = Peer::start(Role::Idle);
        peer.meet(&newcomer);
        newcomer.execute(&write(&newcomer, 0, 0, 64, peer.card.memories[0]));
        if newcomer.way() == Some(Way::Shared) {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "{kind:?}: no link within {LIMIT:?}"
        );
    }
    drop(attackers);
    let deadline = Instant::now() + LIMIT;
    while descriptors() > before.0 || mappings().len() > before.1 {
        let now = (descriptors(), mappings().len());
        assert!(
            Instant::now() < deadline,
            "{kind:?}: {now:?} and not {before:?} afterwards, beside what was open before: {:#?}, {:#?}; threads: {:#?}",
            Vec::from_iter(open_files().difference(&open_before)),
            Vec::from_iter(mappings().difference(&mapped_before)),
            threads(),
        );
        thread::sleep(Duration::from_millis(5));
    }
}
