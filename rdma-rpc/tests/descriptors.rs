//! Checks that connections do not leak file descriptors. This test is a separate program, because
//! other tests also open files.

mod common;

use std::time::Duration;

use common::{
    Computing, EverythingClient, EverythingServer, LIMIT, assert_echoes, listen, rdma, within,
};
use rdma_rpc::{Server, ServerHandle};

async fn echoing(server: &ServerHandle) -> EverythingClient {
    EverythingClient::new(common::connect(server).await)
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .expect("the files of this process can be listed")
        .count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_leave_no_files_open() {
    let server = Server::new(EverythingServer::new(Computing::default()));
    let server = listen(server, rdma()).await;
    // The first connection opens files that the process keeps open.
    assert_echoes(&echoing(&server).await).await;
    let with_one = echoing(&server).await;
    assert_echoes(&with_one).await;
    drop(with_one);
    let before = within("files that stay as they are", settled()).await;
    for _ in 0..100 {
        let client = echoing(&server).await;
        assert_echoes(&client).await;
    }
    let closed = async {
        while open_files() > before {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let closed = tokio::time::timeout(LIMIT, closed).await;
    let after = open_files();
    assert!(closed.is_ok(), "{before} open files have become {after}");
    within("the end of the server", server.shutdown()).await;
}

/// Waits until the number of open files is stable, and returns the number.
async fn settled() -> usize {
    let mut last = open_files();
    let mut unchanged = 0;
    while unchanged < 40 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = open_files();
        unchanged = if now == last { unchanged + 1 } else { 0 };
        last = now;
    }
    last
}
