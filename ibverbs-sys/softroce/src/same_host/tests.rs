//! Tests of a link (shared memory of two processes) that ends because the peer violates the
//! protocol.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::copying_peer::CopiesInProgress;
use super::link::{Link, Received, SendError};
use super::peer_directory::PeerDirectory;
use super::segment;
use super::shared::{Map, Rights};
use super::testing;
use crate::epoch::Lanes;
use crate::memory::Piece;
use crate::proto::Sequence;
use crate::transfer::{
    MAX_CHUNKS_PART, MessagePart, PartFlags, PayloadForm, RingMessage, RingSendError,
};

/// Maximum time to wait for each step of a test.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Tag and words of a ring message (short message without packet headers) that the receiver cannot
/// decode.
const NONSENSE: (u16, [u64; 7]) = (1 << 15 | 1, [u64::MAX; 7]);

fn send(link: &Link, text: &str) {
    assert_eq!(link.send(0x100, 0, text.as_bytes()), Ok(()));
}

fn violate(link: &Link) {
    let (tag, words) = NONSENSE;
    assert_eq!(link.send_words(tag, &words), Ok(()));
}

/// Receives all messages that have arrived on a link. Returns a description of each.
fn received(link: &Link) -> Vec<String> {
    let mut texts = Vec::new();
    while link.receive(2, |_, said| match said {
        Received::Packet(bytes, _) => texts.push(String::from_utf8_lossy(bytes).into_owned()),
        Received::RingMessage(ring_message, _) => texts.push(format!("{ring_message:?}")),
    }) != Some(0)
    {}
    texts
}

/// Returns a ring message (short message without packet headers) that announces `length` bytes of
/// payload in chunks of the ring.
fn part(length: u32, payload: &mut [u8; 4]) -> RingMessage<'_> {
    *payload = length.to_ne_bytes();
    RingMessage {
        destination: 7,
        partition_key: 0xffff,
        acknowledged: None,
        message: Some(MessagePart {
            sequence: Sequence::new(3),
            form: PayloadForm::Chunks(PartFlags {
                starts: true,
                ends: false,
                invalidates: false,
            }),
            immediate: None,
            solicited: false,
            payload,
        }),
    }
}

#[test]
fn bytes_in_chunks_that_wrap_around_the_ring_are_received() {
    let (here, there, _) = testing::links().unwrap();
    let mut payload = [0; 4];
    for round in 0..200_u32 {
        let length = 1 + round * 977 % MAX_CHUNKS_PART;
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + round) as u8).collect();
        let sent = there.send_chunks(0x100, &part(length, &mut payload), length, |pieces| {
            let mut done = 0;
            for to in Piece::parts(pieces, 0..bytes.len()) {
                let end = done + to.length();
                Piece::of(&bytes[done..end]).copy_to(&to)?;
                done = end;
            }
            Some(())
        });
        assert_eq!(sent, Ok(()));
        let mut arrived = vec![0; bytes.len()];
        let received = here.receive(2, |tag, said| {
            let Received::RingMessage(ring_message, chunks) = said else {
                panic!("a ring message was sent");
            };
            assert_eq!((tag, ring_message), (0x100, &part(length, &mut [0; 4])));
            let mut rest = &mut arrived[..];
            for from in Piece::parts(chunks, 0..length as usize) {
                let (to, behind) = std::mem::take(&mut rest).split_at_mut(from.length());
                from.copy_to(&Piece::of_mut(to)).unwrap();
                rest = behind;
            }
        });
        assert_eq!(received, Some(1));
        assert!(arrived == bytes, "{length} bytes");
    }
}

#[test]
fn a_part_whose_bytes_cannot_be_read_is_not_sent() {
    let (here, there, _) = testing::links().unwrap();
    let mut payload = [0; 4];
    let sent = there.send_chunks(0x100, &part(100, &mut payload), 100, |_| None);
    assert_eq!(sent, Err(RingSendError::Unreadable));
    send(&there, "next");
    assert_eq!(received(&here), ["next"]);
}

#[test]
fn a_part_that_is_longer_than_its_chunks_ends_the_link() {
    let (here, there, _) = testing::links().unwrap();
    let mut payload = [0; 4];
    let ring_message = part(65, &mut payload);
    assert_eq!(
        there.send_chunks(0x100, &ring_message, 64, |_| Some(())),
        Ok(())
    );
    assert_eq!(received(&here), [""; 0]);
    assert!(here.is_dead());
}

#[test]
fn messages_before_an_invalid_message_are_received_and_later_ones_are_not() {
    let (here, there, _) = testing::links().unwrap();
    ["a", "b", "c"].iter().for_each(|text| send(&there, text));
    violate(&there);
    ["d", "e"].iter().for_each(|text| send(&there, text));
    assert_eq!(received(&here), ["a", "b", "c"]);
    assert!(here.is_dead() && !here.may_have_messages());
    assert_eq!(here.send(0x100, 0, b"f"), Err(SendError::Dead));
    assert!(!there.check(), "the peer is told");
}

/// Checks that if the peer claims to have read messages that were never sent, the messages that it
/// sent before are received, and no later ones.
#[test]
fn only_messages_before_an_impossible_count_are_received() {
    let (here, there, file) = testing::links().unwrap();
    let map = Map::of(file.as_fd(), 0..4096, Rights::Write).unwrap();
    map.word(0).unwrap().store(u64::MAX, Ordering::Release);
    ["a", "b", "c"].iter().for_each(|text| send(&there, text));
    while here.send(0x100, 0, b"more") == Ok(()) {}
    assert!(here.is_dead());
    assert!(here.may_have_messages(), "what has come is there");
    ["d", "e"].iter().for_each(|text| send(&there, text));
    assert_eq!(received(&here), ["a", "b", "c"]);
    assert!(!here.may_have_messages());
    assert!(!there.check(), "the peer is told");
}

/// Checks that a message is not received if the peer withdraws the message after the link has
/// ended, and sends it again.
#[test]
fn a_message_that_is_withdrawn_and_sent_again_is_not_received() {
    let (here, there, file) = testing::links().unwrap();
    let all = 0..segment::LENGTH as u64;
    let map = Map::of(file.as_fd(), all, Rights::Write).unwrap();
    let words = || {
        (0..segment::LENGTH)
            .step_by(8)
            .map(|at| map.word(at).unwrap())
    };
    let values = || -> Vec<u64> { words().map(|word| word.load(Ordering::Acquire)).collect() };
    let write = |values: &[u64]| {
        for (word, &value) in words().zip(values) {
            if word.load(Ordering::Relaxed) != value {
                word.store(value, Ordering::Release);
            }
        }
    };
    send(&there, "a");
    let before = values();
    send(&there, "b");
    let after = values();
    here.end();
    let mut count = 0;
    assert_eq!(here.receive(1, |_, _| count += 1), Some(1));
    write(&before);
    assert_eq!(here.receive(1, |_, _| count += 1), Some(0));
    write(&after);
    assert_eq!(here.receive(1, |_, _| count += 1), Some(0));
    assert_eq!(count, 1);
    assert!(!here.may_have_messages());
}

/// Checks that a peer that publishes only slots without a message does not keep the receiving
/// thread from other work.
#[test]
fn slots_without_a_message_do_not_block_the_receiving_thread() {
    let (here, there, _) = testing::links().unwrap();
    let end = Instant::now() + Duration::from_millis(200);
    let received = thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < end {
                let _ = there.send(0, 0, b"");
            }
        });
        let mut received = 0;
        while Instant::now() < end {
            received += here.receive(64, |_, _| ()).unwrap_or(0);
        }
        received
    });
    assert_eq!(received, 0);
}

/// Two simulated processes whose engine threads only continue handshakes and remove ended links.
struct ProcessPair {
    processes: [(SocketAddr, Arc<PeerDirectory>); 2],
    stop: Arc<AtomicBool>,
    engine: Option<thread::JoinHandle<()>>,
}

impl ProcessPair {
    /// Creates two simulated processes. `number` becomes a part of their addresses, and must be
    /// different for each test.
    fn new(number: u8) -> Self {
        let processes = [1, 2].map(|last| {
            let id = std::process::id().to_ne_bytes();
            let address =
                SocketAddr::from(([127, 100 + number, id[0], last], 0x4000 | u16::from(id[1])));
            let resources = testing::own_resources(address).unwrap();
            (address, Arc::new(PeerDirectory::open(resources).unwrap()))
        });
        let stop = Arc::new(AtomicBool::new(false));
        let (attended, stops) = (processes.clone(), Arc::clone(&stop));
        let engine = thread::spawn(move || {
            while !stops.load(Ordering::Relaxed) {
                let mut descriptors: Vec<_> = (attended.iter())
                    .flat_map(|(_, peers)| [peers.events_descriptor(), peers.wake_eventfd()])
                    .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
                    .collect();
                let soon = Timespec {
                    tv_sec: 0,
                    tv_nsec: 100_000_000,
                };
                let woken = poll(&mut descriptors, Some(&soon)).unwrap() > 0;
                drop(descriptors);
                for (_, directory) in attended.iter().filter(|_| woken) {
                    let _ = rustix::io::read(directory.wake_eventfd(), &mut [0; 8]);
                    directory.handle_events();
                }
            }
        });
        Self {
            processes,
            stop,
            engine: Some(engine),
        }
    }

    /// Returns both sides of a link between the two processes. The first process begins the
    /// handshake.
    fn links(&self) -> [Arc<Link>; 2] {
        let [(first, here), (second, there)] = &self.processes;
        let near = until("the process asked gets a link", || here.link(*second));
        let far = until("the other one has it, too", || {
            let links = there.links();
            let alive = |link: &&Arc<Link>| !link.is_dead() && link.addresses() == [*first];
            links.iter().find(alive).cloned()
        });
        [near, far]
    }
}

impl Drop for ProcessPair {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(engine) = self.engine.take() {
            let _ = engine.join();
        }
    }
}

#[track_caller]
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {TIMEOUT:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_link_that_failed_is_removed_and_replaced_by_another() {
    let host = ProcessPair::new(1);
    for _ in 0..3 {
        let [near, far] = host.links();
        send(&near, "a");
        send(&far, "b");
        violate(&near);
        assert_eq!(received(&far), ["a"]);
        until("the peer hears that it has ended", || {
            near.is_dead().then_some(())
        });
        assert_eq!(received(&near), ["b"]);
        let gone = [Arc::downgrade(&near), Arc::downgrade(&far)];
        drop((near, far));
        until("nothing of it is kept", || {
            gone.iter()
                .all(|link| link.strong_count() == 0)
                .then_some(())
        });
    }
}

/// Checks that after a link has failed, a process does not reuse its memory while a peer that has
/// not noticed the failure may copy from it.
#[test]
fn a_copy_by_a_link_that_failed_is_waited_for() {
    let host = ProcessPair::new(2);
    let [near, far] = host.links();
    let lane = Lanes(near.own_lanes()).enter(0);
    violate(&near);
    assert!(received(&far).is_empty() && far.is_dead());
    let there = &host.processes[1].1;
    until("the link is removed", || {
        there.links().is_empty().then_some(())
    });
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let copies: Vec<_> = there
                .copying_peers()
                .into_iter()
                .map(CopiesInProgress::of)
                .collect();
            let count = copies.len();
            let all = copies.into_iter().all(CopiesInProgress::wait);
            (count, all, is_over.load(Ordering::SeqCst))
        });
        thread::sleep(Duration::from_millis(100));
        assert!(!waiter.is_finished(), "it does not wait");
        is_over.store(true, Ordering::SeqCst);
        drop(lane);
        assert_eq!(waiter.join().unwrap(), (1, true, true));
    });
}
