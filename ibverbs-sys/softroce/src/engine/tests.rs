//! Tests of the engine with a device that counts its calls.

use std::any::Any;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Engine, EngineTasks, ReceiveAttempt};
use crate::config::Config;
use crate::counters::Counters;
use crate::net::{Endpoints, Inbox, Network};
use crate::proto::{Path, Time};
use crate::timers::{Alarm, Sleeper, Timers};
use crate::wire::Opcode;

/// Timeout of waits in tests. A wait exceeds it only if a wakeup was lost.
const LOST_TIMEOUT: Duration = Duration::from_secs(60);

/// A device for tests, with a real network, that counts the calls by the engine.
struct Counting {
    network: Network,
    inbox: Mutex<Inbox>,
    timers: Arc<Timers>,
    alarms: Vec<Alarm>,
    fired: Mutex<Sender<u32>>,
    fetched: AtomicUsize,
    polled: AtomicU64,
    engine: OnceLock<Engine>,
}

fn start(alarms: usize) -> (Arc<Counting>, Receiver<u32>) {
    let config = Config {
        interfaces: Some(Vec::new()),
        ..Config::default()
    };
    let timers = Arc::new(Timers::new(Sleeper::new().unwrap()));
    let (counters, faults) = (Arc::<Counters>::default(), Arc::new(config.faults()));
    let network = Network::open(&config, counters, faults, Arc::clone(&timers)).unwrap();
    let (fired, told) = mpsc::channel();
    let device = Arc::new(Counting {
        network,
        inbox: Mutex::new(Inbox::new()),
        timers: Arc::clone(&timers),
        alarms: (0..alarms).map(|_| Alarm::new()).collect(),
        fired: Mutex::new(fired),
        fetched: AtomicUsize::new(0),
        polled: AtomicU64::new(0),
        engine: OnceLock::new(),
    });
    let engine = Engine::start(timers, Arc::downgrade(&device)).unwrap();
    assert!(device.engine.set(engine).is_ok());
    (device, told)
}

impl EngineTasks for Counting {
    fn receive(&self) -> ReceiveAttempt {
        let received = self
            .network
            .receive(&mut self.inbox.lock(), true, |packets| {
                packets.for_each(drop);
            });
        self.fetched.fetch_add(received, Ordering::SeqCst);
        let mut due = Vec::with_capacity(8);
        self.timers.take_due(self.timers.now(), &mut due);
        for (key, time) in due {
            Timers::clear(&self.alarms[key as usize], time);
            let _ = self.fired.lock().send(key);
        }
        ReceiveAttempt::Done { fetched: received }
    }

    fn polled(&self) -> Option<Time> {
        match self.polled.load(Ordering::SeqCst) {
            0 => None,
            // Reports that a thread polls at this moment.
            _ => Some(self.timers.now()),
        }
    }

    fn endpoints(&self) -> Arc<Endpoints> {
        self.network.endpoints()
    }

    fn run_due(&self) {}

    fn panicked(&self, _: &(dyn Any + Send)) -> bool {
        false
    }
}

impl Counting {
    fn schedule(&self, key: u32, after: Duration) {
        self.timers
            .schedule(key, &self.alarms[key as usize], self.timers.now() + after);
    }

    fn rounds(&self) -> u64 {
        self.engine.get().unwrap().rounds()
    }

    fn is_unwatched(&self) -> bool {
        self.engine.get().unwrap().is_unwatched()
    }

    /// Sends a packet to the device itself.
    fn send(&self) {
        let destination = self.network.gid(0).unwrap();
        let path = Path {
            source: 0,
            destination,
            traffic_class: 0,
            hop_limit: 1,
            flow_label: 0,
        };
        self.network
            .connect(&path, u32::from(self.network.slot()) << 16);
        self.network.outbox().push(|out| {
            // An acknowledgement for a queue pair number that contains the slot of this device's
            // port.
            let opcode = Opcode::from_byte(0x11).map_or(0, Opcode::to_byte);
            out.extend_from_slice(&[opcode, 0, 0xff, 0xff, 0, self.network.slot()]);
            out.extend_from_slice(&[0; 6 + 4]);
            Some(path)
        });
    }

    /// Waits until `is_so` returns `true`. Fails with the message `what` if that takes too long.
    fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let end = Instant::now() + LOST_TIMEOUT;
        while !is_so() {
            assert!(Instant::now() < end, "{what}");
            thread::yield_now();
        }
    }
}

#[test]
fn an_idle_engine_sleeps() {
    let (device, _told) = start(0);
    device.until("it starts", || device.rounds() > 0);
    // The first iteration may still be in progress; there is no reason for a second one.
    thread::sleep(Duration::from_millis(50));
    assert_eq!(device.rounds(), 1);
}

#[test]
fn a_timer_wakes_the_engine() {
    let (device, told) = start(3);
    device.schedule(0, Duration::from_micros(300));
    assert_eq!(told.recv_timeout(LOST_TIMEOUT), Ok(0));
    device.schedule(1, Duration::from_secs(1000));
    device.schedule(2, Duration::ZERO);
    assert_eq!(told.recv_timeout(LOST_TIMEOUT), Ok(2));
    // The timer in a thousand seconds neither expires nor keeps the engine awake.
    let rounds = device.rounds();
    thread::sleep(Duration::from_millis(50));
    assert!(device.rounds() <= rounds + 1);
    assert!(told.try_recv().is_err());
}

#[test]
fn no_timer_of_any_thread_is_lost() {
    const THREADS: u32 = 3;
    const ROUNDS: u32 = 300;
    let (device, told) = start(THREADS as usize * 8);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let device = &device;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let key = thread * 8 + round % 8;
                    let alarm = &device.alarms[key as usize];
                    // A timer entry is scheduled again only after the device was called for it.
                    device.until("a timer was lost", || !alarm.is_set());
                    device.schedule(key, Duration::from_micros(u64::from(round * 37 % 200)));
                }
            });
        }
    });
    for _ in 0..THREADS * ROUNDS {
        told.recv_timeout(LOST_TIMEOUT).expect("a timer was lost");
    }
    assert!(told.try_recv().is_err());
}

#[test]
fn a_packet_wakes_the_engine() {
    let (device, _told) = start(0);
    for packets in 1..=20 {
        device.send();
        let fetched = || device.fetched.load(Ordering::SeqCst) == packets;
        device.until("a packet did not wake it", fetched);
    }
}

#[test]
fn the_engine_leaves_packets_to_a_polling_program_until_the_program_sleeps() {
    let (device, _told) = start(0);
    device.polled.store(1, Ordering::SeqCst);
    let mut sent = 0;
    device.until("it does not go away", || {
        // Sends the packets one at a time: if the engine's thread is not scheduled, its socket
        // fills up and drops packets.
        if device.fetched.load(Ordering::SeqCst) == sent {
            device.send();
            sent += 1;
        }
        device.is_unwatched()
    });
    // No thread really polls. So the call of `watch`, if not an earlier wakeup, makes the engine
    // fetch the remaining packets.
    device.polled.store(0, Ordering::SeqCst);
    device.engine.get().unwrap().watch();
    device.send();
    sent += 1;
    device.until("it does not come back", || {
        device.fetched.load(Ordering::SeqCst) == sent
    });
    device.until("it does not watch", || !device.is_unwatched());
}

#[test]
fn the_engine_watches_a_group_that_is_joined_while_it_sleeps() {
    let (device, _told) = start(0);
    device.until("it starts", || device.rounds() > 0);
    let group = "ff0e::ffff:239.192.7.2".parse().unwrap();
    device.network.join(group).unwrap();
    let before = device.fetched.load(Ordering::SeqCst);
    let path = Path {
        source: 0,
        destination: group,
        traffic_class: 0,
        hop_limit: 1,
        flow_label: 0,
    };
    device.network.outbox().push(|out| {
        out.extend_from_slice(&[0x64, 0, 0xff, 0xff, 0, 0xff, 0xff, 0xff]);
        out.extend_from_slice(&[0; 12]);
        Some(path)
    });
    device.until("it does not see the group's packet", || {
        device.fetched.load(Ordering::SeqCst) > before
    });
}

#[test]
fn the_engine_ends_with_its_device() {
    let (device, _told) = start(0);
    let timers = Arc::downgrade(&device.timers);
    drop(device);
    let end = Instant::now() + LOST_TIMEOUT;
    while timers.strong_count() > 0 {
        assert!(Instant::now() < end, "the thread lives on");
        thread::yield_now();
    }
}
