//! Extended reliable connections (XRC).

mod common;

use std::fs::File;
use std::os::fd::AsFd;

use common::{bytes, carry_out, eventually, pattern, succeed, where_supported};
use rdma_core::completion::CompletionFields;
use rdma_core::receive::{XrcDomain, XrcDomainOpening};
use rdma_core::{
    Buffer, ConnectOptions, Context, ProtectionDomain, QueuePair, SendRequest, SharedReceiveQueue,
    Transport,
};

/// Creates an XRC domain that belongs to this process. Returns `None` if the device does not
/// support XRC and reports that.
fn anonymous(context: &Context) -> Option<XrcDomain> {
    let made = XrcDomain::anonymous(context);
    if let Err(error) = &made {
        let text = error.to_string();
        assert!(text.starts_with("ibv_open_xrcd on device"), "{text}");
    }
    where_supported(made)
}

#[test]
fn shared_queues_of_a_domain_have_numbers() {
    let context = common::context();
    let Some(xrc) = anonymous(&context) else {
        return;
    };
    let domain = context.protection_domain().unwrap();
    let completions = context.completion_queue(8).build().unwrap();
    let queue = || -> SharedReceiveQueue<Buffer> {
        let queue = domain.shared_receive_queue(4).xrc(&xrc, &completions);
        queue.build().unwrap()
    };
    let (one, other) = (queue(), queue());
    assert!(one.number().is_some());
    assert_ne!(one.number(), other.number());
    assert_eq!(one.completions().unwrap().id(), completions.id());
    drop((xrc, completions));
    one.post(domain.allocate(8).unwrap()).unwrap();
}

#[test]
fn a_domain_of_a_file_can_be_opened_by_every_process() {
    let context = common::context();
    if anonymous(&context).is_none() {
        return;
    }
    let path = std::env::temp_dir().join(format!("rdma-core-xrc-{}", std::process::id()));
    let file = File::create(&path).unwrap();
    let open = |opening| XrcDomain::of_file(&context, file.as_fd(), opening);
    assert!(open(XrcDomainOpening::Open).is_err(), "not there yet");
    let first = open(XrcDomainOpening::OpenOrCreate).unwrap();
    let second = open(XrcDomainOpening::Open).unwrap();
    assert!(open(XrcDomainOpening::CreateNew).is_err(), "there already");
    drop((first, second));
    assert!(
        open(XrcDomainOpening::CreateNew).is_ok(),
        "gone with its last"
    );
    std::fs::remove_file(path).unwrap();
}

/// Returns connected queue pairs: an initiator, and a target in the domain.
fn connected(domain: &ProtectionDomain, xrc: &XrcDomain) -> (QueuePair, QueuePair) {
    let initiator = domain.queue_pair().transport(Transport::XrcInitiator);
    let target = domain.queue_pair().transport(Transport::XrcTarget);
    let initiator = initiator.build().unwrap();
    let target = target.xrc_domain(xrc).build().unwrap();
    let (to_initiator, to_target) = (initiator.endpoint(), target.endpoint());
    let options = ConnectOptions::default();
    (
        initiator.connect(&to_target, &options).unwrap(),
        target.connect(&to_initiator, &options).unwrap(),
    )
}

#[test]
fn one_connection_delivers_to_every_shared_queue_of_its_domain() {
    let context = common::context();
    let Some(xrc) = anonymous(&context) else {
        return;
    };
    let domain = context.protection_domain().unwrap();
    let (initiator, _target) = connected(&domain, &xrc);
    let queues: Vec<SharedReceiveQueue<Buffer>> = (0..3)
        .map(|_| {
            let completions = context.completion_queue(8).build().unwrap();
            let queue = domain.shared_receive_queue(4).xrc(&xrc, &completions);
            let queue = queue.build().unwrap();
            queue.post(domain.allocate(8).unwrap()).unwrap();
            queue
        })
        .collect();
    let mut sends = initiator.send_queue();
    for (seed, queue) in queues.iter().enumerate().rev() {
        let request = SendRequest::send(pattern(&domain, 8, seed as u8));
        let request = request.remote_shared_queue(queue.number().unwrap());
        carry_out(&initiator, &mut sends, request);
        let received = succeed(queue.completions().unwrap());
        assert_eq!(queue.complete(&received).unwrap()[..], bytes(8, seed as u8));
    }
}

#[test]
fn opening_the_file_joins_the_domain() {
    let (context, other) = (common::context(), common::context());
    if anonymous(&context).is_none() {
        return;
    }
    let path = std::env::temp_dir().join(format!("rdma-core-shared-{}", std::process::id()));
    let file = File::create(&path).unwrap();
    let open = |context| XrcDomain::of_file(context, file.as_fd(), XrcDomainOpening::default());
    let (here, there) = (open(&context).unwrap(), open(&other).unwrap());
    std::fs::remove_file(path).unwrap();

    // One process creates the connection, the other the shared receive queue to which the messages
    // are directed.
    let domain = context.protection_domain().unwrap();
    let (initiator, _target) = connected(&domain, &here);
    let others = other.protection_domain().unwrap();
    let completions = other.completion_queue(8).build().unwrap();
    let queue = others.shared_receive_queue(4).xrc(&there, &completions);
    let queue: SharedReceiveQueue<Buffer> = queue.build().unwrap();
    queue.post(others.allocate(8).unwrap()).unwrap();
    let mut sends = initiator.send_queue();
    let request = SendRequest::send(pattern(&domain, 8, 6));
    let request = request.remote_shared_queue(queue.number().unwrap());
    carry_out(&initiator, &mut sends, request);
    let received = succeed(&completions);
    assert_eq!(queue.complete(&received).unwrap()[..], bytes(8, 6));
}

#[test]
fn a_shared_queue_dropped_between_its_completions_is_destroyed_afterwards() {
    let context = common::context();
    let Some(xrc) = anonymous(&context) else {
        return;
    };
    let domain = context.protection_domain().unwrap();
    let (initiator, _target) = connected(&domain, &xrc);
    let completions = context.completion_queue(8);
    let completions = completions.extended(CompletionFields::STANDARD);
    let completions = completions.build().unwrap();
    let queue = domain
        .shared_receive_queue(4)
        .xrc(&xrc, completions.queue());
    let mut queue: Option<SharedReceiveQueue<Buffer>> = Some(queue.build().unwrap());
    let shared = queue.as_ref().unwrap();
    let mut sends = initiator.send_queue();
    for seed in 0..2 {
        shared.post(domain.allocate(8).unwrap()).unwrap();
        let request = SendRequest::send(pattern(&domain, 8, seed));
        let request = request.remote_shared_queue(shared.number().unwrap());
        carry_out(&initiator, &mut sends, request);
    }
    let mut seen = 0;
    eventually("a completion", || {
        let polled = completions.poll(|completions| {
            while let Some(completion) = completions.next() {
                completion.result().unwrap();
                // The driver may hold the lock that it needs to destroy the queue.
                drop(queue.take());
                seen += 1;
            }
        });
        polled.unwrap();
        (seen > 0).then_some(())
    });
    // The queue was destroyed, so its completion queue and its domain can be destroyed.
    drop((completions, xrc));
}

#[test]
fn a_request_that_names_no_shared_queue_is_refused() {
    let context = common::context();
    let Some(xrc) = anonymous(&context) else {
        return;
    };
    let domain = context.protection_domain().unwrap();
    let (initiator, _target) = connected(&domain, &xrc);
    let mut sends = initiator.send_queue();
    let refused = sends
        .post(SendRequest::send(pattern(&domain, 8, 1)))
        .unwrap_err();
    assert_eq!(refused.memory[..], bytes(8, 1));
}

#[test]
fn a_domain_made_elsewhere_is_taken_over() {
    let context = common::context();
    if anonymous(&context).is_none() {
        return;
    }
    let mask = ibverbs_sys::ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD
        | ibverbs_sys::ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS;
    let mut attributes = ibverbs_sys::ibv_xrcd_init_attr {
        comp_mask: mask.0,
        fd: -1,
        oflags: libc::O_CREAT,
    };
    // SAFETY: the context is open and the attributes are valid; ownership of the domain passes to
    // the crate.
    let xrc = unsafe {
        let raw = ibverbs_sys::ibv_open_xrcd(context.as_raw(), &mut attributes);
        assert!(!raw.is_null());
        XrcDomain::from_raw(&context, raw)
    };
    let domain = context.protection_domain().unwrap();
    let completions = context.completion_queue(8).build().unwrap();
    let queue = domain.shared_receive_queue(4).xrc(&xrc, &completions);
    let queue: SharedReceiveQueue<Buffer> = queue.build().unwrap();
    drop(xrc);
    assert!(queue.number().is_some());
}
