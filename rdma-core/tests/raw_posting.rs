//! Raw posting: lists of C structs, and the functions `ibv_wr_*`.

mod common;

use std::io::IoSlice;

use common::{Pair, bytes, completion, exposed, pattern, succeed};
use ibverbs_sys::ibv_send_flags;
use rdma_core::queue_pair::{RawElements, RawSendRequest, raw_receive_request};
use rdma_core::{AccessFlags, ConnectOptions, Errno};

fn pair() -> Pair {
    Pair::with(
        |builder| builder.inline_data(32).send_requests(16),
        &ConnectOptions::default(),
    )
}

fn extended() -> Pair {
    Pair::with(
        |builder| builder.inline_data(32).extended_posting(),
        &ConnectOptions::default(),
    )
}

#[test]
fn a_list_of_raw_requests_is_posted_in_one_call() {
    let pair = pair();
    let there = exposed(&pair.domain, 24, AccessFlags::REMOTE);
    let buffers = [1, 2, 3].map(|seed| pattern(&pair.domain, 8, seed));
    let elements = buffers.each_ref().map(|it| RawElements::of(it).unwrap());
    let place = |index: usize| there.remote().slice(index * 8..).unwrap();
    for round in 0..10 {
        let mut third = RawSendRequest::write(&elements[2], place(2));
        third = third.id(round * 3 + 2).signaled();
        let mut second = RawSendRequest::write(&elements[1], place(1));
        second = second.id(round * 3 + 1).next(&mut third);
        let mut first = RawSendRequest::write(&elements[0], place(0));
        first = first.id(round * 3).next(&mut second);
        // SAFETY: the list and the elements are valid, and the buffers outlive the completion.
        unsafe { pair.left.post_send_raw(first.as_raw()) }.unwrap();
        let done = succeed(pair.left.send_completions());
        assert_eq!(done.id(), round * 3 + 2);
    }
    let mut content = [0; 24];
    there.read_at(0, &mut content).unwrap();
    for (index, piece) in (0..3).zip(content.chunks(8)) {
        assert_eq!(piece, bytes(8, index + 1));
    }
}

#[test]
fn posting_an_empty_raw_list_has_no_effect() {
    let pair = pair();
    // SAFETY: a null list is empty.
    unsafe {
        pair.left.post_send_raw(std::ptr::null_mut()).unwrap();
        pair.left.post_receive_raw(std::ptr::null_mut()).unwrap();
    }
    pair.check();
}

#[test]
fn raw_receives_take_raw_sends() {
    let pair = pair();
    let mut target = pair.domain.allocate(16).unwrap();
    let source = pattern(&pair.domain, 16, 5);
    let to = RawElements::of(&target.as_slice_mut()).unwrap();
    let from = RawElements::of(&(source.slice(..4).unwrap(), source.slice(4..).unwrap())).unwrap();
    assert_eq!((to.len(), from.len()), (1, 2));
    let mut receive = raw_receive_request(7, &to);
    // SAFETY: the request and its element are valid; no code uses the buffer until the request has
    // completed.
    unsafe { pair.right.post_receive_raw(&mut receive) }.unwrap();
    let mut send = RawSendRequest::send(&from).immediate(0xdead).id(8);
    send = send.signaled().solicited();
    // SAFETY: the request and its elements are valid, and the buffer outlives the completion.
    unsafe { pair.left.post_send_raw(send.as_raw()) }.unwrap();
    assert_eq!(succeed(pair.left.send_completions()).id(), 8);
    let received = succeed(pair.right.receive_completions());
    assert_eq!((received.id(), received.len()), (7, 16));
    assert_eq!(received.immediate(), Some(0xdead));
    assert_eq!(target[..], source[..]);
}

#[test]
fn raw_atomics_and_reads_return_the_memory() {
    let pair = pair();
    let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    there.store_u64(0, 40).unwrap();
    let room = pair.domain.allocate(8).unwrap();
    let element = RawElements::of(&room).unwrap();
    let number = || u64::from_ne_bytes(room[..].try_into().unwrap());
    let requests = [
        (
            RawSendRequest::fetch_and_add(&element, there.remote(), 2),
            40,
        ),
        (
            RawSendRequest::compare_and_swap(&element, there.remote(), 42, 7),
            42,
        ),
        (RawSendRequest::read(&element, there.remote()), 7),
    ];
    for (request, brought) in requests {
        let mut request = request.signaled().fence();
        // SAFETY: the request and its element are valid; no reference to the bytes of the buffer
        // exists until the request has completed.
        unsafe { pair.left.post_send_raw(request.as_raw()) }.unwrap();
        succeed(pair.left.send_completions());
        assert_eq!(number(), brought);
    }
}

#[test]
fn a_raw_list_that_does_not_fit_reports_the_first_refused_request() {
    let pair = Pair::with(
        |builder| builder.send_requests(4),
        &ConnectOptions::default(),
    );
    let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let source = pattern(&pair.domain, 8, 1);
    let element = RawElements::of(&source).unwrap();
    // A device may have more room than was requested, and more than it reports, but not for so
    // many.
    let count = 4096;
    let request = |id| {
        RawSendRequest::write(&element, there.remote())
            .id(id)
            .signaled()
    };
    let mut requests: Vec<_> = (0..count).map(request).collect();
    for index in 0..requests.len() - 1 {
        let next: *mut _ = requests[index + 1].as_raw();
        requests[index].as_raw().next = next;
    }
    // SAFETY: the list and its element are valid, and the buffer outlives the completions.
    let refused = unsafe { pair.left.post_send_raw(requests[0].as_raw()) }.unwrap_err();
    assert_eq!(refused.errno, Errno(libc::ENOMEM));
    // SAFETY: the pointer is null or points to a request of the list.
    let refused = unsafe { refused.refused.as_ref() }.expect("one of the list");
    assert!(refused.wr_id > 0 && refused.wr_id < count);
    for id in 0..refused.wr_id {
        assert_eq!(succeed(pair.left.send_completions()).id(), id);
    }
}

#[test]
fn a_raw_session_posts_its_requests() {
    let pair = extended();
    let there = exposed(&pair.domain, 24, AccessFlags::REMOTE);
    let source = pattern(&pair.domain, 8, 3);
    let element = RawElements::of(&source).unwrap()[0];
    let remote = there.remote();
    let signaled = ibv_send_flags::IBV_SEND_SIGNALED;
    // SAFETY: the session is completed below, and the queue pair was created for writes. The memory
    // and the keys stay valid until the requests have completed.
    unsafe {
        let mut session = pair.left.start_raw().expect("it was made for it");
        session.set(1, ibv_send_flags(0));
        session.write(remote.rkey, remote.address);
        session.element(element.lkey, element.addr, element.length);
        session.set(2, signaled);
        session.write(remote.rkey, remote.address + 8);
        session.elements(&[element]);
        session.set(
            3,
            ibv_send_flags(signaled.0 | ibv_send_flags::IBV_SEND_INLINE.0),
        );
        session.write(remote.rkey, remote.address + 16);
        session.inline_data(&bytes(8, 9));
        session.complete().unwrap();
    }
    for id in [2, 3] {
        assert_eq!(succeed(pair.left.send_completions()).id(), id);
    }
    let mut content = [0; 24];
    there.read_at(0, &mut content).unwrap();
    assert_eq!(content[..8], bytes(8, 3));
    assert_eq!(content[8..16], bytes(8, 3));
    assert_eq!(content[16..], bytes(8, 9));
}

/// Before 2026, the driver of Linux's Soft-RoCE sends nothing for a list of inline data, and for a
/// list of elements sends the first element several times.
#[test]
fn a_raw_session_takes_lists() {
    let pair = extended();
    let there = exposed(&pair.domain, 16, AccessFlags::REMOTE);
    let remote = there.remote();
    let (left, right) = pattern(&pair.domain, 16, 3).split_at(8);
    let elements = RawElements::of(&(&left, &right)).unwrap();
    let signaled = ibv_send_flags::IBV_SEND_SIGNALED;
    // SAFETY: the session is completed below, and the queue pair was created for writes. The memory
    // and the keys stay valid until the requests have completed.
    unsafe {
        let mut session = pair.left.start_raw().expect("it was made for it");
        session.set(1, signaled);
        session.write(remote.rkey, remote.address);
        session.elements(&elements);
        session.complete().unwrap();
    }
    succeed(pair.left.send_completions());
    let mut content = [0; 16];
    there.read_at(0, &mut content).unwrap();
    assert_eq!(content[..], bytes(16, 3));
    // SAFETY: as for the session above.
    unsafe {
        let mut session = pair.left.start_raw().expect("it was made for it");
        session.set(
            2,
            ibv_send_flags(signaled.0 | ibv_send_flags::IBV_SEND_INLINE.0),
        );
        session.write(remote.rkey, remote.address);
        session.inline_data_list(&[IoSlice::new(b"in"), IoSlice::new(b"line")]);
        session.complete().unwrap();
    }
    succeed(pair.left.send_completions());
    there.read_at(0, &mut content).unwrap();
    let nothing = bytes(16, 3);
    assert!(
        content[..6] == *b"inline" || content[..6] == nothing[..6],
        "{content:?}"
    );
    assert_eq!(content[6..], nothing[6..]);
}

#[test]
fn a_raw_session_that_is_dropped_posts_nothing() {
    let pair = extended();
    let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let source = pattern(&pair.domain, 8, 3);
    let element = RawElements::of(&source).unwrap()[0];
    // SAFETY: the session is dropped here, and the memory and the keys are valid.
    unsafe {
        let mut session = pair.left.start_raw().unwrap();
        session.set(1, ibv_send_flags::IBV_SEND_SIGNALED);
        session.write(there.remote().rkey, there.remote().address);
        session.element(element.lkey, element.addr, element.length);
    }
    // The driver's lock is free, and the dropped session has posted nothing.
    pair.check();
    assert_eq!(there.load_u64(0).unwrap(), 0);
}

#[test]
fn a_queue_pair_that_was_not_made_for_it_has_no_raw_session() {
    let pair = pair();
    // SAFETY: no session is created.
    assert!(unsafe { pair.left.start_raw() }.is_none());
}

/// The queues of this crate never use ids below 2^24, so raw requests and a queue can use one queue
/// pair.
#[test]
fn raw_requests_and_requests_of_a_queue_are_distinguished() {
    let pair = pair();
    let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let source = pattern(&pair.domain, 8, 3);
    let element = RawElements::of(&source).unwrap();
    let mut sends = pair.left.send_queue();
    let write = rdma_core::SendRequest::write(pattern(&pair.domain, 8, 4), there.remote());
    sends.post(write).unwrap();
    for id in [0, 1, (1 << 24) - 1, 1 << 63, u64::MAX] {
        let mut raw = RawSendRequest::write(&element, there.remote()).id(id);
        raw = raw.signaled();
        // SAFETY: the request and its element are valid, and the buffer outlives the completion.
        unsafe { pair.left.post_send_raw(raw.as_raw()) }.unwrap();
    }
    let own = completion(pair.left.send_completions());
    for id in [0, 1, (1 << 24) - 1, 1 << 63, u64::MAX] {
        let raw = succeed(pair.left.send_completions());
        assert_eq!(raw.id(), id);
        assert_eq!(sends.complete(&raw).count(), 0);
    }
    assert_eq!(sends.complete(&own).count(), 1);
}
