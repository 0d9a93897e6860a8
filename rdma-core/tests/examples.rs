//! Checks the results of the examples.

mod common;

#[path = "../examples/devices.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod devices;
#[path = "../examples/doorbell_batching.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod doorbell_batching;
#[path = "../examples/extended_cq.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod extended_cq;
#[path = "../examples/write_read.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod write_read;

#[test]
fn devices_are_described_with_the_address_that_is_chosen() {
    let context = common::context();
    let text = devices::described(&context.device()).unwrap();
    print!("{text}");
    assert!(text.starts_with(context.name()), "{text}");
    let address = context.address(Default::default()).unwrap();
    assert!(text.contains(&format!("would use {address}")), "{text}");
    for entry in context.gids().unwrap() {
        assert!(text.contains(&format!("GID {entry}")), "{text}");
    }
}

#[test]
fn what_was_written_is_read_back() {
    for len in [1, 100, 100_000] {
        let text = common::bytes(len, 1);
        assert_eq!(write_read::write_and_read(&text).unwrap(), text);
    }
}

#[test]
fn messages_are_printed_with_the_devices_timestamps() {
    let context = common::context();
    let (fields, messages) = extended_cq::timed(&context, 4).unwrap();
    for (number, message) in messages.iter().enumerate() {
        println!("{message}");
        assert_eq!((message.bytes, message.immediate), (8, number as u32));
        assert_eq!(
            message.tick.is_some(),
            fields.contains(rdma_core::completion::CompletionFields::TIMESTAMP)
        );
        assert_eq!(
            message.at.is_some(),
            fields.contains(rdma_core::completion::CompletionFields::WALL_CLOCK)
        );
    }
    assert_eq!(messages.len(), 4);
    assert!(messages.is_sorted_by_key(|message| message.tick));
}

#[test]
fn batches_write_what_single_requests_do() {
    let outcome = doorbell_batching::compare(1000).unwrap();
    println!("{}", outcome.described());
    assert_eq!(outcome.requests, 1024);
    let expected: Vec<u8> = (1..=32_u8).flat_map(|piece| [piece; 64]).collect();
    assert!(outcome.written.iter().all(|written| *written == expected));
}
