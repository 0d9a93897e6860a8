//! A second host for programs that a test runs as a user would: a network namespace that a pair of
//! interfaces joins to the namespace of the test.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::namespace::{
    ROLE, add_address, again, ip, must_skip, succeeds, wait_until, wait_until_ready,
};

/// Command that creates the network namespace of the first host, and a user namespace, in which no
/// root rights are needed.
const FIRST_HOST: &[&str] = &["unshare", "--net", "--user", "--map-root-user"];
/// Command that runs in the namespace of the second host until its standard input ends.
const HOLDER: &[&str] = &["unshare", "--net", "sh", "-c", "echo ready; cat"];
/// Names of the interfaces of the first and the second host.
const INTERFACES: [&str; 2] = ["eth0", "eth1"];
/// Directory with the devices of the kernel.
const DEVICES: &str = "/sys/class/infiniband";

/// Runs the test `test` again on the first of two hosts with the addresses `addresses`. Returns the
/// second host to the process that runs there, and `None` to the first process, which has nothing
/// left to do. Skips the test if no hosts can be created, or if the programs, which run without
/// variables, would use another device than softroce.
pub(crate) fn with_two_hosts(test: &str, addresses: [&str; 2]) -> Option<SecondHost> {
    if env::var_os(ROLE).is_some() {
        return Some(SecondHost::new(addresses));
    }
    if Path::new(DEVICES)
        .read_dir()
        .is_ok_and(|mut devices| devices.next().is_some())
    {
        eprintln!("skipped: programs prefer the devices in {DEVICES} to softroce");
    } else if !must_skip(&[FIRST_HOST, &["unshare", "--net", "true"]].concat()) {
        let mut process = again(test, "first host", FIRST_HOST).spawn().unwrap();
        let status = process.wait().unwrap();
        assert!(status.success(), "{status}");
    }
    None
}

/// The second host, which ends when this value is dropped.
pub(crate) struct SecondHost(Child);

impl SecondHost {
    fn new(addresses: [&str; 2]) -> Self {
        let mut holder = Command::new(HOLDER[0]);
        holder.args(&HOLDER[1..]);
        holder.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = holder.spawn().unwrap();
        drop(wait_until_ready(&mut holder));
        let host = Self(holder);
        let [own, peer] = INTERFACES;
        ip(&format!(
            "link add {own} type veth peer name {peer} netns {}",
            host.0.id()
        ));
        ip("link set lo up");
        add_address(addresses[0], own);
        ip(&format!("link set {own} up"));
        for words in [
            "link set lo up".to_owned(),
            format!("address add {}/24 dev {peer}", addresses[1]),
            format!("link set {peer} up"),
        ] {
            let status = host.command("ip").args(words.split(' ')).status().unwrap();
            assert!(status.success(), "ip {words}");
        }
        wait_until(|| succeeds(&format!("route get {}", addresses[1])));
        host
    }

    /// Returns a command that runs `program` on the second host without any setting.
    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.0.id()));
        command.arg(program.as_ref());
        without_settings(command)
    }
}

impl Drop for SecondHost {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        drop(self.0.wait());
    }
}

/// Returns `command` without the variables of this process that choose or configure a device.
pub(crate) fn without_settings(mut command: Command) -> Command {
    let is_setting = |name: &str| name.starts_with("SOFTROCE_") || name.starts_with("RDMA_");
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_setting) {
            command.env_remove(name);
        }
    }
    command
}

/// Returns the arguments of an example in the commands of the README that run the example's server
/// and client.
pub(crate) fn arguments_in_readme(package: &str, example: &str) -> [Vec<String>; 2] {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "README.md"]
        .iter()
        .collect();
    let readme = std::fs::read_to_string(path).unwrap();
    let start = format!("cargo run -p {package} --example {example} -- ");
    let commands = readme.lines().filter_map(|line| line.strip_prefix(&start));
    let words = commands.map(|words| words.split_whitespace().map(str::to_owned).collect());
    let both: Vec<Vec<String>> = words.collect();
    both.try_into().expect("the README has two commands")
}
