//! The plan of a test: the parameters on which server and client must agree.

use std::fmt;
use std::time::Duration;

use rdma_core::Mtu;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::session::Role;
use crate::test::{Metric, Test, Verb};

/// The crate that a test measures: rdma-core, rdma-async or rdma-rpc.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Layer {
    /// rdma-core: synchronous, polling completion queues.
    Core,
    /// rdma-async: futures on tokio.
    Async,
    /// rdma-rpc: remote procedure calls.
    Rpc,
}

impl Layer {
    /// Returns the default number of outstanding requests in bandwidth tests of this layer
    /// (rdma-core, rdma-async or rdma-rpc).
    pub fn depth(self) -> usize {
        match self {
            Self::Core | Self::Async => 128,
            Self::Rpc => 64,
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Core => "core",
            Self::Async => "async",
            Self::Rpc => "rpc",
        })
    }
}

/// The kind of memory that a test registers for its messages, and for data that peers access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Memory {
    /// Memory that the device provides, which may be faster to access. The same as [`Self::Malloc`]
    /// if the device does not provide memory.
    #[default]
    Device,
    /// Memory that the program allocates and registers with the device, page-aligned, as perftest
    /// does.
    Malloc,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device",
            Self::Malloc => "malloc",
        })
    }
}

/// The length of a measurement: a number of messages or a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Length {
    /// A number of messages.
    Iterations(usize),
    /// A duration.
    Duration(Duration),
}

impl Length {
    /// Returns the number of messages that the test measures, or `None` if its length is a
    /// duration.
    pub fn iterations(self) -> Option<usize> {
        match self {
            Self::Iterations(count) => Some(count),
            Self::Duration(_) => None,
        }
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iterations(count) => write!(f, "{count} iterations"),
            Self::Duration(duration) => write!(f, "{} s", duration.as_secs_f64()),
        }
    }
}

/// The parameters of a test that must be the same for server and client, such as the operation and
/// the message sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The layer under test.
    pub layer: Layer,
    /// The operation and the quantity to measure.
    pub test: Test,
    /// The message sizes in bytes, measured one after the other.
    pub sizes: Vec<usize>,
    /// The length of the measurement of each size.
    pub length: Length,
    /// The path MTU, or `None` for the smaller active MTU of the two ports.
    pub mtu: Option<Mtu>,
    /// The kind of memory that server and client use.
    pub memory: Memory,
    /// The number of queue pairs between a client and a server. One thread and one completion queue
    /// serve all of them. [`length`](Self::length) applies to each queue pair, as in perftest. A
    /// test of remote procedure calls has as many connections.
    pub queue_pairs: usize,
    /// Set if all queue pairs of a process that receives messages share one receive queue.
    pub shared_receives: bool,
    /// Set if writes have immediate data, which completes a receive at the peer. Latency tests of
    /// writes over rdma-async always use immediate data.
    pub immediate: bool,
    /// The number of memory regions in each process over which a test of writes spreads its
    /// messages, or `None` if each queue pair has its own memory. The regions together hold [a
    /// fixed number of messages](Self::REGION_MESSAGES), so that all tests touch the same amount of
    /// memory.
    pub regions: Option<usize>,
    /// The size of the messages that the client keeps sending during the latency test, on a second
    /// queue pair, or of the bulk memory that it keeps transferring on the same connection of
    /// rdma-rpc. `None` if the client sends nothing else.
    pub beside: Option<usize>,
}

impl Plan {
    /// Minimum number of iterations of a test. With fewer samples, the statistics have no meaning.
    pub const MIN_ITERATIONS: usize = 5;
    /// Maximum number of queue pairs between a client and a server. [`Self::checked`] refuses a
    /// plan with more.
    pub const MAX_QUEUE_PAIRS: usize = 4096;
    /// The number of messages for which the [regions](Self::regions) of a process together have
    /// room. With this fixed number, tests with different numbers of regions access the same amount
    /// of memory.
    pub const REGION_MESSAGES: usize = 10_000;

    /// Creates the plan (the parameters) of a test over rdma-core. All parameters that are not
    /// given have perftest's defaults.
    pub fn new(test: Test, sizes: Vec<usize>, length: Length) -> Self {
        Self {
            layer: Layer::Core,
            test,
            sizes,
            length,
            mtu: None,
            memory: Memory::default(),
            queue_pairs: 1,
            shared_receives: false,
            immediate: false,
            regions: None,
            beside: None,
        }
    }

    /// Returns the title of the test as perftest writes it, with additions for immediate data and
    /// for remote procedure calls.
    pub fn title(&self) -> String {
        let title = self.test.title();
        match (self.layer, self.test.metric) {
            _ if self.has_immediate() => format!("{title} with Immediate"),
            (Layer::Rpc, Metric::Latency) => format!("{title}, Round Trip"),
            _ => title,
        }
    }

    /// Returns `true` if the writes of this test have immediate data: if
    /// [`immediate`](Self::immediate) is set, and in latency tests of writes over rdma-async. A
    /// receiver of rdma-async notices only writes with immediate data.
    pub fn has_immediate(&self) -> bool {
        let noticed = self.test.verb == Verb::Write && self.test.metric == Metric::Latency;
        self.immediate || (noticed && self.layer == Layer::Async)
    }

    /// Returns the size in bytes of the largest message of this test.
    pub fn max_size(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Returns `true` if the process with the role `role` posts receives in this test. Only tests
    /// of sends and of writes with immediate data need receives. In a latency test, both processes
    /// post receives. In a bandwidth test, only the server posts receives.
    pub fn receives_at(&self, role: Role) -> bool {
        let takes_part = self.test.metric == Metric::Latency || role == Role::Server;
        takes_part && (self.test.verb == Verb::Send || self.has_immediate())
    }

    /// Returns this plan if its parameters can be combined. Otherwise fails.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`], with the reason as its text, if the parameters cannot be combined.
    pub fn checked(self) -> Result<Self> {
        let refuse = |reason: String| Err(Error::Unsupported(reason));
        if self.sizes.is_empty() || self.sizes.contains(&0) {
            return refuse("a message has at least 1 byte".into());
        }
        if (self.layer == Layer::Rpc) != self.test.verb.is_call() {
            return refuse(
                "--layer rpc is only for echo_lat, echo_bw, item_bw and bulk_bw, and is their only layer"
                    .into(),
            );
        }
        if self.test.verb.is_atomic() && self.sizes != [8] {
            return refuse("atomics have 8 bytes: leave -s and -a out".into());
        }
        let core_bandwidth = self.layer == Layer::Core && self.test.metric == Metric::Bandwidth;
        if self.layer != Layer::Core && self.memory != Memory::default() {
            return refuse(format!(
                "--memory {} is only for --layer core: rdma-async and rdma-rpc allocate memory \
                 themselves",
                self.memory
            ));
        }
        if !(1..=Self::MAX_QUEUE_PAIRS).contains(&self.queue_pairs) {
            let most = Self::MAX_QUEUE_PAIRS;
            return refuse(format!("-q takes 1 to {most} queue pairs"));
        }
        let calls = self.test.verb == Verb::Echo && self.test.metric == Metric::Bandwidth;
        if self.queue_pairs > 1 && !core_bandwidth && !calls {
            return refuse("-q is only for echo_bw and the bandwidth tests of --layer core".into());
        }
        if self.shared_receives && (self.layer != Layer::Core || self.test.verb != Verb::Send) {
            return refuse("--use-srq is only for send_lat and send_bw of --layer core".into());
        }
        if self.immediate && self.test.verb != Verb::Write {
            return refuse("--write_with_imm is only for write_lat and write_bw".into());
        }
        if self.immediate && self.regions.is_some() {
            return refuse("--regions and --write_with_imm cannot be combined".into());
        }
        if let Some(regions) = self.regions {
            if !core_bandwidth || self.test.verb != Verb::Write || self.sizes.len() > 1 {
                return refuse("--regions is only for write_bw of --layer core and one -s".into());
            }
            if !(1..=Self::REGION_MESSAGES).contains(&regions) {
                return refuse(format!("--regions takes 1 to {}", Self::REGION_MESSAGES));
            }
        }
        if let Some(size) = self.beside {
            let allowed = [(Layer::Core, Verb::Send), (Layer::Rpc, Verb::Echo)];
            let is_allowed = allowed.contains(&(self.layer, self.test.verb));
            if !is_allowed || self.test.metric != Metric::Latency || self.sizes.len() > 1 {
                return refuse(
                    "--beside is only for send_lat of --layer core and echo_lat, and one -s".into(),
                );
            }
            if self.shared_receives {
                return refuse("--beside and --use-srq cannot be combined".into());
            }
            if size == 0 {
                return refuse("--beside takes at least 1 byte".into());
            }
        }
        match self.length {
            Length::Iterations(count) if count < Self::MIN_ITERATIONS => refuse(format!(
                "{count} iterations are too few: -n takes at least {}",
                Self::MIN_ITERATIONS
            )),
            Length::Duration(duration) if duration.is_zero() => {
                refuse("-D takes at least 1 second".into())
            }
            Length::Duration(_) if self.sizes.len() > 1 => {
                refuse("-a and -D cannot be combined".into())
            }
            _ => Ok(self),
        }
    }

    /// Checks that server and client were started with equal plans, so that both run the same test.
    ///
    /// # Errors
    ///
    /// [`Error::Disagreement`], which names the first parameter that differs.
    pub fn check_equal(server: &Self, client: &Self) -> Result<()> {
        let sizes = |plan: &Self| match plan.sizes.as_slice() {
            [size] => format!("-s {size}"),
            sizes => format!("-a, {} sizes", sizes.len()),
        };
        let test = |plan: &Self| format!("{} ({})", plan.test, plan.title());
        let mtu = |plan: &Self| plan.mtu.map_or("default".into(), |mtu| mtu.to_string());
        let regions = |plan: &Self| {
            plan.regions
                .map_or("none".into(), |count| count.to_string())
        };
        let beside = |plan: &Self| {
            plan.beside
                .map_or("none".into(), |size| format!("{size} bytes"))
        };
        let compared: [(&'static str, String, String); 10] = [
            ("layer", server.layer.to_string(), client.layer.to_string()),
            ("test", test(server), test(client)),
            ("size", sizes(server), sizes(client)),
            (
                "length",
                server.length.to_string(),
                client.length.to_string(),
            ),
            ("MTU", mtu(server), mtu(client)),
            (
                "memory",
                server.memory.to_string(),
                client.memory.to_string(),
            ),
            (
                "number of queue pairs",
                server.queue_pairs.to_string(),
                client.queue_pairs.to_string(),
            ),
            (
                "use of a shared receive queue",
                server.shared_receives.to_string(),
                client.shared_receives.to_string(),
            ),
            ("number of regions", regions(server), regions(client)),
            (
                "messages beside the latency test",
                beside(server),
                beside(client),
            ),
        ];
        for (what, server, client) in compared {
            if server != client {
                return Err(Error::Disagreement {
                    what,
                    server,
                    client,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn plan(verb: Verb, metric: Metric, sizes: &[usize], iterations: usize) -> Plan {
        let test = Test { verb, metric };
        Plan::new(test, sizes.to_vec(), Length::Iterations(iterations))
    }

    #[test]
    fn impossible_plans_are_refused() {
        let refused = |plan: Plan| plan.checked().unwrap_err().to_string();
        assert!(refused(plan(Verb::Send, Metric::Latency, &[8], 4)).contains("at least 5"));
        assert!(refused(plan(Verb::Send, Metric::Latency, &[0], 10)).contains("1 byte"));
        assert!(refused(plan(Verb::FetchAndAdd, Metric::Latency, &[16], 10)).contains("8 bytes"));
    }

    #[test]
    fn many_queue_pairs_are_for_bandwidth_over_rdma_core_and_for_calls() {
        let over = |verb, metric, layer, queue_pairs| {
            let plan = plan(verb, metric, &[8], 1000);
            Plan {
                layer,
                queue_pairs,
                ..plan
            }
            .checked()
        };
        for verb in [Verb::Send, Verb::Write, Verb::Read, Verb::FetchAndAdd] {
            assert!(over(verb, Metric::Bandwidth, Layer::Core, 256).is_ok());
            for (metric, layer) in [
                (Metric::Latency, Layer::Core),
                (Metric::Bandwidth, Layer::Async),
            ] {
                let refused = over(verb, metric, layer, 2).unwrap_err().to_string();
                assert!(refused.contains("-q is only for echo_bw"), "{refused}");
            }
        }
        assert!(over(Verb::Echo, Metric::Bandwidth, Layer::Rpc, 64).is_ok());
        assert!(over(Verb::Echo, Metric::Latency, Layer::Rpc, 2).is_err());
        assert!(over(Verb::Item, Metric::Bandwidth, Layer::Rpc, 2).is_err());
        for count in [0, 4097] {
            assert!(over(Verb::Send, Metric::Bandwidth, Layer::Core, count).is_err());
        }
        let [one, other] =
            [1, 2].map(|count| over(Verb::Write, Metric::Bandwidth, Layer::Core, count).unwrap());
        let error = Plan::check_equal(&one, &other).unwrap_err().to_string();
        let expected = "differ in number of queue pairs: 1 at the server, 2 at the client";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn a_shared_receive_queue_is_for_sends_over_rdma_core() {
        let over = |verb, metric, layer| {
            let shared_receives = true;
            let plan = plan(verb, metric, &[8], 1000);
            Plan {
                layer,
                shared_receives,
                ..plan
            }
            .checked()
        };
        assert!(over(Verb::Send, Metric::Latency, Layer::Core).is_ok());
        assert!(over(Verb::Send, Metric::Bandwidth, Layer::Core).is_ok());
        for (verb, layer) in [(Verb::Write, Layer::Core), (Verb::Send, Layer::Async)] {
            let refused = over(verb, Metric::Bandwidth, layer)
                .unwrap_err()
                .to_string();
            assert!(
                refused.contains("--use-srq is only for send_lat"),
                "{refused}"
            );
        }
    }

    #[test]
    fn immediate_data_is_for_writes() {
        let with = |verb, metric, layer| {
            let immediate = true;
            let plan = plan(verb, metric, &[8], 1000);
            Plan {
                layer,
                immediate,
                ..plan
            }
            .checked()
        };
        for layer in [Layer::Core, Layer::Async] {
            let bandwidth = with(Verb::Write, Metric::Bandwidth, layer).unwrap();
            assert!(bandwidth.receives_at(Role::Server) && !bandwidth.receives_at(Role::Client));
            let latency = with(Verb::Write, Metric::Latency, layer).unwrap();
            assert!(latency.receives_at(Role::Server) && latency.receives_at(Role::Client));
            assert_eq!(latency.title(), "RDMA_Write Latency Test with Immediate");
        }
        let refused = with(Verb::Send, Metric::Latency, Layer::Core).unwrap_err();
        assert!(refused.to_string().contains("--write_with_imm is only for"));
        let regions = Some(7);
        let bandwidth = with(Verb::Write, Metric::Bandwidth, Layer::Core).unwrap();
        let bandwidth = Plan {
            regions,
            ..bandwidth
        };
        assert!(bandwidth.checked().is_err());
    }

    #[test]
    fn a_plan_with_immediate_data_differs_from_one_without_unless_it_has_them_anyway() {
        let agree = |layer| {
            let plain = plan(Verb::Write, Metric::Latency, &[8], 1000);
            let plain = Plan { layer, ..plain };
            let immediate = Plan {
                immediate: true,
                ..plain.clone()
            };
            Plan::check_equal(&plain, &immediate)
        };
        let error = agree(Layer::Core).unwrap_err().to_string();
        assert!(error.contains("differ in test: "), "{error}");
        assert!(agree(Layer::Async).is_ok());
    }

    #[test]
    fn regions_are_for_writes_of_one_size() {
        let over = |verb, sizes: &[usize], regions| {
            let regions = Some(regions);
            let plan = plan(verb, Metric::Bandwidth, sizes, 1000);
            Plan { regions, ..plan }.checked()
        };
        assert!(over(Verb::Write, &[8], 10_000).is_ok());
        assert!(over(Verb::Write, &[8], 0).is_err());
        assert!(over(Verb::Write, &[8], 10_001).is_err());
        assert!(over(Verb::Write, &[8, 16], 2).is_err());
        assert!(over(Verb::Send, &[8], 2).is_err());
    }

    #[test]
    fn messages_beside_are_for_the_latency_of_sends_over_rdma_core_and_of_calls() {
        let with = |verb, metric, beside| {
            let plan = plan(verb, metric, &[8], 1000);
            Plan { beside, ..plan }
        };
        let bulk = Some(1 << 20);
        let latency = with(Verb::Send, Metric::Latency, bulk).checked().unwrap();
        let refused = |plan: Plan| plan.checked().unwrap_err().to_string();
        let calls = Plan {
            layer: Layer::Rpc,
            ..with(Verb::Echo, Metric::Latency, bulk)
        };
        assert!(calls.checked().is_ok());
        let expected = "--beside is only for send_lat of --layer core and echo_lat, and one -s";
        let several = Plan {
            sizes: vec![8, 16],
            ..latency.clone()
        };
        let layered = Plan {
            layer: Layer::Async,
            ..latency.clone()
        };
        for wrong in [
            several,
            layered,
            with(Verb::Send, Metric::Bandwidth, bulk),
            with(Verb::Write, Metric::Latency, bulk),
        ] {
            assert_eq!(refused(wrong), expected);
        }
        let empty = with(Verb::Send, Metric::Latency, Some(0));
        assert_eq!(refused(empty), "--beside takes at least 1 byte");
        let shared = Plan {
            shared_receives: true,
            ..latency.clone()
        };
        assert!(refused(shared).contains("--beside and --use-srq"));
        let alone = with(Verb::Send, Metric::Latency, None);
        let error = Plan::check_equal(&alone, &latency).unwrap_err().to_string();
        let expected = "differ in messages beside the latency test: none at the server, \
                        1048576 bytes at the client";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn both_ends_have_the_same_memory_and_above_rdma_core_the_devices() {
        let device = plan(Verb::Send, Metric::Latency, &[8], 10);
        let malloc = Plan {
            memory: Memory::Malloc,
            ..device.clone()
        };
        let error = Plan::check_equal(&device, &malloc).unwrap_err().to_string();
        let expected = "differ in memory: device at the server, malloc at the client";
        assert!(error.contains(expected), "{error}");
        let layered = Plan {
            layer: Layer::Async,
            ..malloc.checked().unwrap()
        };
        let refused = layered.checked().unwrap_err().to_string();
        assert!(refused.contains("--memory malloc is only for"), "{refused}");
    }

    #[test]
    fn calls_are_of_rdma_rpc() {
        let echo = plan(Verb::Echo, Metric::Latency, &[8], 10);
        let refused = echo.clone().checked().unwrap_err().to_string();
        assert!(refused.contains("--layer rpc"), "{refused}");
        let layer = Layer::Rpc;
        let echo = Plan { layer, ..echo }.checked().unwrap();
        assert_eq!(echo.title(), "RPC_Echo Latency Test, Round Trip");
    }

    #[test]
    fn a_difference_is_named() {
        let server = plan(Verb::Send, Metric::Latency, &[8], 10);
        let client = plan(Verb::Send, Metric::Latency, &[8], 20);
        assert!(Plan::check_equal(&server, &server.clone()).is_ok());
        assert_eq!(
            Plan::check_equal(&server, &client).unwrap_err().to_string(),
            "the two ends differ in length: 10 iterations at the server, 20 iterations at the client"
        );
    }
}
