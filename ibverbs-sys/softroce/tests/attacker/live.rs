//! Both ends of the connection that is attacked.

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddrV4;
use std::process::{Command, Stdio};
use std::time::Duration;

use ibverbs_sys::{ibv_qp_state, ibv_wc, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode};
use softroce::path::Way;

use super::{finish, part, seconds};
use crate::node::{Card, Node, Request, SIZE};

/// Offsets of the memory for bytes that are read back, and of the memory for messages.
const BACK: usize = 1 << 20;
const INBOX: usize = 2 << 20;

/// Offset and content of memory that only the attacker could write to.
const GUARD: usize = 3 << 20;
const GUARDED: u8 = 0xc3;

/// Length of a message in bytes: the number of the round, repeated.
const MESSAGE: usize = 64;

/// Path MTU in bytes, as `Node::connect` sets it.
const MTU: usize = 4096;

/// Number of receives that are posted at the same time.
const RECEIVES: u64 = 8;

/// Number of the last round.
const LAST: u64 = u64::MAX;

/// Exponent of a timeout of half a second, which is longer than a process waits for a processor on
/// a busy machine.
const TIMEOUT: u8 = 17;

/// First sequence number, as `Node::connect` sets it.
const SEQUENCE: u32 = 0x123;

/// Creates a node with guards and posted receives.
fn node() -> Node {
    let mut node = Node::new();
    node.timeout = TIMEOUT;
    for memory in &node.memories {
        memory.write(GUARD, &vec![GUARDED; SIZE - GUARD]);
    }
    node
}

fn check(node: &Node) {
    assert_eq!(node.state(), ibv_qp_state::IBV_QPS_RTS);
    for memory in &node.memories {
        let guards = memory.read(GUARD, SIZE - GUARD);
        assert!(guards.iter().all(|&byte| byte == GUARDED), "a guard");
    }
}

fn post_receive(node: &Node, slot: u64) {
    let place = INBOX + slot as usize * MESSAGE;
    node.receive(slot, node.memories[0].sge(place, MESSAGE));
}

/// Returns the round of the message in a receive's memory.
fn round_in(node: &Node, slot: u64) -> u64 {
    let bytes = node.memories[0].read(INBOX + slot as usize * MESSAGE, MESSAGE);
    let words = bytes.chunks_exact(8);
    let rounds: Vec<u64> = words
        .map(|word| u64::from_ne_bytes(word.try_into().expect("eight")))
        .collect();
    assert!(rounds.iter().all(|round| *round == rounds[0]), "{rounds:?}");
    rounds[0]
}

fn post_message(node: &Node, round: u64) {
    node.memories[1].write(BACK, &round.to_ne_bytes().repeat(MESSAGE / 8));
    node.post(&Request {
        id: round,
        opcode: ibv_wr_opcode::IBV_WR_SEND,
        sge: node.memories[1].sge(BACK, MESSAGE),
        remote: (0, 0),
        add: 0,
    });
}

/// Asserts that a completion is a success, and returns whether a receive has completed.
fn is_receive(wc: &ibv_wc) -> bool {
    assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
    wc.opcode.0 & ibv_wc_opcode::IBV_WC_RECV.0 != 0
}

/// Takes completions until one message was sent and another one received. Returns the round of the
/// received message.
fn exchange(node: &Node) -> u64 {
    let (mut is_sent, mut round) = (false, None);
    loop {
        if let (true, Some(round)) = (is_sent, round) {
            return round;
        }
        let wc = node.complete();
        if is_receive(&wc) {
            assert_eq!(wc.byte_len as usize, MESSAGE);
            assert_eq!(round.replace(round_in(node, wc.wr_id)), None);
            post_receive(node, wc.wr_id);
        } else {
            is_sent = true;
        }
    }
}

/// Plays the end that waits for messages and answers them.
pub(super) fn far() {
    let node = node();
    let mut line = String::new();
    io::stdin().read_line(&mut line).expect("a card");
    node.connect(&line.parse::<Card>().expect("a card"));
    (0..RECEIVES).for_each(|slot| post_receive(&node, slot));
    println!("{}", node.card());
    let (mut expected, mut unsent) = (0, 0);
    while expected != LAST || unsent > 0 {
        let wc = node.complete();
        if !is_receive(&wc) {
            unsent -= 1;
            continue;
        }
        assert_eq!(wc.byte_len as usize, MESSAGE);
        let round = round_in(&node, wc.wr_id);
        assert!(
            round == expected || round == LAST,
            "{round}, not {expected}"
        );
        expected = if round == LAST { LAST } else { round + 1 };
        post_receive(&node, wc.wr_id);
        post_message(&node, round);
        unsent += 1;
    }
    check(&node);
    println!("done");
    // Waits until the other end has received all messages.
    let _ = io::stdin().read_to_end(&mut Vec::new());
}

/// Plays the end that writes, reads and sends, and that starts the other processes.
pub(super) fn near() {
    let node = node();
    let mut far = part("far")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the other end");
    let mut input = far.stdin.take().expect("its input");
    let mut output = BufReader::new(far.stdout.take().expect("its output"));
    let mut hear = || {
        let mut line = String::new();
        output.read_line(&mut line).expect("it speaks");
        line
    };
    writeln!(input, "{}", node.card()).expect("it listens");
    let card: Card = hear().parse().expect("its card");
    node.connect(&card);
    (0..RECEIVES).for_each(|slot| post_receive(&node, slot));
    let mut attacker = attacker(&node.card(), &card).spawn().expect("the attacker");

    let mut orders = attacker.stdin.take().expect("its input");
    let (mut rounds, mut packets) = (0, 0);
    while attacker.try_wait().expect("it is there").is_none() {
        // Sends the attacker the sequence numbers that both sides expect. Fails if the attacker has
        // ended, which the loop notices.
        let _ = writeln!(
            orders,
            "{} {}",
            SEQUENCE + rounds as u32,
            SEQUENCE + packets
        );
        packets += do_round(&node, &card, rounds);
        rounds += 1;
    }
    let mut sent = String::new();
    let count = attacker.stdout.take().expect("its output");
    BufReader::new(count).read_line(&mut sent).expect("a count");
    let sent: u64 = sent.trim().parse().expect("a number of packets");
    post_message(&node, LAST);
    assert_eq!(exchange(&node), LAST);
    assert_eq!(hear().trim(), "done");
    check(&node);
    let way = match env::var("SOFTROCE_PATH").as_deref() {
        Ok("udp") => Way::Udp,
        _ => Way::Shared,
    };
    assert_eq!(node.way(), Some(way));
    drop(input);
    finish(far, Duration::from_secs(10)).expect("the other end");
    eprintln!(
        "{way:?}: {rounds} rounds beside {sent} packets in {} s",
        seconds()
    );
    // This is enough for each opcode to be sent more than once.
    assert!(sent > 1000, "an attack of {sent} packets");
    assert!(rounds > 0, "no round");
}

/// Writes, reads back, and exchanges messages. Returns the number of packets.
fn do_round(node: &Node, card: &Card, round: u64) -> u32 {
    let length = 1 + (round as usize * 7919) % 20_000;
    let bytes: Vec<u8> = (0..length)
        .map(|at| (at as u64 * 31 + round * 7) as u8)
        .collect();
    let remote = card.memories[round as usize % 2];
    node.memories[0].write(0, &bytes);
    let mut request = Request {
        id: round,
        opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        sge: node.memories[0].sge(0, length),
        remote,
        add: 0,
    };
    node.execute(&request);
    request.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
    request.sge = node.memories[0].sge(BACK, length);
    node.execute(&request);
    assert!(
        node.memories[0].read(BACK, length) == bytes,
        "round {round}"
    );
    post_message(node, round);
    assert_eq!(exchange(node), round);
    2 * length.div_ceil(MTU) as u32 + 1
}

/// Returns the command for an attacker that knows everything about both ends.
fn attacker(near: &Card, far: &Card) -> Command {
    let target = |card: &Card| {
        let (memory, key) = card.memories[0];
        let (number, guard) = (card.number, memory + GUARD as u64);
        format!("{}/{number}/{SEQUENCE}/{key}/{guard}", socket(card))
    };
    let mut command = part("attacker");
    command
        .args([target(near), target(far)])
        .args(["--seconds", &seconds().to_string()])
        .args(["--follow", "--span", "64"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    // SAFETY: the call only returns the user of this process.
    if unsafe { libc::geteuid() } == 0 {
        command.args(["--user", "65534"]);
    }
    command
}

/// Returns the address of a device's socket. The numbers of its queue pairs contain the slot of its
/// port.
fn socket(card: &Card) -> SocketAddrV4 {
    let ip = card.gid().to_ipv4_mapped().expect("an address in 127/8");
    SocketAddrV4::new(ip, 4791 + 100 * (card.number >> 16) as u16)
}
