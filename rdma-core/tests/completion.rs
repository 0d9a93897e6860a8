//! Completion queues: polling, completions that are put back, sizes, moderation, and queues that
//! other code has created.

mod common;

use std::time::Duration;

use common::{Pair, bytes, completion, eventually, pattern, receive, succeed, where_supported};
use rdma_core::completion::{CompletionFields, ExtendedCompletionQueue};
use rdma_core::{
    CompletionChannel, CompletionQueue, ConnectOptions, Context, Error, SendRequest, WorkCompletion,
};

/// Returns a pair whose two queue pairs use the same completion queue.
fn one_queue(context: &Context) -> (Pair, rdma_core::CompletionQueue) {
    let queue = context.completion_queue(64).build().unwrap();
    let domain = context.protection_domain().unwrap();
    let configure = |builder: rdma_core::QueuePairBuilder| {
        builder.send_completions(&queue).receive_completions(&queue)
    };
    let pair = Pair::in_domain(&domain, configure, &ConnectOptions::default());
    (pair, queue)
}

#[test]
fn what_is_put_back_is_polled_first_and_in_order() {
    let (pair, queue) = one_queue(&common::context());
    let mut sends = pair.left.send_queue();
    let mut receives = pair.right.receive_queue();
    let mut taken = Vec::new();
    for seed in 0..4 {
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
        sends
            .post(SendRequest::send(pattern(&pair.domain, 8, seed)))
            .unwrap();
        taken.push(succeed(&queue));
        taken.push(succeed(&queue));
    }
    queue.put_back(&taken[..5]);
    queue.put_back(&[]);
    queue.put_back(&taken[5..]);
    // A newer completion, which is still in the device's queue.
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    sends
        .post(SendRequest::send(pattern(&pair.domain, 8, 9)))
        .unwrap();
    let again: Vec<_> = taken.iter().map(|_| completion(&queue)).collect();
    let ids = |all: &[WorkCompletion]| all.iter().map(WorkCompletion::id).collect::<Vec<_>>();
    assert_eq!(ids(&again), ids(&taken));
    let mut messages = Vec::new();
    let newer = [completion(&queue), completion(&queue)];
    for completion in again.iter().chain(&newer) {
        completion.result().unwrap();
        drop(sends.complete(completion));
        messages.extend(receives.complete(completion));
    }
    assert_eq!(sends.in_flight(), 0);
    let expected: Vec<_> = [0, 1, 2, 3, 9].map(|seed| bytes(8, seed)).into();
    assert_eq!(
        messages.iter().map(|it| it.to_vec()).collect::<Vec<_>>(),
        expected
    );
}

#[test]
fn a_completion_that_is_put_back_twice_returns_its_memory_once() {
    let (pair, queue) = one_queue(&common::context());
    let mut sends = pair.left.send_queue();
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    sends
        .post(SendRequest::send(pattern(&pair.domain, 8, 1)))
        .unwrap();
    let both = [completion(&queue), completion(&queue)];
    queue.put_back(&both);
    queue.put_back(&both);
    let mut room = [WorkCompletion::default(); 9];
    let all = queue.poll(&mut room).unwrap();
    assert_eq!(all.len(), 4);
    let returned: Vec<_> = all.iter().filter_map(|it| receives.complete(it)).collect();
    assert_eq!(returned.len(), 1);
    let sent: usize = all.iter().map(|it| sends.complete(it).count()).sum();
    assert_eq!(sent, 1);
}

#[test]
fn room_for_none_takes_none() {
    let pair = Pair::new();
    let mut sends = pair.left.send_queue();
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    sends
        .post(SendRequest::send(pattern(&pair.domain, 8, 1)))
        .unwrap();
    let sent = completion(pair.left.send_completions());
    let queue = pair.left.send_completions();
    queue.put_back(&[sent]);
    assert!(queue.poll(&mut []).unwrap().is_empty());
    assert_eq!(succeed(queue).id(), sent.id());
    assert!(
        pair.right
            .receive_completions()
            .poll(&mut [])
            .unwrap()
            .is_empty()
    );
    receive(&pair.right, &mut receives);
    eventually("an empty queue", || {
        let mut room = [WorkCompletion::default()];
        queue.poll(&mut room).unwrap().is_empty().then_some(())
    });
}

#[test]
fn a_resized_queue_keeps_its_completions() {
    let (pair, queue) = one_queue(&common::context());
    let mut sends = pair.left.send_queue();
    let mut receives = pair.right.receive_queue();
    for seed in 0..5 {
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
        sends
            .post(SendRequest::send(pattern(&pair.domain, 8, seed)))
            .unwrap();
    }
    let before = queue.capacity();
    for entries in [300, 100] {
        match where_supported(queue.resize(entries)) {
            Some(()) => assert!(queue.capacity() >= entries as usize),
            None => assert_eq!(queue.capacity(), before),
        }
    }
    let mut messages = 0;
    for _ in 0..10 {
        let completion = succeed(&queue);
        drop(sends.complete(&completion));
        if let Some(message) = receives.complete(&completion) {
            assert_eq!(message[..], bytes(8, messages));
            messages += 1;
        }
    }
    assert_eq!((sends.in_flight(), messages), (0, 5));
}

#[test]
fn a_size_that_cannot_be_is_refused() {
    let queue = common::context().completion_queue(64).build().unwrap();
    let capacity = queue.capacity();
    assert!(matches!(
        queue.resize(0),
        Err(Error::InvalidArgument { .. })
    ));
    assert!(queue.resize(u32::MAX).is_err());
    assert!(queue.resize(i32::MAX as u32).is_err());
    assert_eq!(queue.capacity(), capacity);
}

#[test]
fn a_vector_that_the_device_does_not_have_is_refused() {
    let context = common::context();
    let builder = |vector| context.completion_queue(16).vector(vector);
    assert!(builder(0).build().is_ok());
    for vector in [100_000, u32::MAX] {
        assert!(builder(vector).build().is_err(), "{vector}");
        let fields = CompletionFields::STANDARD;
        assert!(
            builder(vector).extended(fields).build().is_err(),
            "{vector}"
        );
    }
}

#[test]
fn moderated_events_arrive_in_the_end() {
    let context = common::context();
    let channel = context.completion_channel().unwrap();
    let queue = context
        .completion_queue(64)
        .channel(&channel)
        .build()
        .unwrap();
    if where_supported(queue.moderate(4, Duration::from_millis(30))).is_none() {
        return;
    }
    let domain = context.protection_domain().unwrap();
    let configure = |builder: rdma_core::QueuePairBuilder| builder.send_completions(&queue);
    let pair = Pair::in_domain(&domain, configure, &ConnectOptions::default());
    let mut sends = pair.left.send_queue();
    let nowhere = rdma_core::RemoteMemory {
        address: 0,
        len: 0,
        rkey: 0,
    };
    // With as many completions as the moderation waits for, and with fewer, for which the event
    // comes after the period.
    for count in [4, 2] {
        queue.request_notification().unwrap();
        for _ in 0..count {
            sends.post(SendRequest::write((), nowhere)).unwrap();
        }
        assert!(channel.wait(Some(Duration::from_secs(60))).unwrap());
        assert_eq!(channel.drain(|id| assert_eq!(id, queue.id())), Ok(1));
        for _ in 0..count {
            drop(sends.complete(&succeed(&queue)));
        }
    }
    queue.moderate(0, Duration::ZERO).unwrap();
}

#[test]
fn a_period_that_is_too_long_is_refused() {
    let queue = common::context().completion_queue(4).build().unwrap();
    let error = queue.moderate(1, Duration::from_millis(66)).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
}

#[test]
fn objects_that_were_made_elsewhere_are_taken_over() {
    let context = common::context();
    // SAFETY: the objects are new and of this context, and ownership passes to the crate.
    let (channel, queue, extended) = unsafe {
        let raw = ibverbs_sys::ibv_create_comp_channel(context.as_raw());
        let channel = CompletionChannel::from_raw(&context, raw).unwrap();
        let nobody = std::ptr::null_mut();
        let raw = ibverbs_sys::ibv_create_cq(context.as_raw(), 64, nobody, channel.as_raw(), 0);
        let queue = CompletionQueue::from_raw(&context, Some(&channel), raw);
        let mut attributes = ibverbs_sys::ibv_cq_init_attr_ex {
            cqe: 64,
            wc_flags: CompletionFields::STANDARD.bits(),
            ..Default::default()
        };
        let raw = ibverbs_sys::ibv_create_cq_ex(context.as_raw(), &mut attributes);
        let fields = CompletionFields::STANDARD;
        let extended = ExtendedCompletionQueue::from_raw(&context, None, raw, fields).unwrap();
        assert_eq!(extended.as_raw(), raw);
        (channel, queue, extended)
    };
    assert!(queue.capacity() >= 64);
    let domain = context.protection_domain().unwrap();
    let configure = |builder: rdma_core::QueuePairBuilder| {
        builder
            .send_completions(&queue)
            .receive_completions(extended.queue())
    };
    let pair = Pair::in_domain(&domain, configure, &ConnectOptions::default());
    queue.request_notification().unwrap();
    let mut receives = pair.right.receive_queue();
    receives.post(domain.allocate(8).unwrap()).unwrap();
    let mut sends = pair.left.send_queue();
    sends
        .post(SendRequest::send(pattern(&domain, 8, 1)))
        .unwrap();
    assert!(channel.wait(Some(Duration::from_secs(60))).unwrap());
    assert_eq!(channel.drain(|id| assert_eq!(id, queue.id())), Ok(1));
    assert_eq!(sends.complete(&succeed(&queue)).count(), 1);
    let received = receives.complete(&succeed(extended.queue())).unwrap();
    assert_eq!(received[..], bytes(8, 1));
}

#[test]
fn a_plain_completion_has_every_field() {
    let mut raw = *WorkCompletion::default().as_raw();
    raw.wr_id = 5;
    raw.opcode = ibverbs_sys::ibv_wc_opcode::IBV_WC_RECV;
    raw.byte_len = 48;
    raw.qp_num = 17;
    raw.src_qp = 23;
    raw.pkey_index = 3;
    raw.slid = 99;
    raw.sl = 4;
    raw.dlid_path_bits = 2;
    raw.__bindgen_anon_1.imm_data = 0x0506_0708_u32.to_be();
    raw.wc_flags = 1 | 2 | 4;
    // SAFETY: no queue has this id, see `CompletionQueue::from_raw`.
    let completion = unsafe { WorkCompletion::from_raw(raw) };
    assert_eq!((completion.id(), completion.len()), (5, 48));
    assert_eq!(completion.immediate(), Some(0x0506_0708));
    assert_eq!(completion.invalidated_key(), None);
    assert!(completion.has_global_route() && completion.has_valid_checksum());
    assert_eq!(completion.queue_pair(), 17);
    assert_eq!(completion.source_queue_pair(), 23);
    assert_eq!(completion.partition_key_index(), 3);
    assert_eq!(completion.source_lid(), 99);
    assert_eq!((completion.service_level(), completion.path_bits()), (4, 2));

    raw.__bindgen_anon_1.invalidated_rkey = 0x1234;
    raw.wc_flags = 8;
    // SAFETY: no queue has this id, see `CompletionQueue::from_raw`.
    let completion = unsafe { WorkCompletion::from_raw(raw) };
    assert_eq!(completion.invalidated_key(), Some(0x1234));
    assert_eq!(completion.immediate(), None);
    assert!(!completion.has_global_route());
}
