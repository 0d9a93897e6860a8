use std::net::Ipv6Addr;
use std::time::Duration;

use ibverbs_sys::{ibv_mig_state, ibv_mtu, ibv_qp_attr, ibv_qp_state};

use super::device::Adapter;
use super::error::ModifyError;
use super::transition::{self, Mask};
use crate::limits::{MAX_PKEYS, MAX_QP_INIT_RD_ATOM, MAX_QP_RD_ATOM, PORTS};
use crate::multicast::canonical;
use crate::proto::{AccessFlags, Attributes, Mtu, Path, Sequence, Service, State};

/// Arguments of `ibv_modify_qp`.
#[derive(Clone, Copy)]
pub(crate) struct Modification<'a> {
    /// The attribute mask that the program has passed.
    pub(crate) mask: u32,
    /// The attribute values.
    pub(crate) values: &'a ibv_qp_attr,
    /// The destination GID in the attribute values (`ah_attr.grh.dgid`), which is the address of
    /// the peer.
    pub(crate) destination: Ipv6Addr,
}

/// Properties of a queue pair before a modification. The arguments of the modification are checked
/// against these properties.
#[derive(Clone, Copy, Debug)]
pub(super) struct PresentState {
    pub(super) service: Service,
    pub(super) state: State,
    /// Set if the queue pair is in SQD and requests that were started before are still in progress.
    pub(super) draining: bool,
    /// The number of the port to which the queue pair is bound.
    pub(super) port: u8,
}

/// Result of [`check`]: the changes of a modification that has passed all checks, and can be
/// applied without failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// State that the queue pair enters, or `None` if its state does not change.
    pub(super) enter: Option<State>,
    /// Attributes that the modification sets, besides the state of the queue pair.
    pub(super) set: Mask,
    /// New path to the peer, or `None` if the modification does not set the path.
    path: Option<Path>,
}

/// Checks all arguments of the modification `wanted`, before the queue pair is changed. `present`
/// contains the present properties of the queue pair, and `device` is its NIC. Returns the changes
/// that the caller must then apply.
pub(super) fn check(
    present: PresentState,
    wanted: &Modification<'_>,
    device: &dyn Adapter,
) -> Result<Plan, ModifyError> {
    let PresentState { service, state, .. } = present;
    let values = wanted.values;
    let mask = Mask::from_bits(wanted.mask)
        .ok_or(ModifyError::Unknown(wanted.mask & !Mask::all().bits()))?
        - transition::ignored(service);
    let to = if mask.contains(Mask::STATE) {
        state_of(values.qp_state)?
    } else {
        state
    };
    if mask.contains(Mask::CURRENT_STATE) && state_of(values.cur_qp_state)? != state {
        return Err(ModifyError::Current(state));
    }
    let rule =
        transition::rule(service, state, to).ok_or(ModifyError::Transition { from: state, to })?;
    let mut set = mask - Mask::STATE;
    if !set.contains(rule.required) {
        return Err(ModifyError::Missing(rule.required - set));
    }
    if !(rule.required | rule.optional).contains(set) {
        return Err(ModifyError::Excess(set - rule.required - rule.optional));
    }
    // Attributes must not change while requests are in progress (IBTA 10.3.1.5). RESET and ERROR
    // may be entered at any time.
    if present.draining && !matches!(to, State::Reset | State::Error) {
        return Err(ModifyError::Draining);
    }
    check_ranges(set, values, device)?;
    let mut path = None;
    if set.contains(Mask::ADDRESS) {
        let bound = if set.contains(Mask::PORT) {
            values.port_num
        } else {
            present.port
        };
        if values.ah_attr.port_num != bound {
            return Err(ModifyError::Range(Mask::ADDRESS));
        }
        path = Some(way(wanted, device)?);
    }
    set.remove(Mask::CURRENT_STATE);
    Ok(Plan {
        enter: mask.contains(Mask::STATE).then_some(to),
        set,
        path,
    })
}

fn check_ranges(set: Mask, values: &ibv_qp_attr, device: &dyn Adapter) -> Result<(), ModifyError> {
    let range = |attribute, fits: bool| {
        if fits || !set.contains(attribute) {
            Ok(())
        } else {
            Err(ModifyError::Range(attribute))
        }
    };
    range(Mask::PORT, (1..=PORTS).contains(&values.port_num))?;
    range(Mask::PARTITION, values.pkey_index < MAX_PKEYS)?;
    range(
        Mask::ACCESS,
        AccessFlags::from_bits(values.qp_access_flags).is_some(),
    )?;
    range(
        Mask::PATH_MTU,
        mtu_of(values.path_mtu).is_some_and(|mtu| mtu <= device.mtu()),
    )?;
    range(Mask::TIMEOUT, values.timeout < 32)?;
    range(Mask::RETRY_COUNT, values.retry_cnt < 8)?;
    range(Mask::RNR_RETRY, values.rnr_retry < 8)?;
    range(Mask::MIN_RNR_TIMER, values.min_rnr_timer < 32)?;
    range(
        Mask::MAX_INITIATED,
        values.max_rd_atomic <= MAX_QP_INIT_RD_ATOM,
    )?;
    range(
        Mask::MAX_ACCEPTED,
        values.max_dest_rd_atomic <= MAX_QP_RD_ATOM,
    )?;
    range(Mask::DESTINATION, values.dest_qp_num < 1 << 24)?;
    // Automatic path migration is not supported: there is no alternate path, and the state is
    // always "migrated" (IBTA 17.2.8).
    let migrated = values.path_mig_state == ibv_mig_state::IBV_MIG_MIGRATED;
    if set.contains(Mask::ALTERNATE_PATH) || (set.contains(Mask::MIGRATION) && !migrated) {
        return Err(ModifyError::Migration);
    }
    Ok(())
}

fn way(wanted: &Modification<'_>, device: &dyn Adapter) -> Result<Path, ModifyError> {
    let address = &wanted.values.ah_attr;
    if address.is_global == 0 {
        // IBTA annex A17.4.4: RoCE addresses are GIDs, so a GRH is required.
        return Err(ModifyError::NoRoute);
    }
    let route = &address.grh;
    if device.gid(route.sgid_index).is_none() {
        return Err(ModifyError::Source(route.sgid_index));
    }
    let destination = wanted.destination;
    let path = Path {
        source: route.sgid_index,
        destination,
        traffic_class: route.traffic_class,
        hop_limit: route.hop_limit,
        flow_label: route.flow_label & 0xf_ffff,
    };
    let is_none = |address: Ipv6Addr| {
        let mapped = address.to_ipv4_mapped();
        address.is_unspecified() || mapped.is_some_and(|address| address.is_unspecified())
    };
    if canonical(destination).is_some() || is_none(destination) || !device.can_send_on(&path) {
        return Err(ModifyError::Destination);
    }
    Ok(path)
}

impl Plan {
    /// Copies each attribute that this modification changes from `values`, the program's structure,
    /// to `to`, the attributes that the transport (protocol code) uses.
    pub(super) fn apply(&self, values: &ibv_qp_attr, to: &mut Attributes) {
        let set = |attribute| self.set.contains(attribute);
        if let Some(path) = self.path {
            to.path = Some(path);
        }
        if set(Mask::ACCESS) {
            to.access = AccessFlags::from_bits_truncate(values.qp_access_flags);
        }
        if set(Mask::QUEUE_KEY) {
            to.queue_key = values.qkey;
        }
        if set(Mask::PATH_MTU)
            && let Some(mtu) = mtu_of(values.path_mtu)
        {
            to.path_mtu = mtu;
        }
        if set(Mask::TIMEOUT) {
            to.ack_timeout = timeout(values.timeout);
        }
        if set(Mask::RETRY_COUNT) {
            to.retry_count = values.retry_cnt;
        }
        if set(Mask::RNR_RETRY) {
            to.rnr_retry = values.rnr_retry;
        }
        if set(Mask::MIN_RNR_TIMER) {
            to.min_rnr_timer = values.min_rnr_timer;
        }
        if set(Mask::MAX_INITIATED) {
            to.max_initiated = values.max_rd_atomic;
        }
        if set(Mask::MAX_ACCEPTED) {
            to.max_accepted = values.max_dest_rd_atomic;
        }
        if set(Mask::DESTINATION) {
            to.destination = values.dest_qp_num;
        }
        if set(Mask::SEND_SEQUENCE) {
            to.send_sequence = Sequence::new(values.sq_psn);
        }
        if set(Mask::RECEIVE_SEQUENCE) {
            to.receive_sequence = Sequence::new(values.rq_psn);
        }
    }

    /// Copies the attributes that this modification sets from `values`, the program's structure, to
    /// `as_set`, which `ibv_query_qp` returns later.
    pub(super) fn store(&self, values: &ibv_qp_attr, as_set: &mut ibv_qp_attr) {
        macro_rules! remember {
            ($($attribute:ident => $($field:ident),+;)+) => {
                $(if self.set.contains(Mask::$attribute) {
                    $(as_set.$field = values.$field;)+
                })+
            };
        }
        remember! {
            NOTIFY_DRAINED => en_sqd_async_notify;
            ACCESS => qp_access_flags;
            PARTITION => pkey_index;
            PORT => port_num;
            QUEUE_KEY => qkey;
            ADDRESS => ah_attr;
            PATH_MTU => path_mtu;
            TIMEOUT => timeout;
            RETRY_COUNT => retry_cnt;
            RNR_RETRY => rnr_retry;
            MAX_INITIATED => max_rd_atomic;
            MIN_RNR_TIMER => min_rnr_timer;
            MAX_ACCEPTED => max_dest_rd_atomic;
            DESTINATION => dest_qp_num;
        }
    }
}

/// Returns the duration of the timeout code `code` of `ibv_qp_attr`: 4.096 µs times two to the
/// power of the code. Returns `None` (no timeout) for the code 0 (IBTA 9.9.2.1.1).
fn timeout(code: u8) -> Option<Duration> {
    (code != 0).then(|| Duration::from_nanos(4096 << code))
}

/// Converts a queue pair state of the C ABI (`ibv_qp_state`) to [`State`]. Fails if the number is
/// not a state.
pub(super) fn state_of(state: ibv_qp_state) -> Result<State, ModifyError> {
    Ok(match state {
        ibv_qp_state::IBV_QPS_RESET => State::Reset,
        ibv_qp_state::IBV_QPS_INIT => State::Init,
        ibv_qp_state::IBV_QPS_RTR => State::ReadyToReceive,
        ibv_qp_state::IBV_QPS_RTS => State::ReadyToSend,
        ibv_qp_state::IBV_QPS_SQD => State::SendQueueDrained,
        ibv_qp_state::IBV_QPS_SQE => State::SendQueueError,
        ibv_qp_state::IBV_QPS_ERR => State::Error,
        other => return Err(ModifyError::NoState(other.0)),
    })
}

/// Returns the value of a queue pair state in the C ABI.
pub(crate) fn number_of(state: State) -> ibv_qp_state {
    match state {
        State::Reset => ibv_qp_state::IBV_QPS_RESET,
        State::Init => ibv_qp_state::IBV_QPS_INIT,
        State::ReadyToReceive => ibv_qp_state::IBV_QPS_RTR,
        State::ReadyToSend => ibv_qp_state::IBV_QPS_RTS,
        State::SendQueueDrained => ibv_qp_state::IBV_QPS_SQD,
        State::SendQueueError => ibv_qp_state::IBV_QPS_SQE,
        State::Error => ibv_qp_state::IBV_QPS_ERR,
    }
}

/// Returns the value of the MTU `mtu` in the C ABI.
pub(super) fn mtu_number(mtu: Mtu) -> ibv_mtu {
    match mtu {
        Mtu::Mtu256 => ibv_mtu::IBV_MTU_256,
        Mtu::Mtu512 => ibv_mtu::IBV_MTU_512,
        Mtu::Mtu1024 => ibv_mtu::IBV_MTU_1024,
        Mtu::Mtu2048 => ibv_mtu::IBV_MTU_2048,
        Mtu::Mtu4096 => ibv_mtu::IBV_MTU_4096,
    }
}

fn mtu_of(mtu: ibv_mtu) -> Option<Mtu> {
    Some(match mtu {
        ibv_mtu::IBV_MTU_256 => Mtu::Mtu256,
        ibv_mtu::IBV_MTU_512 => Mtu::Mtu512,
        ibv_mtu::IBV_MTU_1024 => Mtu::Mtu1024,
        ibv_mtu::IBV_MTU_2048 => Mtu::Mtu2048,
        ibv_mtu::IBV_MTU_4096 => Mtu::Mtu4096,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::mem;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::time::Duration;

    use ibverbs_sys::{ibv_mig_state, ibv_mtu, ibv_qp_attr, ibv_qp_state};

    use super::{Modification, ModifyError, Plan, PresentState, check, number_of, state_of};
    use crate::limits::{MAX_QP_INIT_RD_ATOM, MAX_QP_RD_ATOM};
    use crate::proto::{AccessFlags, Attributes, Mtu, Path, Sequence, Service, State};
    use crate::queue_pair::device::tests::TestDevice;
    use crate::queue_pair::transition::tests::{SERVICES, STATES};
    use crate::queue_pair::transition::{Mask, ignored, rule};

    const PEER: Ipv6Addr = Ipv4Addr::new(127, 4, 5, 6).to_ipv6_mapped();

    /// Returns a structure for `ibv_modify_qp` in which all attributes have valid values, for
    /// tests.
    fn values() -> ibv_qp_attr {
        let mut values = ibv_qp_attr {
            path_mtu: ibv_mtu::IBV_MTU_1024,
            path_mig_state: ibv_mig_state::IBV_MIG_MIGRATED,
            qkey: 0x1234,
            rq_psn: 0xff00_0001,
            sq_psn: 0xff00_0002,
            dest_qp_num: 0xff_ffff,
            qp_access_flags: 0b1111,
            ..ibv_qp_attr::default()
        };
        values.ah_attr.is_global = 1;
        values.ah_attr.port_num = 1;
        values.ah_attr.grh.hop_limit = 3;
        values.ah_attr.grh.traffic_class = 4;
        values.ah_attr.grh.flow_label = 0xfff_ffff;
        values.port_num = 1;
        values.timeout = 14;
        values.retry_cnt = 7;
        values.rnr_retry = 7;
        values.min_rnr_timer = 31;
        values.max_rd_atomic = MAX_QP_INIT_RD_ATOM;
        values.max_dest_rd_atomic = MAX_QP_RD_ATOM;
        values.en_sqd_async_notify = 1;
        values
    }

    fn present(service: Service, state: State) -> PresentState {
        PresentState {
            service,
            state,
            draining: false,
            port: if state == State::Reset { 0 } else { 1 },
        }
    }

    fn checked(
        present: PresentState,
        to: State,
        mask: Mask,
        change: impl FnOnce(&mut ibv_qp_attr),
    ) -> Result<Plan, ModifyError> {
        let mut values = values();
        values.qp_state = number_of(to);
        values.cur_qp_state = number_of(present.state);
        change(&mut values);
        let wanted = Modification {
            mask: mask.bits(),
            values: &values,
            destination: PEER,
        };
        check(present, &wanted, &TestDevice::default())
    }

    /// Checks, for every service and every pair of states, which attributes a modification of a
    /// queue pair requires, permits or forbids. The modification must fail without a required
    /// attribute, and with a forbidden attribute.
    #[test]
    fn each_attribute_is_required_allowed_or_refused() {
        let mut cases = 0;
        for service in SERVICES {
            for from in STATES {
                for to in STATES {
                    cases += each_attribute(present(service, from), to);
                }
            }
        }
        // For each legal pair: 21 attributes besides the state; again without the state where it is
        // kept (five pairs). Three masks for each illegal pair. Reliable services have 21 legal
        // pairs of 49, the two others also SQE to RTS.
        let all = |legal: usize| (legal + 5) * 21 + (49 - legal) * 3;
        assert_eq!(cases, 3 * all(21) + 2 * all(22));
    }

    fn each_attribute(present: PresentState, to: State) -> usize {
        let PresentState { service, state, .. } = present;
        let Some(rule) = rule(service, state, to) else {
            for mask in [Mask::STATE, Mask::STATE | Mask::PORT, Mask::all()] {
                let result = checked(present, to, mask, |_| ());
                let refused = Err(ModifyError::Transition { from: state, to });
                assert_eq!(result, refused, "{service:?}");
            }
            return 3;
        };
        let mut cases = 0;
        let mut bases = vec![Mask::STATE | rule.required];
        if state == to {
            bases.push(rule.required);
        }
        for base in bases {
            let what = |attribute: Mask| format!("{service:?} {state:?} to {to:?}: {attribute:?}");
            let plan = checked(present, to, base, |_| ()).unwrap_or_else(|error| {
                panic!("{}: {error}", what(base));
            });
            assert_eq!(plan.enter, base.contains(Mask::STATE).then_some(to));
            for attribute in Mask::all() - Mask::STATE {
                cases += 1;
                let mask = base ^ attribute;
                let result = checked(present, to, mask, |_| ());
                let what = what(attribute);
                if rule.required.contains(attribute) {
                    assert_eq!(result, Err(ModifyError::Missing(attribute)), "{what}");
                } else if ignored(service).contains(attribute) {
                    assert_eq!(result, Ok(plan), "{what}");
                } else if !rule.optional.contains(attribute) {
                    assert_eq!(result, Err(ModifyError::Excess(attribute)), "{what}");
                } else if attribute == Mask::ALTERNATE_PATH {
                    assert_eq!(result, Err(ModifyError::Migration), "{what}");
                } else {
                    let set = plan.set | (attribute - Mask::CURRENT_STATE);
                    assert_eq!(result.map(|plan| plan.set), Ok(set), "{what}");
                }
            }
        }
        cases
    }

    #[test]
    fn unknown_mask_bits_and_states_are_refused() {
        let rts = present(Service::ReliableConnection, State::ReadyToSend);
        let error = checked(
            rts,
            State::Error,
            Mask::from_bits_retain(1 << 21 | 1),
            |_| (),
        );
        assert_eq!(error, Err(ModifyError::Unknown(1 << 21)));
        assert_eq!(error.unwrap_err().errno(), libc::EOPNOTSUPP);
        for wrong in [ibv_qp_state::IBV_QPS_UNKNOWN, ibv_qp_state(u32::MAX)] {
            let error = checked(rts, State::Error, Mask::STATE, |v| v.qp_state = wrong);
            assert_eq!(error, Err(ModifyError::NoState(wrong.0)));
            assert_eq!(error.unwrap_err().errno(), libc::EINVAL);
        }
        for state in STATES {
            assert_eq!(state_of(number_of(state)), Ok(state));
        }
    }

    #[test]
    fn a_wrong_current_state_is_refused() {
        for service in SERVICES {
            for state in [State::ReadyToSend, State::SendQueueDrained] {
                for told in STATES {
                    let mask = Mask::STATE | Mask::CURRENT_STATE;
                    let result = checked(present(service, state), State::ReadyToSend, mask, |v| {
                        v.cur_qp_state = number_of(told);
                    });
                    let expected = (told != state).then_some(ModifyError::Current(state));
                    assert_eq!(result.err(), expected);
                }
            }
        }
    }

    #[test]
    fn values_outside_their_ranges_are_refused() {
        type Change = fn(&mut ibv_qp_attr);
        let init = (State::Reset, State::Init);
        let receive = (State::Init, State::ReadyToReceive);
        let send = (State::ReadyToReceive, State::ReadyToSend);
        let cases: [((State, State), Mask, Change); 20] = [
            (init, Mask::PORT, |v| v.port_num = 0),
            (init, Mask::PORT, |v| v.port_num = 2),
            (init, Mask::PARTITION, |v| v.pkey_index = 1),
            (init, Mask::PARTITION, |v| v.pkey_index = u16::MAX),
            (init, Mask::ACCESS, |v| v.qp_access_flags = 1 << 31),
            (receive, Mask::PATH_MTU, |v| v.path_mtu = ibv_mtu(0)),
            (receive, Mask::PATH_MTU, |v| v.path_mtu = ibv_mtu(6)),
            (receive, Mask::PATH_MTU, |v| {
                v.path_mtu = ibv_mtu::IBV_MTU_4096;
            }),
            (receive, Mask::DESTINATION, |v| v.dest_qp_num = 1 << 24),
            (receive, Mask::MIN_RNR_TIMER, |v| v.min_rnr_timer = 32),
            (receive, Mask::MAX_ACCEPTED, |v| {
                v.max_dest_rd_atomic = MAX_QP_RD_ATOM + 1;
            }),
            (receive, Mask::MAX_ACCEPTED, |v| v.max_dest_rd_atomic = 255),
            (receive, Mask::ADDRESS, |v| v.ah_attr.port_num = 0),
            (receive, Mask::ADDRESS, |v| v.ah_attr.port_num = 2),
            (send, Mask::TIMEOUT, |v| v.timeout = 32),
            (send, Mask::RETRY_COUNT, |v| v.retry_cnt = 8),
            (send, Mask::RNR_RETRY, |v| v.rnr_retry = 8),
            (send, Mask::MAX_INITIATED, |v| {
                v.max_rd_atomic = MAX_QP_INIT_RD_ATOM + 1;
            }),
            (send, Mask::MAX_INITIATED, |v| v.max_rd_atomic = 255),
            (send, Mask::TIMEOUT, |v| v.timeout = 255),
        ];
        let service = Service::ReliableConnection;
        for ((from, to), attribute, change) in cases {
            let mask = Mask::STATE | rule(service, from, to).unwrap().required;
            let result = checked(present(service, from), to, mask, change);
            assert_eq!(result, Err(ModifyError::Range(attribute)));
            assert_eq!(result.unwrap_err().errno(), libc::EINVAL);
        }
        // `values` has the largest valid values. A value whose mask bit is clear is not checked.
        let mask = Mask::STATE;
        let reset = checked(present(service, State::Error), State::Reset, mask, |v| {
            v.timeout = 255;
            v.port_num = 9;
        });
        assert!(reset.is_ok());
    }

    #[test]
    fn an_address_without_a_route_to_one_peer_is_refused() {
        let service = Service::UnreliableConnection;
        let (from, to) = (State::Init, State::ReadyToReceive);
        let mask = Mask::STATE | rule(service, from, to).unwrap().required;
        let result = checked(present(service, from), to, mask, |v| {
            v.ah_attr.is_global = 0;
        });
        assert_eq!(result, Err(ModifyError::NoRoute));
        for index in [2, 255] {
            let result = checked(present(service, from), to, mask, |v| {
                v.ah_attr.grh.sgid_index = index;
            });
            assert_eq!(result, Err(ModifyError::Source(index)));
        }
        let to_gid = |source: u8, destination: &str| {
            let mut values = values();
            values.qp_state = number_of(to);
            values.ah_attr.grh.sgid_index = source;
            let wanted = Modification {
                mask: mask.bits(),
                values: &values,
                destination: destination.parse().unwrap(),
            };
            check(present(service, from), &wanted, &TestDevice::default()).map(|plan| plan.path)
        };
        for (source, destination) in [
            (0, "::"),
            (1, "::"),
            (0, "::ffff:0.0.0.0"),
            (0, "::ffff:224.0.0.9"),
            (1, "ff02::1"),
            (0, "fd00::1"),
            (1, "::ffff:127.0.0.1"),
        ] {
            let result = to_gid(source, destination);
            assert_eq!(result, Err(ModifyError::Destination), "{destination}");
        }
        let path = Path {
            source: 1,
            destination: "fd00::2".parse().unwrap(),
            traffic_class: 4,
            hop_limit: 3,
            flow_label: 0xf_ffff,
        };
        assert_eq!(to_gid(1, "fd00::2"), Ok(Some(path)));
    }

    #[test]
    fn path_migration_is_refused() {
        let rts = present(Service::ReliableConnection, State::ReadyToSend);
        let state = State::ReadyToSend;
        for (migration, right) in [
            (ibv_mig_state::IBV_MIG_MIGRATED, true),
            (ibv_mig_state::IBV_MIG_REARM, false),
            (ibv_mig_state::IBV_MIG_ARMED, false),
        ] {
            let result = checked(rts, state, Mask::MIGRATION, |v| {
                v.path_mig_state = migration;
            });
            assert_eq!(result.err(), (!right).then_some(ModifyError::Migration));
        }
    }

    #[test]
    fn a_draining_send_queue_accepts_only_the_error_and_reset_transitions() {
        for service in SERVICES {
            let draining = PresentState {
                draining: true,
                ..present(service, State::SendQueueDrained)
            };
            for (to, right) in [
                (State::SendQueueDrained, false),
                (State::ReadyToSend, false),
                (State::Reset, true),
                (State::Error, true),
            ] {
                let result = checked(draining, to, Mask::STATE, |_| ());
                assert_eq!(result.err(), (!right).then_some(ModifyError::Draining));
            }
        }
    }

    #[test]
    fn checked_attributes_are_applied_and_returned_by_a_query() {
        let service = Service::ReliableConnection;
        let given = values();
        let (mut attributes, mut as_set) = (Attributes::default(), ibv_qp_attr::default());
        let steps = [
            State::Reset,
            State::Init,
            State::ReadyToReceive,
            State::ReadyToSend,
        ];
        for pair in steps.windows(2) {
            let mask = Mask::STATE | rule(service, pair[0], pair[1]).unwrap().required;
            let plan = checked(present(service, pair[0]), pair[1], mask, |_| ()).unwrap();
            plan.apply(&given, &mut attributes);
            plan.store(&given, &mut as_set);
        }
        assert_eq!(attributes.destination, 0xff_ffff);
        assert_eq!(attributes.path.map(|path| path.destination), Some(PEER));
        assert_eq!(attributes.path_mtu, Mtu::Mtu1024);
        assert_eq!(attributes.send_sequence, Sequence::new(2));
        assert_eq!(attributes.receive_sequence, Sequence::new(1));
        let timeout = Duration::from_nanos(4096 * 16384);
        assert_eq!(attributes.ack_timeout, Some(timeout));
        assert_eq!((attributes.retry_count, attributes.rnr_retry), (7, 7));
        assert_eq!(attributes.min_rnr_timer, 31);
        assert_eq!(attributes.max_initiated, MAX_QP_INIT_RD_ATOM);
        assert_eq!(attributes.max_accepted, MAX_QP_RD_ATOM);
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        assert_eq!(attributes.access, access);
        // Connected services have no queue key.
        assert_eq!((attributes.queue_key, as_set.qkey), (0, 0));

        assert_eq!(as_set.path_mtu, ibv_mtu::IBV_MTU_1024);
        assert_eq!(as_set.ah_attr.grh.flow_label, 0xfff_ffff);
        assert_eq!((as_set.timeout, as_set.retry_cnt), (14, 7));
        assert_eq!(mem::replace(&mut as_set.port_num, 0), 1);
        assert_eq!(super::timeout(0), None);
        assert_eq!(super::timeout(31), Some(Duration::from_nanos(4096 << 31)));
    }
}
