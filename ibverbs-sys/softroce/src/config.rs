#![forbid(unsafe_code)]
//! Settings of the device in environment variables. The variables are read once, when the device is
//! used for the first time. If a variable has an invalid value, opening the device fails, and the
//! error names the variable.
//!
//! | variable | value | meaning |
//! |---|---|---|
//! | `SOFTROCE_DEVICE` | name | the device's name, `softroce0` by default |
//! | `SOFTROCE_ADDRESS` | IP addresses, with commas | the only addresses that the device uses, at most one IPv4 and one IPv6 address; by default an address in 127/8 that only this process uses, and the addresses of the host |
//! | `SOFTROCE_NETDEV` | names of interfaces, with commas | network interfaces whose addresses the device uses besides its own address in 127/8; by default all that are up |
//! | `SOFTROCE_PORT` | 1 to 65535 | first UDP port, 4791 by default; peers must use the same |
//! | `SOFTROCE_MTU` | 256, 512, 1024, 2048, 4096 | MTU of the port; by default the largest that the network interface supports |
//! | `SOFTROCE_GSO` | `never`, `peers`, `always` | packets that may be passed to the kernel as one datagram, which the kernel splits (GSO): by default those to peers in 127/8, in tunnels and over IPv6, and to other peers after a trial has shown that the packets arrive with a valid ICRC; with `always` without a trial |
//! | `SOFTROCE_RCVBUF` | bytes | size to request for the receive buffers of the sockets, 8 MiB by default; for an unprivileged process, the kernel limits it to `net.core.rmem_max` |
//! | `SOFTROCE_PATH` | `direct`, `shared`, `udp` | only path to a peer besides packets: within the process, between processes of the host, or none (`udp`); by default all paths are allowed |
//! | `SOFTROCE_LOSS` | 0 to 1, or percent as `2%` | fraction of the sent packets that are lost |
//! | `SOFTROCE_DUPLICATE` | the same | fraction of the sent packets that are sent twice |
//! | `SOFTROCE_REORDER` | the same | fraction of the sent packets that later packets overtake |
//! | `SOFTROCE_CORRUPT` | the same | fraction of the sent packets in which a bit is flipped |
//! | `SOFTROCE_LATENCY` | `500ns`, `20us`, `1.5ms`, `1s` | delay of every packet, at most an hour; while 16,384 packets are delayed, further packets are lost |
//! | `SOFTROCE_SEED` | number, `0x` for hexadecimal | seed of these faults: the same seed with the same packets gives the same faults |
//! | `SOFTROCE_FAIL` | `verb:n:errno`, with commas | the n-th call of a verb fails, counted from 1: `ibv_reg_mr:2:ENOMEM` |
//! | `SOFTROCE_EVENT` | `event@time`, with commas | raises an asynchronous event of the port or the device at this time after opening: `IBV_EVENT_GID_CHANGE@50ms` |
//! | `SOFTROCE_LINK` | `down@time` or `up@time`, with commas | takes the link down or up at this time after opening |
//! | `SOFTROCE_PCAP` | file | writes every packet sent and received, for tcpdump, tshark, Wireshark |

use std::env;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ibverbs_sys::ibv_event_type;

use crate::fault::{Failure, Faults, NetworkFaults};
use crate::per_process::PerProcess;
use crate::proto::Mtu;

mod parse;
mod way;

use parse::{
    addresses, bytes, duration, events, failures, links, mtu, number, port, rate, segmentation,
};
pub use way::Way;

/// Change of the device or its port, such as the link going down, that the configuration schedules
/// to test a program. The change happens at a configured time after the device was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduled {
    /// Raises an asynchronous event.
    Raise(ibv_event_type),
    /// Takes the link up or down.
    Link {
        /// Set if the link goes up, and not set if the link goes down.
        up: bool,
    },
}

/// Choice of the peers to which the device sends bursts. A burst is several packets that the device
/// passes to the kernel in one system call, and that the kernel splits into datagrams. The kernel
/// numbers the datagrams, and the checksum of a packet (ICRC) over IPv4 covers the number. If the
/// device guesses the number wrong, a peer that requires a correct checksum drops the packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segmentation {
    /// The device passes each packet to the kernel by itself.
    Never,
    /// Bursts to peers in 127/8, in tunnels and over IPv6, where the ICRC check does not depend on
    /// the identification, and to other peers after a trial.
    #[default]
    Peers,
    /// Bursts to all peers, without a trial. The ICRC of the i-th packet of a burst is computed for
    /// the identification i.
    Always,
}

/// Configuration of the device. [`Config::of_process`] reads it from environment variables.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Name of the device, as `ibv_get_device_name` returns it.
    pub device: String,
    /// Addresses of the host that the device uses. If empty, the device uses a loopback address of
    /// its own and the addresses of `interfaces`.
    pub addresses: Vec<IpAddr>,
    /// Names of the network interfaces whose addresses the device uses. `None`: all interfaces that
    /// are up.
    pub interfaces: Option<Vec<String>>,
    /// UDP port of the first device of an address. Other devices of the address have higher ports.
    pub port: u16,
    /// MTU of the port. `None`: the largest that the network interface supports.
    pub mtu: Option<Mtu>,
    /// Choice of the packets that may be sent as a burst (GSO).
    pub segmentation: Segmentation,
    /// Size in bytes to request for the receive buffer of each socket, which the kernel may reduce.
    pub receive_buffer: usize,
    /// The only path to peers that is allowed besides packets, such as shared memory. With
    /// [`Way::Udp`], only packets are allowed. `None`: all paths are allowed, and the first
    /// available one is used.
    pub path: Option<Way>,
    /// Faults to inject into packets that are sent, such as losses.
    pub network: NetworkFaults,
    /// Calls of verbs that fail by fault injection (`SOFTROCE_FAIL`).
    pub failures: Vec<Failure>,
    /// Changes of the device or its port, each with the time from the opening of the device to the
    /// change.
    pub schedule: Vec<(Duration, Scheduled)>,
    /// File to which packets are captured (pcap format). `None` if packets are not captured.
    pub capture: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device: "softroce0".to_owned(),
            addresses: Vec::new(),
            interfaces: None,
            port: crate::wire::ip::PORT,
            mtu: None,
            segmentation: Segmentation::default(),
            receive_buffer: 8 << 20,
            path: None,
            network: NetworkFaults::default(),
            failures: Vec::new(),
            schedule: Vec::new(),
            capture: None,
        }
    }
}

/// Error: an environment variable has an invalid value, so that the device cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value}: {expected}")]
pub struct InvalidVariable {
    variable: &'static str,
    value: String,
    expected: String,
}

impl Config {
    /// Returns the configuration of the process. The first call reads it from the environment.
    pub fn of_process() -> Result<&'static Self, &'static InvalidVariable> {
        static CONFIG: PerProcess<Result<Config, InvalidVariable>> = PerProcess::new(|| {
            Config::parse(|name| {
                env::var_os(name).map(|value| value.to_string_lossy().into_owned())
            })
        });
        CONFIG.get().as_ref()
    }

    /// Creates a fault injector with the faults that are configured for packets and verbs.
    pub(crate) fn faults(&self) -> Faults {
        Faults::new(self.network, self.failures.clone())
    }

    /// Reads the configuration from environment variables. `variable` returns the value of the
    /// variable with a given name, or `None` if the variable is not set.
    pub fn parse(variable: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidVariable> {
        let default = Self::default();
        let environment = Environment(variable);
        let mut schedule = environment
            .read("SOFTROCE_EVENT", events)?
            .unwrap_or_default();
        schedule.extend(
            environment
                .read("SOFTROCE_LINK", links)?
                .unwrap_or_default(),
        );
        Ok(Self {
            device: environment
                .read("SOFTROCE_DEVICE", parse::device)?
                .unwrap_or(default.device),
            addresses: environment
                .read("SOFTROCE_ADDRESS", addresses)?
                .unwrap_or_default(),
            interfaces: environment.read("SOFTROCE_NETDEV", parse::interfaces)?,
            port: environment
                .read("SOFTROCE_PORT", port)?
                .unwrap_or(default.port),
            mtu: environment.read("SOFTROCE_MTU", mtu)?,
            segmentation: environment
                .read("SOFTROCE_GSO", segmentation)?
                .unwrap_or_default(),
            receive_buffer: environment
                .read("SOFTROCE_RCVBUF", bytes)?
                .unwrap_or(default.receive_buffer),
            path: environment.read("SOFTROCE_PATH", parse::way)?,
            network: NetworkFaults {
                loss: environment.read("SOFTROCE_LOSS", rate)?.unwrap_or_default(),
                duplicate: environment
                    .read("SOFTROCE_DUPLICATE", rate)?
                    .unwrap_or_default(),
                reorder: environment
                    .read("SOFTROCE_REORDER", rate)?
                    .unwrap_or_default(),
                corrupt: environment
                    .read("SOFTROCE_CORRUPT", rate)?
                    .unwrap_or_default(),
                latency: environment
                    .read("SOFTROCE_LATENCY", duration)?
                    .unwrap_or_default(),
                seed: environment
                    .read("SOFTROCE_SEED", number)?
                    .unwrap_or_default(),
            },
            failures: environment
                .read("SOFTROCE_FAIL", failures)?
                .unwrap_or_default(),
            schedule,
            capture: environment.read("SOFTROCE_PCAP", |path| Ok(PathBuf::from(path)))?,
        })
    }
}

struct Environment<F>(F);

impl<F: Fn(&str) -> Option<String>> Environment<F> {
    /// Reads the environment variable `variable`, and converts its value by `parse`. Returns `None`
    /// if the variable is not set or empty. Fails if `parse` rejects the value.
    fn read<T>(
        &self,
        variable: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, InvalidVariable> {
        let Some(value) = (self.0)(variable).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        match parse(&value) {
            Ok(parsed) => Ok(Some(parsed)),
            Err(expected) => Err(InvalidVariable {
                variable,
                value,
                expected,
            }),
        }
    }
}
