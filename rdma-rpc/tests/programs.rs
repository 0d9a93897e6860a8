//! Tests that run the examples as several processes, over RDMA and TCP.

mod common;

use std::{env, fs};

use common::program::{free, run, serve};

fn values_are_returned(scheme: &str) {
    let (_server, address) = serve("bulk_store", &["serve", &format!("{scheme}://127.0.0.1:0")]);
    let directory = env::temp_dir().join(format!("bulk-store-{scheme}-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let [own, copy] = ["own", "copy"].map(|name| directory.join(name));
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(&own, &bytes).unwrap();
    let [own, copy_path] = [&own, &copy].map(|path| path.to_str().unwrap());
    let put = run("bulk_store", &["put", &address, "key", own]);
    assert_eq!(put, "3000000 bytes");
    let put = run("bulk_store", &["put", &address, "key", own]);
    assert_eq!(put, "3000000 bytes in place of 3000000");
    assert_eq!(
        run("bulk_store", &["get", &address, "key", copy_path]),
        "3000000 bytes"
    );
    assert!(fs::read(&copy).unwrap() == bytes);
    let peeked = run("bulk_store", &["peek", &address, "key", "2999997"]);
    assert_eq!(peeked, format!("{:?}", &bytes[2_999_997..]));
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_key_value_store_keeps_long_values_over_rdma() {
    values_are_returned("rdma");
}

#[test]
fn a_key_value_store_keeps_long_values_over_tcp() {
    values_are_returned("tcp");
}

fn rows_are_fitted(scheme: &str) {
    let place = format!("{scheme}://127.0.0.1:0");
    let servers = [(); 2].map(|()| serve("parameter_server", &["serve", &place]));
    let printed = run("parameter_server", &["train", &servers[0].1, &servers[1].1]);
    let mut numbers = printed
        .split_whitespace()
        .filter_map(|word| word.parse::<f64>().ok());
    let (first, last) = (numbers.next().unwrap(), numbers.next().unwrap());
    assert!(first > 0.1 && last < first / 100.0, "{printed}");
}

#[test]
fn a_parameter_server_fits_its_rows_over_rdma() {
    rows_are_fitted("rdma");
}

#[test]
fn a_parameter_server_fits_its_rows_over_tcp() {
    rows_are_fitted("tcp");
}

fn acknowledged_blocks_are_kept(scheme: &str, kills: usize) {
    let addresses = free(scheme, 3);
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let words = |command: &'static str, index: usize| {
        let peers = addresses.iter().enumerate().filter(|(at, _)| *at != index);
        let peers = peers.map(|(_, address)| *address);
        [command, addresses[index]]
            .into_iter()
            .chain(peers)
            .collect::<Vec<_>>()
    };
    let mut servers: Vec<_> = (0..3)
        .map(|index| Some(serve("block_store", &words("first", index)).0))
        .collect();
    let write = |number: usize, text: &str| {
        let number = number.to_string();
        let words = [&["write", &number, text], &addresses[..]].concat();
        assert_eq!(run("block_store", &words), "acknowledged");
    };
    let read = |number: usize| {
        let number = number.to_string();
        run(
            "block_store",
            &[&["read", &number], &addresses[..]].concat(),
        )
    };
    write(0, "before");
    for kill in 0..kills {
        write(kill + 1, &format!("block {kill}"));
        // Alternates between a server that has the last block and a server that may not.
        let victim = (kill * 2 + 1) % 3;
        servers[victim] = None;
        // The remaining servers continue.
        write(0, &format!("after kill {kill}"));
        assert_eq!(read(0), format!("after kill {kill}"));
        assert_eq!(read(kill + 1), format!("block {kill}"));
        servers[victim] = Some(serve("block_store", &words("serve", victim)).0);
    }
    for kill in 0..kills {
        assert_eq!(read(kill + 1), format!("block {kill}"));
    }
    assert_eq!(read(kills + 10), "no such block");
}

#[test]
fn a_block_store_loses_no_acknowledged_block_over_rdma() {
    acknowledged_blocks_are_kept("rdma", 3);
}

#[test]
fn a_block_store_loses_no_acknowledged_block_over_tcp() {
    acknowledged_blocks_are_kept("tcp", 2);
}
