//! Two network namespaces that are joined by a veth pair, with the kernel's device in this
//! namespace and softroce's in the other.

use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

/// Name of the kernel's device.
pub(crate) const KERNEL_DEVICE: &str = "rxe_interop";
/// Address of the kernel's device.
pub(crate) const KERNEL_ADDRESS: &str = "10.78.0.1";
/// Address of softroce.
pub(crate) const SOFTROCE_ADDRESS: &str = "10.78.0.2";
/// Namespace of softroce.
pub(crate) const NAMESPACE: &str = "softroce-interop";

const KERNEL_END: &str = "sr-kernel";
const SOFTROCE_END: &str = "sr-user";
/// Smallest MTU of the link that allows RoCE's largest path MTU.
const MTU: &str = "4200";
/// Maximum time until a new address appears as a GID.
const SETTLING: Duration = Duration::from_secs(60);

/// The two namespaces, which are removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Network(());

impl Network {
    /// Creates the namespaces. Removes those of an earlier run first.
    pub(crate) fn new() -> Result<Self, String> {
        remove();
        let network = Self(());
        let soft = ["netns", "exec", NAMESPACE, "ip"];
        ip(&["netns", "add", NAMESPACE])?;
        ip(&[
            "link",
            "add",
            KERNEL_END,
            "mtu",
            MTU,
            "type",
            "veth",
            "peer",
            "name",
            SOFTROCE_END,
            "mtu",
            MTU,
            "netns",
            NAMESPACE,
        ])?;
        ip(&[
            "address",
            "add",
            &format!("{KERNEL_ADDRESS}/24"),
            "dev",
            KERNEL_END,
        ])?;
        ip(&["link", "set", KERNEL_END, "up"])?;
        let inside = |words: &[&str]| ip(&[&soft, words].concat());
        inside(&[
            "address",
            "add",
            &format!("{SOFTROCE_ADDRESS}/24"),
            "dev",
            SOFTROCE_END,
        ])?;
        inside(&["link", "set", SOFTROCE_END, "up"])?;
        inside(&["link", "set", "lo", "up"])?;
        run(
            "rdma",
            &[
                "link",
                "add",
                KERNEL_DEVICE,
                "type",
                "rxe",
                "netdev",
                KERNEL_END,
            ],
        )?;
        wait_for_gid()?;
        Ok(network)
    }

    /// Sets the share of packets that both ends lose.
    pub(crate) fn lose(&self, percent: u32) -> Result<(), String> {
        let loss = format!("{percent}%");
        let netem = ["qdisc", "replace", "dev"];
        let how = ["root", "netem", "loss", &loss];
        run("tc", &[&netem[..], &[KERNEL_END], &how].concat())?;
        let inside = ["netns", "exec", NAMESPACE, "tc"];
        ip(&[&inside[..], &netem, &[SOFTROCE_END], &how].concat())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        remove();
    }
}

/// Removes all parts of the network that exist.
fn remove() {
    // Each command fails if its object does not exist.
    let _ = output("rdma", &["link", "delete", KERNEL_DEVICE]);
    let _ = output("ip", &["link", "delete", KERNEL_END]);
    let _ = output("ip", &["netns", "delete", NAMESPACE]);
}

/// Waits until the kernel's device has the GID that belongs to its address.
fn wait_for_gid() -> Result<(), String> {
    let gids = format!("/sys/class/infiniband/{KERNEL_DEVICE}/ports/1/gids");
    let wanted = ":ffff:0a4e:0001";
    let deadline = Instant::now() + SETTLING;
    loop {
        let entries = std::fs::read_dir(&gids).into_iter().flatten().flatten();
        let mut texts = entries.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
        if texts.any(|text| text.trim().ends_with(wanted)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{KERNEL_DEVICE} has no GID for {KERNEL_ADDRESS}"));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    run("ip", words)
}

fn run(program: &str, words: &[&str]) -> Result<(), String> {
    let output = output(program, words)?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{program} {}: {}",
        words.join(" "),
        complaint.trim()
    ))
}

fn output(program: &str, words: &[&str]) -> Result<Output, String> {
    let output = Command::new(program).args(words).output();
    output.map_err(|error| format!("{program}: {error}"))
}
