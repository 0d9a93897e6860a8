//! Tests of two processes of one host that are connected by shared memory: how one accesses the
//! memory of the other, when access ends, and how the death of a peer is handled.
//!
//! `SOFTROCE_TEST_KILLS` is the number of peers that are killed. `SOFTROCE_TEST_SEED` is the seed
//! of the traffic with the first of them and of the moment of its death; each further peer has the
//! next seed. `SOFTROCE_TEST_STORMS` is the number of queue pairs that are destroyed while a peer
//! writes, `SOFTROCE_TEST_STOPS` the number of streams whose peer is stopped at random,
//! `SOFTROCE_TEST_EXECS` the number of peers that execute another program, and
//! `SOFTROCE_TEST_MEETINGS` the number of links at whose start memory is deregistered.

mod closing;
mod counted;
mod descriptor_limit;
mod ended_access;
mod ended_peer;
mod exec;
mod fetched;
mod flood;
mod forked;
mod full_ring;
mod lists;
mod meeting;
mod missing;
mod node;
mod one_sided;
mod peer;
mod plan;
mod refused;
mod resources;
mod stopped;
mod stream;
mod traffic;
mod unreliable;
mod wakeups;

use ibverbs_sys::ibv_wr_opcode;
use libtest_mimic::{Arguments, Failed, Trial};
use node::{Node, Request};
use peer::{Peer, Role};

fn main() {
    if flood::attack_if_attacker() {
        return;
    }
    if let Some(role) = Role::of_process() {
        refused::change_user_if_requested();
        refused::forbid_copies_if_requested();
        refused::forbid_dumps_if_requested();
        return role.play();
    }
    forked::note_descriptors();
    let trial = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok::<(), Failed>(())
        })
    };
    let trials = vec![
        trial(
            "processes_with_the_usual_limit_of_descriptors_share_memory",
            descriptor_limit::processes_with_the_usual_limit_of_descriptors_share_memory,
        ),
        trial(
            "messages_are_sent_through_shared_memory",
            one_sided::messages_are_sent_through_shared_memory,
        ),
        trial(
            "each_path_counts_its_messages_bytes_and_copies",
            counted::each_path_counts_its_messages_bytes_and_copies,
        ),
        trial(
            "one_sided_operations_do_not_wake_the_peer",
            wakeups::one_sided_operations_do_not_wake_the_peer,
        ),
        trial(
            "a_thread_waiting_for_an_event_is_woken_by_the_peer",
            wakeups::a_thread_waiting_for_an_event_is_woken_by_the_peer,
        ),
        trial(
            "an_event_loop_is_woken_by_the_peer",
            wakeups::an_event_loop_is_woken_by_the_peer,
        ),
        trial(
            "a_message_to_an_event_loop_that_is_busy_is_received",
            wakeups::a_message_to_an_event_loop_that_is_busy_is_received,
        ),
        trial(
            "all_threads_that_wait_at_a_channel_are_served",
            wakeups::all_threads_that_wait_at_a_channel_are_served,
        ),
        trial(
            "bytes_arrive_in_every_length",
            one_sided::bytes_arrive_in_every_length,
        ),
        trial(
            "long_messages_of_all_kinds_are_fetched_whole",
            fetched::long_messages_of_all_kinds_are_fetched_whole,
        ),
        trial(
            "a_peer_that_is_not_dumpable_shares_nothing",
            refused::a_peer_that_is_not_dumpable_shares_nothing,
        ),
        trial(
            "messages_to_a_peer_of_another_user_are_sent_as_packets",
            refused::messages_to_a_peer_of_another_user_are_sent_as_packets,
        ),
        trial(
            "messages_to_a_peer_that_may_not_copy_are_sent_through_the_ring",
            refused::messages_to_a_peer_that_may_not_copy_are_sent_through_the_ring,
        ),
        trial(
            "the_messages_of_a_stopped_sender_are_fetched",
            fetched::the_messages_of_a_stopped_sender_are_fetched,
        ),
        trial(
            "a_message_that_has_failed_is_not_copied",
            fetched::a_message_that_has_failed_is_not_copied,
        ),
        trial(
            "messages_to_a_stopped_receiver_fail_and_other_messages_arrive",
            stopped::messages_to_a_stopped_receiver_fail_and_other_messages_arrive,
        ),
        trial(
            "messages_arrive_when_a_stopped_receiver_continues",
            stopped::messages_arrive_when_a_stopped_receiver_continues,
        ),
        trial(
            "messages_arrive_when_a_stopped_sender_continues",
            stopped::messages_arrive_when_a_stopped_sender_continues,
        ),
        trial(
            "streams_survive_stops_at_any_time",
            stopped::streams_survive_stops_at_any_time,
        ),
        trial(
            "the_links_of_a_peer_that_is_killed_while_stopped_are_removed",
            stopped::the_links_of_a_peer_that_is_killed_while_stopped_are_removed,
        ),
        trial(
            "a_receiver_that_is_stopped_in_a_copy_continues",
            stopped::a_receiver_that_is_stopped_in_a_copy_continues,
        ),
        trial(
            "bytes_are_not_accepted_that_change_while_the_receiver_is_stopped",
            stopped::bytes_are_not_accepted_that_change_while_the_receiver_is_stopped,
        ),
        trial(
            "a_receiver_that_is_killed_in_a_copy_delays_no_other_connection",
            stopped::a_receiver_that_is_killed_in_a_copy_delays_no_other_connection,
        ),
        trial(
            "memory_that_a_stopped_receiver_copies_from_stays_registered",
            stopped::memory_that_a_stopped_receiver_copies_from_stays_registered,
        ),
        trial(
            "unreliable_writes_need_no_packets",
            unreliable::unreliable_writes_need_no_packets,
        ),
        trial(
            "unreliable_messages_need_no_packets",
            unreliable::unreliable_messages_need_no_packets,
        ),
        trial(
            "an_unreliable_write_does_not_overtake_a_message",
            unreliable::an_unreliable_write_does_not_overtake_a_message,
        ),
        trial(
            "datagrams_are_sent_through_shared_memory",
            unreliable::datagrams_are_sent_through_shared_memory,
        ),
        trial(
            "datagrams_to_a_stopped_process_do_not_stop_others",
            unreliable::datagrams_to_a_stopped_process_do_not_stop_others,
        ),
        trial(
            "a_list_is_executed_in_order",
            lists::a_list_is_executed_in_order,
        ),
        trial(
            "long_one_sided_work_behind_a_message_needs_no_packets",
            lists::long_one_sided_work_behind_a_message_needs_no_packets,
        ),
        trial(
            "a_list_ends_with_the_request_that_fails",
            lists::a_list_ends_with_the_request_that_fails,
        ),
        trial(
            "a_list_that_is_too_long_is_posted_as_far_as_it_fits",
            lists::a_list_that_is_too_long_is_posted_as_far_as_it_fits,
        ),
        trial(
            "completions_without_room_are_the_end",
            lists::completions_without_room_are_the_end,
        ),
        trial(
            "atomics_count_from_both_sides",
            one_sided::atomics_count_from_both_sides,
        ),
        trial(
            "messages_of_an_ended_peer_are_received",
            ended_peer::messages_of_an_ended_peer_are_received,
        ),
        trial(
            "messages_wait_for_space_in_the_ring_and_are_not_lost",
            full_ring::messages_wait_for_space_in_the_ring_and_are_not_lost,
        ),
        trial(
            "skipped_sequence_numbers_are_announced_despite_packet_loss",
            one_sided::skipped_sequence_numbers_are_announced_despite_packet_loss,
        ),
        trial(
            "requests_to_a_peer_with_a_full_ring_fail_in_time",
            full_ring::requests_to_a_peer_with_a_full_ring_fail_in_time,
        ),
        trial(
            "memory_that_a_stopped_peer_copies_to_stays_registered",
            ended_access::memory_that_a_stopped_peer_copies_to_stays_registered,
        ),
        trial(
            "a_long_write_that_the_peer_refuses_ends_after_a_write",
            one_sided::a_long_write_that_the_peer_refuses_ends_after_a_write,
        ),
        trial(
            "deregistered_memory_is_not_accessed",
            ended_access::deregistered_memory_is_not_accessed,
        ),
        trial(
            "a_peer_with_unmapped_memory_refuses_requests_and_keeps_running",
            missing::a_peer_with_unmapped_memory_refuses_requests_and_keeps_running,
        ),
        trial(
            "transfers_from_or_to_unmapped_memory_fail_with_a_protection_error",
            missing::transfers_from_or_to_unmapped_memory_fail_with_a_protection_error,
        ),
        trial(
            "a_destroyed_queue_pair_receives_nothing",
            ended_access::a_destroyed_queue_pair_receives_nothing,
        ),
        trial(
            "memory_deregistered_during_a_handshake_is_not_accessed",
            meeting::memory_deregistered_during_a_handshake_is_not_accessed,
        ),
        trial(
            "a_program_that_replaces_a_peer_is_not_written_to",
            exec::a_program_that_replaces_a_peer_is_not_written_to,
        ),
        trial(
            "a_forked_child_does_not_share_its_parents_device",
            forked::a_forked_child_does_not_share_its_parents_device,
        ),
        trial(
            "inherited_objects_fail_in_a_forked_child",
            forked::inherited_objects_fail_in_a_forked_child,
        ),
        trial(
            "a_forked_child_opens_the_device_anew",
            forked::a_forked_child_opens_the_device_anew,
        ),
        trial(
            "children_are_forked_at_any_time",
            forked::children_are_forked_at_any_time,
        ),
        trial(
            "closing_all_descriptors_fails_the_device",
            closing::closing_all_descriptors_fails_the_device,
        ),
        trial(
            "closing_all_descriptors_fails_the_device_of_a_waiting_program",
            closing::closing_all_descriptors_fails_the_device_of_a_waiting_program,
        ),
        trial(
            "closing_a_borrowed_descriptor_is_harmless",
            closing::closing_a_borrowed_descriptor_is_harmless,
        ),
        trial(
            "floods_of_handshakes_have_a_bound",
            flood::floods_of_handshakes_have_a_bound,
        ),
        trial(
            "the_links_of_killed_peers_are_removed",
            ended_peer::the_links_of_killed_peers_are_removed,
        ),
    ];
    // The trials run one by one: they share the device of this process, and count its resources.
    let arguments = Arguments {
        test_threads: Some(1),
        ..Arguments::from_args()
    };
    libtest_mimic::run(&arguments, trials).exit();
}

/// Starts a peer with this role. Returns it with a node that is connected to it.
fn connected(role: Role) -> (Node, Peer) {
    let node = Node::new();
    let mut peer = Peer::start(role);
    peer.meet(&node);
    (node, peer)
}

fn write(node: &Node, memory: usize, offset: usize, length: usize, to: (u64, u32)) -> Request {
    Request {
        id: 7,
        opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        sge: node.memories[memory].sge(offset, length),
        remote: to,
        add: 0,
    }
}

fn read(node: &Node, memory: usize, offset: usize, length: usize, from: (u64, u32)) -> Request {
    Request {
        opcode: ibv_wr_opcode::IBV_WR_RDMA_READ,
        ..write(node, memory, offset, length, from)
    }
}

fn count(name: &str) -> u64 {
    softroce::counters().named(name).expect("a counter")
}

/// Returns the number in an environment variable, or `default` if the variable is not set.
fn number(variable: &str, default: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.map_or(default, |value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is not a number: {value}"))
    })
}
