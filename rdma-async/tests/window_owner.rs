//! Checks reservations on a device whose memory windows every queue pair can use.

mod common;
#[path = "../../rdma-core/tests/common/unowned_windows.rs"]
mod unowned_windows;

use std::time::Duration;

use common::{bytes, check, context, pattern, run};
use rdma_async::{LocalMrReadAccess, RdmaDevice};
use unowned_windows::make_windows_usable_by_all;

#[test]
fn memory_is_registered_for_a_reservation_if_every_queue_pair_can_use_windows() {
    let context = context();
    make_windows_usable_by_all(&context);
    run(async {
        let device = RdmaDevice::new(&context).unwrap();
        let mut listener = device.builder().bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_address().unwrap();
        let (client, server) = tokio::join!(device.builder().connect(address), listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap());
        let region = pattern(&server, 64, 1);
        let limit = Duration::from_secs(60);
        let reserved = server.reserve(region, limit, async |grant| {
            assert!(!grant.is_exclusive());
            let mut remote = rdma_async::RemoteMr::from_token(grant.token());
            let source = pattern(&client, 64, 2);
            client.write(&source, &mut remote).await.unwrap();
            remote
        });
        let reserved = reserved.await.unwrap();
        assert_eq!(reserved.region.as_slice(), bytes(64, 2));
        // The access has ended at the device.
        let mut late = reserved.output.expect("the limit has not expired");
        let source = pattern(&client, 64, 3);
        assert!(client.write(&source, &mut late).await.is_err());
        assert_eq!(reserved.region.as_slice(), bytes(64, 2));

        let address = listener.local_address().unwrap();
        let (client, server) = tokio::join!(device.builder().connect(address), listener.accept());
        check(&client.unwrap(), &server.unwrap()).await;
    });
}
