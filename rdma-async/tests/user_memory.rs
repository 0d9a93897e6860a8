//! Checks operations on memory that the program owns: nothing is copied, the memory is registered
//! once, and the owner gets the memory back after the last operation.
//!
//! Each registration of an `Arc` holds a clone of the `Arc` until the device has ended the
//! registration, so its reference count is 1 plus the number of registrations.

mod common;

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use common::{bytes, context, layout, pair_with, poll_and_drop, run};
use rdma_async::{
    Error, LocalMr, LocalMrReadAccess, LocalMrWriteAccess, Rdma, RdmaDevice, RegistrationCache,
};
use rdma_core::AccessFlags;
use rdma_core::memory::HostMemory;

/// Length of a message that the receiver reads from the memory of the sender.
const LONG: usize = 100_000;
/// Maximum time until an operation whose future was dropped ends.
const END_TIMEOUT: Duration = Duration::from_secs(60);

fn device() -> RdmaDevice {
    RdmaDevice::new(&context()).unwrap()
}

fn shared(len: usize, seed: u8) -> Arc<[u8]> {
    Arc::from(bytes(len, seed))
}

fn assert_in_use(error: &Error) {
    assert!(
        matches!(error, Error::Verbs(rdma_core::Error::InUse { .. })),
        "{error:?}"
    );
}

/// Waits until `attempt` returns a value.
async fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + END_TIMEOUT;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(
            Instant::now() < deadline,
            "{what}: not within {END_TIMEOUT:?}"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Sends `message` and checks that the peer receives these bytes.
async fn check_send(client: &Rdma, server: &Rdma, message: &impl LocalMrReadAccess) {
    let (sent, received) = tokio::join!(client.send(message), server.receive());
    sent.unwrap();
    assert_eq!(received.unwrap().as_slice(), message.as_slice());
}

#[test]
fn operations_use_the_memory_of_its_owner_without_a_copy() {
    run(async {
        let device = device();
        let (client, server) = pair_with(|builder| builder.on(&device)).await;
        // Short messages are copied into the request, and long messages are read by the receiver.
        for len in [8, 4000, LONG] {
            let mut remote = client.request_remote_mr(layout(len)).await.unwrap();
            let owner = bytes(len, 1);
            let address = owner.as_ptr();
            let mut region = device.register(owner).unwrap();
            assert_eq!(region.as_slice().as_ptr(), address);
            check_send(&client, &server, &region).await;
            client.write(&region, &mut remote).await.unwrap();
            region.as_mut_slice().fill(0);
            client.read(&mut region, &remote).await.unwrap();
            let owner: Vec<u8> = region.into_owner().unwrap();
            assert_eq!((owner.as_ptr(), owner), (address, bytes(len, 1)));
        }
    });
}

#[test]
fn the_owner_gets_memory_back_only_after_the_last_operation() {
    run(async {
        let device = device();
        let (client, server) = pair_with(|builder| builder.on(&device)).await;
        let region = device.register(bytes(LONG, 2)).unwrap();
        // The operation ends when the server has read the message.
        assert!(poll_and_drop(client.send(&region)).is_none());
        let (region, error) = region.into_owner::<Vec<u8>>().unwrap_err();
        assert_in_use(&error);
        assert_eq!(server.receive().await.unwrap().as_slice(), bytes(LONG, 2));
        let mut region = Some(region);
        let owner: Vec<u8> = eventually("the end of the send", || {
            let outcome = region.take()?.into_owner();
            outcome.map_err(|(kept, _)| region = Some(kept)).ok()
        })
        .await;
        assert_eq!(owner, bytes(LONG, 2));
    });
}

#[test]
fn a_region_names_the_reason_why_it_has_no_owner_to_give_back() {
    run(async {
        let device = device();
        let invalid = |error: &Error| matches!(error, Error::InvalidArgument { .. });
        let pooled = device.alloc_local_mr(layout(64 << 10)).unwrap();
        let (_, error) = pooled.into_owner::<HostMemory>().unwrap_err();
        assert!(invalid(&error), "{error:?}");
        assert_eq!(device.pool_statistics().in_use, 0);

        let (empty, _) = device.register(Vec::new()).unwrap_err();
        assert_eq!(empty, Vec::<u8>::new());
        let region = device.register(bytes(100, 3)).unwrap();
        assert_eq!(device.pool_statistics().in_use, 0);
        let (region, _) = region.into_owner::<Box<[u8]>>().unwrap_err();
        let (front, back) = region.split_at(30).unwrap();
        let (front, error) = front.into_owner::<Vec<u8>>().unwrap_err();
        assert_in_use(&error);
        let region = front.join(back).unwrap();
        assert_eq!(region.into_owner::<Vec<u8>>().unwrap(), bytes(100, 3));

        let owner = shared(100, 4);
        let region = device.register_shared(Arc::clone(&owner)).unwrap();
        let part = region.get(10..20).unwrap();
        assert!(region.get(10..101).is_none() && part.get(0..11).is_none());
        let (region, error) = region.into_owner::<Arc<[u8]>>().unwrap_err();
        assert_in_use(&error);
        assert_eq!(part.as_slice(), &owner[10..20]);
        drop(part);
        let (region, _) = region.into_owner::<Arc<Vec<u8>>>().unwrap_err();
        assert!(Arc::ptr_eq(&region.into_owner().unwrap(), &owner));
    });
}

#[test]
fn memory_that_the_program_registered_itself_becomes_a_region() {
    run(async {
        let device = device();
        let (client, server) = pair_with(|builder| builder.on(&device)).await;
        let registration = device.protection_domain().registration();
        let memory = HostMemory::builder(8192).align(8192).build().unwrap();
        let registered = registration
            .access(AccessFlags::RELAXED_ORDERING)
            .register(memory);
        let mut region = LocalMr::from(registered.unwrap());
        region.as_mut_slice().copy_from_slice(&bytes(8192, 5));
        assert!(region.as_slice().as_ptr().addr().is_multiple_of(8192));
        check_send(&client, &server, &region).await;
        assert_eq!(
            &region.into_owner::<HostMemory>().unwrap()[..],
            bytes(8192, 5)
        );
    });
}

#[test]
fn a_cache_registers_memory_once_and_sends_it_without_a_copy() {
    run(async {
        let device = device();
        let (client, server) = pair_with(|builder| builder.on(&device)).await;
        let cache = RegistrationCache::new(&device, 2 * LONG);
        for len in [8, LONG] {
            let mut owner = shared(len, 6);
            for use_of_clone in 0..3 {
                let region = cache.register(&Arc::clone(&owner)).unwrap();
                assert_eq!(Arc::strong_count(&owner), 2, "use {use_of_clone}");
                assert_eq!(region.as_slice().as_ptr(), owner.as_ptr());
                check_send(&client, &server, &region).await;
                let part = region.get(2..len).unwrap();
                check_send(&client, &server, &part).await;
                let mut remote = client.request_remote_mr(layout(len)).await.unwrap();
                client.write(&region, &mut remote).await.unwrap();
            }
            assert!(cache.evict(&owner) && !cache.evict(&owner));
            // The device has ended the registration, and the owner is again the only user.
            eventually("the end of the registration", || {
                (Arc::strong_count(&owner) == 1).then_some(())
            })
            .await;
            let owner = Arc::get_mut(&mut owner).expect("the only user");
            assert_eq!(owner, bytes(len, 6));
        }
        let statistics = cache.statistics();
        assert_eq!((statistics.misses, statistics.hits), (2, 4));
        assert_eq!((statistics.regions, statistics.bytes), (0, 0));
    });
}

#[test]
fn memory_that_is_evicted_in_flight_stays_registered_until_the_operation_has_ended() {
    run(async {
        let device = device();
        let (client, server) = pair_with(|builder| builder.on(&device)).await;
        let cache = RegistrationCache::new(&device, LONG);
        let owner = shared(LONG, 7);
        assert!(poll_and_drop(client.send(&cache.register(&owner).unwrap())).is_none());
        cache.clear();
        assert_eq!(cache.statistics().regions, 0);
        drop(cache);
        assert_eq!(Arc::strong_count(&owner), 2);
        assert_eq!(server.receive().await.unwrap().as_slice(), &owner[..]);
        eventually("the end of the registration", || {
            (Arc::strong_count(&owner) == 1).then_some(())
        })
        .await;
    });
}

#[test]
fn a_cache_evicts_the_memory_whose_last_use_is_the_longest_ago() {
    run(async {
        let cache = RegistrationCache::new(&device(), 300);
        let [first, second, third, fourth] = [0, 1, 2, 3].map(|seed| shared(100, seed));
        for owner in [&first, &second, &third, &first] {
            drop(cache.register(owner).unwrap());
        }
        let kept = cache.register(&fourth).unwrap();
        let registrations = |owner: &Arc<[u8]>| Arc::strong_count(owner) - 1;
        assert_eq!(
            [&first, &second, &third, &fourth].map(registrations),
            [1, 0, 1, 1]
        );
        // Memory above the limit is registered while its region exists, and evicts nothing.
        let large = shared(301, 4);
        let region = cache.register(&large).unwrap();
        assert_eq!((region.as_slice(), registrations(&large)), (&large[..], 1));
        drop(region);
        assert_eq!(registrations(&large), 0);
        // Memory of the whole limit evicts everything else; a region in use stays valid.
        let whole = shared(300, 5);
        drop(cache.register(&whole).unwrap());
        let owners = [&first, &second, &third, &fourth, &whole];
        assert_eq!(owners.map(registrations), [0, 0, 0, 1, 1]);
        assert_eq!(kept.as_slice(), &fourth[..]);
        let statistics = cache.statistics();
        assert_eq!(
            (statistics.regions, statistics.bytes, statistics.limit),
            (1, 300, 300)
        );
        assert_eq!(
            (statistics.hits, statistics.misses, statistics.evictions),
            (1, 6, 4)
        );
        assert!(cache.register(&shared(0, 0)).is_err());
        drop((kept, cache));
        assert_eq!(owners.map(registrations), [0; 5]);
    });
}

#[test]
fn threads_that_register_the_same_memory_get_one_region() {
    run(async {
        const THREADS: usize = 4;
        let cache = RegistrationCache::new(&device(), LONG);
        let owner = shared(LONG, 8);
        let start = Barrier::new(THREADS);
        let register = || {
            start.wait();
            cache.register(&owner).unwrap()
        };
        let regions = thread::scope(|scope| {
            let threads = [(); THREADS].map(|()| scope.spawn(register));
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(Arc::strong_count(&owner), 2);
        let statistics = cache.statistics();
        assert_eq!(
            (statistics.misses, statistics.hits),
            (1, THREADS as u64 - 1)
        );
        drop((regions, cache));
        assert_eq!(Arc::strong_count(&owner), 1);
    });
}
