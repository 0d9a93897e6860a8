//! Programs of uDAPL, which connects queue pairs by TCP (`dapl_scm`).
//!
//! The programs `dtest` and `dtestx` tell their clients to connect before their servers listen. A
//! client that is refused connects again, and then uDAPL sends a header of another length than its
//! server reads. The library of `order.c` fixes the order: with a server that listens first, the
//! programs always succeed, and with a client that is refused, they always fail, on every device.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::library::library;
use crate::program::{Ended, Running};

/// Maximum time until the server listens.
const LISTEN: Duration = Duration::from_secs(60);

/// A program of uDAPL, which is both server and client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    options: &'static [&'static str],
    /// TCP port on which the server listens first.
    first_port: u16,
    /// TCP port of uDAPL's service, which is 1000 above the number of the service.
    service_port: u16,
    /// Last line of a successful run.
    success: &'static str,
}

/// A program whose connections share a receive queue.
pub(crate) const SHARED_RECEIVE_QUEUE: Program = Program {
    name: "dtestsrq",
    options: &[],
    first_port: 46248,
    service_port: 46248,
    success: "DAPL RC SRQ Test Complete.",
};

/// A program with messages and one-sided operations.
pub(crate) const MESSAGES: Program = Program {
    name: "dtest",
    options: &["-b", "65536", "-B", "100"],
    first_port: 15828,
    service_port: 46248,
    success: "DAPL Test Complete. PASSED",
};

/// A program with immediate data and atomics.
pub(crate) const ATOMICS: Program = Program {
    name: "dtestx",
    options: &[],
    first_port: 15828,
    service_port: 32112,
    success: "IB extension test - immed/atomic test PASSED",
};

impl Program {
    /// Runs the program twice in a row. The client connects when the server listens.
    pub(crate) fn twice(self) -> Result<(), String> {
        let files = Files::new()?;
        for _ in 0..2 {
            let [server, client] = self.run(&files, None)?;
            for ended in [client, server] {
                ended.judge(&[self.success])?;
            }
        }
        Ok(())
    }

    /// Runs the program with a client that is refused at first, and checks that the server fails.
    /// The server prints `message`, because it reads two bytes of the header as the following
    /// bytes.
    pub(crate) fn refused_at_first(self, message: &str) -> Result<(), String> {
        let files = Files::new()?;
        let mark = files.directory.join("refused");
        let [server, client] = self.run(&files, Some(&mark))?;
        if !mark.exists() {
            return Err(format!("the client was not refused: {client}"));
        }
        // If the client ends first, a write to the closed socket can end the server.
        let has_failed = server.output.contains(message) || server.has_broken_pipe();
        if !has_failed || client.output.contains(self.success) {
            return Err(format!(
                "the second connection differs from the documented one: {server}{client}"
            ));
        }
        Ok(())
    }

    /// Runs the server and the client. If `refused` is set, the client is refused at first, and
    /// then creates this file.
    fn run(self, files: &Files, refused: Option<&Path>) -> Result<[Ended; 2], String> {
        let port = self.service_port.to_string();
        let preload = format!("{}:{}", library().display(), files.order.display());
        let registry = files.registry.to_string_lossy();
        let mark = refused.map(Path::to_string_lossy);
        let mut variables = vec![
            ("DAT_OVERRIDE", &*registry),
            // The network interface of the service.
            ("DAPL_SCM_NETDEV", "lo"),
            ("SERVICE_PORT", &port),
            ("LD_PRELOAD", &preload),
        ];
        variables.extend(mark.as_deref().map(|mark| ("CLIENT_REFUSED", mark)));
        let server = [&[self.name], self.options, &["-P", "soft"]].concat();
        let mut running = Running::start(&server, &variables)?;
        let deadline = Instant::now() + LISTEN;
        while !is_listening(self.first_port)? {
            if running.has_ended() || Instant::now() >= deadline {
                return Err(format!("the server does not listen: {}", running.wait()));
            }
            thread::sleep(Duration::from_millis(20));
        }
        let client = [&server[..], &["-h", "127.0.0.1"]].concat();
        let client = Running::start(&client, &variables)?.wait();
        Ok([running.wait(), client])
    }
}

/// Returns whether a program listens on the TCP port `port`.
fn is_listening(port: u16) -> Result<bool, String> {
    let table = fs::read_to_string("/proc/net/tcp").map_err(|error| format!("sockets: {error}"))?;
    let is_listener = |line: &str| {
        // The number of the line, the local address, the remote address, and the state, in which 0A
        // stands for LISTEN.
        let mut words = line.split_whitespace().skip(1);
        let (_, local) = words.next()?.split_once(':')?;
        Some(words.nth(1)? == "0A" && u16::from_str_radix(local, 16) == Ok(port))
    };
    Ok(table.lines().any(|line| is_listener(line) == Some(true)))
}

/// Files of a run, which are removed with this value.
struct Files {
    directory: PathBuf,
    /// Registry of uDAPL's providers, with one for the device.
    registry: PathBuf,
    /// The compiled `order.c`.
    order: PathBuf,
}

impl Files {
    fn new() -> Result<Self, String> {
        let directory = env::temp_dir().join(format!("softroce-dapl-{}", std::process::id()));
        let files = Self {
            registry: directory.join("dat.conf"),
            order: directory.join("order.so"),
            directory,
        };
        let provider =
            "soft u2.0 nonthreadsafe default libdaploscm.so.2 dapl.2.0 \"softroce0 1\" \"\"\n";
        fs::create_dir_all(&files.directory)
            .and_then(|()| fs::write(&files.registry, provider))
            .map_err(|error| format!("writing: {error}"))?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/order.c");
        let output = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args([
                "-D_GNU_SOURCE",
                "-O1",
                "-Wall",
                "-Wextra",
                "-shared",
                "-fPIC",
            ])
            .arg(source)
            .arg("-o")
            .arg(&files.order)
            .arg("-ldl")
            .output()
            .map_err(|error| format!("starting the C compiler: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(files)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Fails only if the files were removed already.
        let _ = fs::remove_dir_all(&self.directory);
    }
}
