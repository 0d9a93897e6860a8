//! The command line of `rdma-bench`, which takes perftest's flags.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use rdma_bench::report::{Listing, Style, Units};
use rdma_bench::{Completion, Layer, Length, Memory, Metric, Plan, Settings, Test, Verb, session};
use rdma_core::Mtu;

/// Measures RDMA between two processes, with perftest's flags and columns.
///
/// Start the same test in two processes: without HOST as the server, which waits; with HOST as the
/// client.
#[derive(Debug, Parser)]
#[command(version, disable_version_flag = true)]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    test: TestName,
    /// Print the version.
    #[arg(short = 'V', long, action = ArgAction::Version)]
    version: Option<bool>,
}

#[derive(Debug, Subcommand)]
#[command(rename_all = "snake_case")]
enum TestName {
    /// Latency of sends: half of the round trip of a message and its echo.
    #[command(alias = "ib_send_lat")]
    SendLat(Options),
    /// Bandwidth of sends.
    #[command(alias = "ib_send_bw")]
    SendBw(Options),
    /// Latency of RDMA writes: half of the round trip; each process polls its memory for the peer's
    /// write.
    #[command(alias = "ib_write_lat")]
    WriteLat(Options),
    /// Bandwidth of RDMA writes.
    #[command(alias = "ib_write_bw")]
    WriteBw(Options),
    /// Latency of RDMA reads.
    #[command(alias = "ib_read_lat")]
    ReadLat(Options),
    /// Bandwidth of RDMA reads.
    #[command(alias = "ib_read_bw")]
    ReadBw(Options),
    /// Latency of atomic operations.
    #[command(alias = "ib_atomic_lat")]
    AtomicLat(Options),
    /// Bandwidth of atomic operations.
    #[command(alias = "ib_atomic_bw")]
    AtomicBw(Options),
    /// Latency of RPC calls that return their argument: the whole round trip.
    EchoLat(Options),
    /// Rate of RPC calls that return their argument, many outstanding at the same time; bytes are
    /// counted in one direction.
    EchoBw(Options),
    /// Rate of the items of a stream that an RPC call returns.
    ItemBw(Options),
    /// Rate of RPC calls whose argument and result are bulk memory, with many calls in flight;
    /// bytes are counted in one direction.
    BulkBw(Options),
}

#[derive(Debug, Args)]
struct Options {
    /// The server to connect to; without HOST this process is the server.
    host: Option<String>,
    /// The layer to measure [default: core; rpc for echo_lat, echo_bw, item_bw and bulk_bw].
    #[arg(long, value_enum)]
    layer: Option<LayerName>,
    /// The RDMA device [default: the value of RDMA_DEVICE, else the first usable device].
    #[arg(short = 'd', long = "ib-dev", value_name = "NAME")]
    device: Option<String>,
    /// The port of the RDMA device [default: an active port].
    #[arg(short = 'i', long = "ib-port", value_name = "N")]
    port: Option<u8>,
    /// The GID index [default: RDMA_GID_INDEX, else the index of the RoCE v2 GID whose address this
    /// end has in the control connection, else of any RoCE v2 GID, IPv4 preferred].
    #[arg(short = 'x', long, value_name = "N")]
    gid_index: Option<u32>,
    /// The TCP port to listen on or to connect to.
    #[arg(short = 'p', long = "port", value_name = "N", default_value_t = 18515)]
    control_port: u16,
    /// The message size in bytes, with an optional suffix K or M [default: 2 for latency, 65536 for
    /// bandwidth, 8 for atomics].
    #[arg(short = 's', long, value_name = "BYTES", value_parser = bytes, conflicts_with = "all")]
    size: Option<usize>,
    /// Measure every power of two from 2 to 2^23 bytes as message size.
    #[arg(short = 'a', long)]
    all: bool,
    /// The number of messages that each queue pair transfers.
    #[arg(short = 'n', long = "iters", value_name = "N", default_value_t = 1000)]
    iterations: usize,
    /// Measure for this many seconds instead of for a number of messages.
    #[arg(short = 'D', long, value_name = "SECONDS")]
    duration: Option<u64>,
    /// Maximum number of outstanding requests of a bandwidth test, or of messages that --beside of
    /// --layer core sends [default: 128; 64 for --layer rpc].
    #[arg(short = 't', long, value_name = "N")]
    tx_depth: Option<usize>,
    /// The number of receives posted on each queue pair, or on the shared receive queue.
    #[arg(short = 'r', long, value_name = "N", default_value_t = 512)]
    rx_depth: usize,
    /// Let only every N-th request of a bandwidth test report its completion [default: 100; 1 for
    /// messages above 8 KiB].
    #[arg(short = 'Q', long = "cq-mod", value_name = "N")]
    cq_moderation: Option<usize>,
    /// Post N requests of a bandwidth test to the device in one call (--layer core).
    #[arg(short = 'l', long = "post_list", value_name = "N", default_value_t = 1)]
    post_list: usize,
    /// The kind of memory that both processes register with the device (--layer core).
    #[arg(long, value_enum, value_name = "KIND", default_value_t = MemoryName::Device)]
    memory: MemoryName,
    /// The number of queue pairs (bandwidth tests of --layer core) or connections (echo_bw), each
    /// of which transfers its own messages.
    #[arg(short = 'q', long = "qp", value_name = "N", default_value_t = 1)]
    queue_pairs: usize,
    /// Write with immediate data, so that each write completes a receive of the peer (--layer core
    /// or async).
    #[arg(long = "write_with_imm")]
    write_with_immediate: bool,
    /// Let all queue pairs of a process share one receive queue (sends of --layer core).
    #[arg(long = "use-srq")]
    use_srq: bool,
    /// Write to 10,000 addresses in turn, which are spread over N memory regions (write_bw of
    /// --layer core).
    #[arg(long, value_name = "N")]
    regions: Option<usize>,
    /// Also write to the servers that listen on these TCP ports of HOST (write_bw of --layer core).
    #[arg(long, value_name = "PORT,...", value_delimiter = ',')]
    also: Vec<u16>,
    /// During the test, keep sending messages of this size on a second queue pair (send_lat of
    /// --layer core), or keep transferring bulk memory of this size on the same connection
    /// (echo_lat).
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    beside: Option<usize>,
    /// Maximum size in bytes of a message that is sent inline [default: perftest's default for the
    /// device].
    #[arg(short = 'I', long = "inline_size", value_name = "BYTES")]
    inline: Option<u32>,
    /// The path MTU, 256 to 4096 [default: the smaller active MTU of the two ports].
    #[arg(short = 'm', long, value_name = "BYTES", value_parser = mtu)]
    mtu: Option<Mtu>,
    /// Maximum number of outstanding RDMA reads and atomic operations [default: the device's
    /// maximum].
    #[arg(short = 'o', long = "outs", value_name = "N")]
    outstanding: Option<u8>,
    /// Wait for completion events instead of polling (--layer core).
    #[arg(short = 'e', long)]
    events: bool,
    /// The way in which tasks wait for completions (--layer async or rpc) [default: adaptive].
    #[arg(long, value_enum, value_name = "MODE")]
    completion: Option<CompletionName>,
    /// Time in microseconds for which tasks poll before they sleep (--completion adaptive).
    #[arg(
        long,
        value_name = "USEC",
        default_value_t = 20,
        requires = "completion"
    )]
    spin: u64,
    /// The number of threads on which tokio runs tasks (--layer async or rpc); with 1, tasks run on
    /// the thread of the test itself.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Keep the operations in flight by one pipeline instead of a task for each (write_bw and
    /// read_bw of --layer async).
    #[arg(long)]
    pipeline: bool,
    /// The operation of the atomic tests [default: FETCH_AND_ADD].
    #[arg(short = 'A', long = "atomic_type", value_enum, ignore_case = true)]
    atomic: Option<AtomicName>,
    /// The exponent N of the acknowledgement timeout, which is 4 us times 2^N.
    #[arg(
        short = 'u',
        long = "qp-timeout",
        value_name = "N",
        default_value_t = 14
    )]
    ack_timeout: u8,
    /// The service level (SL) of the connection.
    #[arg(short = 'S', long = "sl", value_name = "N", default_value_t = 0)]
    service_level: u8,
    /// The traffic class of the connection: the type-of-service byte of its IP packets.
    #[arg(long = "tclass", value_name = "N", default_value_t = 0)]
    traffic_class: u8,
    /// Do not measure the peak bandwidth.
    #[arg(short = 'N', long = "noPeak")]
    no_peak: bool,
    /// Print the samples of a latency test, sorted by value.
    #[arg(short = 'H', long)]
    report_histogram: bool,
    /// Print the samples of a latency test in chronological order.
    #[arg(short = 'U', long)]
    report_unsorted: bool,
    /// Report bandwidth in Gb/sec instead of MiB/sec.
    #[arg(long = "report_gbits")]
    gigabits: bool,
    /// Also write the results as JSON.
    #[arg(long = "out_json")]
    json: bool,
    /// The file to which --out_json writes the results.
    #[arg(
        long = "out_json_file",
        value_name = "FILE",
        default_value = "perftest_out.json"
    )]
    json_file: PathBuf,
    /// Fail when the peer does not respond for this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Accepted for compatibility with perftest, without effect: the processor's frequency is not
    /// checked.
    #[arg(short = 'F', long = "CPU-freq")]
    frequency: bool,

    #[arg(short = 'b', long, hide = true)]
    bidirectional: bool,
    #[arg(short = 'c', long, hide = true, default_value = "RC")]
    connection: String,
    #[arg(short = 'R', long = "rdma_cm", hide = true)]
    rdma_cm: bool,
    #[arg(short = 'C', long = "report-cycles", hide = true)]
    cycles: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LayerName {
    /// The layer rdma-core: work requests and polling.
    Core,
    /// The layer rdma-async: futures on tokio.
    Async,
    /// The layer rdma-rpc: remote procedure calls.
    Rpc,
}

impl From<LayerName> for Layer {
    fn from(name: LayerName) -> Self {
        match name {
            LayerName::Core => Self::Core,
            LayerName::Async => Self::Async,
            LayerName::Rpc => Self::Rpc,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum MemoryName {
    /// Memory that this program allocates, as perftest does.
    Malloc,
    /// Memory that the device provides; the same as malloc if the device does not provide memory.
    Device,
}

impl From<MemoryName> for Memory {
    fn from(name: MemoryName) -> Self {
        match name {
            MemoryName::Malloc => Self::Malloc,
            MemoryName::Device => Self::Device,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum CompletionName {
    /// Sleep until a completion event.
    Event,
    /// Poll for a while, then sleep until a completion event.
    Adaptive,
    /// Poll without sleeping.
    Busy,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
enum AtomicName {
    FetchAndAdd,
    #[value(name = "CMP_AND_SWAP")]
    CompareAndSwap,
}

/// The test and the settings that a command line requests.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) plan: Plan,
    pub(crate) settings: Settings,
    pub(crate) style: Style,
    pub(crate) host: Option<String>,
    pub(crate) control_port: u16,
    pub(crate) json: Option<PathBuf>,
}

impl CommandLine {
    /// Converts this command line into a request: the test to run, with its settings. Fails if some
    /// of the options cannot be combined.
    pub(crate) fn request(self) -> anyhow::Result<Request> {
        let (verb, metric, options) = match self.test {
            TestName::SendLat(options) => (Verb::Send, Metric::Latency, options),
            TestName::SendBw(options) => (Verb::Send, Metric::Bandwidth, options),
            TestName::WriteLat(options) => (Verb::Write, Metric::Latency, options),
            TestName::WriteBw(options) => (Verb::Write, Metric::Bandwidth, options),
            TestName::ReadLat(options) => (Verb::Read, Metric::Latency, options),
            TestName::ReadBw(options) => (Verb::Read, Metric::Bandwidth, options),
            TestName::AtomicLat(options) => (Verb::FetchAndAdd, Metric::Latency, options),
            TestName::AtomicBw(options) => (Verb::FetchAndAdd, Metric::Bandwidth, options),
            TestName::EchoLat(options) => (Verb::Echo, Metric::Latency, options),
            TestName::EchoBw(options) => (Verb::Echo, Metric::Bandwidth, options),
            TestName::ItemBw(options) => (Verb::Item, Metric::Bandwidth, options),
            TestName::BulkBw(options) => (Verb::Bulk, Metric::Bandwidth, options),
        };
        let verb = match (verb.is_atomic(), options.atomic) {
            (true, Some(AtomicName::CompareAndSwap)) => Verb::CompareAndSwap,
            (false, Some(_)) => bail!("-A is only for the atomic tests"),
            _ => verb,
        };
        options.request(Test { verb, metric })
    }
}

impl Options {
    fn request(self, test: Test) -> anyhow::Result<Request> {
        self.refuse_unsupported()?;
        let sizes = if self.all {
            (1..=23).map(|exponent| 1 << exponent).collect()
        } else {
            let default = match test.metric {
                _ if test.verb.is_atomic() => 8,
                Metric::Latency => 2,
                Metric::Bandwidth => 65536,
            };
            vec![self.size.unwrap_or(default)]
        };
        let layer = match self.layer {
            Some(name) => name.into(),
            None if test.verb.is_call() => Layer::Rpc,
            None => Layer::Core,
        };
        let length = match self.duration {
            Some(seconds) => Length::Duration(Duration::from_secs(seconds)),
            None => Length::Iterations(self.iterations),
        };
        let plan = Plan {
            layer,
            mtu: self.mtu,
            memory: self.memory.into(),
            queue_pairs: self.queue_pairs,
            shared_receives: self.use_srq,
            immediate: self.write_with_immediate,
            regions: self.regions,
            beside: self.beside,
            ..Plan::new(test, sizes, length)
        };
        let plan = plan.checked()?;
        let settings = Settings {
            device: self.device,
            port: self.port,
            gid_index: self.gid_index,
            tx_depth: self.tx_depth.unwrap_or(layer.depth()),
            rx_depth: self.rx_depth,
            cq_moderation: self.cq_moderation,
            post_list: self.post_list,
            further_servers: self.also,
            inline: self.inline,
            outstanding_reads: self.outstanding,
            events: self.events,
            completion: self.completion.map(|name| match name {
                CompletionName::Event => Completion::Event,
                CompletionName::Adaptive => Completion::Adaptive(Duration::from_micros(self.spin)),
                CompletionName::Busy => Completion::Busy,
            }),
            threads: usize::from(self.threads),
            pipeline: self.pipeline,
            ack_timeout: self.ack_timeout,
            service_level: self.service_level,
            traffic_class: self.traffic_class,
            no_peak: self.no_peak,
            timeout: Duration::from_secs(self.timeout),
        };
        session::check_settings(&plan, &settings)?;
        let listing = match (self.report_unsorted, self.report_histogram) {
            (true, _) => Listing::Unsorted,
            (false, true) => Listing::Sorted,
            (false, false) => Listing::None,
        };
        let units = if self.gigabits {
            Units::Gigabits
        } else {
            Units::Mebibytes
        };
        Ok(Request {
            plan,
            settings,
            style: Style { units, listing },
            host: self.host,
            control_port: self.control_port,
            json: self.json.then_some(self.json_file),
        })
    }

    /// Fails if the command line has a flag of perftest that this program recognizes but does not
    /// support. The error names the flag.
    fn refuse_unsupported(&self) -> anyhow::Result<()> {
        if self.bidirectional {
            bail!("-b: bidirectional tests are not supported");
        }
        if !self.connection.eq_ignore_ascii_case("RC") {
            bail!("-c {}: only RC is supported", self.connection);
        }
        if self.rdma_cm {
            bail!("-R: connecting by rdma_cm is not supported");
        }
        if self.cycles {
            bail!("-C: times are in microseconds only");
        }
        Ok(())
    }
}

/// Parses a number of bytes with an optional suffix K (2^10) or M (2^20).
fn bytes(text: &str) -> Result<usize, String> {
    let (number, unit) = match text.to_ascii_uppercase().as_bytes() {
        [.., b'K'] => (&text[..text.len() - 1], 1 << 10),
        [.., b'M'] => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let count: usize = number
        .parse()
        .map_err(|_| format!("{text:?} is not a number of bytes"))?;
    count
        .checked_mul(unit)
        .filter(|size| u32::try_from(*size).is_ok())
        .ok_or_else(|| format!("{text} is more than a message can have"))
}

fn mtu(text: &str) -> Result<Mtu, String> {
    text.parse()
        .ok()
        .and_then(Mtu::from_bytes)
        .ok_or_else(|| "path MTUs are 256, 512, 1024, 2048 and 4096".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &str) -> anyhow::Result<Request> {
        let words = std::iter::once("rdma-bench").chain(line.split_whitespace());
        CommandLine::try_parse_from(words)?.request()
    }

    fn refusal(line: &str) -> String {
        request(line).unwrap_err().to_string()
    }

    #[test]
    fn defaults_are_perftests() {
        let latency = request("send_lat").unwrap();
        assert_eq!(latency.plan.sizes, [2]);
        assert_eq!(latency.plan.length, Length::Iterations(1000));
        assert_eq!(latency.control_port, 18515);
        assert_eq!(latency.settings, Settings::default());
        let bandwidth = request("ib_write_bw 10.0.0.1").unwrap();
        assert_eq!(bandwidth.plan.sizes, [65536]);
        assert_eq!(bandwidth.host.as_deref(), Some("10.0.0.1"));
    }

    #[test]
    fn flags_are_perftests() {
        let line = "read_bw -d rxe_0 -i 1 -x 1 -p 20000 -s 4K -n 500 -t 64 -Q 10 -m 1024 -o 16 -e -F \
                    -u 15 -N --report_gbits --out_json --out_json_file=out.json";
        let asked = request(line).unwrap();
        assert_eq!(asked.plan.sizes, [4096]);
        assert_eq!(asked.plan.mtu, Some(Mtu::Mtu1024));
        assert_eq!(asked.settings.depth(&asked.plan), 64);
        assert_eq!(asked.settings.outstanding_reads, Some(16));
        assert_eq!(asked.style.units, Units::Gigabits);
        assert_eq!(asked.json, Some("out.json".into()));
        assert_eq!(request("send_lat -a").unwrap().plan.sizes.len(), 23);
        let atomic = request("atomic_lat -A CMP_AND_SWAP").unwrap();
        assert_eq!(atomic.plan.test.verb, Verb::CompareAndSwap);
        let listing = |line| request(line).unwrap().style.listing;
        assert_eq!(listing("send_lat -H"), Listing::Sorted);
        assert_eq!(listing("send_lat -U"), Listing::Unsorted);
    }

    #[test]
    fn lists_and_many_queue_pairs_are_for_bandwidth() {
        assert_eq!(request("send_bw -l 32").unwrap().settings.post_list, 32);
        let plain = request("write_bw").unwrap();
        assert_eq!((plain.settings.post_list, plain.plan.queue_pairs), (1, 1));
        let many = request("write_bw -s 8 -q 4 --regions 7 --also 20001,20002").unwrap();
        assert_eq!((many.plan.queue_pairs, many.plan.regions), (4, Some(7)));
        assert_eq!(many.settings.further_servers, [20001, 20002]);
        assert_eq!(request("send_bw -q 4").unwrap().plan.queue_pairs, 4);
        assert!(
            request("send_bw -q 4 --use-srq")
                .unwrap()
                .plan
                .shared_receives
        );
        assert!(request("send_lat --use-srq").unwrap().plan.shared_receives);
        assert!(refusal("write_bw --use-srq").contains("--use-srq is only for"));
        assert!(refusal("send_lat -q 2").contains("-q is only for echo_bw"));
        assert!(refusal("send_bw --also 20001").contains("--also is only for write_bw"));
        assert!(refusal("send_bw --regions 2").contains("--regions is only for write_bw"));
        assert!(refusal("send_bw -l 200").contains("-l takes"));
        assert!(refusal("send_bw -l 2 --layer async").contains("--layer core"));
    }

    #[test]
    fn latency_is_measured_beside_other_messages_where_asked() {
        assert_eq!(request("send_lat").unwrap().plan.beside, None);
        let asked = request("send_lat -s 8 --beside 1M -t 16 -r 32").unwrap();
        assert_eq!(asked.plan.beside, Some(1 << 20));
        assert_eq!(asked.settings.beside_depths(), (16, 32));
        let call = request("echo_lat -s 32 --beside 64M").unwrap();
        assert_eq!(call.plan.beside, Some(64 << 20));
        for line in [
            "send_bw --beside 1M",
            "write_lat --beside 1M",
            "echo_bw --beside 1M",
            "send_lat --beside 1M --layer async",
            "send_lat --beside 1M -a",
        ] {
            assert!(
                refusal(line).contains("--beside is only for send_lat"),
                "{line}"
            );
        }
        assert!(refusal("send_lat --beside 0").contains("at least 1 byte"));
        assert!(refusal("send_lat --beside 1M -e").contains("-e and --beside"));
        assert!(refusal("send_lat --beside 1M --use-srq").contains("--use-srq"));
        assert!(refusal("send_lat --beside much").contains("not a number of bytes"));
    }

    #[test]
    fn writes_have_immediate_data_where_asked() {
        let immediate = |line| request(line).unwrap().plan.immediate;
        assert!(!immediate("write_lat"));
        assert!(immediate("write_lat --write_with_imm -e"));
        assert!(immediate("write_bw --write_with_imm -q 4 --layer core"));
        assert!(immediate("write_bw --write_with_imm --layer async"));
        assert!(refusal("send_bw --write_with_imm").contains("only for write_lat and write_bw"));
        let several = refusal("write_bw --write_with_imm --also 20001");
        assert!(several.contains("--also is only for write_bw"), "{several}");
    }

    #[test]
    fn memory_is_the_devices_or_the_programs() {
        let memory = |line| request(line).unwrap().plan.memory;
        assert_eq!(memory("send_lat"), Memory::Device);
        assert_eq!(memory("write_bw --memory device"), Memory::Device);
        assert_eq!(memory("read_bw --memory malloc"), Memory::Malloc);
        assert!(refusal("send_bw --memory malloc --layer async").contains("--layer core"));
        assert!(refusal("echo_bw --memory malloc").contains("--layer core"));
    }

    #[test]
    fn the_layers_above_have_flags_of_their_own() {
        let layered = |line| request(line).unwrap();
        let write = layered("write_bw --layer async --completion adaptive --spin 50 --threads 2");
        assert_eq!(write.plan.layer, Layer::Async);
        let spin = Duration::from_micros(50);
        assert_eq!(write.settings.completion, Some(Completion::Adaptive(spin)));
        assert_eq!((write.settings.tx_depth, write.settings.threads), (128, 2));
        let echo = layered("echo_bw");
        assert_eq!((echo.plan.layer, echo.settings.tx_depth), (Layer::Rpc, 64));
        assert!(refusal("echo_lat --layer core").contains("--layer rpc is only for"));
        assert!(refusal("send_lat --layer rpc").contains("--layer rpc is only for"));
        assert!(refusal("send_lat --completion busy").contains("are only for --layer async"));
        assert!(refusal("send_lat --layer async -e").contains("--completion event"));
        assert!(refusal("send_bw --layer async -Q 10").contains("-Q, -I and -o"));
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        assert!(refusal("send_bw -b").contains("bidirectional"));
        assert!(refusal("send_lat -l 10").contains("-l takes"));
        assert!(refusal("send_bw -c UD").contains("only RC"));
        assert!(refusal("send_lat -n 4").contains("at least 5"));
        assert!(refusal("write_lat -e").contains("-e is only for"));
        assert!(refusal("send_lat -A FETCH_AND_ADD").contains("atomic tests"));
        assert!(refusal("send_lat -m 1500").contains("path MTUs"));
        assert!(refusal("send_lat --dualport").contains("unexpected argument"));
        assert!(refusal("send_lat -s 5G").contains("not a number of bytes"));
    }
}
