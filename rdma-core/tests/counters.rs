//! Counters of the packets that flow rules steer.

mod common;

use rdma_core::address::{Counter, Counters};

#[test]
fn counters_work_or_are_unsupported() {
    let context = common::context();
    match Counters::new(&context) {
        Ok(counters) => {
            counters.attach(Counter::Packets, 0).unwrap();
            let mut values = [u64::MAX];
            counters.read(&mut values).unwrap();
            assert_eq!(values, [0], "they begin at zero");
        }
        Err(error) => {
            assert!(error.is_unsupported(), "{error}");
            assert!(
                error
                    .to_string()
                    .starts_with("ibv_create_counters on device"),
                "{error}"
            );
        }
    }
}
