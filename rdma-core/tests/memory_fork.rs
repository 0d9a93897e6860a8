//! Effect of a fork on registered memory, in a process with no other work.

mod common;

use common::{Pair, bytes, carry_out, pattern, receive};
use rdma_core::SendRequest;
use rdma_core::memory::{ForkStatus, fork_init, fork_status};

#[test]
fn registered_memory_survives_a_fork() {
    // Before the first registration, as ibv_fork_init(3) demands.
    fork_init().unwrap();
    assert!(
        matches!(fork_status(), ForkStatus::Prepared | ForkStatus::Unneeded),
        "{:?}",
        fork_status()
    );
    let pair = Pair::new();
    let mut receives = pair.right.receive_queue();
    let target = pattern(&pair.domain, 8192, 9);
    receives.post(target).unwrap();
    let mut source = pattern(&pair.domain, 8192, 1);

    // SAFETY: the child calls nothing but async-signal-safe functions.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: the call ends the process immediately, without dropping values.
        unsafe { libc::_exit(7) };
    }
    // The parent writes to pages that it shares with the child, so the kernel could give the parent
    // copies that the device does not use.
    source.copy_from_slice(&bytes(8192, 2));
    carry_out(
        &pair.left,
        &mut pair.left.send_queue(),
        SendRequest::send(source),
    );
    let (_, received) = receive(&pair.right, &mut receives);
    assert_eq!(received[..], bytes(8192, 2));

    let mut status = 0;
    // SAFETY: the child is a child of this process, and `status` is a valid destination.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7);
    pair.check();
    fork_init().unwrap();
}
