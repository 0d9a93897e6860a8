//! Two network namespaces that are joined by pairs of interfaces: the near host is the namespace of
//! this process, and the far host that of another process.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::PORT;

/// Variable that is set in the process within the namespace of the near host.
const INSIDE: &str = "SOFTROCE_TEST_IN_NAMESPACE";
/// Command that creates the namespace of the near host, and a user namespace, in which no root
/// rights are needed.
const NEAR: [&str; 4] = ["unshare", "--net", "--user", "--map-root-user"];
/// Command that creates the namespace of the far host, and runs there until its standard input
/// ends.
const FAR: [&str; 5] = ["unshare", "--net", "sh", "-c", "echo ready; cat"];

/// MTU in bytes of each pair of interfaces.
const MTUS: [u16; 2] = [1500, 9000];

/// IP addresses of one kind that a pair of interfaces has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    is_ipv6: bool,
    /// Index in [`MTUS`].
    pair: u8,
}

impl Link {
    pub(crate) const ALL: [Self; 4] = [
        Self::new(false, 0),
        Self::new(true, 0),
        Self::new(false, 1),
        Self::new(true, 1),
    ];

    const fn new(is_ipv6: bool, pair: u8) -> Self {
        Self { is_ipv6, pair }
    }

    /// Returns the addresses of the near and the far host.
    pub(crate) fn addresses(self) -> [IpAddr; 2] {
        [1, 2].map(|host| match self.is_ipv6 {
            false => Ipv4Addr::new(10, 85, self.pair, host).into(),
            true => {
                let network = 0xfd85_u128 << 112 | u128::from(self.pair) << 64;
                Ipv6Addr::from(network | u128::from(host)).into()
            }
        })
    }

    /// Returns the address of the control connection of the host with the address `ip`.
    pub(crate) fn socket(ip: IpAddr) -> SocketAddr {
        SocketAddr::new(ip, PORT)
    }

    /// Returns the largest path MTU whose packets the interfaces carry.
    pub(crate) fn path_mtu(self) -> u32 {
        match MTUS[usize::from(self.pair)] {
            1500 => 1024,
            _ => 4096,
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = if self.is_ipv6 { 6 } else { 4 };
        write!(
            f,
            "over_ipv{version}_with_mtu_{}",
            MTUS[usize::from(self.pair)]
        )
    }
}

/// Runs this program again with the same arguments on the near host, and returns its exit status.
/// Returns `None` in the process on the near host. The error is the reason why the system does not
/// allow the namespaces.
pub(crate) fn enter() -> Result<Option<u8>, String> {
    if env::var_os(INSIDE).is_some() {
        return Ok(None);
    }
    // Both namespaces, and an interface of the kind that joins them.
    let trial = [
        &NEAR[..],
        &FAR[..2],
        &"ip link add veth0 type veth peer name veth1"
            .split(' ')
            .collect::<Vec<_>>(),
    ]
    .concat();
    run(&trial)?;
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let status = Command::new(NEAR[0])
        .args(&NEAR[1..])
        .arg(program)
        .args(env::args_os().skip(1))
        .env(INSIDE, "1")
        .status();
    let status = status.map_err(|error| format!("{}: {error}", NEAR[0]))?;
    Ok(Some(
        status
            .code()
            .and_then(|code| code.try_into().ok())
            .unwrap_or(1),
    ))
}

/// The two hosts. The far host ends when this value is dropped, or with this process.
#[derive(Debug)]
pub(crate) struct Network(Child);

impl Network {
    /// Creates the far host, and joins it to the host of this process.
    pub(crate) fn new() -> Result<Self, String> {
        let mut far = Command::new(FAR[0]);
        far.args(&FAR[1..]);
        let far = far.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut network = Self(far.map_err(|error| format!("the far host: {error}"))?);
        let output = network
            .0
            .stdout
            .as_mut()
            .ok_or("the far host has no output")?;
        output
            .read_exact(&mut [0; "ready\n".len()])
            .map_err(|error| format!("the far host: {error}"))?;
        let process = network.0.id();
        for (pair, mtu) in MTUS.iter().enumerate() {
            ip(&format!(
                "link add near{pair} mtu {mtu} type veth peer name far{pair} mtu {mtu} netns {process}"
            ))?;
        }
        for (host, name) in ["near", "far"].into_iter().enumerate() {
            let ip = |words: &str| {
                let command = match name {
                    "near" => Command::new("ip"),
                    _ => network.far_command("ip"),
                };
                output_of(command, words.split(' '))
            };
            ip("link set lo up")?;
            for (number, link) in Link::ALL.iter().enumerate() {
                let device = format!("{name}{}", link.pair);
                let address = link.addresses()[host];
                match address {
                    IpAddr::V4(_) => ip(&format!("address add {address}/24 dev {device}"))?,
                    IpAddr::V6(_) => ip(&format!("address add {address}/64 dev {device} nodad"))?,
                }
                if number % 2 == 1 {
                    ip(&format!("link set {device} up"))?;
                }
            }
        }
        Ok(network)
    }

    /// Returns a command that runs `program` on the far host.
    pub(crate) fn far_command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.0.id()));
        command.arg(program.as_ref());
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // The process ends because its standard input has ended.
        let _ = self.0.wait();
    }
}

/// Runs `ip` on this host, with the words of `command`.
fn ip(command: &str) -> Result<(), String> {
    output_of(Command::new("ip"), command.split(' '))
}

fn run(words: &[&str]) -> Result<(), String> {
    output_of(Command::new(words[0]), words[1..].iter().copied())
}

/// Runs `command` with the arguments `words`. The error contains the command's own message.
fn output_of<'a>(mut command: Command, words: impl Iterator<Item = &'a str>) -> Result<(), String> {
    command.args(words);
    let failure = match command.output() {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    let words = [command.get_program()]
        .into_iter()
        .chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    Err(format!("`{}`: {failure}", words.join(" ")))
}
