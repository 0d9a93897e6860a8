//! Checks the events of devices, and the metrics of connections and operations.

mod common;

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use common::{builder, context, eventually, layout, pattern, poll_and_drop, run};
use futures_util::StreamExt;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use rdma_async::{Rdma, RdmaDevice, RemoteMr};
use rdma_core::{
    AsyncEvent, CompletionQueue, ConnectOptions, QueuePair, RemoteMemory, SendRequest,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Recorder that stores the values of metrics by name and labels.
#[derive(Debug, Default, Clone)]
struct Recorded(Arc<Mutex<BTreeMap<String, f64>>>);

#[derive(Debug)]
struct Metric {
    name: String,
    recorded: Recorded,
}

impl Metric {
    fn change(&self, change: impl FnOnce(f64) -> f64) {
        let mut values = self.recorded.0.lock().unwrap();
        let value = values.entry(self.name.clone()).or_default();
        *value = change(*value);
    }
}

impl CounterFn for Metric {
    fn increment(&self, value: u64) {
        self.change(|before| before + value as f64);
    }

    fn absolute(&self, value: u64) {
        self.change(|_| value as f64);
    }
}

impl GaugeFn for Metric {
    fn increment(&self, value: f64) {
        self.change(|before| before + value);
    }

    fn decrement(&self, value: f64) {
        self.change(|before| before - value);
    }

    fn set(&self, value: f64) {
        self.change(|_| value);
    }
}

impl HistogramFn for Metric {
    /// Counts the recorded values.
    fn record(&self, _value: f64) {
        self.change(|before| before + 1.0);
    }
}

impl Recorded {
    fn metric(&self, key: &Key) -> Arc<Metric> {
        let labels = key.labels().filter(|label| label.key() != "device");
        let labels: Vec<_> = labels.map(|label| label.value()).collect();
        let name = format!("{} {}", key.name(), labels.join(" "));
        Arc::new(Metric {
            name: name.trim_end().to_owned(),
            recorded: self.clone(),
        })
    }

    fn value(&self, name: &str) -> f64 {
        let values = self.0.lock().unwrap();
        values.get(name).copied().unwrap_or_default()
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.metric(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.metric(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.metric(key))
    }
}

async fn pair(device: &RdmaDevice) -> (Rdma, Rdma) {
    let mut listener = builder().on(device).bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_address().unwrap();
    let connecting = builder().on(device).connect(address);
    let (client, server) = tokio::join!(connecting, listener.accept());
    (client.unwrap(), server.unwrap())
}

#[test]
fn metrics_count_operations_bytes_connections_and_leases() {
    let recorded = Recorded::default();
    // The handles of the metrics are created when the device is opened.
    let device = metrics::with_local_recorder(&recorded, || RdmaDevice::new(&context()).unwrap());
    let seen = recorded.clone();
    run(async move {
        let (client, server) = pair(&device).await;
        assert_eq!(seen.value("rdma_async_connections"), 2.0);
        let message = pattern(&client, 100, 1);
        for _ in 0..3 {
            let (sent, received) = tokio::join!(client.send(&message), server.receive());
            sent.unwrap();
            received.unwrap();
        }
        let mut remote = client.request_remote_mr(layout(64)).await.unwrap();
        assert_eq!(seen.value("rdma_async_leases"), 1.0);
        assert_eq!(seen.value("rdma_async_leased_bytes"), 64.0);
        let mut local = pattern(&client, 64, 2);
        client.write(&local, &mut remote).await.unwrap();
        client.read(&mut local, &remote).await.unwrap();
        drop(poll_and_drop(server.receive()));
        let forged = RemoteMemory {
            rkey: remote.token().rkey ^ 0x5a5a_0055,
            ..remote.token()
        };
        let refused = client.read(&mut local, &RemoteMr::from_token(forged)).await;
        refused.unwrap_err();
        assert_eq!(
            seen.value("rdma_async_pool_bytes"),
            device.pool_statistics().in_use as f64
        );
        for (name, expected) in [
            ("rdma_async_operations_total send succeeded", 3.0),
            ("rdma_async_bytes_total send", 300.0),
            ("rdma_async_operations_total receive succeeded", 3.0),
            ("rdma_async_bytes_total receive", 300.0),
            ("rdma_async_operations_total receive dropped", 1.0),
            ("rdma_async_operations_total write succeeded", 1.0),
            ("rdma_async_bytes_total write", 64.0),
            ("rdma_async_operations_total read succeeded", 1.0),
            ("rdma_async_operations_total read failed", 1.0),
            ("rdma_async_operation_seconds read", 1.0),
            ("rdma_async_operations_total request_memory succeeded", 1.0),
            ("rdma_async_connections_total", 2.0),
        ] {
            assert_eq!(seen.value(name), expected, "{name}: {seen:?}");
        }
        let mut values = seen.0.lock().unwrap().clone();
        values.retain(|name, value| name.contains("in_flight") && *value != 0.0);
        assert!(values.is_empty(), "{values:?}");
        drop((client, server));
        common::eventually(|| {
            let all = [
                "rdma_async_connections",
                "rdma_async_leases",
                "rdma_async_leased_bytes",
            ];
            all.iter().all(|name| seen.value(name) == 0.0).then_some(())
        })
        .await;
    });
}

#[test]
fn metrics_count_waits_for_credits_and_operations_on_memory() {
    let recorded = Recorded::default();
    let device = metrics::with_local_recorder(&recorded, || RdmaDevice::new(&context()).unwrap());
    let seen = recorded.clone();
    run(async move {
        let shallow = builder().on(&device).receive_depth(2);
        let mut listener = shallow.bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_address().unwrap();
        let connecting = builder().on(&device).connect(address);
        let (client, server) = tokio::join!(connecting, listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap());
        let waits = "rdma_async_credit_waits_total";
        let message = pattern(&client, 8, 1);
        for _ in 0..2 {
            client.send(&message).await.unwrap();
        }
        assert_eq!(seen.value(waits), 0.0);
        // The third message has no credit until the server has received a message.
        let receive_all = async {
            common::eventually(|| (seen.value(waits) == 1.0).then_some(())).await;
            for _ in 0..3 {
                server.receive().await.unwrap();
            }
        };
        let (sent, ()) = tokio::join!(client.send(&message), receive_all);
        sent.unwrap();

        // Memory that is requested and returned, and memory that is offered and returned.
        let requested = client.request_remote_mr(layout(64)).await.unwrap();
        client.send_remote_mr(requested).await.unwrap();
        let region = server.receive_local_mr().await.unwrap();
        server.send_local_mr(region).await.unwrap();
        let mut offered = client.receive_remote_mr().await.unwrap();
        let written = client.write_with_immediate(&message, &mut offered, 5);
        let (written, immediate) = tokio::join!(written, server.receive_write_immediate());
        written.unwrap();
        assert_eq!(immediate.unwrap(), 5);
        client.send_remote_mr(offered).await.unwrap();
        let region = server.receive_local_mr().await.unwrap();
        let reserved = server.reserve(region, common::LIMIT, |grant| async move {
            grant.offer().await.unwrap();
        });
        reserved.await.unwrap();
        for (operation, count, bytes) in [
            ("return_memory", 2.0, 128.0),
            ("receive_returned_memory", 2.0, 128.0),
            ("offer_memory", 2.0, 128.0),
            ("receive_offered_memory", 1.0, 64.0),
            ("receive_write_immediate", 1.0, 0.0),
        ] {
            let total = seen.value(&format!(
                "rdma_async_operations_total {operation} succeeded"
            ));
            let sum = seen.value(&format!("rdma_async_bytes_total {operation}"));
            assert_eq!((total, sum), (count, bytes), "{operation}: {seen:?}");
        }
        let mut values = seen.0.lock().unwrap().clone();
        values.retain(|name, value| name.contains("in_flight") && *value != 0.0);
        assert!(values.is_empty(), "{values:?}");
    });
}

#[test]
fn metrics_count_the_pieces_and_bytes_of_streams() {
    let recorded = Recorded::default();
    let device = metrics::with_local_recorder(&recorded, || RdmaDevice::new(&context()).unwrap());
    let seen = recorded.clone();
    run(async move {
        let (client, server) = pair(&device).await;
        let (mut client, mut server) = (client.into_stream(), server.into_stream());
        client.write_all(&[7; 100]).await.unwrap();
        client.shutdown().await.unwrap();
        let mut read = Vec::new();
        server.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, [7; 100]);
        for (name, expected) in [
            ("rdma_async_operations_total stream_write succeeded", 1.0),
            ("rdma_async_bytes_total stream_write", 100.0),
            // The bytes, and the end of the stream.
            ("rdma_async_operations_total stream_read succeeded", 2.0),
            ("rdma_async_bytes_total stream_read", 100.0),
            ("rdma_async_operations_total receive succeeded", 0.0),
            ("rdma_async_operations_total stream_write failed", 0.0),
        ] {
            assert_eq!(seen.value(name), expected, "{name}: {seen:?}");
        }
        drop(client);
        while server.write_all(&[1; 10]).await.is_ok() {
            tokio::task::yield_now().await;
        }
        let failed = "rdma_async_operations_total stream_write failed";
        assert_eq!(seen.value(failed), 1.0);
        let mut values = seen.0.lock().unwrap().clone();
        values.retain(|name, value| name.contains("in_flight") && *value != 0.0);
        assert!(values.is_empty(), "{values:?}");
    });
}

/// Returns a completion queue that has overflowed, and the queue pairs whose completions caused the
/// overflow.
fn overrun(device: &RdmaDevice) -> (CompletionQueue, [QueuePair; 2]) {
    let domain = device.protection_domain();
    let completions = device.context().completion_queue(1).build().unwrap();
    let requests = completions.capacity() as u32 + 2;
    let sized = || {
        let builder = domain.queue_pair().send_requests(requests);
        builder.receive_requests(requests)
    };
    let left = sized().send_completions(&completions).build().unwrap();
    let right = sized().build().unwrap();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let options = ConnectOptions::default();
    let left = left.connect(&to_right, &options).unwrap();
    let right = right.connect(&to_left, &options).unwrap();
    let (mut receives, mut sends) = (right.receive_queue(), left.send_queue());
    for _ in 0..requests {
        receives.post(domain.allocate(8).unwrap()).unwrap();
        let request = SendRequest::send(domain.allocate(8).unwrap());
        sends.post(request).unwrap();
    }
    (completions, [left, right])
}

#[test]
fn events_of_a_device_are_a_stream() {
    run(async {
        let device = RdmaDevice::new(&context()).unwrap();
        let mut events = device.events().unwrap();
        let mut other = device.events().unwrap();
        assert!(poll_and_drop(events.next_event()).is_none());
        assert!(poll_and_drop(other.next_event()).is_none());
        let waiting = async {
            loop {
                let event = events.next().await.expect("no end").unwrap();
                if let AsyncEvent::CompletionQueueError { completion_queue } = event {
                    return completion_queue;
                }
            }
        };
        let (failed, (completions, _pairs)) = tokio::join!(waiting, async { overrun(&device) });
        assert_eq!(failed, completions.id());
    });
}

#[test]
fn a_window_of_an_abandoned_reservation_that_is_not_deallocated_is_counted() {
    const NAME: &str = "a_window_of_an_abandoned_reservation_that_is_not_deallocated_is_counted";
    if std::env::var_os("SOFTROCE_FAIL").is_none() {
        if context().device().is_emulated() {
            // The test of the device deallocates three windows.
            for number in [4, 5] {
                let status = Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", NAME, "--nocapture"])
                    .env("SOFTROCE_FAIL", format!("ibv_dealloc_mw:{number}:EBUSY"))
                    .status()
                    .expect("the test runs again");
                assert!(status.success(), "{number}: {status}");
            }
        }
        return;
    }
    let recorded = Recorded::default();
    let device = metrics::with_local_recorder(&recorded, || RdmaDevice::new(&context()).unwrap());
    run(async move {
        let (_client, server) = pair(&device).await;
        let limit = Duration::from_secs(60);
        let tested = server.reserve(pattern(&server, 64, 1), limit, async |_grant| {});
        tested.await.unwrap();
        let name = "rdma_async_failed_access_ends_total";
        let layout = layout(1 << 20);
        let mut remote = server.request_remote_mr(layout).await.unwrap();
        let source = server.alloc_local_mr(layout).unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        while recorded.value(name) == 0.0 {
            assert!(Instant::now() < end, "no failure was counted");
            // While a write is in flight, the request that binds the window waits. The dropped
            // reservation leaves a window that is being bound to another task.
            let mut write = pin!(server.write(&source, &mut remote));
            let begun = poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx).is_pending())).await;
            let region = pattern(&server, 64, 1);
            poll_and_drop(server.reserve(region, limit, |_grant| std::future::pending::<()>()));
            if begun {
                // The connection fails if the window was bound when the reservation was dropped.
                drop(write.await);
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(recorded.value(name), 1.0);
    });
}

#[test]
fn a_ring_of_a_dropped_stream_that_is_not_deregistered_is_counted() {
    const NAME: &str = "a_ring_of_a_dropped_stream_that_is_not_deregistered_is_counted";
    const LEN: usize = 64 << 10;
    if std::env::var_os("SOFTROCE_FAIL").is_none() {
        if context().device().is_emulated() {
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", NAME, "--nocapture"])
                // The first deregistration ends the peer's access to the written bytes, and the
                // second its access to the ring.
                .env("SOFTROCE_FAIL", "ibv_dereg_mr:2:EBUSY")
                .status()
                .expect("the test runs again");
            assert!(status.success(), "{status}");
        }
        return;
    }
    let recorded = Recorded::default();
    let device = metrics::with_local_recorder(&recorded, || RdmaDevice::new(&context()).unwrap());
    run(async move {
        let (client, server) = pair(&device).await;
        let (mut client, mut server) = (client.into_stream(), server.into_stream());
        let mut found = vec![0; LEN];
        let (written, read) =
            tokio::join!(client.write_all(&[1; LEN]), server.read_exact(&mut found));
        written.unwrap();
        read.unwrap();
        // Arrives after the notification that ends the access to the written bytes.
        server.write_all(b"read").await.unwrap();
        client.read_exact(&mut found[..4]).await.unwrap();
        let name = "rdma_async_failed_access_ends_total";
        assert_eq!(recorded.value(name), 0.0);
        drop((client, server));
        eventually(|| (recorded.value(name) > 0.0).then_some(())).await;
        assert_eq!(recorded.value(name), 1.0);
        // The device may still access the memory, which therefore stays registered.
        assert!(device.pool_statistics().in_use >= 16 * LEN);
    });
}
