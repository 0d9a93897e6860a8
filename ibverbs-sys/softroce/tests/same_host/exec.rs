//! A peer that executes another program while it is written to.
//!
//! The new program has memory at the same addresses as the registered memory of the old program.
//! The exit status of the new program reports whether this memory is still zero.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ibverbs_sys::{ibv_wc_status, ibv_wr_opcode};
use softroce::path::Way;

use crate::node::{Node, Request, SIZE};
use crate::number;
use crate::peer::{Peer, Role};

/// Address of the peer's memory, in both programs.
pub(crate) const ADDRESS: usize = 0x3000_0000;

/// Source of the new program: waits for the end of its input, and returns whether its memory at
/// [`ADDRESS`] is unchanged.
const PROGRAM: &str = r#"
#include <unistd.h>
__asm__(".section .target,\"aw\",%nobits\n.globl target\ntarget: .skip 4194304\n.text\n");
extern volatile unsigned char target[];
int main(void) {
    char byte;
    while (read(0, &byte, 1) > 0) {}
    for (unsigned long at = 0; at < 4194304; at++)
        if (target[at]) return 1;
    return 0;
}
"#;

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("softroce-untouched")
}

/// Compiles the new program statically, so that its memory is mapped from the start.
fn compile() {
    let source = program().with_extension("c");
    std::fs::write(&source, PROGRAM).expect("the program's source");
    let output = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-O2", "-static", "-no-pie"])
        .arg(format!("-Wl,--section-start=.target={ADDRESS:#x}"))
        .arg("-o")
        .arg(program())
        .arg(&source)
        .output()
        .expect("a C compiler");
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaints}");
}

/// Executes the new program. If `keeps`, a child process keeps the old program's descriptors open,
/// so that the peer is not notified of the `exec` by a closed connection.
pub(crate) fn exec(keeps: bool) -> ! {
    if keeps {
        let parent = std::process::id() as i32;
        // SAFETY: a `fork` without the handlers of the C library; the child only makes system
        // calls.
        unsafe {
            if libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) == 0 {
                // Closes the pipes, so that the test does not wait for this child.
                (0..3).for_each(|pipe| _ = libc::close(pipe));
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                while libc::getppid() == parent {
                    libc::pause();
                }
                libc::_exit(0);
            }
        }
    }
    let error = Command::new(program()).stdout(Stdio::null()).exec();
    panic!("exec: {error}");
}

/// Time limit of one write, which may remain without an answer.
const PAUSE: Duration = Duration::from_micros(200);

/// Maximum time of writing to a peer whose end is not noticed.
const ENOUGH: Duration = Duration::from_millis(30);

/// Checks that no write reaches the new program. The writes are spaced out, because a write in the
/// middle of the `exec` finds no memory, after which the writes of its connection go by packets.
pub(crate) fn a_program_that_replaces_a_peer_is_not_written_to() {
    compile();
    assert_eq!(SIZE, 4_194_304, "as in the program");
    let mut written = 0;
    for round in 0..number("SOFTROCE_TEST_EXECS", 60) {
        let keeps = round % 2 == 0;
        let interval = Duration::from_micros(100 * (1 + round % 20));
        let node = Node::new();
        node.memories[0].write(0, &[0x5a; 64]);
        let mut peer = Peer::start(Role::Execs { keeps });
        peer.meet(&node);
        assert_eq!(node.way(), Some(Way::Shared));
        let (address, key) = peer.card.memories[0];
        assert_eq!(address, ADDRESS as u64);
        peer.go();
        let end = Instant::now() + ENOUGH;
        let mut next = Instant::now();
        while Instant::now() < end && try_write(&node, address, key) {
            written += 1;
            next += interval;
            while Instant::now() < next {
                std::hint::spin_loop();
            }
        }
        let is_untouched = peer.end_of_input().success();
        assert!(
            is_untouched,
            "round {round}: the new program was written to"
        );
    }
    assert!(written > 0, "the peer was never written to");
}

/// Returns whether a write succeeds before the deadline.
fn try_write(node: &Node, address: u64, key: u32) -> bool {
    node.post(&Request {
        id: 0,
        opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        sge: node.memories[0].sge(0, 64),
        remote: (address, key),
        add: 0,
    });
    let end = Instant::now() + PAUSE;
    loop {
        match node.poll() {
            Some(wc) => return wc.status == ibv_wc_status::IBV_WC_SUCCESS,
            None if Instant::now() > end => return false,
            None => {}
        }
    }
}
