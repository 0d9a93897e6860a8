//! What tests of other people's programs need: the library preloaded, and a server with its client.

use std::env;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a program may take. Only one that hangs takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// The library, at a place of its own where every user can read it.
pub(crate) struct Library(PathBuf);

impl Library {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let built = env::current_exe().unwrap().with_file_name("libsoftroce.so");
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("softroce-{}-{count}", std::process::id());
        let directory = env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        let library = Self(directory);
        fs::copy(&built, library.path())
            .expect("cargo builds the library where it builds the tests");
        fs::set_permissions(library.path(), fs::Permissions::from_mode(0o644)).unwrap();
        library
    }

    fn path(&self) -> PathBuf {
        self.0.join("libsoftroce.so")
    }

    /// A program on softroce, as root if the test is, or as a user without rights.
    pub(crate) fn command(&self, program: &str, user: Option<u32>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", self.path());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        command
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The users to test as: whoever runs the test, and, if that is root, one without rights.
pub(crate) fn users() -> Vec<Option<u32>> {
    const NOBODY: u32 = 65534;
    // SAFETY: there are no arguments, and it always succeeds.
    if unsafe { libc::geteuid() } == 0 {
        vec![None, Some(NOBODY)]
    } else {
        vec![None]
    }
}

/// A TCP port that nobody listens on.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// Waits for a program, and ends it if it hangs.
pub(crate) fn wait(mut child: Child) -> Output {
    let end = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            break;
        }
        thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

/// Waits until somebody listens on a TCP port of this machine, or `server` has ended.
pub(crate) fn wait_for_listener(port: u16, server: &mut Child) {
    /// State LISTEN in the kernel's table of sockets.
    const LISTEN: &str = "0A";
    let address = format!(":{port:04X}");
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end && server.try_wait().unwrap().is_none() {
        let listens = ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
            fs::read_to_string(table)
                .unwrap_or_default()
                .lines()
                .any(|line| {
                    let mut words = line.split_whitespace().skip(1);
                    words.next().is_some_and(|local| local.ends_with(&address))
                        && words.nth(1) == Some(LISTEN)
                })
        });
        if listens {
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Runs a program as a server and again as its client, and returns what each printed.
pub(crate) fn server_and_client(
    library: &Library,
    user: Option<u32>,
    program: &str,
    arguments: &[&str],
    client_arguments: &[&str],
) -> [String; 2] {
    // Both poll: on a machine of few processors, more of them would wait for each other.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let port = free_port();
    let start = |more: &[&str]| {
        let mut command = library.command(program, user);
        command
            .args(["-p", &port.to_string()])
            .args(arguments)
            .args(more);
        command
            .spawn()
            .unwrap_or_else(|error| panic!("{program} is not installed: {error}"))
    };
    let mut server = start(&[]);
    wait_for_listener(port, &mut server);
    let client = start(&[client_arguments, &["127.0.0.1"]].concat());
    let client = wait(client);
    // A client that failed leaves a server that waits for ever.
    if !client.status.success() {
        let _ = server.kill();
    }
    let server = wait(server);
    let text = |output: &Output| {
        let (told, complained) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        format!("{}\n{told}{complained}", output.status)
    };
    let texts = [text(&server), text(&client)];
    assert!(
        server.status.success() && client.status.success(),
        "{program} {arguments:?} as {user:?}\nserver: {}\nclient: {}",
        texts[0],
        texts[1]
    );
    texts
}
