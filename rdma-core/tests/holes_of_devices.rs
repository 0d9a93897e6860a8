//! Devices and drivers that misbehave: unknown values, and verbs that fail. The tests replace
//! functions of the driver by their own.

mod common;
#[path = "common/unowned_windows.rs"]
mod unowned_windows;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

use common::{Pair, completion, context, eventually, exposed, pattern};
use ibverbs_sys as sys;
use rdma_core::completion::{CompletionFields, StatusClass};
use rdma_core::memory::WindowType;
use rdma_core::{
    AccessFlags, Buffer, CompletionQueue, Context, Error, ProtectionDomain, QueuePairState,
    Refused, RemoteMemory, SendRequest, WorkCompletion, WorkOpcode, WorkStatus,
};
use unowned_windows::make_windows_usable_by_all;

type PollCq = unsafe extern "C" fn(*mut sys::ibv_cq, i32, *mut sys::ibv_wc) -> i32;
type StartPoll = unsafe extern "C" fn(*mut sys::ibv_cq_ex, *mut sys::ibv_poll_cq_attr) -> i32;

static POLL: OnceLock<PollCq> = OnceLock::new();
static START: OnceLock<StartPoll> = OnceLock::new();

/// Replaces the driver's function for polling by `poll`, for this open device alone.
fn with_poll(context: &Context, poll: PollCq) {
    // SAFETY: the context is open, no other code uses it yet, and the function has the type of the
    // field.
    unsafe {
        let ops = &raw mut (*context.as_raw()).ops;
        let driver = (*ops).poll_cq.replace(poll).expect("the driver polls");
        let _ = POLL.set(driver);
    }
}

fn driver(
    queue: *mut sys::ibv_cq,
    limit: i32,
    room: *mut sys::ibv_wc,
) -> &'static mut [sys::ibv_wc] {
    let poll = POLL.get().expect("it was replaced");
    // SAFETY: the arguments are those of the intercepted call; the driver returns the number of
    // entries that it has filled.
    unsafe {
        let count = poll(queue, limit, room);
        std::slice::from_raw_parts_mut(room, usize::try_from(count).unwrap())
    }
}

unsafe extern "C" fn unknown_values(
    queue: *mut sys::ibv_cq,
    limit: i32,
    room: *mut sys::ibv_wc,
) -> i32 {
    let completions = driver(queue, limit, room);
    for completion in completions.iter_mut() {
        if completion.status == sys::ibv_wc_status::IBV_WC_SUCCESS {
            completion.opcode = sys::ibv_wc_opcode(0x4321);
        }
        completion.wc_flags |= 0xffff_0000;
        if completion.byte_len == 7 {
            completion.status = sys::ibv_wc_status(9999);
        }
    }
    completions.len() as i32
}

unsafe extern "C" fn failure(_: *mut sys::ibv_cq, _: i32, _: *mut sys::ibv_wc) -> i32 {
    -1
}

unsafe extern "C" fn loss(queue: *mut sys::ibv_cq, limit: i32, room: *mut sys::ibv_wc) -> i32 {
    driver(queue, limit, room);
    0
}

/// Returns a queue pair that is connected to itself, with its completion queue. The domain belongs
/// to `context`.
fn pair_in(context: &Context) -> Pair {
    let domain = context.protection_domain().unwrap();
    Pair::in_domain(&domain, |builder| builder, &Default::default())
}

#[test]
fn an_unknown_status_or_opcode_is_reported_with_its_number() {
    let context = context();
    with_poll(&context, unknown_values);
    let pair = pair_in(&context);
    let target = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    let mut sends = pair.left.send_queue();
    // The replaced function sets an unknown status for a completion of seven bytes; the completion
    // of a read contains the length.
    for (len, status) in [(8, WorkStatus::Success), (7, WorkStatus::Unknown(9999))] {
        let request = SendRequest::read(pair.domain.allocate(len).unwrap(), target.remote());
        sends.post(request).unwrap();
        let completion = completion(pair.left.send_completions());
        assert_eq!(completion.status(), status);
        assert_eq!(completion.opcode(), WorkOpcode::Unknown(0x4321));
        let retired: Vec<Buffer> = sends.complete(&completion).collect();
        assert_eq!(retired.len(), 1, "its memory comes back all the same");
        println!("{completion:?}");
        if let Err(error) = completion.result() {
            assert_eq!(error.status.class(), StatusClass::Unknown);
            assert!(error.to_string().contains("unknown status 9999"), "{error}");
        }
    }
}

unsafe extern "C" fn unknown_start(
    queue: *mut sys::ibv_cq_ex,
    attributes: *mut sys::ibv_poll_cq_attr,
) -> i32 {
    let start = START.get().expect("it was replaced");
    // SAFETY: the arguments are those of the intercepted call, and from a successful start on only
    // this thread uses the queue.
    unsafe {
        let errno = start(queue, attributes);
        if errno == 0 {
            (*queue).status = sys::ibv_wc_status(9999);
        }
        errno
    }
}

#[test]
fn an_unknown_status_of_an_extended_queue_is_reported_with_its_number() {
    let context = context();
    let fields = CompletionFields::STANDARD;
    let queue = context
        .completion_queue(64)
        .extended(fields)
        .build()
        .unwrap();
    // SAFETY: no other code uses the queue yet, and the function has the type of the field.
    unsafe {
        let driver = (*queue.as_raw()).start_poll.replace(unknown_start);
        START.set(driver.expect("the driver polls")).unwrap();
    }
    let domain = context.protection_domain().unwrap();
    let on_it = |builder: rdma_core::QueuePairBuilder| builder.send_completions(queue.queue());
    let pair = Pair::in_domain(&domain, on_it, &Default::default());
    let mut sends = pair.left.send_queue();
    let nowhere = RemoteMemory {
        address: 0,
        len: 0,
        rkey: 0,
    };
    sends.post(SendRequest::write((), nowhere)).unwrap();
    let completion = eventually("a completion", || {
        let next = queue.poll(|completions| {
            let completion = completions.next()?;
            assert_eq!(completion.status(), WorkStatus::Unknown(9999));
            assert!(completion.result().is_err());
            Some(completion.completion())
        });
        next.unwrap()
    });
    assert_eq!(completion.status(), WorkStatus::Unknown(9999));
    assert_eq!(sends.complete(&completion).count(), 1);
}

#[test]
fn a_failing_poll_is_an_error_and_gives_no_memory_back() {
    let context = context();
    let pair = pair_in(&context);
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    with_poll(&context, failure);
    let mut room = [WorkCompletion::default()];
    for _ in 0..3 {
        let error = pair.right.receive_completions().poll(&mut room);
        let error = error.unwrap_err();
        assert!(
            matches!(&error, Error::Verb { verb, .. } if *verb == "ibv_poll_cq"),
            "{error:?}"
        );
    }
    assert_eq!(receives.in_flight(), 1);
    // Dropping the queue pair also frees the memory that the device used.
    drop((receives, pair));
}

#[test]
fn a_scope_whose_polls_fail_does_not_end_with_memory_in_flight() {
    let context = context();
    let pair = pair_in(&context);
    with_poll(&context, failure);
    let mut buffer = pair.domain.allocate(64).unwrap();
    let outcome = pair.left.scope(Duration::from_millis(20), |scope| {
        drop(scope.post_receive(buffer.as_slice_mut()).unwrap());
    });
    println!("{}", outcome.unwrap_err());
    // The device reported no completion, so the scope has reset the queue pair.
    assert_eq!(pair.left.state(), Ok(QueuePairState::Reset));
    buffer.fill(1);
}

const ENOMEM: i32 = 12;

type PostSend = unsafe extern "C" fn(
    *mut sys::ibv_qp,
    *mut sys::ibv_send_wr,
    *mut *mut sys::ibv_send_wr,
) -> i32;
type PostReceive = unsafe extern "C" fn(
    *mut sys::ibv_qp,
    *mut sys::ibv_recv_wr,
    *mut *mut sys::ibv_recv_wr,
) -> i32;

unsafe extern "C" fn no_send(
    _: *mut sys::ibv_qp,
    wr: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> i32 {
    // SAFETY: the caller provides a valid pointer for the result.
    unsafe { *bad = wr };
    ENOMEM
}

unsafe extern "C" fn no_receive(
    _: *mut sys::ibv_qp,
    wr: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> i32 {
    // SAFETY: the caller provides a valid pointer for the result.
    unsafe { *bad = wr };
    ENOMEM
}

#[test]
fn a_post_that_the_device_refuses_gives_memory_and_slot_back() {
    let context = context();
    let domain = context.protection_domain().unwrap();
    let small = |builder: rdma_core::QueuePairBuilder| builder.send_requests(4).receive_requests(4);
    let pair = Pair::in_domain(&domain, small, &Default::default());
    let ops = || {
        // SAFETY: the context is open, and only this thread uses it.
        unsafe { &mut (*context.as_raw()).ops }
    };
    let send: PostSend = ops().post_send.replace(no_send).unwrap();
    let receive: PostReceive = ops().post_recv.replace(no_receive).unwrap();
    let (mut sends, mut receives) = (pair.left.send_queue(), pair.right.receive_queue());
    let concurrent = pair.left.concurrent_send_queue();
    let concurrent_receives = pair.right.concurrent_receive_queue();
    let mut memory = pattern(&domain, 8, 1);
    for _ in 0..100 {
        memory = sends.post(SendRequest::send(memory)).unwrap_err().memory;
        memory = receives.post(memory).unwrap_err().memory;
        memory = concurrent_receives.post(memory).unwrap_err().memory;
        let slot = concurrent.reserve().expect("a slot is free");
        let refused = concurrent.post(slot, SendRequest::send(memory));
        let refused = refused.unwrap_err();
        assert_eq!(refused.error.errno().map(|errno| errno.0), Some(ENOMEM));
        memory = refused.memory;
    }
    assert_eq!((sends.in_flight(), receives.in_flight()), (0, 0));
    ops().post_send = Some(send);
    ops().post_recv = Some(receive);
    drop((sends, receives));
    pair.check();
}

/// The driver's function for posting, which [`send_and_fail`] calls.
static SEND_AND_FAIL: OnceLock<PostSend> = OnceLock::new();

/// Posts the requests, fails, and reports no request as refused, like the driver of Linux's
/// Soft-RoCE if the notification of the kernel fails.
unsafe extern "C" fn send_and_fail(
    queue_pair: *mut sys::ibv_qp,
    wr: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> i32 {
    let post = SEND_AND_FAIL.get().expect("it was replaced");
    // SAFETY: the arguments are those of the intercepted call.
    unsafe {
        assert_eq!(post(queue_pair, wr, bad), 0);
        *bad = ptr::null_mut();
    }
    libc::EIO
}

/// Checks that no memory is given back while the device may use it.
#[test]
fn a_request_that_a_failed_call_may_have_posted_is_in_flight() {
    let context = context();
    let domain = context.protection_domain().unwrap();
    let inline = |builder: rdma_core::QueuePairBuilder| builder.inline_data(8);
    let pair = Pair::in_domain(&domain, inline, &Default::default());
    let there = exposed(&domain, 8, AccessFlags::REMOTE);
    let ops = || {
        // SAFETY: the context is open, and only this thread uses it.
        unsafe { &mut (*context.as_raw()).ops }
    };
    let driver = ops().post_send.replace(send_and_fail).unwrap();
    let _ = SEND_AND_FAIL.set(driver);
    let write = |seed| SendRequest::write(pattern(&domain, 8, seed), there.remote());
    let done = || common::succeed(pair.left.send_completions());
    // Each queue has a path for simple requests, and one for any other request.
    let mut sends = pair.left.send_queue();
    sends.post(write(1)).unwrap();
    assert_eq!(sends.complete(&done()).count(), 1);
    sends.post(write(2).inline()).unwrap();
    assert_eq!(sends.complete(&done()).count(), 1);
    let inline = SendRequest::write(&[3; 8], there.remote());
    sends.post_inline(inline).unwrap();
    assert_eq!(sends.in_flight(), 1);
    assert_eq!(sends.complete(&done()).count(), 0);
    assert_eq!(sends.in_flight(), 0);
    let concurrent = pair.left.concurrent_send_queue();
    for request in [write(4), write(5).inline()] {
        let slot = concurrent.reserve().unwrap();
        concurrent.post(slot, request).unwrap();
        assert_eq!(concurrent.complete(&done()).count(), 1);
    }
    let source = pattern(&domain, 8, 6);
    let scope = pair.left.scope(Duration::from_secs(60), |scope| {
        let write = SendRequest::write(source.as_slice(), there.remote());
        scope.post(write).unwrap().wait().unwrap();
    });
    scope.unwrap();
    let mut content = [0; 8];
    there.read_at(0, &mut content).unwrap();
    assert_eq!(content[..], common::bytes(8, 6));
    ops().post_send = Some(driver);
}

/// The driver's function for posting, which [`send_first`] calls.
static SEND_ALL: OnceLock<PostSend> = OnceLock::new();

/// Posts the first request of a list, and refuses the others.
unsafe extern "C" fn send_first(
    queue_pair: *mut sys::ibv_qp,
    wr: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> i32 {
    let post = SEND_ALL.get().expect("it was replaced");
    // SAFETY: the arguments are those of the intercepted call, a list of at least one request.
    unsafe {
        let rest = std::mem::replace(&mut (*wr).next, ptr::null_mut());
        let errno = post(queue_pair, wr, bad);
        (*wr).next = rest;
        if errno != 0 || rest.is_null() {
            return errno;
        }
        *bad = rest;
    }
    ENOMEM
}

/// Checks that later requests of the queue complete an unsignaled request of a batch that was
/// posted only in part and then dropped.
#[test]
fn an_unsignaled_request_that_a_batch_leaves_behind_is_completed_by_another_batch() {
    let context = context();
    let domain = context.protection_domain().unwrap();
    let pair = Pair::in_domain(&domain, |builder| builder, &Default::default());
    let there = exposed(&domain, 8, AccessFlags::REMOTE);
    let ops = || {
        // SAFETY: the context is open, and only this thread uses it.
        unsafe { &mut (*context.as_raw()).ops }
    };
    let driver = ops().post_send.replace(send_first).unwrap();
    let _ = SEND_ALL.set(driver);
    let queue = pair.left.concurrent_send_queue();
    let push = |batch: &mut rdma_core::queue_pair::ConcurrentSendBatch<'_, Buffer>, seed| {
        let write = SendRequest::write(pattern(&domain, 8, seed), there.remote());
        let slot = queue.reserve().unwrap();
        let index = slot.index();
        batch.push(slot, write.unsignaled()).unwrap();
        index
    };
    // Each of the two batches leaves a request behind, and the second is posted twice.
    let (mut one, mut other) = (queue.batch(3), queue.batch(3));
    let mut posted = Vec::new();
    for (batch, tries) in [(&mut one, 1), (&mut other, 2)] {
        let slots: Vec<_> = (0..3).map(|seed| push(batch, seed)).collect();
        for left in (0..3).rev().take(tries) {
            let refused = batch.post().unwrap_err();
            assert_eq!((refused.posted, batch.len()), (1, left));
        }
        posted.extend(&slots[..tries]);
    }
    ops().post_send = Some(driver);
    drop((one, other));
    let mut last = queue.batch(3);
    for _ in 0..2 {
        posted.push(push(&mut last, 7));
        last.post().unwrap();
        let done = common::succeed(pair.left.send_completions());
        for (slot, _) in queue.complete(&done) {
            let place = posted.iter().position(|&it| it == slot);
            posted.swap_remove(place.expect("a slot of a request that was posted"));
            queue.release(slot);
        }
    }
    assert_eq!(posted, [], "every request came back");
    let free: Vec<_> = std::iter::from_fn(|| queue.reserve()).collect();
    assert_eq!(free.len(), queue.capacity());
}

/// Value whose drop panics if the field is `true`.
struct Panics(bool);

impl Drop for Panics {
    fn drop(&mut self) {
        if self.0 {
            // Like a panic, but without a message.
            std::panic::resume_unwind(Box::new(()));
        }
    }
}

/// Checks that a batch leaves its posted unsignaled requests to a later request before it drops the
/// memory of the others, because that drop may panic.
#[test]
fn a_batch_whose_memory_panics_loses_no_slot() {
    let context = context();
    let domain = context.protection_domain().unwrap();
    let pair = Pair::in_domain(&domain, |builder| builder, &Default::default());
    let there = exposed(&domain, 8, AccessFlags::REMOTE);
    let ops = || {
        // SAFETY: the context is open, and only this thread uses it.
        unsafe { &mut (*context.as_raw()).ops }
    };
    let driver = ops().post_send.replace(send_first).unwrap();
    let _ = SEND_ALL.set(driver);
    let queue = pair.left.concurrent_send_queue();
    let write = |panics| {
        let memory = pattern(&domain, 8, 1);
        let memory = rdma_core::memory::Tagged::new(memory, Panics(panics));
        SendRequest::write(memory, there.remote())
    };
    let mut batch = queue.batch(2);
    for panics in [false, true] {
        let slot = queue.reserve().unwrap();
        batch.push(slot, write(panics).unsignaled()).unwrap();
    }
    assert_eq!(batch.post().unwrap_err().posted, 1);
    ops().post_send = Some(driver);
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(batch)));
    assert!(dropped.is_err());
    queue.post(queue.reserve().unwrap(), write(false)).unwrap();
    let done = common::succeed(pair.left.send_completions());
    for (slot, _) in queue.complete(&done) {
        queue.release(slot);
    }
    let free: Vec<_> = std::iter::from_fn(|| queue.reserve()).collect();
    assert_eq!(free.len(), queue.capacity());
}

#[test]
fn requests_of_a_scope_whose_completions_are_lost_are_forgotten_by_the_device() {
    let context = context();
    with_poll(&context, loss);
    let pair = pair_in(&context);
    let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let source = pattern(&pair.domain, 8, 1);
    let time_limit = Duration::from_millis(50);
    let lost = pair.left.scope(time_limit, |scope| {
        let request = SendRequest::write(source.as_slice(), target.remote());
        drop(scope.post(request).unwrap());
    });
    assert!(matches!(lost, Err(Error::TimedOut { .. })), "{lost:?}");
    assert_eq!(pair.left.state().unwrap(), QueuePairState::Reset);
}

static SEND: OnceLock<PostSend> = OnceLock::new();

/// Binds windows to the whole region, whatever part of it the request names.
unsafe extern "C" fn bind_without_bounds(
    queue_pair: *mut sys::ibv_qp,
    wr: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> i32 {
    let post = SEND.get().expect("it was replaced");
    // SAFETY: the arguments are those of the intercepted call, a list of one request. A request
    // that binds a window names a region.
    unsafe {
        if (*wr).opcode == sys::ibv_wr_opcode::IBV_WR_BIND_MW {
            let place = &raw mut (*wr).__bindgen_anon_2.bind_mw.bind_info;
            let region = (*place).mr;
            (*place).addr = (*region).addr as u64;
            (*place).length = (*region).length as u64;
        }
        post(queue_pair, wr, bad)
    }
}

/// The key of a window grants access to everything that the window is bound to. If a device binds
/// more than was requested, the crate must not lease a part of a registration whose rest is
/// accessible as a slice.
#[test]
fn a_part_is_not_leased_where_windows_reach_the_whole_region() {
    let context = context();
    // SAFETY: the context is open, and no other code uses it yet.
    let post = unsafe { (*context.as_raw()).ops.post_send };
    let _ = SEND.set(post.expect("the driver posts"));
    let domain = context.protection_domain().unwrap();
    let window = domain.memory_window(WindowType::Two);
    let Some(window) = common::where_supported(window) else {
        return;
    };
    // SAFETY: the context is open, and no other code uses it yet.
    unsafe { (*context.as_raw()).ops.post_send = Some(bind_without_bounds) };
    let registration = domain.registration().access(AccessFlags::WINDOW_BIND);
    let (left, right) = registration.allocate(8192).unwrap().split_at(4096);
    let window = match right.lease(window, AccessFlags::REMOTE_WRITE) {
        Err(Refused {
            value: (_, window),
            error,
        }) => {
            assert!(error.is_unsupported(), "{error}");
            window
        }
        Ok(lease) => {
            let pair = Pair::in_domain(&domain, |builder| builder, &Default::default());
            let mut sends = pair.right.send_queue::<()>();
            sends.post_inline(lease.bind().unwrap()).unwrap();
            sends.complete(&common::succeed(pair.right.send_completions()));
            let window = lease.remote().unwrap();
            let beyond = RemoteMemory {
                address: window.address - 4096,
                ..window
            };
            let write = SendRequest::write(pattern(&domain, 64, 1), beyond);
            pair.left.send_queue().post(write).unwrap();
            common::succeed(pair.left.send_completions());
            panic!("a peer wrote {:?} to a slice", &left[..4]);
        }
    };
    let whole = registration.allocate(4096).unwrap();
    assert!(whole.lease(window, AccessFlags::REMOTE_WRITE).is_ok());
}

/// The key of a window of type 2 must not grant access to the peers of other queue pairs. The test of
/// the device must find a device that does not check the queue pair.
#[test]
fn windows_that_every_queue_pair_can_use_are_found() {
    let domain = context().protection_domain().unwrap();
    let window = domain.memory_window(WindowType::Two);
    if common::where_supported(window).is_none() {
        return;
    }
    if common::is_softroce() {
        assert!(context().enforces_window_owner().unwrap());
    }
    let context = context();
    make_windows_usable_by_all(&context);
    assert!(!context.enforces_window_owner().unwrap());
    // The bounds of the windows are still enforced where the device enforces them.
    let bounds = |context: &Context| context.enforces_window_bounds(WindowType::Two).unwrap();
    assert_eq!(bounds(&context), bounds(&common::context()));
}

/// The device does not destroy these objects, because an object that this crate does not know uses
/// them.
#[test]
fn a_drop_that_the_device_refuses_neither_panics_nor_frees() {
    let context = context();
    let queue = context.completion_queue(16).build().unwrap();
    let domain = context.protection_domain().unwrap();
    let (raw_queue, raw_domain) = (queue.as_raw(), domain.as_raw());
    // SAFETY: the queue and the domain are valid; the queue pair is destroyed below.
    let pair = unsafe {
        let mut attributes: sys::ibv_qp_init_attr = std::mem::zeroed();
        attributes.send_cq = raw_queue;
        attributes.recv_cq = raw_queue;
        attributes.cap.max_send_wr = 1;
        attributes.cap.max_recv_wr = 1;
        attributes.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
        sys::ibv_create_qp(raw_domain, &mut attributes)
    };
    assert_ne!(pair, ptr::null_mut());
    let kept = domain.allocate(64).unwrap();
    let dropped = catch_unwind(AssertUnwindSafe(|| drop((kept, domain, queue))));
    assert!(dropped.is_ok(), "a drop does not panic");
    // SAFETY: both objects still exist, because their destruction failed, and no code uses them
    // afterwards. The device is open, because `context` is its last handle.
    unsafe {
        assert_eq!(sys::ibv_destroy_qp(pair), 0);
        assert_eq!(sys::ibv_destroy_cq(raw_queue), 0);
        assert_eq!(sys::ibv_dealloc_pd(raw_domain), 0);
    }
    drop(context);
}

#[test]
fn a_panic_while_a_drop_fails_does_not_abort() {
    let context = context();
    let queue = context.completion_queue(16).build().unwrap();
    let (raw, taken) = (queue.as_raw(), queue.clone());
    let domain: ProtectionDomain = context.protection_domain().unwrap();
    // SAFETY: as for the objects above.
    let pair = unsafe {
        let mut attributes: sys::ibv_qp_init_attr = std::mem::zeroed();
        attributes.send_cq = raw;
        attributes.recv_cq = raw;
        attributes.cap.max_send_wr = 1;
        attributes.cap.max_recv_wr = 1;
        attributes.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
        sys::ibv_create_qp(domain.as_raw(), &mut attributes)
    };
    assert_ne!(pair, ptr::null_mut());
    drop(queue);
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _queue: CompletionQueue = taken;
        panic!("with a queue that cannot be destroyed");
    }));
    assert!(panicked.is_err());
    // SAFETY: the queue still exists, because its destruction failed, and no code uses it
    // afterwards.
    unsafe {
        assert_eq!(sys::ibv_destroy_qp(pair), 0);
        assert_eq!(sys::ibv_destroy_cq(raw), 0);
    }
}
