//! The settings of one process of a test, which its peer does not need to know.

use std::time::Duration;

use rdma_core::ConnectOptions;

use crate::plan::Plan;
use crate::test::{Metric, Test, Verb};

/// The way in which tasks of rdma-async and rdma-rpc wait for completions: by sleeping, by polling,
/// or by both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// Tasks sleep until a completion event.
    Event,
    /// Tasks poll for this duration, then sleep until a completion event.
    Adaptive(Duration),
    /// Tasks poll without sleeping.
    Busy,
}

/// The settings of one process of a benchmark test. The peer may have other settings. The
/// parameters on which both processes must agree are in the [`Plan`](crate::Plan).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The device's name. `None` means the device that `RDMA_DEVICE` selects or, without this
    /// variable, the first usable device.
    pub device: Option<String>,
    /// The device's port, or `None` for an active port.
    pub port: Option<u8>,
    /// The GID index. `None` means the value of `RDMA_GID_INDEX` or, without this variable, the
    /// index of a RoCE v2 GID.
    pub gid_index: Option<u32>,
    /// Maximum outstanding requests of a queue pair in a bandwidth test.
    pub tx_depth: usize,
    /// The number of receives that are posted on each queue pair, or on the shared receive queue.
    pub rx_depth: usize,
    /// The number of requests per signaled request in a bandwidth test. `None` means 100, or 1 for
    /// messages of more than 8 KiB.
    pub cq_moderation: Option<usize>,
    /// The number of requests that a bandwidth test posts in one call.
    pub post_list: usize,
    /// The TCP ports on which further servers on the server's host listen. The client of a
    /// bandwidth test of writes also writes to these servers.
    pub further_servers: Vec<u16>,
    /// Maximum size in bytes of messages that are sent inline, or `None` for perftest's default for
    /// the device.
    pub inline: Option<u32>,
    /// Maximum number of outstanding RDMA reads and atomic operations, or `None` for the device's
    /// maximum.
    pub outstanding_reads: Option<u8>,
    /// Set if rdma-core waits for completion events instead of polling.
    pub events: bool,
    /// The way in which the layers above rdma-core wait for completions, or `None` for the default
    /// of rdma-async.
    pub completion: Option<Completion>,
    /// The number of threads on which tokio runs the tasks of the layers above rdma-core. If more
    /// than 1, the test itself runs on another thread.
    pub threads: usize,
    /// Set if one pipeline of rdma-async keeps all operations in flight, instead of one task for
    /// each operation in flight.
    pub pipeline: bool,
    /// The exponent N of the acknowledgement timeout, which is 4 us times 2^N.
    pub ack_timeout: u8,
    /// The service level (SL) of the connection.
    pub service_level: u8,
    /// The traffic class of the connection: the type-of-service byte of its IP packets.
    pub traffic_class: u8,
    /// Set to leave out the peak bandwidth, whose measurement needs a timestamp for each message.
    pub no_peak: bool,
    /// Maximum wait for the peer, after which the test fails.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            device: None,
            port: None,
            gid_index: None,
            tx_depth: 128,
            rx_depth: 512,
            cq_moderation: None,
            post_list: 1,
            further_servers: Vec::new(),
            inline: None,
            outstanding_reads: None,
            events: false,
            completion: None,
            threads: 1,
            pipeline: false,
            ack_timeout: 14,
            service_level: 0,
            traffic_class: 0,
            no_peak: false,
            timeout: Duration::from_secs(60),
        }
    }
}

impl Settings {
    /// Message size in bytes above which every request of a bandwidth test is signaled (reports its
    /// completion) by default, as in perftest. With smaller messages, only some requests are
    /// signaled.
    const MODERATION_SIZE: usize = 8192;
    /// Number of iterations above which the peak bandwidth is not measured, as in perftest. The
    /// time to compute the peak grows with the square of the number of iterations.
    const PEAK_ITERATIONS: usize = 20_000;
    /// The PCI vendor ID of Mellanox, on whose devices perftest sends small messages inline by
    /// default.
    const MELLANOX: u32 = 0x02c9;

    /// Returns the options with which rdma-core connects queue pairs, according to these settings.
    /// The caller adds the path MTU.
    pub(crate) fn connect_options(&self) -> ConnectOptions {
        ConnectOptions::default()
            .ack_timeout_exponent(self.ack_timeout)
            .service_level(self.service_level)
            .traffic_class(self.traffic_class)
    }

    /// Returns the maximum number of outstanding requests of each queue pair. In a latency test,
    /// the maximum is 1. In other tests, the maximum is [`tx_depth`](Self::tx_depth), or the number
    /// of messages if that is lower.
    pub fn depth(&self, plan: &Plan) -> usize {
        match plan.test.metric {
            Metric::Latency => 1,
            Metric::Bandwidth => {
                let messages = plan.length.iterations().unwrap_or(usize::MAX);
                self.tx_depth.clamp(1, messages.max(1))
            }
        }
    }

    /// Returns the number of receives that this process keeps posted in the test `plan`: on each
    /// queue pair, or on the shared receive queue.
    pub fn receives(&self, plan: &Plan) -> usize {
        let sharing = if plan.shared_receives {
            plan.queue_pairs
        } else {
            1
        };
        let messages = plan.length.iterations().unwrap_or(usize::MAX);
        let messages = messages.saturating_mul(sharing);
        self.rx_depth.clamp(1, messages.max(1))
    }

    /// Returns the number of sends and the number of receives that are kept posted on the second
    /// queue pair of a latency test. The second queue pair carries other messages, to measure the
    /// latency under load.
    pub fn beside_depths(&self) -> (usize, usize) {
        (self.tx_depth.max(1), self.rx_depth.max(1))
    }

    /// Returns the signaling interval N of a bandwidth test: every N-th request of a queue pair is
    /// signaled (reports its completion). N is limited so that a full queue pair always has a
    /// signaled request outstanding, whose completion makes room for further requests.
    pub fn moderation(&self, plan: &Plan) -> usize {
        let default = match plan.sizes.as_slice() {
            [size] if *size > Self::MODERATION_SIZE => 1,
            _ => 100,
        };
        let wanted = self.cq_moderation.unwrap_or(default);
        let depth = self.depth(plan);
        wanted.clamp(1, depth - self.post_list.min(depth) + 1)
    }

    /// Returns whether the test `plan` measures the peak bandwidth with these settings. The peak
    /// needs a timestamp for every message.
    pub fn measures_peak(&self, plan: &Plan) -> bool {
        let count = plan.length.iterations();
        !self.no_peak && count.is_some_and(|count| count <= Self::PEAK_ITERATIONS)
    }

    /// Returns the maximum size in bytes of messages that `test` sends inline. `vendor` is the
    /// vendor ID of the device: by default, only devices of Mellanox send inline. The result is 0
    /// for reads and atomic operations, which send no data.
    pub fn inline_size(&self, test: Test, vendor: u32) -> u32 {
        let default = match (test.verb, test.metric) {
            (Verb::Send, Metric::Latency) => 236,
            (Verb::Write, Metric::Latency) => 220,
            _ => 0,
        };
        match self.inline {
            _ if test.verb.has_response() => 0,
            Some(size) => size,
            None if vendor == Self::MELLANOX => default,
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plan;

    #[test]
    fn depth_and_moderation_are_perftests() {
        let settings = Settings::default();
        let bandwidth = |size, count| plan(Verb::Write, Metric::Bandwidth, &[size], count);
        let shape = |plan: &Plan| (settings.depth(plan), settings.moderation(plan));
        assert_eq!(shape(&bandwidth(8, 1000)), (128, 100));
        assert_eq!(shape(&bandwidth(8, 50)), (50, 50));
        assert_eq!(shape(&bandwidth(65536, 1000)), (128, 1));
        let latency = plan(Verb::Send, Metric::Latency, &[8], 200);
        assert_eq!(shape(&latency), (1, 1));
        assert_eq!(settings.receives(&latency), 200);
        let shared = Plan {
            queue_pairs: 2,
            shared_receives: true,
            ..plan(Verb::Send, Metric::Bandwidth, &[8], 200)
        };
        assert_eq!(settings.receives(&shared), 400);
        let queue_pairs = 3;
        let more = Plan {
            queue_pairs,
            ..shared
        };
        assert_eq!(settings.receives(&more), 512);
        let all = plan(Verb::Write, Metric::Bandwidth, &[8, 65536], 1000);
        assert_eq!(shape(&all), (128, 100));
    }

    #[test]
    fn a_queue_pair_without_room_for_a_list_has_a_signaled_request_outstanding() {
        for post_list in [1, 7, 32, 33, 127, 128] {
            let settings = Settings {
                post_list,
                ..Settings::default()
            };
            let plan = plan(Verb::Write, Metric::Bandwidth, &[8], 1000);
            let (depth, moderation) = (settings.depth(&plan), settings.moderation(&plan));
            // With a number larger by one, a list of requests would not fit.
            let outstanding = depth - post_list + 1;
            assert!((1..=outstanding).contains(&moderation), "-l {post_list}");
        }
    }

    #[test]
    fn inline_is_for_known_devices_and_for_what_can_be_inline() {
        let settings = Settings::default();
        let test = |verb, metric| Test { verb, metric };
        let send = test(Verb::Send, Metric::Latency);
        assert_eq!(settings.inline_size(send, 0x02c9), 236);
        assert_eq!(settings.inline_size(send, 0), 0);
        let asked = Settings {
            inline: Some(64),
            ..settings
        };
        assert_eq!(asked.inline_size(send, 0), 64);
        assert_eq!(asked.inline_size(test(Verb::Read, Metric::Latency), 0), 0);
    }
}
