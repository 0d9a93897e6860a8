//! The allowed state transitions of queue pairs, and the attributes that each transition sets. The
//! tables follow the specification (IBTA volume 1, 10.3.1 and 11.2.5.2, and annex A14 for XRC).

use super::{AttributeMask as Set, QueuePairState as State, Transport};

/// The attributes that a modification must set, and the attributes that a modification may set, in
/// a state transition. The state itself is not included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transition {
    /// Attributes that the modification must set.
    pub(super) required: Set,
    /// Attributes that the modification may set besides the required attributes.
    pub(super) optional: Set,
}

/// Returns the attributes that a modification must set, and the attributes that a modification may
/// set, to move a queue pair of type `kind` from the state `from` to the state `to`. Returns `None`
/// if this transition is not allowed.
pub(super) fn transition(kind: Transport, from: State, to: State) -> Option<Transition> {
    let bit = Kinds::of(kind);
    let row = TABLE.iter().find(|row| {
        row.to == to && row.from.is_none_or(|state| state == from) && row.kinds.contains(bit)
    })?;
    // A queue pair in RESET cannot be moved to the error state (IBTA volume 1, figure 124).
    if (from, to) == (State::Reset, State::Error) {
        return None;
    }
    let of_kind = |rows: &[(Kinds, Set)]| {
        let mine = rows.iter().filter(|(kinds, _)| kinds.contains(bit));
        mine.fold(Set::empty(), |all, (_, attributes)| all | *attributes)
    };
    Some(Transition {
        required: of_kind(row.required),
        optional: of_kind(row.optional),
    })
}

/// Returns the attributes that have no effect on an XRC queue pair of type `kind`. An initiator
/// ignores the attributes of responders, and a target ignores the attributes of requesters. Verbs
/// accept these attributes in every transition, because programs set the attributes of both ends
/// alike. For other transport types, returns the empty set.
pub(super) fn ignored(kind: Transport) -> Set {
    match kind {
        Transport::XrcInitiator => Set::INCOMING_READS | Set::MIN_RNR_TIMER,
        Transport::XrcTarget => Set::OUTGOING_READS | Set::RETRIES | Set::RNR_RETRIES,
        _ => Set::empty(),
    }
}

/// Returns the states that can follow the state `from`, for queue pairs of type `kind`.
pub(super) fn successors(kind: Transport, from: State) -> impl Iterator<Item = State> {
    State::ALL
        .into_iter()
        .filter(move |&to| transition(kind, from, to).is_some())
}

/// A set of transport types, with one bit for each type. In the tables of state transitions, each
/// entry contains such a set and applies only to these transport types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kinds(u8);

impl Kinds {
    /// The set that contains only the transport type "reliable connected".
    const RC: Self = Self(1);
    /// The set that contains only the transport type "unreliable connected".
    const UC: Self = Self(1 << 1);
    /// The set that contains only the transport type "unreliable datagram".
    const UD: Self = Self(1 << 2);
    /// The set that contains only the initiator (sending) side of XRC connections.
    const XI: Self = Self(1 << 3);
    /// The set that contains only the target (receiving) side of XRC connections.
    const XT: Self = Self(1 << 4);
    /// The set that contains only the transport type "raw packet".
    const RAW: Self = Self(1 << 5);
    const ALL: Self = Self(0x3f);
    const CONNECTED: Self = Self::RC.or(Self::UC).or(Self::XI).or(Self::XT);
    const RELIABLE: Self = Self::RC.or(Self::XI).or(Self::XT);
    /// The set of transport types whose queue pairs send requests and wait for responses. These
    /// queue pairs need timeouts and retries.
    const REQUESTER: Self = Self::RC.or(Self::XI);
    /// The set of reliable transport types whose queue pairs execute the peer's requests.
    /// Attributes such as the maximum number of incoming RDMA reads apply to these queue pairs.
    const RESPONDER: Self = Self::RC.or(Self::XT);

    const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn contains(self, kind: Self) -> bool {
        self.0 & kind.0 != 0
    }

    fn of(kind: Transport) -> Self {
        match kind {
            Transport::ReliableConnected => Self::RC,
            Transport::UnreliableConnected => Self::UC,
            Transport::Datagram => Self::UD,
            Transport::XrcInitiator => Self::XI,
            Transport::XrcTarget => Self::XT,
            Transport::RawPacket => Self::RAW,
            // Vendor-specific queue pair types have no public requirements.
            Transport::Driver | Transport::Unknown(_) => Self(0),
        }
    }
}

/// One row of the table of state transitions: the states before and after the transition, and the
/// attributes that a modification must or may set. Each set of attributes is listed with the
/// transport types to which the attributes apply.
struct Row {
    /// The state before the transition; `None` means every state.
    from: Option<State>,
    to: State,
    kinds: Kinds,
    required: &'static [(Kinds, Set)],
    optional: &'static [(Kinds, Set)],
}

const fn set(bits: &[Set]) -> Set {
    let (mut all, mut at) = (Set::empty(), 0);
    while at < bits.len() {
        all = all.union(bits[at]);
        at += 1;
    }
    all
}

/// The optional attributes of a transition from RTR, RTS or SQD to RTS (ready to send). Each entry
/// lists attributes and the transport types to which these attributes apply.
const RUNNING: &[(Kinds, Set)] = &[
    (Kinds::CONNECTED.or(Kinds::UD), set(&[Set::CURRENT_STATE])),
    (
        Kinds::CONNECTED,
        set(&[Set::ACCESS, Set::ALTERNATE_PATH, Set::MIGRATION]),
    ),
    (Kinds::RESPONDER, set(&[Set::MIN_RNR_TIMER])),
    (Kinds::UD, set(&[Set::QKEY])),
    // Packet pacing is an extension of verbs, not of the specification.
    (Kinds::RAW, set(&[Set::RATE_LIMIT])),
];

/// The attributes that a modification must set to move a queue pair from RESET to INIT. A
/// modification may also set these attributes while the queue pair stays in INIT. Each entry lists
/// attributes and the transport types to which these attributes apply.
const INITIAL: &[(Kinds, Set)] = &[
    (Kinds::ALL, set(&[Set::PORT])),
    (Kinds::CONNECTED.or(Kinds::UD), set(&[Set::PKEY_INDEX])),
    (Kinds::CONNECTED, set(&[Set::ACCESS])),
    (Kinds::UD, set(&[Set::QKEY])),
];

/// All allowed state transitions of queue pairs (IBTA volume 1, table 91).
const TABLE: &[Row] = &[
    Row {
        from: None,
        to: State::Reset,
        kinds: Kinds::ALL,
        required: &[],
        optional: &[],
    },
    Row {
        from: None,
        to: State::Error,
        kinds: Kinds::ALL,
        required: &[],
        optional: &[],
    },
    Row {
        from: Some(State::Reset),
        to: State::Init,
        kinds: Kinds::ALL,
        required: INITIAL,
        optional: &[],
    },
    Row {
        from: Some(State::Init),
        to: State::Init,
        kinds: Kinds::ALL,
        required: &[],
        optional: INITIAL,
    },
    Row {
        from: Some(State::Init),
        to: State::ReadyToReceive,
        kinds: Kinds::ALL,
        required: &[
            (
                Kinds::CONNECTED,
                set(&[
                    Set::ADDRESS,
                    Set::PATH_MTU,
                    Set::DESTINATION,
                    Set::RECEIVE_SEQUENCE,
                ]),
            ),
            (
                Kinds::RESPONDER,
                set(&[Set::INCOMING_READS, Set::MIN_RNR_TIMER]),
            ),
        ],
        optional: &[
            (Kinds::CONNECTED.or(Kinds::UD), set(&[Set::PKEY_INDEX])),
            (Kinds::CONNECTED, set(&[Set::ALTERNATE_PATH, Set::ACCESS])),
            (Kinds::UD, set(&[Set::QKEY])),
        ],
    },
    Row {
        from: Some(State::ReadyToReceive),
        to: State::ReadyToSend,
        kinds: Kinds::ALL,
        required: &[
            (Kinds::CONNECTED.or(Kinds::UD), set(&[Set::SEND_SEQUENCE])),
            (Kinds::RELIABLE, set(&[Set::ACK_TIMEOUT])),
            (
                Kinds::REQUESTER,
                set(&[Set::RETRIES, Set::RNR_RETRIES, Set::OUTGOING_READS]),
            ),
        ],
        optional: RUNNING,
    },
    Row {
        from: Some(State::ReadyToSend),
        to: State::ReadyToSend,
        kinds: Kinds::ALL,
        required: &[],
        optional: RUNNING,
    },
    Row {
        from: Some(State::ReadyToSend),
        to: State::SendQueueDrain,
        kinds: Kinds::ALL,
        required: &[],
        optional: &[(Kinds::ALL, set(&[Set::NOTIFY_DRAINED]))],
    },
    Row {
        from: Some(State::SendQueueDrain),
        to: State::ReadyToSend,
        kinds: Kinds::ALL,
        required: &[],
        optional: RUNNING,
    },
    Row {
        from: Some(State::SendQueueDrain),
        to: State::SendQueueDrain,
        kinds: Kinds::ALL,
        required: &[],
        optional: &[
            (Kinds::CONNECTED.or(Kinds::UD), set(&[Set::PKEY_INDEX])),
            (
                Kinds::CONNECTED,
                set(&[
                    Set::ADDRESS,
                    Set::ALTERNATE_PATH,
                    Set::ACCESS,
                    Set::MIGRATION,
                ]),
            ),
            (Kinds::RELIABLE, set(&[Set::PORT, Set::ACK_TIMEOUT])),
            (
                Kinds::REQUESTER,
                set(&[Set::RETRIES, Set::RNR_RETRIES, Set::OUTGOING_READS]),
            ),
            (
                Kinds::RESPONDER,
                set(&[Set::INCOMING_READS, Set::MIN_RNR_TIMER]),
            ),
            (Kinds::UD, set(&[Set::QKEY])),
        ],
    },
    Row {
        from: Some(State::SendQueueError),
        to: State::ReadyToSend,
        // On acknowledged transports, a failed send fails the whole queue pair (IBTA volume 1,
        // 10.3.1.6).
        kinds: Kinds::UC.or(Kinds::UD).or(Kinds::RAW),
        required: &[],
        optional: &[
            (Kinds::UC.or(Kinds::UD), set(&[Set::CURRENT_STATE])),
            (Kinds::UC, set(&[Set::ACCESS])),
            (Kinds::UD, set(&[Set::QKEY])),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use State::{
        Error, Init, ReadyToReceive as Rtr, ReadyToSend as Rts, Reset, SendQueueDrain as Sqd,
        SendQueueError as Sqe,
    };
    use Transport::{
        Datagram as Ud, RawPacket as Raw, ReliableConnected as Rc, UnreliableConnected as Uc,
        XrcInitiator as Xi, XrcTarget as Xt,
    };

    /// Checks that the allowed state transitions are the transitions of figure 124 of the
    /// specification. In the expected text, each row belongs to a state, in the order of
    /// `State::ALL`. Each letter in the row is a state that can follow this state.
    #[test]
    fn the_states_follow_each_other_as_in_the_diagram() {
        let connected = ["ri", "rige", "rse", "rsde", "rsde", "re", "re"];
        let unreliable = ["ri", "rige", "rse", "rsde", "rsde", "rse", "re"];
        let letters = [
            ('r', Reset),
            ('i', Init),
            ('g', Rtr),
            ('s', Rts),
            ('d', Sqd),
            ('q', Sqe),
            ('e', Error),
        ];
        for (kind, rows) in [
            (Rc, connected),
            (Xi, connected),
            (Xt, connected),
            (Uc, unreliable),
            (Ud, unreliable),
            (Raw, unreliable),
        ] {
            for (from, row) in State::ALL.into_iter().zip(rows) {
                let wanted: Vec<State> = letters
                    .into_iter()
                    .filter(|(letter, _)| row.contains(*letter))
                    .map(|(_, state)| state)
                    .collect();
                let found: Vec<State> = successors(kind, from).collect();
                assert_eq!(found, wanted, "{kind} from {from}");
            }
        }
    }

    /// Compares the required attributes of each transition with `ibv_modify_qp(3)` and, for XRC,
    /// with annex A14. The numbers are masks of `ibv_qp_attr_mask` bits.
    #[test]
    fn the_required_attributes_are_those_of_the_manual() {
        for (kind, init, rtr, rts) in [
            (Rc, 0x38, 0x12_9180, 0x1_2e00),
            (Uc, 0x38, 0x10_1180, 0x1_0000),
            (Ud, 0x70, 0, 0x1_0000),
            (Raw, 0x20, 0, 0),
            (Xi, 0x38, 0x10_1180, 0x1_2e00),
            (Xt, 0x38, 0x12_9180, 0x1_0200),
        ] {
            for (from, to, bits) in [(Reset, Init, init), (Init, Rtr, rtr), (Rtr, Rts, rts)] {
                let found = transition(kind, from, to).unwrap().required;
                assert_eq!(found.bits(), bits, "{kind}, {from} to {to}: {found}");
            }
            for (from, to) in [(Init, Init), (Rts, Rts), (Rts, Sqd), (Sqd, Sqd), (Sqd, Rts)] {
                let found = transition(kind, from, to).unwrap().required;
                assert_eq!(found, Set::empty(), "{kind}, {from} to {to}");
            }
        }
    }

    /// Checks the optional attributes of every transition. The numbers are masks of
    /// `ibv_qp_attr_mask` bits.
    #[test]
    fn the_optional_attributes_are_those_of_the_specification() {
        let bits = |kind, from, to| transition(kind, from, to).map(|it| it.optional.bits());
        let to_rtr = |kind| bits(kind, Init, Rtr);
        let running = [(Rtr, Rts), (Rts, Rts), (Sqd, Rts)];
        for (kind, init, rtr, run, sqd) in [
            (Rc, 0x38, 0x4018, 0x4_c00a, 0x6_eeb8),
            (Uc, 0x38, 0x4018, 0x4_400a, 0x4_4098),
            (Ud, 0x70, 0x50, 0x42, 0x50),
            (Xi, 0x38, 0x4018, 0x4_400a, 0x4_6eb8),
            (Xt, 0x38, 0x4018, 0x4_c00a, 0x6_c2b8),
        ] {
            assert_eq!(bits(kind, Init, Init), Some(init), "{kind}");
            assert_eq!(to_rtr(kind), Some(rtr), "{kind}");
            for (from, to) in running {
                assert_eq!(bits(kind, from, to), Some(run), "{kind}, {from} to {to}");
            }
            assert_eq!(bits(kind, Rts, Sqd), Some(4), "{kind}");
            assert_eq!(bits(kind, Sqd, Sqd), Some(sqd), "{kind}");
        }
        assert_eq!(bits(Raw, Init, Init), Some(0x20));
        assert_eq!(to_rtr(Raw), Some(0));
        assert_eq!(bits(Raw, Rtr, Rts), Some(1 << 25));
        assert_eq!(bits(Raw, Rts, Rts), Some(1 << 25));
        assert_eq!(bits(Uc, Sqe, Rts), Some(0xa));
        assert_eq!(bits(Ud, Sqe, Rts), Some(0x42));
        assert_eq!(bits(Raw, Sqe, Rts), Some(0));
        for kind in Transport::ALL {
            for from in State::ALL {
                for to in [Reset, Error] {
                    assert_eq!(
                        bits(kind, from, to).unwrap_or(0),
                        0,
                        "{kind}, {from} to {to}"
                    );
                }
            }
        }
    }

    #[test]
    fn no_attribute_is_both_required_and_optional_and_none_is_the_state() {
        for kind in Transport::ALL {
            for from in State::ALL {
                for to in State::ALL {
                    let Some(it) = transition(kind, from, to) else {
                        continue;
                    };
                    assert!(!it.required.intersects(it.optional), "{kind} {from} {to}");
                    assert!(!(it.required | it.optional).contains(Set::STATE));
                    assert!(!it.required.intersects(ignored(kind)), "{kind} {from} {to}");
                }
            }
        }
        assert_eq!(transition(Transport::Driver, Reset, Init), None);
    }
}
