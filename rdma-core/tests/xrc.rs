//! Extended reliable connections.

mod common;

use std::fs::File;
use std::os::fd::AsFd;

use rdma_core::{Buffer, Context, SharedReceiveQueue, XrcDomain, XrcDomainOpening};

/// A domain of this process, unless the device has none: it says so then.
fn anonymous(context: &Context) -> Option<XrcDomain> {
    match XrcDomain::anonymous(context) {
        Ok(domain) => Some(domain),
        Err(error) => {
            assert!(error.is_unsupported(), "{error}");
            assert!(
                error.to_string().starts_with("ibv_open_xrcd on device"),
                "{error}"
            );
            None
        }
    }
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
fn a_domain_of_a_file_is_there_for_whoever_opens_it() {
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
