//! Programs that close the device's descriptors, whose numbers later files then get.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::mem::zeroed;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use ibverbs_sys::*;
use softroce::fault::NetworkFaults;

use crate::forked::{Child, converse, line};
use crate::node::{LIMIT, Node, PATIENT};
use crate::peer::{hear, message};

const CONTENT: [u8; 4096] = [0x7e; 4096];

/// Creates a file of the program with [`CONTENT`].
fn file() -> File {
    // SAFETY: the name ends in zero, and the descriptor is new.
    let mut file = unsafe {
        let number = libc::memfd_create(c"the program's".as_ptr(), libc::MFD_CLOEXEC);
        assert!(number >= 0);
        File::from_raw_fd(number)
    };
    file.write_all(&CONTENT).expect("room");
    file
}

/// Asserts that the file holds nothing but [`CONTENT`]: only its owner has written to it.
fn check(file: &File) {
    let mut content = [0; 2 * CONTENT.len()];
    let length = file.read_at(&mut content, 0).expect("it can be read");
    assert!(
        content[..length] == CONTENT,
        "the program's file has {length} bytes"
    );
}

fn replace(number: RawFd, file: &impl AsRawFd) {
    // SAFETY: the numbers are valid, and the device must cope with the loss of `number`.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
}

fn is_open(number: RawFd) -> bool {
    // SAFETY: the call accepts any number.
    unsafe { libc::fcntl(number, libc::F_GETFD) >= 0 }
}

fn all_numbers() -> Vec<RawFd> {
    let open = fs::read_dir("/proc/self/fd").expect("the descriptors");
    let number =
        |entry: std::io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    open.filter_map(number)
        .filter(|number| *number > 2)
        .collect()
}

/// Connects a child's node, by shared memory or by packets only.
fn connect_child(stream: &UnixStream, by_packets: bool) -> Node {
    if by_packets {
        softroce::faults().set_network(NetworkFaults {
            duplicate: 1e-9,
            ..NetworkFaults::default()
        });
    }
    let mut node = Node::new();
    node.timeout = PATIENT;
    converse(&node, stream);
    node
}

/// Checks that the device reports its failure, and writes to no file that the program opens
/// afterwards.
pub(crate) fn closing_all_descriptors_fails_the_device() {
    for by_packets in [false, true] {
        let mut node = Node::new();
        node.timeout = PATIENT;
        let (here, there) = UnixStream::pair().expect("a pair of sockets");
        let child = Child::fork(|| {
            let own = connect_child(&there, by_packets);
            let errors = file();
            replace(2, &errors);
            let lost = all_numbers();
            // SAFETY: only the device uses the closed descriptors later.
            assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0);
            // The next files have the lowest numbers.
            let file = file();
            let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
            let address = listener.local_addr().expect("an address");
            let stream = TcpStream::connect(address).expect("a connection");
            let (mut other, _) = listener.accept().expect("a connection");
            other.set_nonblocking(true).expect("a flag");
            own.post(&message(&own));
            wait_for_failure(&own);
            assert_eq!(own.state(), ibv_qp_state::IBV_QPS_ERR);
            own.arm();
            own.post(&message(&own));
            while own.complete().status != ibv_wc_status::IBV_WC_WR_FLUSH_ERR {}
            // From here on each lost number is that of `file` or of `stream`.
            let kept = [
                file.as_raw_fd(),
                listener.as_raw_fd(),
                stream.as_raw_fd(),
                other.as_raw_fd(),
            ];
            let lost: Vec<RawFd> = lost
                .into_iter()
                .filter(|number| !kept.contains(number))
                .collect();
            for (at, &number) in lost.iter().enumerate() {
                match at % 2 {
                    0 => replace(number, &file),
                    _ => replace(number, &stream),
                }
            }
            own.arm();
            own.post(&message(&own));
            own.receive(0, own.memories[0].sge(0, 8));
            while own.complete().status != ibv_wc_status::IBV_WC_WR_FLUSH_ERR {}
            drop(own);
            check(&file);
            let nothing = other.read(&mut [0; 64]);
            assert_eq!(
                nothing.expect_err("nothing was sent").kind(),
                ErrorKind::WouldBlock
            );
            assert!(
                lost.iter().all(|&number| is_open(number)),
                "closed by the device"
            );
            let mut said = String::new();
            let errors = File::open("/proc/self/fd/2").expect("it is open");
            let mut bytes = vec![0; 1 << 16];
            let length = errors
                .read_at(&mut bytes, CONTENT.len() as u64)
                .expect("it can be read");
            said.push_str(&String::from_utf8_lossy(&bytes[..length]));
            assert!(
                said.contains("closed file descriptors of the device"),
                "{said}"
            );
        });
        converse(&node, &here);
        child.join();
    }
}

/// Waits until the context reports that the device has failed.
fn wait_for_failure(node: &Node) {
    let deadline = Instant::now() + LIMIT / 2;
    loop {
        // SAFETY: the context is open, and there is room for the event.
        unsafe {
            let mut event: ibv_async_event = zeroed();
            if ibv_get_async_event(node.raw().context, &raw mut event) == 0 {
                if event.event_type == ibv_event_type::IBV_EVENT_DEVICE_FATAL {
                    return;
                }
                ibv_ack_async_event(&raw mut event);
            }
        }
        assert!(Instant::now() < deadline, "the device does not fail");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Checks that the engine notices closed descriptors while the program is idle.
pub(crate) fn closing_all_descriptors_fails_the_device_of_a_waiting_program() {
    let _node = Node::new();
    Child::fork(|| {
        let own = Node::new();
        // SAFETY: only the device uses the closed descriptors later.
        assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0);
        let deadline = Instant::now() + LIMIT / 2;
        // SAFETY: zeros are valid attributes.
        let mut port: ibv_port_attr = unsafe { zeroed() };
        loop {
            // SAFETY: the context is open, and there is room for the answer.
            let answer = unsafe { ibv_query_port(own.raw().context, 1, (&raw mut port).cast()) };
            assert_eq!(answer, 0);
            if port.state != ibv_port_state::IBV_PORT_ACTIVE {
                break;
            }
            assert!(Instant::now() < deadline, "the device does not fail");
            thread::sleep(Duration::from_millis(1));
        }
        wait_for_failure(&own);
        drop(own);
    })
    .join();
}

/// Checks that a device whose context and channel descriptors were closed continues to work, and
/// that it does not use the files that get these numbers later.
pub(crate) fn closing_a_borrowed_descriptor_is_harmless() {
    let mut node = Node::new();
    node.timeout = PATIENT;
    let (here, there) = UnixStream::pair().expect("a pair of sockets");
    let child = Child::fork(|| {
        let own = connect_child(&there, false);
        let file = file();
        // SAFETY: the objects are valid.
        let given = unsafe { [(*own.raw().context).async_fd, (*own.raw().channel).fd] };
        for number in given {
            replace(number, &file);
        }
        own.receive(0, own.memories[0].sge(0, 8));
        writeln!(&there, "posted").expect("it listens");
        hear(&own);
        softroce::faults().raise(ibv_event_type::IBV_EVENT_CLIENT_REREGISTER);
        // SAFETY: the context is open, and there is room for the event.
        unsafe {
            let mut event: ibv_async_event = zeroed();
            assert_eq!(ibv_get_async_event(own.raw().context, &raw mut event), 0);
            assert_eq!(
                event.event_type,
                ibv_event_type::IBV_EVENT_CLIENT_REREGISTER
            );
        }
        drop(own);
        check(&file);
        assert!(given.into_iter().all(is_open), "closed by the device");
    });
    converse(&node, &here);
    assert_eq!(line(&here), "posted");
    node.post(&message(&node));
    child.join();
}
