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
mod exec;
mod fetched;
mod flood;
mod forked;
mod lists;
mod meeting;
mod missing;
mod node;
mod peer;
mod plan;
mod refused;
mod resources;
mod stopped;
mod stream;
mod traffic;
mod unreliable;
mod wakeups;

use std::thread;
use std::time::{Duration, Instant};

use ibverbs_sys::{ibv_send_flags, ibv_wc_status, ibv_wr_opcode};
use libtest_mimic::{Arguments, Failed, Trial};
use node::{LIMIT, Node, PATIENT, Request, SIZE};
use peer::{MESSAGE, Peer, Role, message};
use resources::{await_resources, resources};
use softroce::fault::NetworkFaults;
use softroce::path::Way;
use traffic::{LONG, Traffic};

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
            messages_are_sent_through_shared_memory,
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
        trial("bytes_arrive_in_every_length", bytes_arrive_in_every_length),
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
            atomics_count_from_both_sides,
        ),
        trial(
            "messages_of_an_ended_peer_are_received",
            messages_of_an_ended_peer_are_received,
        ),
        trial(
            "messages_wait_for_space_in_the_ring_and_are_not_lost",
            messages_wait_for_space_in_the_ring_and_are_not_lost,
        ),
        trial(
            "skipped_sequence_numbers_are_announced_despite_packet_loss",
            skipped_sequence_numbers_are_announced_despite_packet_loss,
        ),
        trial(
            "requests_to_a_peer_with_a_full_ring_fail_in_time",
            requests_to_a_peer_with_a_full_ring_fail_in_time,
        ),
        trial(
            "memory_that_a_stopped_peer_copies_to_stays_registered",
            memory_that_a_stopped_peer_copies_to_stays_registered,
        ),
        trial(
            "a_long_write_that_the_peer_refuses_ends_after_a_write",
            a_long_write_that_the_peer_refuses_ends_after_a_write,
        ),
        trial(
            "deregistered_memory_is_not_accessed",
            deregistered_memory_is_not_accessed,
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
            a_destroyed_queue_pair_receives_nothing,
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
            the_links_of_killed_peers_are_removed,
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

fn messages_are_sent_through_shared_memory() {
    let (node, peer) = connected(Role::Idle);
    assert_eq!(node.way(), Some(Way::Shared));
    let (messages, packets) = (count("shared_messages"), count("port_xmit_packets"));
    for memory in peer.card.memories {
        for _ in 0..100 {
            node.execute(&write(&node, 0, 0, 4096, memory));
        }
    }
    assert_eq!(count("shared_messages") - messages, 200);
    assert_eq!(count("port_xmit_packets"), packets, "without packets");
}

fn bytes_arrive_in_every_length() {
    let (node, peer) = connected(Role::Idle);
    let lengths = [
        0,
        1,
        7,
        8,
        9,
        63,
        64,
        65,
        4095,
        4096,
        100_000,
        (1 << 20) + 5,
        SIZE / 2,
    ];
    for (round, &length) in lengths.iter().cycle().take(4 * lengths.len()).enumerate() {
        let (here, there) = (round / lengths.len() % 2, round / lengths.len() / 2);
        let offset = round % 9;
        let bytes: Vec<u8> = (0..length).map(|at| (at * 31 + round) as u8).collect();
        node.memories[here].write(offset, &bytes);
        let (address, key) = peer.card.memories[there];
        let place = (address + (round % 5) as u64, key);
        node.execute(&write(&node, here, offset, length, place));
        // Reads the bytes back into the second half of the memory.
        node.memories[here].write(SIZE / 2, &vec![0; length]);
        node.execute(&read(&node, here, SIZE / 2, length, place));
        assert!(
            node.memories[here].read(SIZE / 2, length) == bytes,
            "{length} bytes"
        );
    }
}

fn atomics_count_from_both_sides() {
    const EACH: u64 = 500;
    let (node, mut peer) = connected(Role::Adds { times: EACH });
    peer.go();
    for _ in 0..EACH {
        for memory in peer.card.memories {
            node.execute(&Request {
                id: 1,
                opcode: ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
                sge: node.memories[0].sge(8, 8),
                remote: memory,
                add: 1,
            });
        }
    }
    peer.done();
    for memory in peer.card.memories {
        node.execute(&read(&node, 0, 0, 8, memory));
        let counted = u64::from_ne_bytes(node.memories[0].read(0, 8).try_into().unwrap());
        // The peer has made half of the additions, with instructions of its processor.
        assert_eq!(counted, 2 * EACH);
    }
}

/// Checks that the last acknowledgement of a peer that ends immediately is processed, although no
/// thread of this process is polling.
fn messages_of_an_ended_peer_are_received() {
    for _ in 0..10 {
        let (node, mut peer) = connected(Role::Leaves);
        assert_eq!(node.way(), Some(Way::Shared));
        peer.go();
        node.post(&message(&node));
        peer.leave();
        // Gives the engine time to notice that the peer has ended.
        thread::sleep(Duration::from_millis(20));
        let wc = node.complete();
        assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
    }
}

/// Checks that messages for which a stopped peer has no room are sent later, and that each is sent
/// once.
fn messages_wait_for_space_in_the_ring_and_are_not_lost() {
    const EACH: u64 = 24;
    let mut peer = Peer::start(Role::Receives { times: EACH });
    let nodes: Vec<Node> = (0..12)
        .map(|_| {
            let mut node = Node::new();
            node.timeout = PATIENT;
            peer.meet(&node);
            for id in 0..EACH {
                let at = id as usize * MESSAGE;
                node.memories[0].write(at, &[id as u8; MESSAGE]);
            }
            node
        })
        .collect();
    let again = [
        "retry_exceeded_err",
        "local_ack_timeout_err",
        "packet_seq_err",
        "out_of_sequence",
    ];
    let counts = || {
        again
            .iter()
            .chain(&["port_xmit_discards"])
            .map(|name| count(name))
            .collect::<Vec<_>>()
    };
    peer.stop();
    let (before, packets) = (counts(), count("port_xmit_packets"));
    for id in 0..EACH {
        for node in &nodes {
            let at = id as usize * MESSAGE;
            node.post(&Request {
                id,
                opcode: ibv_wr_opcode::IBV_WR_SEND,
                sge: node.memories[0].sge(at, MESSAGE),
                remote: (0, 0),
                add: 0,
            });
        }
    }
    thread::sleep(Duration::from_millis(20));
    let went = count("port_xmit_packets") - packets;
    let all = EACH * nodes.len() as u64;
    assert!(went > 0 && went < all, "{went} of {all} found room");
    peer.signal(libc::SIGCONT);
    peer.go();
    for node in &nodes {
        for id in 0..EACH {
            let wc = node.complete();
            assert_eq!((wc.status, wc.wr_id), (ibv_wc_status::IBV_WC_SUCCESS, id));
        }
    }
    peer.done();
    assert_eq!(counts(), before, "{again:?}, discarded");
    // A queue pair that gets no acknowledgement for a while sends a packet as a probe, up to three
    // times.
    let (sent, probes) = (count("port_xmit_packets") - packets, 3 * nodes.len() as u64);
    let once = all..=all + probes;
    assert!(once.contains(&sent), "{sent} packets of {all}");
}

/// Checks that the peer counts the sequence numbers of one-sided operations before it accepts the
/// next packets, which come by sockets, where packets are lost and duplicated.
fn skipped_sequence_numbers_are_announced_despite_packet_loss() {
    const EACH: u64 = 32;
    let (mut node, mut peer) = (Node::new(), Peer::start(Role::Receives { times: EACH }));
    node.timeout = 10;
    peer.meet(&node);
    for id in 0..EACH {
        node.memories[0].write(id as usize * MESSAGE, &[id as u8; MESSAGE]);
    }
    let messages = count("shared_messages");
    for id in 0..EACH {
        softroce::faults().set_network(NetworkFaults::default());
        node.execute(&write(&node, 0, SIZE / 2, 64, peer.card.memories[1]));
        softroce::faults().set_network(NetworkFaults {
            loss: 0.1,
            duplicate: 0.1,
            seed: id,
            ..NetworkFaults::default()
        });
        node.execute(&Request {
            sge: node.memories[0].sge(id as usize * MESSAGE, MESSAGE),
            id,
            ..message(&node)
        });
    }
    softroce::faults().set_network(NetworkFaults::default());
    assert_eq!(count("shared_messages") - messages, EACH);
    peer.go();
    peer.done();
}

/// Checks that requests fail if there never was space to send them: to a stopped peer, to a
/// killed peer while the program polls, and to a killed peer while only the engine runs.
fn requests_to_a_peer_with_a_full_ring_fail_in_time() {
    const EACH: u64 = 24;
    for (ends, looks) in [(false, true), (true, true), (true, false)] {
        let mut peer = Peer::start(Role::Receives { times: EACH });
        let nodes: Vec<Node> = (0..12)
            .map(|_| {
                let node = Node::new();
                peer.meet(&node);
                node
            })
            .collect();
        peer.stop();
        for id in 0..EACH {
            for node in &nodes {
                node.post(&Request {
                    id,
                    opcode: ibv_wr_opcode::IBV_WR_SEND,
                    sge: node.memories[0].sge(0, MESSAGE),
                    remote: (0, 0),
                    add: 0,
                });
            }
        }
        let mut first = vec![None; nodes.len()];
        if ends {
            // Longer than the first timeout of an acknowledgement.
            thread::sleep(Duration::from_millis(200));
            if looks {
                first[0] = nodes[0].poll();
            }
            peer.kill();
            if !looks {
                thread::sleep(Duration::from_millis(200));
            }
        }
        for (node, first) in nodes.iter().zip(first) {
            for id in 0..EACH {
                let wc = match first {
                    Some(wc) if id == 0 => wc,
                    _ => node.complete(),
                };
                let expected = match id {
                    0 => ibv_wc_status::IBV_WC_RETRY_EXC_ERR,
                    _ => ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
                };
                assert_eq!((wc.status, wc.wr_id), (expected, id), "{ends} {looks}");
            }
        }
    }
}

/// Checks that memory cannot be deregistered while a stopped peer is in the middle of a copy to it.
fn memory_that_a_stopped_peer_copies_to_stays_registered() {
    let (mut node, mut peer) = connected(Role::Writes);
    let mut was_busy = false;
    for round in 0..100 {
        if round > 0 {
            node.renew();
            peer.meet(&node);
        }
        peer.go();
        thread::sleep(Duration::from_millis(5));
        peer.signal(libc::SIGSTOP);
        let (begin, pd) = (Instant::now(), node.pd);
        let memory = &mut node.memories[round % 2];
        let answer = memory.try_deregister();
        if answer != 0 {
            assert_eq!(answer, libc::EBUSY);
            assert!(
                begin.elapsed() < LIMIT,
                "the answer took {:?}",
                begin.elapsed()
            );
            was_busy = true;
        }
        peer.signal(libc::SIGCONT);
        if answer != 0 {
            // The memory is still registered, and can be deregistered when the peer goes on.
            memory.deregister();
        }
        memory.register(pd);
        peer.done();
        if was_busy {
            return;
        }
    }
    panic!("the peer was never stopped in the middle of a copy");
}

/// Checks that a long write with immediate data and a wrong key ends with an error, also directly
/// after a request that needed no packets.
fn a_long_write_that_the_peer_refuses_ends_after_a_write() {
    let (node, peer) = connected(Role::Idle);
    let (address, key) = peer.card.memories[1];
    let writes = [
        write(&node, 0, 0, 64, (address, key)),
        Request {
            opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            ..write(&node, 0, 0, 64 << 10, (address, key ^ 0xff))
        },
    ];
    let signaled = ibv_send_flags::IBV_SEND_SIGNALED.0;
    let posted = node.post_list(&writes.each_ref().map(|write| (write, signaled)));
    assert_eq!(posted, Ok(()));
    assert_eq!(node.complete().status, ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!(node.complete().status, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
}

/// Checks that a region does not change after its deregistration while a peer writes without end.
fn deregistered_memory_is_not_accessed() {
    let (mut node, mut peer) = connected(Role::Writes);
    let mut touched = 0;
    for round in 0..60 {
        if round > 0 {
            node.renew();
            peer.meet(&node);
        }
        peer.go();
        thread::sleep(Duration::from_micros(200 * (round % 10)));
        let memory = &mut node.memories[round as usize % 2];
        memory.deregister();
        let before = memory.read(0, SIZE / 4);
        touched += usize::from(before.iter().any(|&byte| byte != 0));
        thread::sleep(Duration::from_millis(1));
        assert!(memory.read(0, SIZE / 4) == before, "touched after its end");
        memory.write(0, &vec![0; SIZE / 4]);
        let pd = node.pd;
        node.memories[round as usize % 2].register(pd);
        peer.done();
    }
    assert!(touched > 0, "the peer never wrote anything");
}

/// Checks that no memory changes after the queue pair was destroyed while a peer writes without
/// end.
fn a_destroyed_queue_pair_receives_nothing() {
    let (mut node, mut peer) = connected(Role::Writes);
    for round in 0..number("SOFTROCE_TEST_STORMS", 40) {
        if round > 0 {
            peer.meet(&node);
        }
        peer.go();
        thread::sleep(Duration::from_micros(300 * (round % 7)));
        node.renew();
        for memory in &node.memories {
            let before = memory.read(0, SIZE / 4);
            thread::sleep(Duration::from_micros(500));
            assert!(memory.read(0, SIZE / 4) == before, "touched after its end");
        }
        peer.done();
    }
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

fn the_links_of_killed_peers_are_removed() {
    let kills = number("SOFTROCE_TEST_KILLS", 25);
    let first = number("SOFTROCE_TEST_SEED", 0);
    let mut before = None;
    let mut longest = Duration::ZERO;
    let mut under_way = [0; LONG.len()];
    for round in (0..kills).map(|number| first.wrapping_add(number)) {
        let (node, mut peer) = connected(Role::Traffic { seed: round });
        let mut traffic = Traffic::new(round, &peer.card);
        traffic.prepare(&node);
        peer.go();
        let end = Instant::now() + Duration::from_micros(round.wrapping_mul(7919) % 12_000);
        while Instant::now() < end {
            assert_eq!(traffic.go_on(&node), Ok(()), "before the end");
        }
        peer.kill();
        let killed = Instant::now();
        for (all, now) in under_way.iter_mut().zip(traffic.long_under_way()) {
            *all += now;
        }
        // All requests end with errors, the first of them because the peer does not answer.
        let failed = loop {
            match traffic.go_on(&node) {
                Ok(()) => assert!(
                    killed.elapsed() < LIMIT,
                    "a request does not end, {round}: {traffic:?}"
                ),
                Err(status) => break status,
            }
        };
        assert_eq!(failed, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
        traffic.drain(&node);
        longest = longest.max(killed.elapsed());
        traffic.check_guards(&node);
        drop(node);
        // Gives the engine time to notice the end of the peer by itself.
        let expected = *before.get_or_insert_with(|| {
            thread::sleep(Duration::from_millis(200));
            resources()
        });
        await_resources(expected);
    }
    let is_enough = kills < 25 || under_way.iter().all(|&count| count > 0);
    assert!(
        is_enough,
        "not all were under way: {under_way:?} of {LONG:?}"
    );
    println!(
        "{kills} peers were killed; the longest end took {longest:?}; under way were {under_way:?}"
    );
}
