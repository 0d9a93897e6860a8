//! Metrics of a device, recorded through the crate [`metrics`](::metrics).

use std::fmt;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, SharedString, Unit, counter, gauge, histogram};

use super::operation::{Kind, Outcome};

/// The metrics of one device: counts and durations of its operations, and the numbers of its
/// connections and leases (memory that is lent to peers). The fields are handles by which the
/// metrics of the device are updated, see the crate [`metrics`](::metrics).
pub(crate) struct Metrics {
    /// Handles by the [`Kind`] of the operation.
    operations: Vec<OperationMetrics>,
    connections: Gauge,
    connections_made: Counter,
    leases: Gauge,
    leased_bytes: Gauge,
    credit_waits: Counter,
    failed_ends: Counter,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// Handles by which the metrics of one kind of operation, such as sends, are updated.
struct OperationMetrics {
    succeeded: Counter,
    failed: Counter,
    dropped: Counter,
    bytes: Counter,
    seconds: Histogram,
    in_flight: Gauge,
}

impl Metrics {
    /// Creates the metrics of the device with the name `device`. The recorder that is installed at
    /// this time records the metrics.
    pub(crate) fn of(device: &str) -> Self {
        describe();
        let device = SharedString::from(device.to_owned());
        let operations = Kind::ALL.map(|kind| {
            let ended = |outcome| {
                counter!("rdma_async_operations_total",
                    "device" => device.clone(), "operation" => kind.name(), "outcome" => outcome)
            };
            OperationMetrics {
                succeeded: ended("succeeded"),
                failed: ended("failed"),
                dropped: ended("dropped"),
                bytes: counter!("rdma_async_bytes_total",
                    "device" => device.clone(), "operation" => kind.name()),
                seconds: histogram!("rdma_async_operation_seconds",
                    "device" => device.clone(), "operation" => kind.name()),
                in_flight: gauge!("rdma_async_operations_in_flight",
                    "device" => device.clone(), "operation" => kind.name()),
            }
        });
        Self {
            operations: operations.into(),
            connections: gauge!("rdma_async_connections", "device" => device.clone()),
            connections_made: counter!("rdma_async_connections_total", "device" => device.clone()),
            leases: gauge!("rdma_async_leases", "device" => device.clone()),
            leased_bytes: gauge!("rdma_async_leased_bytes", "device" => device.clone()),
            credit_waits: counter!("rdma_async_credit_waits_total", "device" => device.clone()),
            failed_ends: counter!("rdma_async_failed_access_ends_total", "device" => device),
        }
    }

    pub(super) fn operation_begun(&self, kind: Kind) {
        self.operations[kind as usize].in_flight.increment(1);
    }

    pub(super) fn operation_ended(
        &self,
        kind: Kind,
        outcome: Outcome,
        bytes: usize,
        took: Duration,
    ) {
        let operation = &self.operations[kind as usize];
        operation.in_flight.decrement(1);
        match outcome {
            Outcome::Succeeded => {
                operation.succeeded.increment(1);
                operation.bytes.increment(bytes as u64);
                operation.seconds.record(took);
            }
            Outcome::Failed => operation.failed.increment(1),
            Outcome::Dropped => operation.dropped.increment(1),
        }
    }

    pub(super) fn connection_opened(&self) {
        self.connections.increment(1);
        self.connections_made.increment(1);
    }

    pub(super) fn connection_ended(&self) {
        self.connections.decrement(1);
    }

    pub(super) fn lent(&self, bytes: usize) {
        self.leases.increment(1);
        self.leased_bytes.increment(bytes as f64);
    }

    pub(super) fn lease_ended(&self, bytes: usize) {
        self.leases.decrement(1);
        self.leased_bytes.decrement(bytes as f64);
    }

    pub(super) fn count_credit_wait(&self) {
        self.credit_waits.increment(1);
    }

    pub(super) fn count_failed_end(&self) {
        self.failed_ends.increment(1);
    }
}

/// Handle of the metric that counts the bytes of a device's local memory regions.
pub(super) struct PoolGauge(Gauge);

impl fmt::Debug for PoolGauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolGauge")
    }
}

impl PoolGauge {
    pub(super) fn of(device: &str) -> Self {
        Self(gauge!("rdma_async_pool_bytes", "device" => device.to_owned()))
    }

    pub(super) fn add(&self, bytes: usize) {
        self.0.increment(bytes as f64);
    }

    pub(super) fn subtract(&self, bytes: usize) {
        self.0.decrement(bytes as f64);
    }
}

/// Registers a description of each metric of this crate at the installed metrics recorder, with a
/// unit for metrics that count bytes or seconds.
fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_counter!("rdma_async_operations_total", "Operations that have ended");
    describe_counter!(
        "rdma_async_bytes_total",
        Unit::Bytes,
        "Bytes of operations that succeeded"
    );
    describe_histogram!(
        "rdma_async_operation_seconds",
        Unit::Seconds,
        "Duration of operations that succeeded"
    );
    describe_gauge!(
        "rdma_async_operations_in_flight",
        "Operations that have not ended"
    );
    describe_gauge!("rdma_async_connections", "Open connections");
    describe_counter!("rdma_async_connections_total", "Connections opened so far");
    describe_gauge!("rdma_async_leases", "Memory regions that are lent to peers");
    describe_gauge!(
        "rdma_async_leased_bytes",
        Unit::Bytes,
        "Memory that is lent to peers"
    );
    describe_gauge!(
        "rdma_async_pool_bytes",
        Unit::Bytes,
        "Size of all local memory regions"
    );
    describe_counter!(
        "rdma_async_credit_waits_total",
        "Messages that had to wait for a credit of the peer"
    );
    describe_counter!(
        "rdma_async_failed_access_ends_total",
        "Times that the device refused to end the access of a peer at a drop"
    );
}
