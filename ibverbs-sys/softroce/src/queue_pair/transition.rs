//! The legal state transitions of queue pairs, and the attributes that each transition requires or
//! permits: the tables of IBTA 10.3.1 and 11.2.5.2, with the attribute names of `ibv_modify_qp(3)`.

use bitflags::bitflags;

use crate::proto::{Service, State};

bitflags! {
    /// Attributes that `ibv_modify_qp` sets, with the bits of `ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub(crate) struct Mask: u32 {
        const STATE = 1;
        const CURRENT_STATE = 1 << 1;
        const NOTIFY_DRAINED = 1 << 2;
        const ACCESS = 1 << 3;
        const PARTITION = 1 << 4;
        const PORT = 1 << 5;
        const QUEUE_KEY = 1 << 6;
        const ADDRESS = 1 << 7;
        const PATH_MTU = 1 << 8;
        const TIMEOUT = 1 << 9;
        const RETRY_COUNT = 1 << 10;
        const RNR_RETRY = 1 << 11;
        const RECEIVE_SEQUENCE = 1 << 12;
        const MAX_INITIATED = 1 << 13;
        const ALTERNATE_PATH = 1 << 14;
        const MIN_RNR_TIMER = 1 << 15;
        const SEND_SEQUENCE = 1 << 16;
        const MAX_ACCEPTED = 1 << 17;
        const MIGRATION = 1 << 18;
        const CAPABILITIES = 1 << 19;
        const DESTINATION = 1 << 20;
        const RATE_LIMIT = 1 << 25;
    }
}

/// Rule for a state transition of a queue pair: the attributes that a program must set together
/// with the new state, and the attributes that the program can also set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Attributes that the program must set. The transition fails if one of these attributes is not
    /// set.
    pub(crate) required: Mask,
    /// Attributes that the program may set in addition.
    pub(crate) optional: Mask,
}

impl Rule {
    const NONE: Self = Self {
        required: Mask::empty(),
        optional: Mask::empty(),
    };

    const fn required(required: Mask) -> Self {
        Self {
            required,
            optional: Mask::empty(),
        }
    }

    const fn optional(optional: Mask) -> Self {
        Self {
            required: Mask::empty(),
            optional,
        }
    }
}

/// Returns the attributes that are required and permitted when a queue pair of the service
/// `service` changes from the state `from` to the state `to`. Returns `None` if the transition is
/// illegal.
pub(crate) const fn rule(service: Service, from: State, to: State) -> Option<Rule> {
    Some(match (from, to) {
        // RESET can be entered from all states, and ERROR from all states except RESET.
        (_, State::Reset) => Rule::NONE,
        (State::Reset, State::Error) => return None,
        (_, State::Error) => Rule::NONE,
        (State::Reset, State::Init) => Rule::required(initial(service)),
        (State::Init, State::Init) => Rule::optional(initial(service)),
        (State::Init, State::ReadyToReceive) => to_receive(service),
        (State::ReadyToReceive, State::ReadyToSend) => Rule {
            required: to_send(service),
            optional: in_rts(service),
        },
        (State::ReadyToSend, State::ReadyToSend)
        | (State::SendQueueDrained, State::ReadyToSend) => Rule::optional(in_rts(service)),
        (State::ReadyToSend, State::SendQueueDrained) => Rule::optional(Mask::NOTIFY_DRAINED),
        (State::SendQueueDrained, State::SendQueueDrained) => Rule::optional(drained(service)),
        // Reliable services have no state SQE: a failed send request moves the whole queue pair to
        // ERROR (IBTA 10.3.1.6).
        (State::SendQueueError, State::ReadyToSend) => match service {
            Service::UnreliableDatagram => {
                Rule::optional(Mask::CURRENT_STATE.union(Mask::QUEUE_KEY))
            }
            Service::UnreliableConnection => {
                Rule::optional(Mask::CURRENT_STATE.union(Mask::ACCESS))
            }
            _ => return None,
        },
        _ => return None,
    })
}

/// Returns the attributes of an XRC queue pair of the service `service` that a program may set, but
/// that have no effect. Such attributes are accepted because programs set the same attributes on
/// both sides of an XRC connection.
pub(crate) const fn ignored(service: Service) -> Mask {
    match service {
        Service::XrcInitiator => Mask::MAX_ACCEPTED.union(Mask::MIN_RNR_TIMER),
        Service::XrcTarget => Mask::MAX_INITIATED
            .union(Mask::RETRY_COUNT)
            .union(Mask::RNR_RETRY),
        _ => Mask::empty(),
    }
}

const fn initial(service: Service) -> Mask {
    let common = Mask::PARTITION.union(Mask::PORT);
    match service {
        Service::UnreliableDatagram => common.union(Mask::QUEUE_KEY),
        _ => common.union(Mask::ACCESS),
    }
}

const fn to_receive(service: Service) -> Rule {
    let connected = Mask::ADDRESS
        .union(Mask::PATH_MTU)
        .union(Mask::DESTINATION)
        .union(Mask::RECEIVE_SEQUENCE);
    let required = match service {
        Service::UnreliableDatagram => {
            return Rule::optional(Mask::PARTITION.union(Mask::QUEUE_KEY));
        }
        Service::UnreliableConnection | Service::XrcInitiator => connected,
        Service::ReliableConnection | Service::XrcTarget => connected
            .union(Mask::MAX_ACCEPTED)
            .union(Mask::MIN_RNR_TIMER),
    };
    Rule {
        required,
        optional: Mask::ALTERNATE_PATH
            .union(Mask::ACCESS)
            .union(Mask::PARTITION),
    }
}

const fn to_send(service: Service) -> Mask {
    match service {
        Service::UnreliableDatagram | Service::UnreliableConnection => Mask::SEND_SEQUENCE,
        Service::ReliableConnection | Service::XrcInitiator => Mask::SEND_SEQUENCE
            .union(Mask::TIMEOUT)
            .union(Mask::RETRY_COUNT)
            .union(Mask::RNR_RETRY)
            .union(Mask::MAX_INITIATED),
        Service::XrcTarget => Mask::SEND_SEQUENCE.union(Mask::TIMEOUT),
    }
}

/// Returns the attributes that a program may set when a queue pair of the service `service` enters
/// the state RTS (ready to send) from RTR or SQD, or stays in RTS.
const fn in_rts(service: Service) -> Mask {
    let connected = Mask::CURRENT_STATE
        .union(Mask::ALTERNATE_PATH)
        .union(Mask::ACCESS)
        .union(Mask::MIGRATION);
    match service {
        Service::UnreliableDatagram => Mask::CURRENT_STATE.union(Mask::QUEUE_KEY),
        Service::UnreliableConnection | Service::XrcInitiator => connected,
        Service::ReliableConnection | Service::XrcTarget => connected.union(Mask::MIN_RNR_TIMER),
    }
}

/// Returns the attributes that a program may set while a queue pair of the service `service` stays
/// in the state SQD (send queue drained).
const fn drained(service: Service) -> Mask {
    let connected = Mask::ADDRESS
        .union(Mask::ALTERNATE_PATH)
        .union(Mask::ACCESS)
        .union(Mask::PARTITION)
        .union(Mask::MIGRATION);
    let reliable = connected.union(Mask::PORT).union(Mask::TIMEOUT);
    let requester = Mask::RETRY_COUNT
        .union(Mask::RNR_RETRY)
        .union(Mask::MAX_INITIATED);
    let responder = Mask::MAX_ACCEPTED.union(Mask::MIN_RNR_TIMER);
    match service {
        Service::UnreliableDatagram => Mask::PARTITION.union(Mask::QUEUE_KEY),
        Service::UnreliableConnection => connected,
        Service::ReliableConnection => reliable.union(requester).union(responder),
        Service::XrcInitiator => reliable.union(requester),
        Service::XrcTarget => reliable.union(responder),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{Mask, rule};
    use crate::proto::{Service, State};

    pub(in crate::queue_pair) const SERVICES: [Service; 5] = [
        Service::ReliableConnection,
        Service::UnreliableConnection,
        Service::UnreliableDatagram,
        Service::XrcInitiator,
        Service::XrcTarget,
    ];

    pub(in crate::queue_pair) const STATES: [State; 7] = [
        State::Reset,
        State::Init,
        State::ReadyToReceive,
        State::ReadyToSend,
        State::SendQueueDrained,
        State::SendQueueError,
        State::Error,
    ];

    /// Checks that the legal transitions agree with the state diagram of IBTA 10.3.1, which the
    /// test contains as a table.
    #[test]
    fn transitions_agree_with_the_state_diagram() {
        let diagram = [
            //  to: RESET  INIT   RTR    RTS    SQD    SQE    ERR
            [true, true, false, false, false, false, false], // RESET
            [true, true, true, false, false, false, true],   // INIT
            [true, false, false, true, false, false, true],  // RTR
            [true, false, false, true, true, false, true],   // RTS
            [true, false, false, true, true, false, true],   // SQD
            [true, false, false, true, false, false, true],  // SQE
            [true, false, false, false, false, false, true], // ERR
        ];
        for service in SERVICES {
            let unreliable = matches!(
                service,
                Service::UnreliableConnection | Service::UnreliableDatagram
            );
            for (from, row) in STATES.into_iter().zip(diagram) {
                for (to, legal) in STATES.into_iter().zip(row) {
                    let leaves_sqe = from == State::SendQueueError && to == State::ReadyToSend;
                    let legal = legal && (!leaves_sqe || unreliable);
                    let there = rule(service, from, to).is_some();
                    assert_eq!(there, legal, "{service:?}: {from:?} to {to:?}");
                }
            }
        }
    }

    /// Checks that the required attributes of each transition agree with the list in
    /// `ibv_modify_qp(3)`.
    #[test]
    fn required_attributes_agree_with_the_manual_page() {
        let required = |service, from, to| {
            let mask: Mask = rule(service, from, to).unwrap().required;
            mask.bits()
        };
        let (pkey, port, qkey, access) = (0x10, 0x20, 0x40, 0x8);
        let (av, mtu, dest, rq_psn) = (0x80, 0x100, 0x10_0000, 0x1000);
        let (max_dest, min_rnr) = (0x2_0000, 0x8000);
        let (sq_psn, timeout, retry, rnr, max_rd) = (0x1_0000, 0x200, 0x400, 0x800, 0x2000);
        let lists = [
            (Service::UnreliableDatagram, [pkey | port | qkey, 0, sq_psn]),
            (
                Service::UnreliableConnection,
                [pkey | port | access, av | mtu | dest | rq_psn, sq_psn],
            ),
            (
                Service::ReliableConnection,
                [
                    pkey | port | access,
                    av | mtu | dest | rq_psn | max_dest | min_rnr,
                    sq_psn | timeout | retry | rnr | max_rd,
                ],
            ),
        ];
        for (service, [init, receive, send]) in lists {
            use State::{Init, ReadyToReceive, ReadyToSend, Reset};
            assert_eq!(required(service, Reset, Init), init);
            assert_eq!(required(service, Init, ReadyToReceive), receive);
            assert_eq!(required(service, ReadyToReceive, ReadyToSend), send);
        }
    }

    /// Checks that the optional attributes of each transition of a queue pair agree with table 91
    /// of the IBTA specification. The expected attributes are bits of `ibv_qp_attr_mask`.
    #[test]
    fn optional_attributes_agree_with_the_specification() {
        use State::{Init, ReadyToReceive, ReadyToSend, SendQueueDrained, SendQueueError};
        let init = |key: u32| 0x30 | key;
        let steps = [
            (Init, Init),
            (Init, ReadyToReceive),
            (ReadyToReceive, ReadyToSend),
            (ReadyToSend, ReadyToSend),
            (ReadyToSend, SendQueueDrained),
            (SendQueueDrained, ReadyToSend),
            (SendQueueDrained, SendQueueDrained),
        ];
        let (rc, uc, ud) = (0x4_c00a, 0x4_400a, 0x42);
        let lists = [
            (
                Service::ReliableConnection,
                [init(8), 0x4018, rc, rc, 4, rc, 0x6_eeb8],
            ),
            (
                Service::UnreliableConnection,
                [init(8), 0x4018, uc, uc, 4, uc, 0x4_4098],
            ),
            (
                Service::UnreliableDatagram,
                [init(0x40), 0x50, ud, ud, 4, ud, 0x50],
            ),
            (
                Service::XrcInitiator,
                [init(8), 0x4018, uc, uc, 4, uc, 0x4_6eb8],
            ),
            (
                Service::XrcTarget,
                [init(8), 0x4018, rc, rc, 4, rc, 0x6_c2b8],
            ),
        ];
        for (service, list) in lists {
            for ((from, to), optional) in steps.into_iter().zip(list) {
                let mask = rule(service, from, to).unwrap().optional;
                assert_eq!(
                    mask.bits(),
                    optional,
                    "{service:?} {from:?} {to:?}: {mask:?}"
                );
            }
        }
        let recovery =
            |service| rule(service, SendQueueError, ReadyToSend).map(|rule| rule.optional.bits());
        assert_eq!(recovery(Service::UnreliableDatagram), Some(0x42));
        assert_eq!(recovery(Service::UnreliableConnection), Some(0xa));
    }

    #[test]
    fn no_attribute_is_both_required_and_optional() {
        for service in SERVICES {
            for from in STATES {
                for to in STATES {
                    if let Some(rule) = rule(service, from, to) {
                        assert!(!rule.required.intersects(rule.optional));
                        assert!(!(rule.required | rule.optional).contains(Mask::STATE));
                    }
                }
            }
        }
    }
}
