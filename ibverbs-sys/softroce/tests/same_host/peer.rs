//! The other process of a test: this program again, which plays a role and gets commands through
//! its standard input.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use ibverbs_sys::{ibv_qp_type, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode};

use crate::counted;
use crate::exec;
use crate::fetched;
use crate::meeting;
use crate::node::{Card, LIMIT, Node, PATIENT, Request, SIZE};
use crate::plan::Plan;
use crate::refused;
use crate::stream;
use crate::traffic::Traffic;
use crate::unreliable;

/// Length in bytes of the messages of [`Role::Receives`], which go by packets.
pub(crate) const MESSAGE: usize = 4000;

/// Task of the other process, which begins with [`Peer::go`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    Idle,
    /// Adds 1 this many times to the first word of each of its own memories, with an instruction of
    /// the processor.
    Adds {
        times: u64,
    },
    /// Writes to the first quarter of its peer's memories until a write fails.
    Writes,
    /// Receives this many messages on each of its connections. Each meeting with the peer makes one
    /// more connection.
    Receives {
        times: u64,
    },
    /// Receives this many long messages, or fewer if the peer sends fewer.
    Takes {
        times: u64,
    },
    /// Sends this many long messages, each after the completion of the one before.
    Sends {
        times: u64,
    },
    /// Receives the messages of the test of the counters, and checks its own counters.
    Counts,
    /// Makes the program's own memory inaccessible, in which a receive is posted.
    Loses,
    /// Receives one message, destroys its objects, and ends.
    Leaves,
    /// Answers this many messages, and sleeps until each arrives.
    Echoes {
        times: u64,
    },
    /// Answers this many messages, and waits for each with a non-blocking channel.
    EchoesByEvents {
        times: u64,
    },
    /// Arms its completion queue, whose channel is non-blocking, and does not wait for the event.
    Arms,
    /// Begins a handshake with the peer, and deregisters one of its own memories meanwhile.
    Deregisters {
        memory: usize,
    },
    /// Executes another program, which has memory at the same addresses.
    Execs {
        keeps: bool,
    },
    /// Receives this many messages of an unreliable connection, each followed by a write.
    Unreliable {
        times: u64,
    },
    /// Answers this many datagrams.
    Datagrams {
        times: u64,
    },
    /// Sends and receives the messages of a [plan](Plan).
    Streams {
        plan: u64,
    },
    /// Posts requests of all kinds until one fails.
    Traffic {
        seed: u64,
    },
}

const VARIABLE: &str = "SOFTROCE_TEST_ROLE";

impl Role {
    /// Returns the role of this process, or `None` if it is the test itself.
    pub(crate) fn of_process() -> Option<Self> {
        let text = env::var(VARIABLE).ok()?;
        let (name, number) = text.split_once(' ').expect("a role and a number");
        let number = number.parse().expect("a number");
        Some(match name {
            "adds" => Self::Adds { times: number },
            "writes" => Self::Writes,
            "counts" => Self::Counts,
            "loses" => Self::Loses,
            "leaves" => Self::Leaves,
            "deregisters" => Self::Deregisters {
                memory: number as usize,
            },
            "execs" => Self::Execs { keeps: number != 0 },
            "echoes" => Self::Echoes { times: number },
            "echoes_by_events" => Self::EchoesByEvents { times: number },
            "arms" => Self::Arms,
            "receives" => Self::Receives { times: number },
            "takes" => Self::Takes { times: number },
            "sends" => Self::Sends { times: number },
            "unreliable" => Self::Unreliable { times: number },
            "datagrams" => Self::Datagrams { times: number },
            "streams" => Self::Streams { plan: number },
            "traffic" => Self::Traffic { seed: number },
            _ => Self::Idle,
        })
    }

    fn text(self) -> String {
        match self {
            Self::Idle => "idle 0".to_owned(),
            Self::Adds { times } => format!("adds {times}"),
            Self::Writes => "writes 0".to_owned(),
            Self::Counts => "counts 0".to_owned(),
            Self::Loses => "loses 0".to_owned(),
            Self::Leaves => "leaves 0".to_owned(),
            Self::Deregisters { memory } => format!("deregisters {memory}"),
            Self::Execs { keeps } => format!("execs {}", u8::from(keeps)),
            Self::Receives { times } => format!("receives {times}"),
            Self::Takes { times } => format!("takes {times}"),
            Self::Sends { times } => format!("sends {times}"),
            Self::Echoes { times } => format!("echoes {times}"),
            Self::EchoesByEvents { times } => format!("echoes_by_events {times}"),
            Self::Arms => "arms 0".to_owned(),
            Self::Unreliable { times } => format!("unreliable {times}"),
            Self::Datagrams { times } => format!("datagrams {times}"),
            Self::Streams { plan } => format!("streams {plan}"),
            Self::Traffic { seed } => format!("traffic {seed}"),
        }
    }

    /// Executes the commands of the standard input, one per line, until the input ends.
    pub(crate) fn play(self) {
        let mut nodes = vec![match self {
            Self::Execs { .. } => Node::at(exec::ADDRESS),
            Self::Unreliable { .. } => Node::of(ibv_qp_type::IBV_QPT_UC),
            Self::Datagrams { .. } => Node::of(ibv_qp_type::IBV_QPT_UD),
            Self::Streams { plan } => Plan::decode(plan).node(),
            _ => Node::new(),
        }];
        if let Self::Echoes { .. } | Self::EchoesByEvents { .. } | Self::Counts = self {
            nodes[0].timeout = PATIENT;
        }
        if let Self::EchoesByEvents { .. } | Self::Arms = self {
            nodes[0].make_channel_non_blocking();
        }
        let mut card = None::<Card>;
        let say = |line: &str| {
            // Fails only if the test no longer reads, which is then a failure of the test.
            let _ = writeln!(io::stdout(), "{line}");
            let _ = io::stdout().flush();
        };
        for line in io::stdin().lines() {
            let line = line.expect("its input");
            match line.split_once(' ') {
                Some(("meet", theirs)) => {
                    if card.is_some() {
                        match self {
                            Self::Receives { .. } => nodes.push(Node::new()),
                            _ => nodes[0].renew(),
                        }
                    }
                    let node = nodes.last().expect("one at least");
                    card = Some(theirs.parse().expect("a card"));
                    say(&node.card().to_string());
                    if let Self::Deregisters { .. } = self {
                        continue;
                    }
                    node.connect(card.as_ref().expect("a card"));
                    if let Self::Receives { times } = self {
                        for id in 0..times {
                            node.receive(id, node.memories[0].sge(id as usize * MESSAGE, MESSAGE));
                        }
                    }
                    if let Self::Takes { times } = self {
                        fetched::post_receives(node, times);
                    }
                    match self {
                        Self::Unreliable { .. } => unreliable::post_receive(node),
                        Self::Datagrams { .. } => unreliable::post_datagram_receives(node),
                        Self::Streams { plan } => Plan::decode(plan).post_receives(node),
                        Self::Counts => counted::post_receives(node),
                        _ => {}
                    }
                    if let Self::Loses = self {
                        node.receive(0, node.memories[0].sge(0, SIZE));
                    }
                    if let Self::Leaves = self {
                        node.receive(0, node.memories[0].sge(0, 8));
                    }
                    say("ready");
                }
                _ => {
                    self.act(&mut nodes, card.as_ref().expect("a peer"));
                    if let Self::Leaves = self {
                        return;
                    }
                    say("done");
                }
            }
        }
    }

    fn act(self, nodes: &mut [Node], peer: &Card) {
        if let Self::Deregisters { memory } = self {
            return meeting::deregister_while_linked(&mut nodes[0], peer, memory);
        }
        let nodes = &*nodes;
        let node = &nodes[0];
        match self {
            Self::Idle | Self::Deregisters { .. } => {}
            Self::Takes { times } => fetched::take(node, times),
            Self::Unreliable { times } => unreliable::take(node, times),
            Self::Datagrams { times } => unreliable::answer(node, peer, times),
            Self::Sends { times } => fetched::send(node, times),
            Self::Counts => counted::take(node),
            Self::Loses => node.memories[0].lose(),
            Self::Execs { keeps } => exec::exec(keeps),
            Self::Receives { times } => {
                for node in nodes {
                    for id in 0..times {
                        let wc = node.complete();
                        let status = ibv_wc_status::IBV_WC_SUCCESS;
                        assert_eq!((wc.status, wc.wr_id), (status, id));
                        let bytes = node.memories[0].read(id as usize * MESSAGE, MESSAGE);
                        assert!(bytes == [id as u8; MESSAGE], "message {id}");
                    }
                }
            }
            Self::Leaves => assert_eq!(node.complete().status, ibv_wc_status::IBV_WC_SUCCESS),
            Self::Echoes { times } | Self::EchoesByEvents { times } => {
                (0..times).for_each(|_| answer(node));
            }
            Self::Arms => {
                node.receive(0, node.memories[0].sge(0, 8));
                node.take_event();
                node.arm();
                while node.poll().is_some() {}
            }
            Self::Adds { times } => {
                for _ in 0..times {
                    for memory in &node.memories {
                        let word = memory.start.cast::<u64>();
                        // SAFETY: the word is the first one of a mapping.
                        let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(word) };
                        word.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    }
                }
            }
            Self::Writes => {
                node.memories[0].write(0, &[0x5a; SIZE / 4]);
                for round in 0_u64.. {
                    let (address, key) = peer.memories[round as usize % 2];
                    node.post(&Request {
                        id: round,
                        opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE,
                        sge: node.memories[0].sge(0, (SIZE / 4) >> (round % 12)),
                        remote: (address, key),
                        add: 0,
                    });
                    if node.complete().status != ibv_wc_status::IBV_WC_SUCCESS {
                        break;
                    }
                }
            }
            Self::Streams { plan } => stream::play(&Plan::decode(plan), node, peer),
            Self::Traffic { seed } => {
                let mut traffic = Traffic::new(!seed, peer);
                traffic.prepare(node);
                while traffic.go_on(node).is_ok() {}
            }
        }
    }
}

/// Waits asleep for a message, and then sends one.
fn answer(node: &Node) {
    node.receive(0, node.memories[0].sge(0, 8));
    hear(node);
    node.post(&message(node));
}

/// Waits asleep for a message.
pub(crate) fn hear(node: &Node) {
    loop {
        let wc = node.complete_asleep();
        assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
        if wc.opcode.0 & ibv_wc_opcode::IBV_WC_RECV.0 != 0 {
            return;
        }
    }
}

/// Returns a request to send eight bytes.
pub(crate) fn message(node: &Node) -> Request {
    Request {
        id: 0,
        opcode: ibv_wr_opcode::IBV_WR_SEND,
        sge: node.memories[0].sge(0, 8),
        remote: (0, 0),
        add: 0,
    }
}

/// The other process, as seen by the test.
pub(crate) struct Peer {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Address data that the peer has sent last.
    pub(crate) card: Card,
}

impl Peer {
    pub(crate) fn start(role: Role) -> Self {
        Self::start_with(role, [])
    }

    /// Starts a peer that the kernel does not let copy from and to the memory of other processes.
    pub(crate) fn start_without_copies(role: Role) -> Self {
        Self::start_with(role, [(refused::VARIABLE, "1")])
    }

    /// Starts a peer that does not let other processes read its memory.
    pub(crate) fn start_undumpable(role: Role) -> Self {
        Self::start_with(role, [(refused::UNDUMPABLE, "1")])
    }

    /// Starts a peer that belongs to another user. Only root can do this.
    pub(crate) fn start_as_another_user(role: Role) -> Self {
        Self::start_with(role, [(refused::OTHER_USER, "1")])
    }

    fn start_with<const N: usize>(role: Role, variables: [(&str, &str); N]) -> Self {
        let mut process = Command::new(env::current_exe().expect("this program"))
            .env(VARIABLE, role.text())
            .envs(variables)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the other process");
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().expect("its output"));
        Self {
            process,
            input,
            output,
            card: "0 0 0 0 0 0".parse().expect("a card"),
        }
    }

    /// Exchanges the address data of both ends.
    pub(crate) fn introduce(&mut self, node: &Node) {
        self.say(&format!("meet {}", node.card()));
        self.card = self.hear().parse().expect("a card");
    }

    /// Exchanges the address data and connects both ends.
    pub(crate) fn meet(&mut self, node: &Node) {
        self.introduce(node);
        node.connect(&self.card);
        self.await_ready();
    }

    /// Waits until the peer has connected.
    pub(crate) fn await_ready(&mut self) {
        assert_eq!(self.hear(), "ready");
    }

    /// Starts the task of the peer.
    pub(crate) fn go(&mut self) {
        self.say("go");
    }

    fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("it is spoken to");
        writeln!(input, "{line}").expect("it listens");
    }

    /// Waits until the peer has completed its task.
    pub(crate) fn done(&mut self) {
        assert_eq!(self.hear(), "done");
    }

    fn hear(&mut self) -> String {
        let mut descriptor = libc::pollfd {
            fd: self.output.get_ref().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        if self.output.buffer().is_empty() {
            // SAFETY: the pointer is to one descriptor.
            let ready = unsafe { libc::poll(&raw mut descriptor, 1, LIMIT.as_millis() as i32) };
            assert_eq!(ready, 1, "it says nothing within {LIMIT:?}");
        }
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it speaks");
        line.trim().to_owned()
    }

    /// Waits until the peer's first thread sleeps in a read from a descriptor other than its
    /// standard input, or until a descriptor is readable.
    pub(crate) fn wait_until_asleep(&self) {
        let call = format!("/proc/{}/syscall", self.process.id());
        let deadline = Instant::now() + LIMIT;
        let waits = |call: &str| {
            let mut words = call.split(' ');
            let (number, first) = (words.next(), words.next());
            let is = |call: libc::c_long| number == Some(&call.to_string());
            is(libc::SYS_read) && first != Some("0x0") || is(libc::SYS_ppoll)
        };
        while !fs::read_to_string(&call).is_ok_and(|call| waits(&call)) {
            assert!(Instant::now() < deadline, "it does not sleep");
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Returns this process's ends of the pipes to the peer, as `/proc/self/fd` names them.
    pub(crate) fn descriptors(&self) -> [String; 2] {
        let input = self.input.as_ref().expect("it is told nothing more");
        [input.as_raw_fd(), self.output.get_ref().as_raw_fd()].map(|descriptor| {
            let target = fs::read_link(format!("/proc/self/fd/{descriptor}"));
            format!("{descriptor} {}", target.expect("it is open").display())
        })
    }

    /// Sends a signal to the peer.
    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: the process is a child that was not waited for, so the number is its own.
        assert_eq!(unsafe { libc::kill(self.process.id() as i32, signal) }, 0);
    }

    /// Stops the peer, and waits until all of its threads have stopped.
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let deadline = Instant::now() + LIMIT;
        while !self.has_stopped() {
            assert!(Instant::now() < deadline, "it does not stop");
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Returns whether all threads of the peer have stopped since the last call.
    pub(crate) fn has_stopped(&self) -> bool {
        let mut status = 0;
        let options = libc::WUNTRACED | libc::WNOHANG;
        // SAFETY: the process is a child that was not waited for, and there is room for the status.
        let who = unsafe { libc::waitpid(self.process.id() as i32, &raw mut status, options) };
        assert!(who == 0 || libc::WIFSTOPPED(status), "it is there");
        who != 0
    }

    /// Waits until the peer has ended by itself, with success.
    pub(crate) fn leave(&mut self) {
        assert!(self.process.wait().expect("it ends").success());
    }

    /// Closes the peer's input, and waits until the peer has ended.
    pub(crate) fn end_of_input(&mut self) -> ExitStatus {
        self.input = None;
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.process.try_wait().expect("a child") {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Kills the peer at any point of its work.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("it is there");
        self.process.wait().expect("it ends");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
