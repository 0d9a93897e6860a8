//! Completion queues, channels and asynchronous events.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;

/// Time limit of each step.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn completion_queues_are_made_and_resized_within_bounds() {
    with_context(|context| {
        // SAFETY: all objects are valid until they are destroyed.
        unsafe {
            let mut device: ibv_device_attr = zeroed();
            assert_eq!(ibv_query_device(context, &raw mut device), 0);
            for cqe in [0, -1, i32::MIN, device.max_cqe + 1] {
                refused(
                    ibv_create_cq(context, cqe, null_mut(), null_mut(), 0),
                    EINVAL,
                );
            }
            for vector in [-1, (*context).num_comp_vectors] {
                refused(
                    ibv_create_cq(context, 1, null_mut(), null_mut(), vector),
                    EINVAL,
                );
            }
            let mark = without_provenance_mut(0x77);
            let cq = ibv_create_cq(context, 10, mark, null_mut(), 0);
            assert!((*cq).cqe >= 10);
            assert_eq!((*cq).cq_context, mark);
            assert_eq!(ibv_resize_cq(cq, device.max_cqe), 0);
            assert_eq!((*cq).cqe, device.max_cqe);
            for cqe in [0, -1, device.max_cqe + 1] {
                assert_eq!(ibv_resize_cq(cq, cqe), EINVAL);
            }
            let mut wc: [ibv_wc; 2] = zeroed();
            assert_eq!(ibv_poll_cq(cq, 2, wc.as_mut_ptr()), 0);
            assert_eq!(ibv_poll_cq(cq, 0, wc.as_mut_ptr()), 0);
            assert!(ibv_poll_cq(cq, -1, wc.as_mut_ptr()) < 0);
            assert_eq!(
                ibv_req_notify_cq(cq, 0),
                0,
                "without a channel nobody is told"
            );
            let moderate = ibv_moderate_cq {
                cq_count: 4,
                cq_period: 100,
            };
            let mut attr = ibv_modify_cq_attr {
                attr_mask: 1,
                moderate,
            };
            assert_eq!(ibv_modify_cq(cq, &raw mut attr), 0);
            attr.attr_mask = 2;
            assert_eq!(ibv_modify_cq(cq, &raw mut attr), EINVAL);
            assert_eq!(ibv_destroy_cq(cq), 0);
        }
    });
}

#[test]
fn extended_completion_queues_report_the_requested_fields() {
    with_domain(|context, pd| {
        // SAFETY: all objects are valid until they are destroyed.
        unsafe {
            let make = |change: &dyn Fn(&mut ibv_cq_init_attr_ex)| {
                let mut attr: ibv_cq_init_attr_ex = zeroed();
                attr.cqe = 4;
                change(&mut attr);
                ibv_create_cq_ex(context, &raw mut attr)
            };
            refused(make(&|attr| attr.cqe = 0), EINVAL);
            refused(make(&|attr| attr.comp_vector = 99), EINVAL);
            refused(make(&|attr| attr.comp_mask = 4), EINVAL);
            refused(make(&|attr| (attr.comp_mask, attr.flags) = (1, 4)), EINVAL);
            refused(make(&|attr| attr.comp_mask = 2), EINVAL);
            for field in [8, 9, 10, 12, 63] {
                refused(make(&|attr| attr.wc_flags = 1 << field), EOPNOTSUPP);
            }
            let all = 0x7f | 1 << 7 | 1 << 11;
            let cq = make(&|attr| {
                attr.wc_flags = all;
                (attr.comp_mask, attr.flags) = (3, 3);
                attr.parent_domain = pd;
            });
            assert!(!cq.is_null(), "{}", io::Error::last_os_error());
            assert_eq!(ibv_dealloc_pd(pd), EBUSY);
            let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
            assert_eq!(ibv_start_poll(cq, &raw mut attr), ENOENT);
            assert_eq!(
                ibv_start_poll(cq, &raw mut attr),
                ENOENT,
                "and so nobody has to end it"
            );
            attr.comp_mask = 1;
            assert_eq!(ibv_start_poll(cq, &raw mut attr), EINVAL);
            assert_eq!(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
            // The flags count only if their bit is set in `comp_mask`.
            let cq = make(&|attr| attr.flags = 0xff);
            assert_eq!(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
        }
    });
}

#[test]
fn a_channel_in_use_is_kept_and_honors_nonblocking_mode() {
    with_context(|context| {
        // SAFETY: all objects are valid until they are destroyed.
        unsafe {
            let channel = ibv_create_comp_channel(context);
            assert!(!channel.is_null());
            let cq = ibv_create_cq(context, 1, null_mut(), channel, 0);
            assert_eq!((*cq).channel, channel);
            assert_eq!(ibv_destroy_comp_channel(channel), EBUSY);
            set_nonblocking((*channel).fd);
            assert!(!is_readable((*channel).fd));
            let (mut which, mut mark) = (null_mut(), null_mut());
            assert_eq!(ibv_get_cq_event(channel, &raw mut which, &raw mut mark), -1);
            assert_eq!(errno(), EAGAIN);
            ibv_ack_cq_events(cq, 0);
            assert_eq!(ibv_destroy_cq(cq), 0);
            assert_eq!(ibv_destroy_comp_channel(channel), 0);
        }
    });
}

#[test]
fn asynchronous_events_can_be_polled_for() {
    with_context(|context| {
        // SAFETY: the context is open.
        unsafe {
            set_nonblocking((*context).async_fd);
            assert!(!is_readable((*context).async_fd));
            let mut event: ibv_async_event = zeroed();
            assert_eq!(ibv_get_async_event(context, &raw mut event), -1);
            assert_eq!(errno(), EAGAIN);
            assert!(
                BorrowedFd::borrow_raw((*context).async_fd)
                    .try_clone_to_owned()
                    .is_ok()
            );
        }
    });
}

/// Increments a channel's counter without an event, as a late peer does.
fn wake_in_vain(descriptor: i32) {
    // SAFETY: the call reads eight bytes, and the descriptor is open.
    let written = unsafe { libc::write(descriptor, (&raw const ONE).cast(), 8) };
    assert_eq!(written, 8);
}

static ONE: u64 = 1;

/// Waits until a thread sleeps in a call of `read`, with nothing left to read.
fn wait_until_reading(thread: i32, descriptor: i32) {
    let call = format!("/proc/self/task/{thread}/syscall");
    let reads = format!("{} ", libc::SYS_read);
    let deadline = Instant::now() + LIMIT;
    while is_readable(descriptor)
        || !std::fs::read_to_string(&call).is_ok_and(|call| call.starts_with(&reads))
    {
        assert!(Instant::now() < deadline, "it does not wait");
        thread::yield_now();
    }
}

#[test]
fn a_thread_woken_without_an_event_waits_again_or_gets_eagain() {
    with_context(|context| {
        // SAFETY: all objects are valid until they are destroyed; the threads have ended by then.
        unsafe {
            let context_there = context.expose_provenance();
            let (descriptor, mut event) = ((*context).async_fd, zeroed::<ibv_async_event>());
            set_nonblocking(descriptor);
            wake_in_vain(descriptor);
            assert_eq!(ibv_get_async_event(context, &raw mut event), -1);
            assert_eq!(errno(), EAGAIN);
            let channel = ibv_create_comp_channel(context);
            set_nonblocking((*channel).fd);
            wake_in_vain((*channel).fd);
            let (mut which, mut mark) = (null_mut(), null_mut());
            assert_eq!(ibv_get_cq_event(channel, &raw mut which, &raw mut mark), -1);
            assert_eq!(errno(), EAGAIN);
            assert_eq!(ibv_destroy_comp_channel(channel), 0);

            assert_eq!(libc::fcntl(descriptor, libc::F_SETFL, 0), 0);
            let (told, tells) = mpsc::channel();
            let waiting = thread::spawn(move || {
                told.send(libc::gettid()).unwrap();
                let context = std::ptr::with_exposed_provenance_mut(context_there);
                let mut event: ibv_async_event = zeroed();
                let answer = ibv_get_async_event(context, &raw mut event);
                (answer, event.event_type)
            });
            let thread = tells.recv_timeout(LIMIT).unwrap();
            wait_until_reading(thread, descriptor);
            wake_in_vain(descriptor);
            wait_until_reading(thread, descriptor);
            assert!(!waiting.is_finished(), "it has no event");
            softroce::faults().raise(ibv_event_type::IBV_EVENT_CLIENT_REREGISTER);
            let answer = waiting.join().unwrap();
            assert_eq!(answer, (0, ibv_event_type::IBV_EVENT_CLIENT_REREGISTER));
        }
    });
}
