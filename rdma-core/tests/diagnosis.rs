//! The reasons that errors give for refused modifications.

mod common;

use common::{context, eventually, nobody};
use ibverbs_sys as sys;
use rdma_core::address::{AddressHandle, AddressVector};
use rdma_core::device::LinkLayer;
use rdma_core::queue_pair::{
    AlternatePath, AttributeMask, ManualQueuePair, MigrationState, Modification, ModificationFlaw,
    RefusedModification,
};
use rdma_core::receive::XrcDomain;
use rdma_core::{
    AccessFlags, ConnectOptions, Context, DatagramOptions, Endpoint, Error, Gid, Mtu,
    ProtectionDomain, QueuePairState, Transport,
};

const KINDS: [Transport; 5] = [
    Transport::ReliableConnected,
    Transport::UnreliableConnected,
    Transport::Datagram,
    Transport::XrcInitiator,
    Transport::XrcTarget,
];

fn refusal(outcome: Result<(), Error>) -> Box<RefusedModification> {
    match outcome {
        Err(Error::RefusedModification(refused)) => refused,
        other => panic!("no refused modification but {other:?}"),
    }
}

/// A queue pair that is moved through its states, with the parameters for correct values of every
/// attribute.
struct Subject {
    domain: ProtectionDomain,
    pair: ManualQueuePair,
    remote: Endpoint,
}

impl Subject {
    /// Creates a queue pair of the type `kind`. Returns `None` if the device does not support the
    /// type and the error says so.
    fn new(domain: &ProtectionDomain, kind: Transport) -> Option<Self> {
        let mut builder = domain.queue_pair().transport(kind);
        if kind == Transport::XrcTarget {
            let xrc = common::where_supported(XrcDomain::anonymous(domain.context()))?;
            builder = builder.xrc_domain(&xrc);
        }
        match builder.create() {
            Ok(pair) => Some(Self {
                domain: domain.clone(),
                remote: nobody(pair.endpoint()),
                pair,
            }),
            Err(error) => {
                assert!(error.is_unsupported(), "{error}");
                None
            }
        }
    }

    /// Returns a modification with correct values for every attribute, for a change to the state
    /// `to`.
    fn everything(&self, from: QueuePairState, to: Option<QueuePairState>) -> Modification {
        let vector = AddressVector::to_endpoint(self.pair.address(), &self.remote);
        let change = to.map_or_else(Modification::new, Modification::to);
        change
            .assuming(from)
            .notify_drained(false)
            .access(AccessFlags::REMOTE)
            .pkey_index(0)
            .port(self.pair.address().port)
            .qkey(1)
            .address(vector)
            .path_mtu(Mtu::Mtu256)
            .ack_timeout_exponent(14)
            .retries(7)
            .rnr_retries(7)
            .min_rnr_timer(12)
            .receive_sequence(5)
            .send_sequence(6)
            .outgoing_reads(1)
            .incoming_reads(1)
            .migration(MigrationState::Migrated)
            .destination(self.remote.queue_pair)
            .capacities(Default::default())
            .rate_limit(0)
            .alternate_path(AlternatePath {
                address: vector,
                pkey_index: 0,
                port: vector.port,
                ack_timeout_exponent: 14,
            })
    }

    /// Returns the modification with only the attributes in `mask`.
    fn with(
        &self,
        from: QueuePairState,
        to: Option<QueuePairState>,
        mask: AttributeMask,
    ) -> Modification {
        let all = self.everything(from, to);
        let rest = AttributeMask::known() - mask;
        all.without(rest - AttributeMask::STATE)
    }

    /// Moves the queue pair to a state. Returns `false` if the device has no transition that leads
    /// to the state.
    fn lead_to(&self, state: QueuePairState) -> bool {
        use QueuePairState::{
            Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError,
        };
        let pair = &self.pair;
        pair.to_reset().unwrap();
        let steps: &[QueuePairState] = match state {
            Reset => &[],
            Init => &[Init],
            ReadyToReceive => &[Init, ReadyToReceive],
            ReadyToSend | SendQueueDrain | SendQueueError => &[Init, ReadyToReceive, ReadyToSend],
            _ => &[Init, Error],
        };
        let mut from = Reset;
        for &to in steps {
            let required = Modification::to(to).flaws(pair.kind(), from);
            let mask = required
                .iter()
                .fold(AttributeMask::STATE, |mask, flaw| match flaw {
                    ModificationFlaw::Missing(attribute) => mask | *attribute,
                    other => panic!("{other}"),
                });
            pair.modify(&self.with(from, Some(to), mask)).unwrap();
            from = to;
        }
        match state {
            SendQueueDrain => {
                pair.modify(&Modification::to(SendQueueDrain)).unwrap();
                eventually("a drained queue", || {
                    (!pair.attributes().unwrap().is_draining()).then_some(())
                });
            }
            SendQueueError => {
                if pair.kind() != Transport::UnreliableConnected
                    && pair.kind() != Transport::Datagram
                {
                    return false;
                }
                self.post_a_failure();
                let reached = eventually("an end of RTS", || {
                    let state = pair.state().unwrap();
                    (state != ReadyToSend).then_some(state)
                });
                return reached == SendQueueError;
            }
            _ => {}
        }
        assert_eq!(pair.state(), Ok(state));
        true
    }

    /// Posts a request with a local key that no region has, so that the request fails.
    fn post_a_failure(&self) {
        let vector = AddressVector::to_endpoint(self.pair.address(), &self.remote);
        let handle = AddressHandle::new(&self.domain, &vector).unwrap();
        let mut element = sys::ibv_sge {
            addr: 0x1000,
            length: 8,
            lkey: 0xffff_fff0,
        };
        // SAFETY: every byte pattern is a value of this C struct. The objects that the request
        // points to outlive the request, which has ended in the state SQE or ERR, and the device
        // refuses the memory.
        unsafe {
            let mut wr: sys::ibv_send_wr = std::mem::zeroed();
            wr.opcode = sys::ibv_wr_opcode::IBV_WR_SEND;
            wr.sg_list = &mut element;
            wr.num_sge = 1;
            if self.pair.kind() == Transport::Datagram {
                wr.wr.ud.ah = handle.as_raw();
                wr.wr.ud.remote_qpn = self.remote.queue_pair;
            }
            let mut bad = std::ptr::null_mut();
            assert_eq!(sys::ibv_post_send(self.pair.as_raw(), &mut wr, &mut bad), 0);
        }
        eventually("an end of RTS", || {
            (self.pair.state().unwrap() != QueuePairState::ReadyToSend).then_some(())
        });
    }

    /// Applies a modification, and checks that the specification's tables agree with the device:
    /// they allow what the device allows, and explain what it refuses. Returns whether the device
    /// has applied the modification.
    fn try_out(
        &self,
        from: QueuePairState,
        to: Option<QueuePairState>,
        mask: AttributeMask,
    ) -> bool {
        let wanted = self.with(from, to, mask);
        let flaws = wanted.flaws(self.pair.kind(), from);
        let what = || {
            let to = to.map_or("no other state".into(), |to| to.to_string());
            format!("{}, {from} to {to}, {mask}: {flaws:?}", self.pair.kind())
        };
        match self.pair.modify(&wanted) {
            Ok(()) => {
                assert!(flaws.is_empty(), "the device allows {}", what());
                true
            }
            Err(Error::RefusedModification(refused)) => {
                // The tables contain no features that the device or Linux does not support.
                let lacks = |flaw: &_| matches!(flaw, ModificationFlaw::NotOnLinux(_));
                let lacking = refused.is_unsupported() || refused.flaws.iter().any(lacks);
                let explained = !flaws.is_empty() || lacking;
                assert!(explained, "the device refuses {}: {refused}", what());
                assert!(!refused.flaws.is_empty() || refused.is_unsupported());
                for flaw in &flaws {
                    assert!(refused.flaws.contains(flaw), "{}: {refused}", what());
                }
                assert_eq!(self.pair.state(), Ok(from), "{}", what());
                false
            }
            Err(other) => panic!("{}: {other}", what()),
        }
    }
}

/// Returns the next random number, for masks that no programmer would choose.
fn next(seed: &mut u32) -> u32 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    *seed ^= *seed << 5;
    *seed
}

#[test]
fn tables_and_device_agree_on_every_transition_and_attribute() {
    let domain = context().protection_domain().unwrap();
    let mut seed = 0x1234_5678;
    for kind in KINDS {
        let Some(subject) = Subject::new(&domain, kind) else {
            continue;
        };
        let (mut allowed, mut refused) = (0, 0);
        for from in QueuePairState::ALL {
            if !subject.lead_to(from) {
                continue;
            }
            let targets = QueuePairState::ALL.into_iter().map(Some).chain([None]);
            for to in targets {
                for mask in masks(kind, from, to, &mut seed) {
                    if subject.try_out(from, to, mask) {
                        allowed += 1;
                        assert!(subject.lead_to(from));
                    } else {
                        refused += 1;
                    }
                }
            }
        }
        assert!(allowed > 40 && refused > 500, "{allowed}, {refused}");
    }
}

/// Returns masks for a transition: the required attributes; the same mask with each attribute
/// removed or added; and random masks.
fn masks(
    kind: Transport,
    from: QueuePairState,
    to: Option<QueuePairState>,
    seed: &mut u32,
) -> Vec<AttributeMask> {
    let state = to.map_or(AttributeMask::empty(), |_| AttributeMask::STATE);
    let change = to.map_or_else(Modification::new, Modification::to);
    let mut base = state;
    for flaw in change.flaws(kind, from) {
        match flaw {
            ModificationFlaw::Missing(attribute) => base |= attribute,
            // Without a transition, no set of attributes is correct.
            ModificationFlaw::NoTransition { .. } => {
                return vec![state, state | AttributeMask::PORT, AttributeMask::known()];
            }
            other => panic!("{other}"),
        }
    }
    let attributes = AttributeMask::known() - AttributeMask::STATE;
    let mut masks = vec![base];
    masks.extend(attributes.each().map(|attribute| base ^ attribute));
    for _ in 0..10 {
        let few = next(seed) & next(seed);
        masks.push(base ^ (AttributeMask::from_bits_retain(few) & attributes));
    }
    masks
}

/// Returns a reliable connected queue pair in INIT.
fn in_init(domain: &ProtectionDomain) -> ManualQueuePair {
    let pair = domain.queue_pair().create().unwrap();
    pair.to_init().unwrap();
    pair
}

fn to_rtr(pair: &ManualQueuePair) -> Modification {
    let remote = nobody(pair.endpoint());
    pair.ready_to_receive(&remote, &ConnectOptions::default())
        .unwrap()
}

#[test]
fn the_error_names_verb_object_states_and_what_is_missing() {
    let domain = context().protection_domain().unwrap();
    let pair = in_init(&domain);
    let change = to_rtr(&pair).without(AttributeMask::MIN_RNR_TIMER);
    let refused = refusal(pair.modify(&change));
    assert_eq!(refused.from, Some(QueuePairState::Init));
    assert_eq!(refused.to, Some(QueuePairState::ReadyToReceive));
    assert_eq!(refused.mask, change.mask());
    assert_eq!(
        refused.flaws,
        [ModificationFlaw::Missing(AttributeMask::MIN_RNR_TIMER)]
    );
    let text = refused.to_string();
    let name = domain.context().name();
    assert_eq!(
        text,
        format!(
            "ibv_modify_qp on queue pair {:#x} of device {name} (RC, INIT to RTR) failed: \
             Invalid argument (EINVAL): IBV_QP_MIN_RNR_TIMER is missing",
            pair.number()
        )
    );
    let error = Error::RefusedModification(refused);
    assert_eq!(error.errno().unwrap().0, libc_einval());
    let source = std::error::Error::source(&error);
    assert!(source.is_none(), "the message contains the error number");
    let io: std::io::Error = error.into();
    assert_eq!(io.kind(), std::io::ErrorKind::InvalidInput);
}

fn libc_einval() -> i32 {
    22
}

#[test]
fn values_out_of_the_devices_range_are_reported_with_the_range() {
    let context = context();
    let domain = context.protection_domain().unwrap();
    let device = context.attributes().unwrap();
    let pair = in_init(&domain);
    let mtu = pair.address().mtu;
    let mut cases = vec![
        (
            to_rtr(&pair).pkey_index(u16::MAX),
            AttributeMask::PKEY_INDEX,
        ),
        (
            to_rtr(&pair).destination(1 << 24),
            AttributeMask::DESTINATION,
        ),
        (
            to_rtr(&pair).min_rnr_timer(32),
            AttributeMask::MIN_RNR_TIMER,
        ),
    ];
    if let Some(larger) = Mtu::ALL.into_iter().find(|&larger| larger > mtu) {
        cases.push((to_rtr(&pair).path_mtu(larger), AttributeMask::PATH_MTU));
    }
    if let Some(more) = device.max_incoming_reads().checked_add(1) {
        let change = to_rtr(&pair).incoming_reads(more);
        cases.push((change, AttributeMask::INCOMING_READS));
    }
    let remote = nobody(pair.endpoint());
    let options = ConnectOptions::default();
    let step = |change: fn(Modification) -> Modification| {
        change(pair.ready_to_send(&remote, &options).unwrap())
    };
    let timeout = step(|step| step.ack_timeout_exponent(32));
    cases.push((timeout, AttributeMask::ACK_TIMEOUT));
    cases.push((step(|step| step.retries(8)), AttributeMask::RETRIES));
    cases.push((step(|step| step.rnr_retries(8)), AttributeMask::RNR_RETRIES));
    if let Some(more) = device.max_outgoing_reads().checked_add(1) {
        let change = pair.ready_to_send(&remote, &options).unwrap();
        cases.push((change.outgoing_reads(more), AttributeMask::OUTGOING_READS));
    }
    let mut told = 0;
    for (change, attribute) in cases {
        pair.to_reset().unwrap();
        pair.to_init().unwrap();
        if change.state() == Some(QueuePairState::ReadyToSend) {
            pair.to_rtr(&remote, &options).unwrap();
        }
        match pair.modify(&change) {
            Ok(()) => eprintln!("{attribute}: the device does not mind"),
            Err(error) => {
                let refused = refusal(Err(error));
                assert!(
                    matches!(
                        refused.flaws[..],
                        [ModificationFlaw::OutOfRange { attribute: told, .. }] if told == attribute
                    ),
                    "{refused}"
                );
                eprintln!("{refused}");
                told += 1;
            }
        }
    }
    // A device may ignore a wrong value, as Linux's Soft-RoCE does for most attributes.
    assert!(told >= 2, "{told}");
    pair.to_reset().unwrap();
    let refused = refusal(pair.modify(&pair.initial().port(99)));
    let text = refused.to_string();
    assert!(
        text.contains("IBV_QP_PORT is 99, but the device allows 1 to "),
        "{text}"
    );
}

#[test]
fn a_wrong_gid_index_is_reported_with_the_valid_ones() {
    let context = context();
    let domain = context.protection_domain().unwrap();
    let pair = in_init(&domain);
    let remote = nobody(pair.endpoint());
    let vector = AddressVector {
        gid_index: 200,
        ..AddressVector::to_endpoint(pair.address(), &remote)
    };
    let refused = refusal(pair.modify(&to_rtr(&pair).address(vector)));
    let valid = context.gids().unwrap().len();
    assert!(
        matches!(
            &refused.flaws[..],
            [ModificationFlaw::NoSuchGid { index: 200, valid: told }] if told.len() == valid
        ),
        "{refused}"
    );
    assert!(
        refused
            .to_string()
            .contains(&pair.address().gid.to_string())
    );
}

#[test]
fn a_path_without_a_gid_or_from_another_port_is_reported() {
    let domain = context().protection_domain().unwrap();
    let pair = in_init(&domain);
    let remote = nobody(pair.endpoint());
    let right = AddressVector::to_endpoint(pair.address(), &remote);
    let vector = AddressVector { gid: None, ..right };
    let refused = refusal(pair.modify(&to_rtr(&pair).address(vector)));
    assert_eq!(refused.flaws, [ModificationFlaw::NoGid], "{refused}");
    let vector = AddressVector { port: 9, ..right };
    let refused = refusal(pair.modify(&to_rtr(&pair).address(vector)));
    let flaw = ModificationFlaw::OtherPort {
        path: 9,
        queue_pair: right.port,
    };
    assert_eq!(refused.flaws, [flaw], "{refused}");
}

#[test]
fn an_impossible_destination_is_reported() {
    let context = context();
    let domain = context.protection_domain().unwrap();
    let pair = in_init(&domain);
    let remote = nobody(pair.endpoint());
    let right = AddressVector::to_endpoint(pair.address(), &remote);
    for gid in impossible(&context, &pair) {
        let vector = AddressVector {
            gid: Some(gid),
            ..right
        };
        match pair.modify(&to_rtr(&pair).address(vector)) {
            // The device may accept the address, and fail only when it sends the first packet.
            Ok(()) => {
                pair.to_reset().unwrap();
                pair.to_init().unwrap();
            }
            Err(error) => {
                let refused = refusal(Err(error));
                assert!(
                    matches!(
                        refused.flaws[..],
                        [ModificationFlaw::NoPeer(_)
                            | ModificationFlaw::OtherFamily { .. }
                            | ModificationFlaw::NoLoopback { .. }
                            | ModificationFlaw::NoRoute { .. }]
                    ),
                    "{gid}: {refused}"
                );
            }
        }
    }
}

/// Returns GIDs that no peer of the queue pair can have.
fn impossible(context: &Context, pair: &ManualQueuePair) -> Vec<Gid> {
    let mut all = vec![
        Gid::default(),
        "ff02::1".parse::<std::net::IpAddr>().unwrap().into(),
    ];
    let here = pair.address().gid.to_ipv4().is_some();
    let other = context.gids().unwrap();
    let other = other
        .iter()
        .find(|entry| entry.gid.to_ipv4().is_some() != here);
    all.extend(other.map(|entry| entry.gid));
    all
}

#[test]
fn a_forbidden_state_is_reported_with_the_allowed_ones() {
    let domain = context().protection_domain().unwrap();
    let pair = domain.queue_pair().create().unwrap();
    let refused = refusal(pair.modify(&Modification::to(QueuePairState::ReadyToSend)));
    let text = refused.to_string();
    assert!(
        text.ends_with(": RTS does not follow RESET; RESET, INIT can"),
        "{text}"
    );
}

#[test]
fn what_the_device_cannot_do_is_unsupported() {
    let context = context();
    let device = context.attributes().unwrap();
    let flags = device.as_raw().device_cap_flags;
    let domain = context.protection_domain().unwrap();
    let subject = Subject::new(&domain, Transport::ReliableConnected).unwrap();
    assert!(subject.lead_to(QueuePairState::ReadyToSend));
    let migrates = flags & sys::ibv_device_cap_flags::IBV_DEVICE_AUTO_PATH_MIG.0 != 0;
    let state = QueuePairState::ReadyToSend;
    let change = subject.with(state, None, AttributeMask::ALTERNATE_PATH);
    // Linux supports alternate paths on InfiniBand only.
    let infiniband = subject.pair.address().link_layer == LinkLayer::InfiniBand;
    match subject.pair.modify(&change) {
        Ok(()) => assert!(migrates && infiniband),
        Err(error) => assert!(
            error.is_unsupported() && !(migrates && infiniband),
            "{error}"
        ),
    }
    let rearm = Modification::new().migration(MigrationState::Rearm);
    match subject.pair.modify(&rearm) {
        Ok(()) => assert!(migrates),
        Err(error) => assert!(error.is_unsupported() && !migrates, "{error}"),
    }
}

#[test]
fn options_out_of_range_are_refused_before_the_device_sees_them() {
    let domain = context().protection_domain().unwrap();
    let prepared = domain.queue_pair().build().unwrap();
    let remote = prepared.endpoint();
    let refused = prepared.connect(&remote, &ConnectOptions::default().retries(8));
    assert_eq!(
        refused.unwrap_err().to_string(),
        "number of retries: 8 is above 7"
    );
    let prepared = domain
        .queue_pair()
        .transport(Transport::Datagram)
        .build()
        .unwrap();
    let options = DatagramOptions::new(1).packet_sequence(1 << 24);
    assert!(prepared.activate(&options).is_err());
}
