//! The other process: this program once more, which plays a role and hears of it by its input.

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

/// Bytes of the messages that are [received](Role::Receives): they go by packets.
pub(crate) const MESSAGE: usize = 4000;

/// The task of the other process, which begins with [`Peer::go`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    Idle,
    /// Adds so many times to the first words of its own memory, by the processor's instruction.
    Adds {
        times: u64,
    },
    /// Writes all over the first quarter of its peer's memories until that fails.
    Writes,
    /// Receives so many messages by each of its connections, of which there is one for each time that it meets its peer.
    Receives {
        times: u64,
    },
    /// Receives this number of long messages, or fewer if the peer sends fewer.
    Takes {
        times: u64,
    },
    /// Sends this number of long messages, each after the one before was received.
    Sends {
        times: u64,
    },
    /// Receives the messages of which the numbers are counted, and checks the counters.
    Counts,
    /// Makes the program's own memory inaccessible, to which a receive is posted.
    Loses,
    /// Receives a message, destroys what it has, and ends.
    Leaves,
    /// Answers so many messages, and sleeps until they come.
    Echoes {
        times: u64,
    },
    /// Begins a handshake with the peer, and deregisters one of its memories meanwhile.
    Deregisters {
        memory: usize,
    },
    /// Executes another program, which has memory at the same addresses.
    Execs {
        keeps: bool,
    },
    /// Receives this number of messages of an unreliable connection, each of which is followed by a write.
    Unreliable {
        times: u64,
    },
    /// Answers this number of datagrams.
    Datagrams {
        times: u64,
    },
    /// Sends and receives the messages of a [plan](Plan).
    Streams {
        plan: u64,
    },
    /// Everything there is, without end.
    Traffic {
        seed: u64,
    },
}

const VARIABLE: &str = "SOFTROCE_TEST_ROLE";

impl Role {
    /// What this process is here for, if it is the other one.
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
            Self::Unreliable { times } => format!("unreliable {times}"),
            Self::Datagrams { times } => format!("datagrams {times}"),
            Self::Streams { plan } => format!("streams {plan}"),
            Self::Traffic { seed } => format!("traffic {seed}"),
        }
    }

    /// Does what it is told, line by line, until there are no more.
    pub(crate) fn play(self) {
        let mut nodes = vec![match self {
            Self::Execs { .. } => Node::at(exec::ADDRESS),
            Self::Unreliable { .. } => Node::of(ibv_qp_type::IBV_QPT_UC),
            Self::Datagrams { .. } => Node::of(ibv_qp_type::IBV_QPT_UD),
            Self::Streams { plan } => Plan::decode(plan).node(),
            _ => Node::new(),
        }];
        if let Self::Echoes { .. } | Self::Counts = self {
            nodes[0].timeout = PATIENT;
        }
        let mut card = None::<Card>;
        let say = |line: &str| {
            // Who does not listen any more has failed.
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
            Self::Echoes { times } => (0..times).for_each(|_| answer(node)),
            Self::Adds { times } => {
                for _ in 0..times {
                    for memory in &node.memories {
                        let word = memory.start.cast::<u64>();
                        // SAFETY: the first word of a mapping.
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

/// Waits asleep for a message, and sends one.
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

/// A short message.
pub(crate) fn message(node: &Node) -> Request {
    Request {
        id: 0,
        opcode: ibv_wr_opcode::IBV_WR_SEND,
        sge: node.memories[0].sge(0, 8),
        remote: (0, 0),
        add: 0,
    }
}

/// The other process.
pub(crate) struct Peer {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// What it said of itself last.
    pub(crate) card: Card,
}

impl Peer {
    pub(crate) fn start(role: Role) -> Self {
        Self::start_with(role, [])
    }

    /// Starts a peer that the kernel does not let copy from and to the memory of others.
    pub(crate) fn start_without_copies(role: Role) -> Self {
        Self::start_with(role, [(refused::VARIABLE, "1")])
    }

    /// Starts a peer that does not let others read its memory.
    pub(crate) fn start_undumpable(role: Role) -> Self {
        Self::start_with(role, [(refused::UNDUMPABLE, "1")])
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

    /// Exchanges the cards of the two ends.
    pub(crate) fn introduce(&mut self, node: &Node) {
        self.say(&format!("meet {}", node.card()));
        self.card = self.hear().parse().expect("a card");
    }

    /// Has the two connected.
    pub(crate) fn meet(&mut self, node: &Node) {
        self.introduce(node);
        node.connect(&self.card);
        self.await_ready();
    }

    /// Waits until it is connected.
    pub(crate) fn await_ready(&mut self) {
        assert_eq!(self.hear(), "ready");
    }

    /// Has it act.
    pub(crate) fn go(&mut self) {
        self.say("go");
    }

    fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("it is spoken to");
        writeln!(input, "{line}").expect("it listens");
    }

    /// Waits until it has acted.
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
            // SAFETY: there is one descriptor.
            let ready = unsafe { libc::poll(&raw mut descriptor, 1, LIMIT.as_millis() as i32) };
            assert_eq!(ready, 1, "it says nothing within {LIMIT:?}");
        }
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it speaks");
        line.trim().to_owned()
    }

    /// Waits until its first thread waits at a descriptor that is not its input.
    pub(crate) fn wait_until_asleep(&self) {
        let call = format!("/proc/{}/syscall", self.process.id());
        let deadline = Instant::now() + LIMIT;
        let waits = |call: &str| {
            let mut words = call.split(' ');
            words.next() == Some(&libc::SYS_read.to_string()) && words.next() != Some("0x0")
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

    /// Stops it, wherever it is; then it goes on.
    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: a child that was not waited for has its number.
        assert_eq!(unsafe { libc::kill(self.process.id() as i32, signal) }, 0);
    }

    /// Stops it, and waits until all of its threads have stopped.
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let deadline = Instant::now() + LIMIT;
        while !self.has_stopped() {
            assert!(Instant::now() < deadline, "it does not stop");
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Returns whether all of its threads have stopped since this was asked last.
    pub(crate) fn has_stopped(&self) -> bool {
        let mut status = 0;
        let options = libc::WUNTRACED | libc::WNOHANG;
        // SAFETY: a child that was not waited for has its number, and there is room for the answer.
        let who = unsafe { libc::waitpid(self.process.id() as i32, &raw mut status, options) };
        assert!(who == 0 || libc::WIFSTOPPED(status), "it is there");
        who != 0
    }

    /// Waits until it has ended by itself.
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

    /// Kills it, wherever it is.
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
