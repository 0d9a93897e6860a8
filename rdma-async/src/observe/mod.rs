//! Observation of connections and operations: a span for each connection and, as features of the
//! crate, trace events and metrics of operations. Without these features an operation has no cost
//! for it.

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(any(feature = "metrics", feature = "trace"))]
mod operation;

#[cfg(feature = "metrics")]
pub(crate) use self::metrics::Metrics;
#[cfg(any(feature = "metrics", feature = "trace"))]
pub(crate) use self::operation::{Kind, Observed, ObservedPolls};

/// Performs an operation of a connection, and observes it:
/// `observed!(connection, Kind, bytes, { operation })`. The operation is a block of an `async`
/// function, with a result.
#[cfg(any(feature = "metrics", feature = "trace"))]
macro_rules! observed {
    ($connection:expr, $kind:ident, $bytes:expr, $operation:block) => {{
        let kind = $crate::observe::Kind::$kind;
        let observed = $crate::observe::Observed::begin($connection, kind, $bytes);
        let outcome = async { $operation }.await;
        observed.end(outcome)
    }};
}

/// Performs an operation like [`observed`], whose number of bytes the function `bytes` finds in its
/// value.
#[cfg(any(feature = "metrics", feature = "trace"))]
macro_rules! observed_arrival {
    ($connection:expr, $kind:ident, $bytes:expr, $operation:block) => {{
        let kind = $crate::observe::Kind::$kind;
        let observed = $crate::observe::Observed::begin($connection, kind, 0);
        let outcome = async { $operation }.await;
        observed.end_with(outcome, $bytes)
    }};
}

/// Performs an operation of a connection, without observing it.
#[cfg(not(any(feature = "metrics", feature = "trace")))]
macro_rules! observed {
    ($connection:expr, $kind:ident, $bytes:expr, $operation:block) => {
        $operation
    };
}

/// Performs an operation of a connection, without observing it.
#[cfg(not(any(feature = "metrics", feature = "trace")))]
macro_rules! observed_arrival {
    ($connection:expr, $kind:ident, $bytes:expr, $operation:block) => {
        $operation
    };
}

pub(crate) use {observed, observed_arrival};

/// Observation of nothing, instead of operations that a caller polls.
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

/// Observation of an open connection, from its creation to its end.
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

/// Observation of memory that is lent to a peer, from the beginning to the end of its lease.
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

/// Observation of the memory of a device's local regions.
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

/// Counts a message that waits for a credit.
#[inline]
pub(crate) fn waits_for_credit(device: &crate::RdmaDevice) {
    #[cfg(feature = "metrics")]
    device.metrics().waits_for_credit();
    #[cfg(not(feature = "metrics"))]
    let _ = device;
}
