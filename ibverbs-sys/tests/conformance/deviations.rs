//! Known deviations of drivers from the specification.

use std::time::Duration;

use crate::harness::Verdict;

/// Deviation of a driver from the specification.
struct Deviation {
    /// The driver, as [`crate::harness::Device::driver`] names it.
    driver: &'static str,
    /// The clause of the specification, and its content.
    clause: &'static str,
    /// Behaviour of the driver: a part of the text of the cases.
    found: &'static str,
    /// The cases that show the deviation.
    cases: &'static [&'static str],
}

/// The kernel's Soft-RoCE, of Debian 12.
const RXE: &str = "rxe 6.1";

const DEVIATIONS: &[Deviation] = &[
    Deviation {
        driver: RXE,
        clause: "IBTA 11.6.2: a local buffer that no valid region covers is a local protection error",
        found: "is local QP operation error, not local protection error",
        cases: &[
            "mr::foreign_domain_s_region_is_refused",
            "error::local_protection_for_an_unknown_key_of_a_send",
            "error::local_protection_for_an_unknown_key_of_a_write",
            "error::local_protection_in_the_second_element",
            "error::receive_with_an_unknown_key_fails_both",
            "error::receive_that_may_not_be_written_fails_both",
            "long::receive_that_may_not_be_written_fails_both",
            "error::a_local_failure_of_the_sender_does_not_affect_the_peer",
        ],
    },
    Deviation {
        driver: RXE,
        clause: "IBTA 11.6.2: a message longer than its receive buffer is a local length error",
        found: "is local QP operation error, not local length error",
        cases: &[
            "error::receive_that_is_too_short_fails_both",
            "long::receive_that_is_too_short_fails_both",
            "error::receive_without_elements_is_too_short",
            "uc::message_longer_than_its_receive_fails_there",
            "ud::receive_too_short_fails",
        ],
    },
    Deviation {
        driver: RXE,
        clause: "IBTA 11.6.2: a message longer than the port's maximum is a local length error",
        found: "is remote access error, not local length error",
        cases: &["error::message_longer_than_the_port_carries_fails"],
    },
    Deviation {
        driver: RXE,
        clause: "IBTA 9.7.6: the retry count ends; only the RNR retry count knows infinity",
        found: "no completion came",
        cases: &["error::retries_of_seven_end"],
    },
    Deviation {
        driver: RXE,
        clause: "IBTA 10.3.1: work requests posted to a queue pair in error are flushed",
        found: "no completion came",
        cases: &["error::receives_in_error_are_flushed"],
    },
    Deviation {
        driver: RXE,
        clause: "ibv_reg_mr(3): with IBV_ACCESS_ZERO_BASED, addresses are offsets from the start",
        found: "is remote access error, not success",
        cases: &["mr::zero_based_region_starts_at_zero"],
    },
    Deviation {
        driver: RXE,
        clause: "ibv_create_qp(3): fails for a type other than RC or UD associated with an SRQ",
        found: "ibv_create_qp succeeded; it must fail",
        cases: &["srq::an_unreliable_connection_cannot_use_the_queue"],
    },
    Deviation {
        driver: RXE,
        clause: "IBTA 11.6.3.1: Last WQE Reached is raised for a queue pair in error with an SRQ",
        found: "no event of ibv_event_type(16) came",
        cases: &["srq::the_last_wqe_event_is_raised"],
    },
    Deviation {
        driver: RXE,
        clause: "IBTA 10.2.5: with the high bit of the Q_Key set, the sending queue pair's is sent",
        found: "no completion came",
        cases: &["ud::datagram_with_a_privileged_key_takes_the_queue_pair_s"],
    },
    Deviation {
        driver: RXE,
        clause: "ibv_create_qp(3): cap is updated with the actual values",
        found: "max_send_wr is 31, not 16",
        cases: &["qp::a_query_returns_the_capacities"],
    },
    Deviation {
        driver: RXE,
        clause: "IBTA 11.4.1.1: an operation that does not exist is an immediate error",
        found: "ibv_post_send succeeded; it must fail",
        cases: &["qp::unknown_opcode_is_refused"],
    },
    Deviation {
        driver: RXE,
        clause: "IBTA 10.6.7: a window grants access within its bounds, not its region's",
        found: "is success, not remote access error",
        cases: &[
            "mw::type_1_window_grants_what_is_bound",
            "mw::type_2_window_guards_its_ends",
        ],
    },
    Deviation {
        driver: RXE,
        clause: "IBTA 10.6.7: window and region are of the same protection domain",
        found: "is success, not memory management operation error",
        cases: &["mw::bind_of_a_foreign_domain_s_region_is_refused"],
    },
    Deviation {
        driver: RXE,
        clause: "IBTA 10.6.7.2: a window of type 2B belongs to the queue pair that it is bound to",
        found: "it is success, not an error",
        cases: &["mw::a_type_2b_window_is_invalidated_only_by_its_queue_pair"],
    },
    Deviation {
        driver: RXE,
        clause: "ibv_poll_cq(3): IBV_WC_WITH_INV tells that invalidated_rkey is valid",
        found: "IBV_WC_WITH_INV is missing",
        cases: &["mw::completion_contains_the_invalidated_key"],
    },
    Deviation {
        driver: RXE,
        clause: "ibv_next_poll(3): each completion is given once, though ENOENT ends the batch",
        found: "ibv_start_poll is 0, not 2",
        cases: &["cq_ex::a_batch_is_executed_to_its_end"],
    },
    Deviation {
        driver: RXE,
        clause: "IBTA 10.3.1: an unreliable queue pair whose send fails goes to SQE",
        found: "the queue pair is in ibv_qp_state(6), not in ibv_qp_state(5)",
        cases: &[
            "state::unreliable_connection_s_failure_stops_the_send_queue",
            "state::datagram_s_failure_stops_the_send_queue",
        ],
    },
    Deviation {
        driver: RXE,
        clause: "IBTA 10.3.1: what SQD finds begun is finished, and what it holds begins with RTS",
        found: "no completion came",
        cases: &[
            "state::drained_send_queue_holds_requests",
            "state::a_draining_send_queue_finishes_started_requests",
        ],
    },
    Deviation {
        driver: RXE,
        clause: "IBTA 11.2.5.2: an attribute that is out of range is refused",
        found: "succeeded; it must fail",
        cases: &[
            "state::current_state_that_is_wrong_is_refused",
            "state::partition_index_beyond_the_table_is_refused",
            "state::an_invalid_path_mtu_is_refused",
            "state::retry_counts_beyond_seven_are_refused",
            "state::timers_beyond_31_are_refused",
            "state::served_reads_beyond_the_limit_are_refused",
            "state::unknown_access_flags_are_refused",
        ],
    },
    Deviation {
        driver: RXE,
        clause: "ibv_modify_qp(3): IBV_DEVICE_AUTO_PATH_MIG says that there are alternate paths",
        found: "ibv_modify_qp(ALT_PATH) failed: EINVAL",
        cases: &["state::alternate_path_as_claimed"],
    },
    Deviation {
        driver: RXE,
        clause: "ibv_wr_set_sge_list(3): the elements' lengths add up (here, the first one's does)",
        found: "is local QP operation error, not success",
        cases: &["qp_ex::send_of_a_list_arrives"],
    },
    Deviation {
        driver: RXE,
        clause: "ibv_wr_set_inline_data(3): the data are copied, without a flag for it",
        found: "is local QP operation error, not success",
        cases: &["qp_ex::inline_data_arrives"],
    },
    Deviation {
        driver: RXE,
        clause: "ibv_wr_set_inline_data(3): the data are copied, without a flag for it",
        found: "the message is [0, 0, 0, 0, 0, 0]",
        cases: &["qp_ex::inline_data_of_a_list_arrives"],
    },
    Deviation {
        driver: RXE,
        clause: "IBTA 10.5.2: a multicast message also goes to the members on the sender's device",
        found: "no completion came",
        cases: &[
            "multicast::message_reaches_a_member",
            "multicast::message_reaches_every_member",
            "multicast::a_detached_member_receives_nothing",
            "multicast::sender_gets_its_own_message_as_a_member",
            "multicast::joining_twice_is_no_error",
            "multicast::queue_pair_in_several_groups",
        ],
    },
    Deviation {
        driver: RXE,
        clause: "IBTA 11.6.3: errors and the first message at a queue pair raise its events",
        found: "no event",
        cases: &[
            "event::remote_access_raises_an_access_error",
            "event::invalid_request_raises_a_request_error",
            "event::message_before_ready_to_send_establishes",
            "event::events_of_a_destroyed_queue_pair_are_discarded",
        ],
    },
];

/// Cases that are not run on a driver, because they would crash the machine or the program.
const FATAL: &[Deviation] = &[
    Deviation {
        driver: RXE,
        clause: "infiniband/verbs.h: ibv_bind_mw takes no region for a window without a range",
        found: "the library follows the null pointer",
        cases: &["mw::type_1_bind_without_a_region_revokes"],
    },
    Deviation {
        driver: RXE,
        clause: "IBTA 10.6.7: to invalidate a window that is invalid is an error of the request",
        found: "the kernel follows a null pointer (__rxe_put) and stops",
        cases: &[
            "mw::remote_invalidate_of_an_invalid_window_fails",
            "mw::invalidate_of_an_invalid_window_fails",
        ],
    },
    // Debian's 6.1.0-42 (6.1.159) to 6.1.0-48 (6.1.172) do, 6.1.0-56 does not.
    Deviation {
        driver: RXE,
        clause: "ibv_modify_srq(3): where an attribute is invalid, nothing is modified",
        found: "it is freed, and the next message ends the kernel's thread with its lock held",
        cases: &["srq::requests_survive_a_resize_that_is_refused"],
    },
];

/// Returns the verdict on a case that must not be run on this driver, because it crashes.
pub(crate) fn fatal(case: &str, driver: &str) -> Option<Verdict> {
    let known = FATAL
        .iter()
        .find(|known| known.driver == driver && known.cases.contains(&case))?;
    Some(Verdict::Deviation(format!(
        "{}; here, not run: {}",
        known.clause, known.found
    )))
}

/// Returns the maximum time for which a case waits for an event that must happen: 60 seconds, or 5
/// for a case that is known to fail on this driver.
pub(crate) fn max_wait(case: &str, driver: &str) -> Duration {
    let deviates = |known: &Deviation| known.driver == driver && known.cases.contains(&case);
    match DEVIATIONS.iter().any(deviates) {
        true => Duration::from_secs(5),
        false => Duration::from_secs(60),
    }
}

/// Returns the final verdict on a case that ended with `verdict` on a device of this driver.
pub(crate) fn judge(case: &str, driver: &str, verdict: Verdict) -> Verdict {
    let known = DEVIATIONS
        .iter()
        .find(|known| known.driver == driver && known.cases.contains(&case));
    match (known, verdict) {
        (Some(known), Verdict::Failed(problem)) if problem.contains(known.found) => {
            Verdict::Deviation(format!("{}; here: {}", known.clause, known.found))
        }
        (Some(known), Verdict::Passed) => Verdict::Failed(format!(
            "the deviation of {driver} that is documented has not occurred: {}",
            known.found
        )),
        (_, verdict) => verdict,
    }
}
