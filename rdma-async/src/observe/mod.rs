//! Observation of connections and operations by trace events (feature `trace`) and metrics (feature
//! `metrics`). Without these features, the observation of an operation costs nothing.

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(any(feature = "metrics", feature = "trace"))]
mod operation;

#[cfg(feature = "metrics")]
pub(crate) use self::metrics::Metrics;
#[cfg(any(feature = "metrics", feature = "trace"))]
pub(crate) use self::operation::{Kind, Observed, ObservedPolls};

/// Performs and observes an operation of a connection:
/// `observed!(connection, Kind, bytes, { operation })`. The operation is an asynchronous block that
/// returns a `Result`; `bytes` is the number of bytes that it transfers.
#[cfg(any(feature = "metrics", feature = "trace"))]
macro_rules! observed {
    ($connection:expr, $kind:ident, $bytes:expr, $operation:block) => {{
        let kind = $crate::observe::Kind::$kind;
        let observed = $crate::observe::Observed::begin($connection, kind, $bytes);
        let outcome = async { $operation }.await;
        observed.end(outcome)
    }};
}

/// Performs and observes an operation like [`observed`]. The function `bytes` returns the number of
/// transferred bytes from the value of the operation.
#[cfg(any(feature = "metrics", feature = "trace"))]
macro_rules! observed_arrival {
    ($connection:expr, $kind:ident, $bytes:expr, $operation:block) => {{
        let kind = $crate::observe::Kind::$kind;
        let observed = $crate::observe::Observed::begin($connection, kind, 0);
        let outcome = async { $operation }.await;
        observed.end_with(outcome, $bytes)
    }};
}

/// Performs an operation of a connection without observation.
#[cfg(not(any(feature = "metrics", feature = "trace")))]
macro_rules! observed {
    ($connection:expr, $kind:ident, $bytes:expr, $operation:block) => {
        $operation
    };
}

/// Performs an operation of a connection without observation.
#[cfg(not(any(feature = "metrics", feature = "trace")))]
macro_rules! observed_arrival {
    ($connection:expr, $kind:ident, $bytes:expr, $operation:block) => {
        $operation
    };
}

pub(crate) use {observed, observed_arrival};

/// Substitute for `operation::ObservedPolls`, which records polled operations. Used if the features
/// `metrics` and `trace` are both disabled. The functions of the substitute do nothing.
#[cfg(not(any(feature = "metrics", feature = "trace")))]
#[derive(Debug)]
pub(crate) struct ObservedPolls;

#[cfg(not(any(feature = "metrics", feature = "trace")))]
impl ObservedPolls {
    pub(crate) const fn of_stream_writes() -> Self {
        Self
    }

    pub(crate) fn poll(&mut self, _: &crate::connection::Connection) {}

    pub(crate) fn end(
        &mut self,
        _: &crate::connection::Connection,
        result: crate::Result<usize>,
    ) -> crate::Result<usize> {
        result
    }

    pub(crate) fn give_up(&mut self, _: &crate::connection::Connection) {}
}

/// Guard that counts an open connection in the metrics until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    #[cfg(feature = "metrics")]
    metrics: std::sync::Arc<Metrics>,
}

impl OpenConnection {
    pub(crate) fn of(device: &crate::RdmaDevice) -> Self {
        #[cfg(feature = "metrics")]
        device.metrics().connection_opened();
        #[cfg(not(feature = "metrics"))]
        let _ = device;
        Self {
            #[cfg(feature = "metrics")]
            metrics: std::sync::Arc::clone(device.metrics()),
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        #[cfg(feature = "metrics")]
        self.metrics.connection_ended();
    }
}

/// Guard that counts a lease (memory that is lent to a peer) and its bytes in the metrics until it
/// is dropped.
#[derive(Debug)]
pub(crate) struct LentBytes {
    #[cfg(feature = "metrics")]
    metrics: std::sync::Arc<Metrics>,
    #[cfg(feature = "metrics")]
    bytes: usize,
}

impl LentBytes {
    pub(crate) fn of(device: &crate::RdmaDevice, bytes: usize) -> Self {
        #[cfg(feature = "metrics")]
        device.metrics().lent(bytes);
        #[cfg(not(feature = "metrics"))]
        let _ = (device, bytes);
        Self {
            #[cfg(feature = "metrics")]
            metrics: std::sync::Arc::clone(device.metrics()),
            #[cfg(feature = "metrics")]
            bytes,
        }
    }
}

impl Drop for LentBytes {
    fn drop(&mut self) {
        #[cfg(feature = "metrics")]
        self.metrics.lease_ended(self.bytes);
    }
}

/// Metric with the total number of bytes of a device's existing local memory regions.
#[derive(Debug)]
pub(crate) struct PoolBytes {
    #[cfg(feature = "metrics")]
    gauge: metrics::PoolGauge,
}

impl PoolBytes {
    pub(crate) fn of(device: &str) -> Self {
        #[cfg(not(feature = "metrics"))]
        let _ = device;
        Self {
            #[cfg(feature = "metrics")]
            gauge: metrics::PoolGauge::of(device),
        }
    }

    #[inline]
    pub(crate) fn add(&self, bytes: usize) {
        #[cfg(feature = "metrics")]
        self.gauge.add(bytes);
        #[cfg(not(feature = "metrics"))]
        let _ = bytes;
    }

    #[inline]
    pub(crate) fn subtract(&self, bytes: usize) {
        #[cfg(feature = "metrics")]
        self.gauge.subtract(bytes);
        #[cfg(not(feature = "metrics"))]
        let _ = bytes;
    }
}

/// Reports that the device failed to end the access of a peer to memory: logs the error, and
/// increments a metric. Called where the error cannot be returned to a caller, for example in a
/// `drop`.
#[cold]
pub(crate) fn report_failed_end(device: &crate::RdmaDevice, error: &rdma_core::Error) {
    tracing::warn!(device = device.context().name(), %error, "the access of a peer was not ended");
    #[cfg(feature = "metrics")]
    device.metrics().count_failed_end();
}

/// Increments the metric of messages that had to wait for a credit (permission to send, which the
/// peer gives).
#[inline]
pub(crate) fn count_credit_wait(device: &crate::RdmaDevice) {
    #[cfg(feature = "metrics")]
    device.metrics().count_credit_wait();
    #[cfg(not(feature = "metrics"))]
    let _ = device;
}
