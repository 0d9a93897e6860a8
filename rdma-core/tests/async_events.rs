//! Checks asynchronous events of queue pairs, completion queues, shared receive queues, ports and
//! the device.

mod common;

use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::Duration;

use common::{Pair, completion, context, eventually, exposed, pattern, succeed};
use ibverbs_sys::ibv_event_type;
use rdma_core::device::{DeviceCapabilities, GidEntry, GidType, PhysicalState, PortState};
use rdma_core::{
    AccessFlags, AsyncEvent, AsyncEventObject, AsyncEvents, Buffer, ConnectOptions, Context,
    QueuePair, SendRequest, WorkStatus,
};

/// Maximum wait of a test for an event that must happen.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Duration of the wait for an event that must not happen.
const QUIET: Duration = Duration::from_millis(50);

/// A lock on the device: events of the port and the device go to every context of the process, so a
/// test that raises such events must run alone.
static DEVICE: RwLock<()> = RwLock::new(());

fn with_others() -> RwLockReadGuard<'static, ()> {
    DEVICE.read().unwrap_or_else(PoisonError::into_inner)
}

fn alone() -> RwLockWriteGuard<'static, ()> {
    DEVICE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the next event that `meant` accepts, and returns it.
#[track_caller]
fn event_of(events: &AsyncEvents, meant: impl Fn(&AsyncEvent) -> bool) -> AsyncEvent {
    let mut others = Vec::new();
    while let Some(event) = events.wait(Some(MAX_WAIT)).unwrap() {
        if meant(&event) {
            return event;
        }
        others.push(event);
    }
    panic!("it did not come within {MAX_WAIT:?}, only {others:?}");
}

/// Returns whether the device is the kernel's Soft-RoCE, whose queue pairs raise only the event of
/// a drained send queue, and raise this event also without a request. (IBTA 11.6.3 requires all
/// events, and 11.2.5.2 allows this one only after a request.)
fn is_rxe(context: &Context) -> bool {
    context.device().description().as_deref() == Some("rxe")
}

/// Checks that the queue pair raises `expected`. The kernel's Soft-RoCE may also raise no event.
#[track_caller]
fn expect_of_queue_pair(context: &Context, events: &AsyncEvents, expected: AsyncEvent) {
    if !is_rxe(context) {
        assert_eq!(event_of(events, |event| event == &expected), expected);
        return;
    }
    while let Some(event) = events.wait(Some(QUIET)).unwrap() {
        let of_queue_pair = matches!(event.object(), AsyncEventObject::QueuePair(_));
        assert!(event == expected || !of_queue_pair, "{event}");
    }
}

fn is_readable(events: &AsyncEvents, limit: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd: events.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let limit = i32::try_from(limit.as_millis()).unwrap();
    // SAFETY: `poll` is one valid entry.
    unsafe { libc::poll(&mut poll, 1, limit) == 1 }
}

/// Returns a pair whose left side wrote to memory that the right side does not have, so that both
/// queue pairs have failed.
fn violated() -> Pair {
    let pair = Pair::new();
    let exposed = exposed(&pair.domain, 8, AccessFlags::REMOTE_WRITE);
    let remote = exposed.remote();
    drop(exposed);
    let mut sends = pair.left.send_queue();
    let request = SendRequest::write(pattern(&pair.domain, 8, 1), remote);
    sends.post(request).unwrap();
    let failed = completion(pair.left.send_completions());
    assert_eq!(failed.status(), WorkStatus::RemoteAccess);
    pair
}

/// Returns a completion queue that has overrun, and the pair whose left queue pair uses the queue.
fn overrun(context: &Context) -> (rdma_core::CompletionQueue, Pair) {
    let domain = context.protection_domain().unwrap();
    let completions = context.completion_queue(1).build().unwrap();
    let capacity = completions.capacity();
    let requests = capacity as u32 + 2;
    let configure = |builder: rdma_core::QueuePairBuilder| {
        let builder = builder.send_requests(requests);
        builder.receive_requests(requests)
    };
    let left = configure(domain.queue_pair()).send_completions(&completions);
    let left = left.build().unwrap();
    let right = configure(domain.queue_pair()).build().unwrap();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let options = ConnectOptions::default();
    let pair = Pair {
        domain: domain.clone(),
        left: left.connect(&to_right, &options).unwrap(),
        right: right.connect(&to_left, &options).unwrap(),
    };
    let mut receives = pair.right.receive_queue();
    let mut sends = pair.left.send_queue();
    for _ in 0..requests {
        receives.post(domain.allocate(8).unwrap()).unwrap();
        let request = SendRequest::send(domain.allocate(8).unwrap());
        sends.post(request).unwrap();
    }
    (completions, pair)
}

#[test]
fn without_an_event_nothing_is_taken_and_a_wait_ends() {
    let _shared = with_others();
    let events = context().async_events().unwrap();
    assert_eq!(events.take().unwrap(), None);
    assert_eq!(events.wait(Some(Duration::ZERO)).unwrap(), None);
    assert_eq!(events.wait(Some(QUIET)).unwrap(), None);
    assert!(!is_readable(&events, Duration::ZERO));
    // SAFETY: reads the status flags of an open descriptor.
    let flags = unsafe { libc::fcntl(events.as_raw_fd(), libc::F_GETFL) };
    assert!(flags & libc::O_NONBLOCK != 0, "{flags:#x}");
}

#[test]
fn overrun_of_a_completion_queue_names_it() {
    let _shared = with_others();
    let context = context();
    let events = context.async_events().unwrap();
    let (completions, pair) = overrun(&context);
    assert!(is_readable(&events, MAX_WAIT));
    let expected = AsyncEvent::CompletionQueueError {
        completion_queue: completions.id(),
    };
    let event = event_of(&events, |event| event == &expected);
    assert!(event.is_fatal());
    let object = AsyncEventObject::CompletionQueue(completions.id());
    assert_eq!(event.object(), object);
    drop(pair);
}

#[test]
fn queue_pair_that_loses_a_completion_fails_and_says_so() {
    let _shared = with_others();
    let context = context();
    let events = context.async_events().unwrap();
    let (_completions, pair) = overrun(&context);
    event_of(&events, |event| {
        matches!(event, AsyncEvent::CompletionQueueError { .. })
    });
    let queue_pair = pair.left.number();
    let expected = AsyncEvent::QueuePairFatal { queue_pair };
    expect_of_queue_pair(&context, &events, expected);
}

#[test]
fn a_forbidden_access_is_an_event_at_the_owner_of_the_memory() {
    // IBTA 11.6.3.2: Local Access Violation Work Queue Error, at the responder.
    let _shared = with_others();
    let pair = violated();
    let context = pair.domain.context();
    let events = context.async_events().unwrap();
    let queue_pair = pair.right.number();
    let expected = AsyncEvent::QueuePairAccessError { queue_pair };
    expect_of_queue_pair(context, &events, expected);
}

#[test]
fn an_invalid_request_is_an_event_at_the_receiver() {
    // IBTA 11.6.3.2: Invalid Request Local Work Queue Error, at the responder.
    let _shared = with_others();
    let configure = |builder: rdma_core::QueuePairBuilder| builder.access(AccessFlags::empty());
    let pair = Pair::with(configure, &ConnectOptions::default());
    let context = pair.domain.context();
    let events = context.async_events().unwrap();
    let exposed = exposed(&pair.domain, 8, AccessFlags::REMOTE_WRITE);
    let mut sends = pair.left.send_queue();
    let request = SendRequest::write(pattern(&pair.domain, 8, 1), exposed.remote());
    sends.post(request).unwrap();
    let failed = completion(pair.left.send_completions());
    assert_eq!(failed.status(), WorkStatus::RemoteInvalidRequest);
    let queue_pair = pair.right.number();
    let expected = AsyncEvent::QueuePairRequestError { queue_pair };
    expect_of_queue_pair(context, &events, expected);
}

#[test]
fn a_message_before_ready_to_send_is_an_event() {
    // IBTA 11.6.3.1: Communication Established.
    let _shared = with_others();
    let context = context();
    let events = context.async_events().unwrap();
    let domain = context.protection_domain().unwrap();
    let options = ConnectOptions::default();
    let left = domain.queue_pair().build().unwrap();
    let right = domain.queue_pair().create().unwrap();
    right.to_init().unwrap();
    right.to_rtr(&left.endpoint(), &options).unwrap();
    let left = left.connect(&right.endpoint(), &options).unwrap();
    let exposed = exposed(&domain, 8, AccessFlags::REMOTE_WRITE);
    let mut sends = left.send_queue();
    let request = SendRequest::write(pattern(&domain, 8, 1), exposed.remote());
    sends.post(request).unwrap();
    succeed(left.send_completions());
    let queue_pair = right.number();
    let expected = AsyncEvent::CommunicationEstablished { queue_pair };
    expect_of_queue_pair(&context, &events, expected);
    right.to_rts(&left.local(), &options).unwrap();
    assert_eq!(events.wait(Some(QUIET)).unwrap(), None, "once only");
}

#[test]
fn a_drained_send_queue_is_an_event_on_request() {
    // IBTA 11.6.3.1: Send Queue Drained.
    let _shared = with_others();
    let pair = Pair::new();
    let context = pair.domain.context();
    let events = context.async_events().unwrap();
    pair.left.pause(true).unwrap();
    let queue_pair = pair.left.number();
    let expected = AsyncEvent::SendQueueDrained { queue_pair };
    expect_of_queue_pair(context, &events, expected);
    pair.right.pause(false).unwrap();
    let unasked = events.wait(Some(QUIET)).unwrap();
    assert!(unasked.is_none() || is_rxe(context), "{unasked:?}");
}

/// Two connected queue pairs, of which the right one takes its receives from a shared queue.
struct Served {
    domain: rdma_core::ProtectionDomain,
    queue: rdma_core::SharedReceiveQueue<Buffer>,
    left: QueuePair,
    right: QueuePair,
}

impl Served {
    fn new(context: &Context) -> Self {
        let domain = context.protection_domain().unwrap();
        let queue = domain.shared_receive_queue(4).build().unwrap();
        let left = domain.queue_pair().build().unwrap();
        let right = domain.queue_pair().shared_receive_queue(&queue);
        let right = right.build().unwrap();
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let options = ConnectOptions::default();
        for _ in 0..2 {
            queue.post(domain.allocate(8).unwrap()).unwrap();
        }
        Self {
            domain,
            queue,
            left: left.connect(&to_right, &options).unwrap(),
            right: right.connect(&to_left, &options).unwrap(),
        }
    }

    /// Sends eight bytes from the left queue pair to the right one.
    fn send(&self) {
        let mut sends = self.left.send_queue();
        let memory = self.domain.allocate(8).unwrap();
        sends.post(SendRequest::send(memory)).unwrap();
        succeed(self.left.send_completions());
        succeed(self.right.receive_completions());
    }
}

#[test]
fn shared_receive_queue_at_its_limit_is_named_once() {
    let _shared = with_others();
    let context = context();
    let events = context.async_events().unwrap();
    let served = Served::new(&context);
    served.queue.set_limit(2).unwrap();
    served.send();
    let shared_receive_queue = served.queue.id();
    let expected = AsyncEvent::SharedReceiveQueueLimit {
        shared_receive_queue,
    };
    let event = event_of(&events, |event| event == &expected);
    assert!(!event.is_fatal());
    served.send();
    assert_eq!(events.wait(Some(QUIET)).unwrap(), None, "the limit is off");
}

#[test]
fn failed_queue_pair_says_when_it_takes_no_more_shared_receives() {
    // IBTA 11.6.3.1: Last WQE Reached.
    let _shared = with_others();
    let context = context();
    let events = context.async_events().unwrap();
    let served = Served::new(&context);
    served.right.fail().unwrap();
    let queue_pair = served.right.number();
    let expected = AsyncEvent::LastRequestReached { queue_pair };
    expect_of_queue_pair(&context, &events, expected);
}

#[test]
fn events_come_to_their_own_context_only() {
    let _shared = with_others();
    let (one, other) = (context(), context());
    let (events, others) = (one.async_events().unwrap(), other.async_events().unwrap());
    let (_completions, _pair) = overrun(&one);
    event_of(&events, |event| {
        matches!(event, AsyncEvent::CompletionQueueError { .. })
    });
    assert_eq!(others.wait(Some(QUIET)).unwrap(), None);
}

#[test]
fn unread_events_are_dropped_with_their_objects() {
    let _shared = with_others();
    let context = context();
    let events = context.async_events().unwrap();
    let (completions, pair) = overrun(&context);
    assert!(is_readable(&events, MAX_WAIT));
    drop((completions, pair));
    assert_eq!(events.wait(Some(QUIET)).unwrap(), None);
}

#[test]
fn objects_of_events_that_were_read_can_be_dropped() {
    let _shared = with_others();
    let context = context();
    let events = context.async_events().unwrap();
    let (completions, pair) = overrun(&context);
    let id = completions.id();
    let event = event_of(&events, |event| {
        matches!(event, AsyncEvent::CompletionQueueError { .. })
    });
    // If the event was not acknowledged, the destruction of the queue would wait for ever.
    drop((completions, pair));
    // The event names a queue that no longer exists, by an id that no other queue gets.
    assert_eq!(event.object(), AsyncEventObject::CompletionQueue(id));
    let next = context.completion_queue(1).build().unwrap();
    assert_ne!(next.id(), id);
}

#[test]
fn events_come_to_many_waiting_threads_and_each_to_one() {
    let _shared = with_others();
    let context = context();
    let events = context.async_events().unwrap();
    let (told, enough) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let queues = thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    let event = events.wait(Some(QUIET)).unwrap();
                    told.lock().unwrap().extend(event);
                }
            });
        }
        let queues = [overrun(&context), overrun(&context)];
        eventually("an event of each", || {
            let told = told.lock().unwrap();
            let count = |queue: &rdma_core::CompletionQueue| count_of(&told, queue);
            queues
                .iter()
                .all(|(queue, _)| count(queue) > 0)
                .then_some(())
        });
        enough.store(true, Ordering::Relaxed);
        queues
    });
    let told = told.into_inner().unwrap();
    for (queue, _) in &queues {
        // The kernel's Soft-RoCE raises an event for each completion that is lost.
        let at_most = if context.device().is_emulated() { 1 } else { 2 };
        assert!((1..=at_most).contains(&count_of(&told, queue)), "{told:?}");
    }
}

fn count_of(events: &[AsyncEvent], queue: &rdma_core::CompletionQueue) -> usize {
    let object = AsyncEventObject::CompletionQueue(queue.id());
    events
        .iter()
        .filter(|event| event.object() == object)
        .count()
}

#[test]
fn a_wait_without_limit_ends_with_an_event_after_its_context_s_last_handle() {
    let _shared = with_others();
    let context = context();
    let events = context.async_events().unwrap();
    let waiting = thread::spawn(move || {
        // The events keep the context open.
        events.wait(None).unwrap()
    });
    let (completions, _pair) = overrun(&context);
    drop(context);
    let event = waiting.join().unwrap().expect("it waits without limit");
    let id = completions.id();
    let expected = AsyncEventObject::CompletionQueue(id);
    let of_queue_pair = matches!(event.object(), AsyncEventObject::QueuePair(_));
    assert!(event.object() == expected || of_queue_pair, "{event}");
}

#[test]
fn a_change_of_the_gid_table_is_an_event() {
    let _alone = alone();
    let context = context();
    let events = context.async_events().unwrap();
    let expected = AsyncEvent::GidChange { port: 1 };
    if context.device().is_emulated() {
        softroce::faults().raise(ibv_event_type::IBV_EVENT_GID_CHANGE);
        assert_eq!(event_of(&events, |event| event == &expected), expected);
        return;
    }
    let gids = context.gids().unwrap();
    let roce = gids.iter().find(|entry| entry.kind == GidType::RoceV2);
    let interface = roce.and_then(GidEntry::interface_name).unwrap();
    // An address for documentation (RFC 5737), to which no traffic goes.
    let text = "192.0.2.77";
    let gid = rdma_core::Gid::from(text.parse::<std::net::IpAddr>().unwrap());
    let is_there = || context.gids().unwrap().iter().any(|entry| entry.gid == gid);
    {
        let _address = Address::add(&interface, text);
        assert_eq!(event_of(&events, |event| event == &expected), expected);
        eventually("the new GID", || is_there().then_some(()));
    }
    eventually("the GID's end", || (!is_there()).then_some(()));
}

/// An address of a network interface, which is removed when this value is dropped.
struct Address<'a> {
    interface: &'a str,
    text: &'a str,
}

impl<'a> Address<'a> {
    #[track_caller]
    fn add(interface: &'a str, text: &'a str) -> Self {
        let address = Self { interface, text };
        let output = address.change("add");
        assert!(output.status.success(), "this needs root: {output:?}");
        address
    }

    fn change(&self, action: &str) -> std::process::Output {
        let address = format!("{}/32", self.text);
        let arguments = ["address", action, &address, "dev", self.interface];
        let output = Command::new("ip").args(arguments).output();
        output.expect("the program `ip` of iproute2 runs")
    }
}

impl Drop for Address<'_> {
    fn drop(&mut self) {
        self.change("delete");
    }
}

#[test]
fn a_link_that_goes_down_and_up_is_an_event() {
    let _alone = alone();
    let context = context();
    if !context.device().is_emulated() {
        // Without its link, a port of the kernel would lose addresses that other tests need.
        // Therefore the test only checks that the device reports such events.
        let flags = context.attributes().unwrap().capabilities();
        assert!(flags.contains(DeviceCapabilities::PORT_ACTIVE_EVENT));
        return;
    }
    let (events, copy) = (context.async_events().unwrap(), context.clone());
    let port = 1;
    softroce::faults().set_link(false);
    let down = AsyncEvent::PortError { port };
    assert_eq!(event_of(&events, |_| true), down);
    let lost = copy.port(port).unwrap();
    softroce::faults().set_link(true);
    let up = AsyncEvent::PortActive { port };
    assert_eq!(event_of(&events, |_| true), up);
    assert_eq!(lost.state(), PortState::Down);
    assert_eq!(lost.physical_state(), PhysicalState::Disabled);
    assert_eq!(copy.port(port).unwrap().state(), PortState::Active);
    Pair::new().check();
}

#[test]
fn every_event_of_a_port_or_the_device_is_typed() {
    let _alone = alone();
    let context = context();
    let events = context.async_events().unwrap();
    if !context.device().is_emulated() {
        // Only softroce raises these events on request.
        assert_eq!(events.take().unwrap(), None);
        return;
    }
    let port = 1;
    let raised = [
        (
            ibv_event_type::IBV_EVENT_LID_CHANGE,
            AsyncEvent::LidChange { port },
        ),
        (
            ibv_event_type::IBV_EVENT_PKEY_CHANGE,
            AsyncEvent::PkeyChange { port },
        ),
        (
            ibv_event_type::IBV_EVENT_SM_CHANGE,
            AsyncEvent::SubnetManagerChange { port },
        ),
        (
            ibv_event_type::IBV_EVENT_CLIENT_REREGISTER,
            AsyncEvent::ClientReregister { port },
        ),
        (
            ibv_event_type::IBV_EVENT_GID_CHANGE,
            AsyncEvent::GidChange { port },
        ),
        (
            ibv_event_type::IBV_EVENT_DEVICE_FATAL,
            AsyncEvent::DeviceFatal,
        ),
        // An event type of a future library.
        (ibv_event_type(77), AsyncEvent::Unknown(77)),
    ];
    for (kind, _) in raised {
        softroce::faults().raise(kind);
    }
    for (_, expected) in raised {
        assert_eq!(events.wait(Some(MAX_WAIT)).unwrap(), Some(expected));
    }
    assert_eq!(events.take().unwrap(), None);
}

#[test]
fn failure_of_the_verb_is_an_error_that_names_it() {
    let _alone = alone();
    let context = context();
    let events = context.async_events().unwrap();
    if !context.device().is_emulated() {
        // Only softroce fails on request.
        assert_eq!(events.take().unwrap(), None);
        return;
    }
    softroce::faults().fail(softroce::fault::Failure {
        verb: softroce::fault::Verb::GetAsyncEvent,
        call: 1,
        errno: softroce::fault::Errno(libc::EIO),
    });
    let error = events.wait(Some(MAX_WAIT)).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("ibv_get_async_event on device softroce0"),
        "{text}"
    );
    assert_eq!(events.take().unwrap(), None, "once only");
}
