//! Flow steering: rules that steer packets to queue pairs.

mod common;

use rdma_core::address::{EthernetMatch, Flow, FlowRule, Ipv4Match, PortMatch};
use rdma_core::{DatagramOptions, QueuePair, Transport};

/// Returns a datagram queue pair, to which a flow can steer packets.
fn datagrams() -> QueuePair {
    let domain = common::context().protection_domain().unwrap();
    let prepared = domain
        .queue_pair()
        .transport(Transport::Datagram)
        .build()
        .unwrap();
    prepared.activate(&DatagramOptions::default()).unwrap()
}

/// Returns a rule for packets that no program sends.
fn rule(port: u8) -> FlowRule {
    let ethernet = EthernetMatch {
        destination: Some([2, 0, 0, 0, 0, 1]),
        ..Default::default()
    };
    let ipv4 = Ipv4Match {
        destination: Some(([192, 0, 2, 1].into(), 32)),
        ..Default::default()
    };
    let udp = PortMatch {
        destination: Some(9),
        ..Default::default()
    };
    FlowRule::matching(port)
        .ethernet(&ethernet)
        .ipv4(&ipv4)
        .udp(&udp)
}

#[test]
fn flows_are_created_or_unsupported() {
    let queue_pair = datagrams();
    let flow = Flow::steer(&queue_pair, &rule(queue_pair.address().port));
    match flow {
        Ok(flow) => {
            drop(queue_pair);
            assert!(!flow.clone().as_raw().is_null());
        }
        Err(error) => {
            assert!(error.is_unsupported(), "{error}");
            assert!(
                error
                    .to_string()
                    .starts_with("ibv_create_flow on queue pair"),
                "{error}"
            );
        }
    }
}
