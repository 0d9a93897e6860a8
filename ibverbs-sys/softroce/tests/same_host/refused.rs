//! Peers that share less than others: the kernel does not let them copy from and to the memory of
//! other processes, as Yama and the filters of containers do, or they belong to another user.

use std::{env, ptr};

use ibverbs_sys::ibv_wc_status;
use softroce::path::Way;

use crate::count;
use crate::fetched;
use crate::node::Node;
use crate::peer::{Peer, Role};

/// Variable of a peer that does not let other processes read its memory.
pub(crate) const UNDUMPABLE: &str = "SOFTROCE_TEST_UNDUMPABLE";

/// Variable of a peer that may not copy.
pub(crate) const VARIABLE: &str = "SOFTROCE_TEST_NO_COPIES";

/// Variable of a peer that belongs to another user.
pub(crate) const OTHER_USER: &str = "SOFTROCE_TEST_OTHER_USER";

/// Number of messages.
const MESSAGES: u64 = 120;

/// Makes the kernel refuse all further copies of this process between processes, if [`VARIABLE`] is
/// set.
pub(crate) fn forbid_copies_if_requested() {
    if env::var_os(VARIABLE).is_none() {
        return;
    }
    let instruction = |code: u32, k: u32, jt, jf| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        // The first word is the number of the system call.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(equal, libc::SYS_process_vm_readv as u32, 2, 0),
        instruction(equal, libc::SYS_process_vm_writev as u32, 1, 0),
        instruction(answer, libc::SECCOMP_RET_ALLOW, 0, 0),
        instruction(answer, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program is valid until the call returns; the kernel copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        assert_eq!(
            libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program),
            0
        );
        let place = libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        };
        let this = libc::getpid();
        assert_eq!(
            libc::process_vm_readv(this, &raw const place, 1, &raw const place, 1, 0),
            -1
        );
    }
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(libc::EPERM)
    );
}

/// Makes the kernel refuse access of other processes to the memory of this one, if [`UNDUMPABLE`]
/// is set.
pub(crate) fn forbid_dumps_if_requested() {
    if env::var_os(UNDUMPABLE).is_some() {
        // SAFETY: the call takes no pointers.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) }, 0);
    }
}

/// Makes this process one of another user, if [`OTHER_USER`] is set.
pub(crate) fn change_user_if_requested() {
    if env::var_os(OTHER_USER).is_some() {
        // SAFETY: the calls take no pointers.
        unsafe {
            assert_eq!(libc::setuid(65534), 0, "another user");
            // The change of the user has made the memory unreadable, which alone prevents sharing.
            assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1), 0);
        }
    }
}

/// Checks that messages of all kinds to a process of another user arrive as packets.
pub(crate) fn messages_to_a_peer_of_another_user_are_sent_as_packets() {
    // SAFETY: the call takes no pointers.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can start a process of another user");
        return;
    }
    let (node, mut peer) = (
        Node::new(),
        Peer::start_as_another_user(Role::Takes { times: MESSAGES }),
    );
    peer.meet(&node);
    assert_eq!(node.way(), Some(Way::Udp));
    let shared = || {
        [
            "shared_xmit_packets",
            "shared_messages",
            "descriptor_xmit_messages",
            "written_xmit_messages",
            "slot_xmit_messages",
        ]
        .map(count)
    };
    let (before, packets) = (shared(), count("port_xmit_packets"));
    peer.go();
    for id in 0..MESSAGES {
        fetched::post(&node, id, 0, Some(peer.card.memories));
        let wc = node.complete();
        assert_eq!((wc.status, wc.wr_id), (ibv_wc_status::IBV_WC_SUCCESS, id));
    }
    peer.done();
    assert_eq!(shared(), before, "through shared memory");
    assert!(count("port_xmit_packets") >= packets + MESSAGES);
}

/// Checks that a process that does not let others read its memory shares none of it.
pub(crate) fn a_peer_that_is_not_dumpable_shares_nothing() {
    let (node, mut peer) = (Node::new(), Peer::start_undumpable(Role::Idle));
    peer.meet(&node);
    assert_eq!(node.way(), Some(Way::Udp));
}

pub(crate) fn messages_to_a_peer_that_may_not_copy_are_sent_through_the_ring() {
    let (node, mut peer) = (
        Node::new(),
        Peer::start_without_copies(Role::Takes { times: MESSAGES }),
    );
    peer.meet(&node);
    assert_eq!(node.way(), Some(Way::Shared));
    peer.go();
    for id in 0..MESSAGES {
        let before = count("ring_xmit_bytes");
        fetched::post(&node, id, 0, Some(peer.card.memories));
        let wc = node.complete();
        assert_eq!((wc.status, wc.wr_id), (ibv_wc_status::IBV_WC_SUCCESS, id));
        let by_ring = count("ring_xmit_bytes") - before;
        let length = fetched::length(id) as u64;
        // The peer maps memory of the device. This process, which may copy, does the longer writes.
        if fetched::is_send(id) && fetched::is_of_device(id) && length >= 512 {
            assert_eq!(by_ring, 0, "message {id} of {length} bytes");
        } else if fetched::is_send(id) {
            // A message for which the peer has no receive yet is sent again.
            assert!(by_ring >= length, "{by_ring} of {length} bytes of {id}");
        }
    }
    peer.done();
}
