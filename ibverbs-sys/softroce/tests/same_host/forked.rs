//! Children of `fork`: they do not share the parent's device, and get a device of their own if they
//! open it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::mem::zeroed;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ibverbs_sys::*;
use libc::EIO;
use softroce::path::Way;

use crate::node::{Card, LIMIT, Node, PATIENT};
use crate::peer::message;

/// Child of `fork`, which is killed when this value is dropped.
pub(crate) struct Child(i32);

impl Child {
    /// Forks a child that runs `body` and ends without destructors.
    pub(crate) fn fork(body: impl FnOnce()) -> Self {
        // SAFETY: the child only does what the C library allows after a fork, and ends without
        // destructors.
        let process = unsafe { libc::fork() };
        assert!(process >= 0, "{}", std::io::Error::last_os_error());
        if process == 0 {
            let is_done = catch_unwind(AssertUnwindSafe(body)).is_ok();
            // SAFETY: the call has no preconditions.
            unsafe { libc::_exit(i32::from(!is_done)) };
        }
        Self(process)
    }

    /// Waits until the child has ended successfully.
    #[track_caller]
    pub(crate) fn join(self) {
        let deadline = Instant::now() + LIMIT;
        let mut status = 0;
        // SAFETY: the process is a child of this one, and there is room for the status.
        while unsafe { libc::waitpid(self.0, &raw mut status, libc::WNOHANG) } == 0 {
            assert!(Instant::now() < deadline, "the child does not end");
            thread::sleep(Duration::from_millis(1));
        }
        std::mem::forget(self);
        assert_eq!(status, 0, "the child's status");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the process is a child of this one, and was not waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, null_mut(), 0);
        }
    }
}

/// Descriptors that were open in this process before it used the device.
static BEFORE: OnceLock<BTreeSet<String>> = OnceLock::new();

/// Records the open descriptors of this process. Must be called before the process uses the device.
pub(crate) fn note_descriptors() {
    BEFORE.get_or_init(descriptors);
}

/// Returns the descriptors that this process has opened since [`note_descriptors`].
fn descriptors() -> BTreeSet<String> {
    let open = fs::read_dir("/proc/self/fd").expect("the descriptors");
    let name = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        let target = target.to_string_lossy().into_owned();
        // Leaves out the descriptor of the directory that is read.
        let is_other = !target.ends_with("/fd");
        is_other.then(|| format!("{} {target}", entry.file_name().to_string_lossy()))
    };
    let open: BTreeSet<String> = open.filter_map(|entry| name(entry.ok()?)).collect();
    open.into_iter()
        .filter(|open| BEFORE.get().is_none_or(|before| !before.contains(open)))
        .collect()
}

/// Reads one line from the other process, and no bytes after the line.
pub(crate) fn line(mut stream: &UnixStream) -> String {
    stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
    let mut line = Vec::new();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a line in time");
        if byte == *b"\n" {
            return String::from_utf8(line).expect("a text");
        }
        line.extend(byte);
    }
}

/// Connects to a peer that does the same, and exchanges one message in each direction.
pub(crate) fn converse(node: &Node, mut stream: &UnixStream) -> Card {
    writeln!(stream, "{}", node.card()).expect("it listens");
    let theirs: Card = line(stream).parse().expect("a card");
    node.connect(&theirs);
    node.receive(1, node.memories[1].sge(0, 8));
    writeln!(stream, "ready").expect("it listens");
    assert_eq!(line(stream), "ready");
    node.post(&message(node));
    for _ in 0..2 {
        assert_eq!(node.complete().status, ibv_wc_status::IBV_WC_SUCCESS);
    }
    writeln!(stream, "done").expect("it listens");
    assert_eq!(line(stream), "done");
    theirs
}

/// Checks that a child has no descriptor of the device and no mapping of its shared memory.
pub(crate) fn a_forked_child_does_not_share_its_parents_device() {
    let (node, mut peer) = crate::connected(crate::Role::Idle);
    node.execute(&crate::write(&node, 0, 0, 64, peer.card.memories[1]));
    assert!(descriptors().len() > 10, "{:?}", descriptors());
    let own: BTreeSet<String> = peer.descriptors().into_iter().collect();
    Child::fork(|| {
        let left: Vec<String> = (descriptors().into_iter())
            .filter(|open| !own.contains(open))
            .collect();
        assert!(left.is_empty(), "descriptors of the device: {left:?}");
        let maps = fs::read_to_string("/proc/self/maps").expect("the mappings");
        let shared: Vec<&str> = (maps.lines())
            .filter(|map| map.contains("softroce") && map.contains("memfd"))
            .collect();
        assert!(shared.is_empty(), "memory of the device: {shared:?}");
    })
    .join();
    // The device of the parent still works.
    node.execute(&crate::write(&node, 0, 0, 64, peer.card.memories[1]));
    peer.kill();
}

/// Checks that verbs on the parent's objects return EIO in a child, and have no effect.
pub(crate) fn inherited_objects_fail_in_a_forked_child() {
    let (node, peer) = crate::connected(crate::Role::Idle);
    Child::fork(|| {
        let parents = node.raw();
        let check = || {
            // SAFETY: the objects are in this process's copy of the parent's memory.
            unsafe {
                let mut wc: ibv_wc = zeroed();
                assert_eq!(ibv_poll_cq(parents.cq, 1, &raw mut wc), -EIO);
                assert_eq!(ibv_req_notify_cq(parents.cq, 0), EIO);
                let mut send: ibv_send_wr = zeroed();
                let mut bad_send = null_mut();
                let answer = ibv_post_send(node.qp, &raw mut send, &raw mut bad_send);
                assert_eq!((answer, bad_send), (EIO, &raw mut send));
                let mut receive: ibv_recv_wr = zeroed();
                let mut bad_receive = null_mut();
                let answer = ibv_post_recv(node.qp, &raw mut receive, &raw mut bad_receive);
                assert_eq!((answer, bad_receive), (EIO, &raw mut receive));
                let mut attributes: ibv_device_attr = zeroed();
                assert_eq!(ibv_query_device(parents.context, &raw mut attributes), EIO);
                let mut port: ibv_port_attr = zeroed();
                assert_eq!(ibv_query_port(parents.context, 1, &raw mut port), EIO);
                let errno = || std::io::Error::last_os_error().raw_os_error();
                let mut gid: ibv_gid = zeroed();
                assert_eq!(ibv_query_gid(parents.context, 1, 0, &raw mut gid), -1);
                assert_eq!(errno(), Some(EIO));
                let mut event: ibv_async_event = zeroed();
                assert_eq!(ibv_get_async_event(parents.context, &raw mut event), -1);
                assert_eq!(errno(), Some(EIO));
                let (mut cq, mut mark) = (null_mut(), null_mut());
                assert_eq!(
                    ibv_get_cq_event(parents.channel, &raw mut cq, &raw mut mark),
                    -1
                );
                assert_eq!(errno(), Some(EIO));
                assert!(ibv_create_cq(parents.context, 1, null_mut(), null_mut(), 0).is_null());
                assert_eq!(errno(), Some(EIO));
                assert!(ibv_alloc_pd(parents.context).is_null());
                let mut byte = 0_u8;
                assert!(ibv_reg_mr(node.pd, (&raw mut byte).cast(), 1, 1).is_null());
                assert_eq!(errno(), Some(EIO));
                assert!(ibv_alloc_mw(node.pd, ibv_mw_type::IBV_MW_TYPE_1).is_null());
                assert_eq!(errno(), Some(EIO));
                assert_eq!(ibv_dereg_mr(node.memories[0].region()), EIO);
                assert_eq!(ibv_destroy_qp(node.qp), EIO);
                assert_eq!(ibv_destroy_cq(parents.cq), EIO);
                assert_eq!(ibv_destroy_comp_channel(parents.channel), EIO);
                assert_eq!(ibv_dealloc_pd(node.pd), EIO);
                assert_eq!(ibv_close_device(parents.context), -1);
                assert_eq!(errno(), Some(EIO));
            }
        };
        check();
        // The same holds after the child has opened a device of its own.
        let own = Node::new();
        check();
        drop(own);
        check();
    })
    .join();
    node.execute(&crate::write(&node, 0, 0, 64, peer.card.memories[0]));
}

/// Checks that a child, and a child of that child, have an address, memory and engine of their own,
/// and exchange messages with the parent as any other process does.
pub(crate) fn a_forked_child_opens_the_device_anew() {
    let mut node = Node::new();
    node.timeout = PATIENT;
    let (here, there) = UnixStream::pair().expect("a pair of sockets");
    let child = Child::fork(|| {
        assert_eq!(softroce::objects(softroce::Kind::QueuePair), 0);
        let own = Node::new();
        assert_eq!(softroce::objects(softroce::Kind::QueuePair), 1);
        let parents = converse(&own, &there);
        assert_eq!(own.way(), Some(Way::Shared));
        assert!(parents.to_string() != own.card().to_string());
        let (here, there) = UnixStream::pair().expect("a pair of sockets");
        let grandchild = Child::fork(|| {
            let own = Node::new();
            converse(&own, &there);
            drop(own);
        });
        let own = Node::new();
        converse(&own, &here);
        grandchild.join();
    });
    converse(&node, &here);
    assert_eq!(node.way(), Some(Way::Shared));
    child.join();
    let child = Child::fork(|| drop(Node::new()));
    // The parent does not affect the child's device any more.
    drop(node);
    child.join();
}

/// Checks children that are forked while other threads create and destroy objects with descriptors
/// and locks.
pub(crate) fn children_are_forked_at_any_time() {
    let node = Node::new();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    drop(Node::new());
                }
            });
        }
        let result = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..50 {
                Child::fork(|| {
                    let left = descriptors();
                    assert!(left.is_empty(), "descriptors of the device: {left:?}");
                    drop(Node::new());
                })
                .join();
            }
        }));
        is_over.store(true, Ordering::SeqCst);
        assert!(result.is_ok(), "a child failed");
    });
    drop(node);
}
