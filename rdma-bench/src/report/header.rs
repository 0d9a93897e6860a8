//! The header of a report: the lines before the results.

use std::fmt;

use super::columns::RULE;
use crate::plan::{Layer, Plan};
use crate::session::Role;
use crate::settings::Settings;
use crate::test::{Metric, Test};

/// The address of one end of a connection, as the report shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The port's LID.
    pub lid: u16,
    /// The queue pair's number.
    pub queue_pair: u32,
    /// The sequence number of the first packet that this side sends.
    pub packet_sequence: u32,
    /// Maximum number of incoming reads and atomics, or `None` if the test uses neither.
    pub outstanding: Option<u8>,
    /// The remote key and the address of the memory that the peer may access, if there is any.
    pub memory: Option<(u32, u64)>,
    /// The port's GID.
    pub gid: [u8; 16],
}

/// The properties of a connection that the header of a report shows, such as its device, path MTU
/// and addresses. The layer under test provides them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties {
    /// The device's name.
    pub device: String,
    /// The firmware version of the device.
    pub firmware: String,
    /// The path MTU in bytes.
    pub mtu: usize,
    /// The name of the link layer.
    pub link_layer: String,
    /// The index of the GID that the connection uses.
    pub gid_index: u32,
    /// Maximum size in bytes of messages that are sent inline.
    pub inline: usize,
    /// The addresses of this process's side and of the peer's side.
    pub ends: [Address; 2],
}

/// The header of a report: test, device and addresses, in perftest's form.
#[derive(Debug, Clone)]
pub struct Header {
    /// The operation and the quantity to measure.
    pub test: Test,
    /// The title of the test.
    pub title: String,
    /// The layer under test.
    pub layer: String,
    /// The name of the kind of memory that server and client use.
    pub memory: String,
    /// The number of queue pairs that connect this process with its peer.
    pub queue_pairs: usize,
    /// Set if messages consume receives of a shared receive queue.
    pub shared_receives: bool,
    /// The size in bytes of the messages that are sent, or of the bulk memory that is transferred,
    /// during a latency test, if there are any.
    pub beside: Option<usize>,
    /// The queue depths that this process uses, each with its name in the report.
    pub depths: Vec<(&'static str, usize)>,
    /// The properties of the connection.
    pub properties: Properties,
}

impl Header {
    /// Creates the header of the report on a test with the parameters `plan`, for a process with
    /// the role `role` and the settings `settings`. `properties` describes the connection under
    /// test.
    pub fn new(plan: &Plan, settings: &Settings, role: Role, properties: &Properties) -> Self {
        let test = plan.test;
        let mut depths = Vec::new();
        match role {
            Role::Client => depths.push(("TX depth", settings.depth(plan))),
            Role::Server if plan.receives_at(role) => {
                depths.push(("RX depth", settings.receives(plan)));
            }
            Role::Server => {}
        }
        let has_second_queue_pair = plan.beside.is_some() && plan.layer == Layer::Core;
        if has_second_queue_pair {
            let (requests, receives) = settings.beside_depths();
            depths.push(match role {
                Role::Client => ("TX depth beside", requests),
                Role::Server => ("RX depth beside", receives),
            });
        }
        if test.metric == Metric::Bandwidth && plan.layer == Layer::Core {
            depths.push(("CQ Moderation", settings.moderation(plan)));
        }
        Self {
            test,
            title: plan.title(),
            layer: plan.layer.to_string(),
            memory: plan.memory.to_string(),
            queue_pairs: plan.queue_pairs + usize::from(has_second_queue_pair),
            shared_receives: plan.shared_receives,
            beside: plan.beside,
            depths,
            properties: properties.clone(),
        }
    }

    /// Returns perftest's word for whether a shared receive queue is used: `ON` or `OFF`.
    pub(super) fn using_srq(&self) -> &'static str {
        if self.shared_receives { "ON" } else { "OFF" }
    }

    /// Returns the name and the value of a line in the report's header, which shows a limit of the
    /// connection. If the test uses reads or atomics, the limit is the maximum number of
    /// outstanding reads. In other tests, the limit is the maximum size of inline data.
    pub(super) fn limit(&self) -> (&'static str, usize) {
        match self.properties.ends[0].outstanding {
            Some(outstanding) => ("Outstand reads", usize::from(outstanding)),
            None => ("Max inline data", self.properties.inline),
        }
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let properties = &self.properties;
        writeln!(f, "{RULE}\n                    {}", self.title)?;
        writeln!(
            f,
            " Dual-port       : OFF\t\tDevice         : {}",
            properties.device
        )?;
        let count = self.queue_pairs;
        writeln!(f, " Number of qps   : {count}\t\tTransport type : IB")?;
        let shared = self.using_srq();
        writeln!(f, " Connection type : RC\t\tUsing SRQ      : {shared}")?;
        writeln!(f, " Layer           : {}", self.layer)?;
        writeln!(f, " Memory          : {}", self.memory)?;
        if let Some(size) = self.beside {
            writeln!(f, " Beside          : {size}[B]")?;
        }
        for (name, depth) in &self.depths {
            writeln!(f, " {name:<16}: {depth}")?;
        }
        writeln!(f, " Mtu             : {}[B]", properties.mtu)?;
        writeln!(f, " Link type       : {}", properties.link_layer)?;
        writeln!(f, " GID index       : {}", properties.gid_index)?;
        let (name, limit) = self.limit();
        let unit = if name == "Max inline data" { "[B]" } else { "" };
        writeln!(f, " {name:<16}: {limit}{unit}")?;
        writeln!(f, " rdma_cm QPs\t : OFF")?;
        writeln!(f, " Data ex. method : Ethernet\n{RULE}")?;
        for (name, end) in ["local", "remote"].iter().zip(&properties.ends) {
            write!(
                f,
                " {name} address: LID {:04x} QPN 0x{:04x} PSN 0x{:x}",
                end.lid, end.queue_pair, end.packet_sequence
            )?;
            if let Some(outstanding) = end.outstanding {
                write!(f, " OUT 0x{outstanding:02x}")?;
            }
            if let Some((rkey, address)) = end.memory {
                write!(f, " RKey 0x{rkey:06x} VAddr 0x{address:014x}")?;
            }
            let gid: Vec<_> = end.gid.iter().map(|byte| format!("{byte:02}")).collect();
            writeln!(f, "\n GID: {}", gid.join(":"))?;
        }
        writeln!(f, "{RULE}")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::plan::Length;
    use crate::test::Verb;

    pub(in crate::report) fn header(verb: Verb, metric: Metric, role: Role) -> Header {
        let end = |number: u32| Address {
            lid: 0,
            queue_pair: number,
            packet_sequence: 0x28_0146,
            outstanding: verb.has_response().then_some(128),
            memory: verb.is_one_sided().then_some((0x72e, 0x55f9_71e9_8000)),
            gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 77, 0, 1],
        };
        let properties = Properties {
            device: "rxe_0".into(),
            firmware: String::new(),
            mtu: 4096,
            link_layer: "Ethernet".into(),
            gid_index: 1,
            inline: 0,
            ends: [end(0x16), end(0x15)],
        };
        let test = Test { verb, metric };
        let plan = Plan::new(test, vec![4096], Length::Iterations(1000));
        Header::new(&plan, &Settings::default(), role, &properties)
    }

    /// Checks that the header equals the lines that perftest's `ib_read_bw` printed, with two
    /// exceptions. Two lines, about the layer and the memory of the test, are additional. Two lines
    /// of perftest, about the C library, are missing.
    #[test]
    fn the_header_is_perftests() {
        let text = header(Verb::Read, Metric::Bandwidth, Role::Client).to_string();
        let lines = "
                    RDMA_Read BW Test
 Dual-port       : OFF\t\tDevice         : rxe_0
 Number of qps   : 1\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 Layer           : core
 Memory          : device
 TX depth        : 128
 CQ Moderation   : 100
 Mtu             : 4096[B]
 Link type       : Ethernet
 GID index       : 1
 Outstand reads  : 128
 rdma_cm QPs\t : OFF
 Data ex. method : Ethernet
@
 local address: LID 0000 QPN 0x0016 PSN 0x280146 OUT 0x80 RKey 0x00072e VAddr 0x0055f971e98000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:77:00:01
 remote address: LID 0000 QPN 0x0015 PSN 0x280146 OUT 0x80 RKey 0x00072e VAddr 0x0055f971e98000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:77:00:01
@
";
        assert_eq!(text, format!("@{lines}").replace('@', RULE));
    }

    #[test]
    fn depths_are_those_of_the_end() {
        let depths = |verb, metric, role| header(verb, metric, role).depths;
        let receiver = depths(Verb::Send, Metric::Bandwidth, Role::Server);
        assert_eq!(receiver, [("RX depth", 512), ("CQ Moderation", 100)]);
        assert!(depths(Verb::Write, Metric::Latency, Role::Server).is_empty());
    }
}
