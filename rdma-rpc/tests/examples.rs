//! Tests that run the examples over every transport.

#[allow(dead_code, reason = "the tests call `run`")]
#[path = "../examples/echo.rs"]
mod echo;
#[allow(dead_code, reason = "the tests call `run`")]
#[path = "../examples/log_tail.rs"]
mod log_tail;
#[allow(dead_code, reason = "the tests call `run`")]
#[path = "../examples/store.rs"]
mod store;

mod common;

use common::{over_every_transport, within};
use rdma_rpc::Address;

over_every_transport! {
    the_echo_example_echoes;
    the_store_keeps_values_and_tenants_apart;
    the_log_is_followed;
}

async fn the_echo_example_echoes(address: Address) {
    let lines = within("the example", echo::run(address)).await.unwrap();
    assert_eq!(
        lines,
        ["hello", "and for nothing: there is nothing to echo"]
    );
}

async fn the_store_keeps_values_and_tenants_apart(address: Address) {
    let lines = within("the example", store::run(address)).await.unwrap();
    let expected = [
        "blue has azure",
        "red: there is no key colour",
        "blue: the store has no room for 65537 bytes",
        "100000 bytes came back in reverse order",
        "too late: no response to Store.get within 0ns",
    ];
    assert_eq!(lines, expected);
}

async fn the_log_is_followed(address: Address) {
    let lines = within("the example", log_tail::run(address)).await.unwrap();
    let expected = [
        "line 2: three",
        "line 3: four",
        "line 4: five",
        "5 lines were appended",
    ];
    assert_eq!(lines, expected);
}
