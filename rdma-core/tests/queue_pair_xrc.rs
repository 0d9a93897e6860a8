//! Queue pairs of extended reliable connections (XRC).

mod common;

use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

use common::{context, nobody, pattern};
use rdma_core::queue_pair::{AttributeMask, Modification, ModificationFlaw};
use rdma_core::receive::{XrcDomain, XrcDomainOpening};
use rdma_core::{
    Context, Error, QueuePairState, SendRequest, Transport, WorkCompletion, WorkStatus,
};

/// Creates an XRC domain that belongs to this process. Returns `None` if the device does not
/// support XRC, and checks that creating an XRC queue pair then fails, too.
fn anonymous(context: &Context) -> Option<XrcDomain> {
    let Some(xrc) = common::where_supported(XrcDomain::anonymous(context)) else {
        let domain = context.protection_domain().unwrap();
        for kind in [Transport::XrcInitiator, Transport::XrcTarget] {
            let refused = domain.queue_pair().transport(kind).build().unwrap_err();
            assert!(refused.is_unsupported(), "{refused}");
            let name = context.name();
            let text = format!("device {name} does not support XRC queue pairs");
            assert_eq!(refused.to_string(), text);
        }
        return None;
    };
    Some(xrc)
}

#[test]
fn an_initiator_has_no_receives_and_a_target_nothing_to_post_to() {
    let context = context();
    let Some(xrc) = anonymous(&context) else {
        return;
    };
    let domain = context.protection_domain().unwrap();
    let initiator = domain.queue_pair().transport(Transport::XrcInitiator);
    let target = domain.queue_pair().transport(Transport::XrcTarget);
    let initiator = initiator.build().unwrap();
    let target = target.xrc_domain(&xrc).build().unwrap();
    let (to_initiator, to_target) = (initiator.endpoint(), target.endpoint());
    let options = Default::default();
    let initiator = initiator.connect(&to_target, &options).unwrap();
    let target = target.connect(&to_initiator, &options).unwrap();
    assert_eq!(initiator.state(), Ok(QueuePairState::ReadyToSend));
    assert_eq!(target.state(), Ok(QueuePairState::ReadyToSend));
    assert_eq!(initiator.receive_capacity(), 0);
    assert_eq!((target.send_capacity(), target.receive_capacity()), (0, 0));
    assert_eq!(target.attributes().unwrap().kind(), Transport::XrcTarget);
    let mut receives = initiator.receive_queue();
    assert!(receives.post(domain.allocate(8).unwrap()).is_err());
    let mut sends = target.send_queue();
    let request = SendRequest::send(pattern(&domain, 8, 1)).remote_shared_queue(1);
    assert!(sends.post(request).is_err());
    // An XRC target has no requests to drain, so only its state changes.
    target.drain(Duration::from_secs(60)).unwrap();
    assert_eq!(target.state(), Ok(QueuePairState::Error));
}

#[test]
fn an_initiator_is_drained() {
    let context = context();
    if anonymous(&context).is_none() {
        return;
    }
    let domain = context.protection_domain().unwrap();
    let prepared = domain.queue_pair().transport(Transport::XrcInitiator);
    let prepared = prepared.build().unwrap();
    let remote = nobody(prepared.endpoint());
    let pair = prepared.connect(&remote, &Default::default()).unwrap();
    let mut sends = pair.send_queue();
    for seed in 0..5 {
        let request = SendRequest::send(pattern(&domain, 8, seed)).remote_shared_queue(1);
        sends.post(request).unwrap();
    }
    pair.drain(Duration::from_secs(60)).unwrap();
    let mut room = [WorkCompletion::default(); 8];
    let completions = pair.send_completions().poll(&mut room).unwrap();
    assert_eq!(completions.len(), 5);
    for completion in completions {
        assert_eq!(completion.status(), WorkStatus::Flushed);
        assert_eq!(sends.complete(completion).count(), 1);
    }
}

#[test]
fn a_target_is_opened_by_number_in_a_shared_domain() {
    let (context, other) = (context(), context());
    if anonymous(&context).is_none() {
        return;
    }
    let path = std::env::temp_dir().join(format!("rdma-core-target-{}", std::process::id()));
    let file = File::create(&path).unwrap();
    let open = |context| XrcDomain::of_file(context, file.as_fd(), XrcDomainOpening::default());
    let (here, there) = (open(&context).unwrap(), open(&other).unwrap());
    std::fs::remove_file(path).unwrap();
    let domain = context.protection_domain().unwrap();
    let target = domain.queue_pair().transport(Transport::XrcTarget);
    let made = target.xrc_domain(&here).create().unwrap();
    let others = other.protection_domain().unwrap();
    let opened = others.queue_pair().xrc_domain(&there).open(made.number());
    let opened = opened.unwrap();
    assert_eq!(opened.number(), made.number());
    opened.to_init().unwrap();
    assert_eq!(made.state(), Ok(QueuePairState::Init));
    drop(made);
    assert_eq!(opened.state(), Ok(QueuePairState::Init));
    let number = opened.number();
    drop(opened);
    let gone = others.queue_pair().xrc_domain(&there).open(number);
    let gone = gone.unwrap_err().to_string();
    assert!(gone.starts_with(&format!("ibv_open_qp on queue pair {number:#x}")));
    let refused = others.queue_pair().open(number).unwrap_err();
    assert!(
        matches!(refused, Error::InvalidArgument { .. }),
        "{refused}"
    );
}

#[test]
fn attributes_of_the_other_half_are_accepted() {
    let context = context();
    let Some(xrc) = anonymous(&context) else {
        return;
    };
    let domain = context.protection_domain().unwrap();
    let target = domain.queue_pair().transport(Transport::XrcTarget);
    let target = target.xrc_domain(&xrc).create().unwrap();
    let initiator = domain.queue_pair().transport(Transport::XrcInitiator);
    let initiator = initiator.create().unwrap();
    for pair in [&target, &initiator] {
        let remote = nobody(pair.endpoint());
        let options = Default::default();
        pair.to_init().unwrap();
        let step = pair.ready_to_receive(&remote, &options).unwrap();
        let step = step.incoming_reads(1).min_rnr_timer(12);
        pair.modify(&step).unwrap();
        let step = pair.ready_to_send(&remote, &options).unwrap();
        let step = step.retries(7).rnr_retries(7).outgoing_reads(1);
        pair.modify(&step).unwrap();
    }
    let change = Modification::new().qkey(1);
    let flaws = change.flaws(Transport::XrcTarget, QueuePairState::ReadyToSend);
    assert_eq!(flaws, [ModificationFlaw::Misplaced(AttributeMask::QKEY)]);
}
