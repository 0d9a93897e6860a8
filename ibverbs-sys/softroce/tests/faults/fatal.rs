//! A panic inside of the device: the device fails, and every waiting thread is notified.

use std::mem::zeroed;
use std::ptr;
use std::thread;
use std::time::Instant;

use ibverbs_sys::*;
use libc::EIO;
use softroce::fault::panics::{PanicPoint, panic_at};

use super::end::{Bytes, Device, End, open, with_pair};
use super::{LOST, alone};

const SEND: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_SEND;
const FLUSHED: ibv_wc_status = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;

#[test]
fn a_panic_of_the_engine_wakes_all_waiting_threads() {
    let test = "fatal::a_panic_of_the_engine_wakes_all_waiting_threads";
    let errors = alone(test, &[("SOFTROCE_PATH", "udp")], || {
        with_pair(|device, one, other| {
            for id in 0..3 {
                assert_eq!(other.post_receive(id, Bytes::NONE), 0);
            }
            arm(other);
            panic_at(PanicPoint::Receive);
            thread::scope(|scope| {
                // No thread polls, so that the engine receives the packets.
                let waiting = scope.spawn(|| wait_for_completion_event(other));
                assert_eq!(one.post(7, SEND, Bytes::NONE, Bytes::NONE), 0);
                wait_for_failure(device);
                waiting.join().expect("the event");
            });
            assert_eq!(one.complete(), (7, FLUSHED));
            for id in 0..3 {
                assert_eq!(other.complete(), (id, FLUSHED));
            }
            nothing_hangs(device, one);
            nothing_hangs(device, other);
        });
    });
    if let Some(errors) = errors {
        let message =
            "softroce: the device has failed: a thread panicked in it (asked for at Receive)";
        assert!(errors.contains(message), "{errors}");
    }
}

#[test]
fn a_panic_of_a_posting_thread_fails_the_device() {
    let test = "fatal::a_panic_of_a_posting_thread_fails_the_device";
    for path in ["udp", "direct", "shared"] {
        let errors = alone(test, &[("SOFTROCE_PATH", path)], || {
            with_pair(|device, one, other| {
                assert_eq!(other.post_receive(1, Bytes::NONE), 0);
                panic_at(PanicPoint::Post);
                assert_eq!(one.post(7, SEND, Bytes::NONE, Bytes::NONE), EIO);
                wait_for_failure(device);
                assert_eq!(other.complete(), (1, FLUSHED));
                nothing_hangs(device, one);
                nothing_hangs(device, other);
            });
        });
        let Some(errors) = errors else { return };
        assert!(
            errors.contains("softroce: the device has failed: "),
            "{errors}"
        );
    }
}

/// Checks a panic of a polling thread, which also receives packets: its call fails, and the next
/// calls return.
#[test]
fn a_panic_of_a_polling_thread_fails_the_device() {
    let test = "fatal::a_panic_of_a_polling_thread_fails_the_device";
    alone(test, &[("SOFTROCE_PATH", "udp")], || {
        with_pair(|device, one, other| {
            assert_eq!(other.post_receive(1, Bytes::NONE), 0);
            // After some time of polling, the engine leaves the reception of packets to this
            // thread.
            let end = Instant::now() + LOST / 60;
            while Instant::now() < end {
                assert!(matches!(other.poll(), Ok(None)));
            }
            panic_at(PanicPoint::Receive);
            assert_eq!(one.post(7, SEND, Bytes::NONE, Bytes::NONE), 0);
            let (end, mut failures) = (Instant::now() + LOST, 0);
            let completion = loop {
                match other.poll() {
                    Ok(Some(completion)) => break (completion.wr_id, completion.status),
                    Ok(None) => {}
                    Err(_) => failures += 1,
                }
                assert!(Instant::now() < end, "no completion came");
            };
            assert_eq!(completion, (1, FLUSHED));
            assert!(failures <= 1, "{failures} calls failed");
            wait_for_failure(device);
            nothing_hangs(device, one);
            nothing_hangs(device, other);
        });
    });
}

/// Waits until the open device reports the event of a failed device.
fn wait_for_failure(device: &Device) {
    // SAFETY: the device is open.
    unsafe {
        wait_for((*device.context).async_fd, "no event came");
        let mut event = zeroed();
        assert_eq!(ibv_get_async_event(device.context, &mut event), 0);
        assert_eq!(event.event_type, ibv_event_type::IBV_EVENT_DEVICE_FATAL);
        ibv_ack_async_event(&mut event);
    }
}

fn arm(end: &End<'_>) {
    // SAFETY: the queue is valid.
    assert_eq!(unsafe { ibv_req_notify_cq(end.cq, 0) }, 0);
}

fn wait_for_completion_event(end: &End<'_>) {
    let (mut queue, mut tag) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the channel is valid.
    unsafe {
        wait_for((*end.channel).fd, "no completion event came");
        assert_eq!(ibv_get_cq_event(end.channel, &mut queue, &mut tag), 0);
        assert_eq!(queue, end.cq);
        ibv_ack_cq_events(queue, 1);
    }
}

fn wait_for(descriptor: i32, otherwise: &str) {
    let mut about = libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the pointer is to one descriptor.
    let count = unsafe { libc::poll(&raw mut about, 1, LOST.as_millis() as i32) };
    assert_eq!(count, 1, "{otherwise}");
}

/// Checks a failed device: posted requests are flushed, and verbs that need the device return
/// errors.
fn nothing_hangs(device: &Device, end: &End<'_>) {
    assert_eq!(end.state(), ibv_qp_state::IBV_QPS_ERR);
    while end.poll().expect("a completion or none").is_some() {}
    assert_eq!(end.post(20, SEND, Bytes::NONE, Bytes::NONE), 0);
    assert_eq!(end.complete(), (20, FLUSHED));
    assert_eq!(end.post_receive(21, Bytes::NONE), 0);
    assert_eq!(end.complete(), (21, FLUSHED));
    let mut page = [0_u64; 64];
    assert!(device.register(page.as_mut_ptr().cast(), 512).is_null());
    assert!(open().is_null());
    assert_eq!(end.enter(ibv_qp_state::IBV_QPS_RESET), 0);
    assert_eq!(end.initialize(), EIO);
}
