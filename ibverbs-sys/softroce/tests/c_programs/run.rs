use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use libtest_mimic::{Completion, Failed};

use crate::cases::Case;

/// Time limit of a program, enough for an emulated machine under load.
const LIMIT: Duration = Duration::from_secs(90);

/// User id of `nobody`.
const NOBODY: u32 = 65534;

/// User that runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    Root,
    Nobody,
    /// User of the test, if it is not root.
    Ordinary,
}

impl User {
    /// Returns the user of this process.
    pub(crate) fn own() -> Self {
        // SAFETY: the call has no preconditions.
        match unsafe { libc::geteuid() } {
            0 => Self::Root,
            _ => Self::Ordinary,
        }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "root",
            Self::Nobody => "nobody",
            Self::Ordinary => "user",
        })
    }
}

/// Runs a case.
pub(crate) fn run(case: &Case, user: User) -> Result<Completion, Failed> {
    if !installed(case.words[0]) {
        return Ok(Completion::ignored_with(format!(
            "install {}",
            case.package
        )));
    }
    if case.alone {
        start(case, user, None, None)?
            .wait()?
            .judge("it", case.says)?;
    } else {
        together(case, user)?;
    }
    Ok(Completion::Completed)
}

/// Compiles `buffers.c` with the shim of ibverbs-sys that resolves functions at run time, and runs
/// it.
pub(crate) fn buffers(user: User) -> Result<(), Failed> {
    let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shim");
    let newer = shim.join("newer.c");
    let arguments = ["-I".as_ref(), shim.as_os_str(), newer.as_os_str()];
    let case = compiled("buffers", user, &arguments, &["-libverbs"], "buffers serve")?;
    start(&case, user, None, None)?
        .wait()?
        .judge("it", case.says)?;
    Ok(())
}

/// Compiles `by_name.c`, which opens libibverbs by its name, and runs it with the library under
/// this name in a directory that the dynamic linker searches first.
pub(crate) fn by_name(user: User) -> Result<(), Failed> {
    let case = compiled("by_name", user, &[], &[], "opened softroce0: success")?;
    let library = library()?;
    let directory = library.with_file_name("as-library");
    let link = directory.join("libibverbs.so.1");
    if !link.exists() {
        fs::create_dir_all(&directory)
            .and_then(|()| std::os::unix::fs::symlink(&library, &link))
            .map_err(|error| format!("creating {}: {error}", link.display()))?;
    }
    let variables = [("LD_LIBRARY_PATH", directory.as_os_str())];
    start_in(&case, user, [], &variables)?
        .wait()?
        .judge("it", case.says)?;
    Ok(())
}

/// Compiles the program `name` of this test. Returns the case that runs it alone, and in which it
/// prints `says`.
fn compiled(
    name: &str,
    user: User,
    arguments: &[&OsStr],
    libraries: &[&str],
    says: &'static str,
) -> Result<Case, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c_programs");
    let program = library()?.with_file_name(format!("{name}-of-{user}"));
    let output = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-D_GNU_SOURCE", "-O1"])
        .args(arguments)
        .arg(source.join(format!("{name}.c")))
        .arg("-o")
        .arg(&program)
        .args(libraries)
        .arg("-ldl")
        .output();
    let output = output.map_err(|error| format!("running the C compiler: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(Case {
        words: vec![program.to_str().ok_or("a path in UTF-8")?.to_owned().leak()],
        package: "",
        way: None,
        alone: true,
        says: vec![says].leak(),
    })
}

fn installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Runs a server, and starts a client again and again until the server listens.
fn together(case: &Case, user: User) -> Result<(), String> {
    let port = free_port()?;
    let mut server = start(case, user, Some(port), None)?;
    // A client that could not connect is started again.
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        let client = start(case, user, Some(port), Some("127.0.0.1"))?.wait()?;
        if client.refused() && !server.has_ended() {
            thread::sleep(Duration::from_millis(20));
            continue;
        }
        let client = client.judge("the client", case.says);
        // A server whose client has failed would wait for it in vain.
        let limit = match client {
            Ok(()) => LIMIT,
            Err(_) => Duration::from_secs(5),
        };
        let server = server.wait_for(limit)?.judge("the server", &[]);
        return match (client, server) {
            (Ok(()), Ok(())) => Ok(()),
            (Err(client), Ok(())) => Err(client),
            (Ok(()), Err(server)) => Err(server),
            (Err(client), Err(server)) => Err(format!("{client}{server}")),
        };
    }
    let server = server.wait_for(Duration::ZERO)?.judge("the server", &[]);
    Err(format!(
        "nobody listens at port {port}\n{}",
        server.err().unwrap_or_default()
    ))
}

/// Returns a TCP port at which no process listens.
fn free_port() -> Result<u16, String> {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    free.map(|address| address.port())
        .map_err(|error| format!("a free port: {error}"))
}

/// Running program, and the threads that collect its output.
struct Running {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
}

/// Program that has ended by itself or was killed.
struct Ended {
    status: Option<ExitStatus>,
    stdout: String,
    stderr: String,
}

fn start(
    case: &Case,
    user: User,
    port: Option<u16>,
    server: Option<&str>,
) -> Result<Running, String> {
    let port = port.map(|port| ["-p".to_owned(), port.to_string()]);
    let arguments = port.into_iter().flatten();
    let arguments = arguments.chain(server.map(str::to_owned));
    let library = library()?;
    start_in(
        case,
        user,
        arguments,
        &[("LD_PRELOAD", library.as_os_str())],
    )
}

fn start_in(
    case: &Case,
    user: User,
    arguments: impl IntoIterator<Item = String>,
    variables: &[(&str, &OsStr)],
) -> Result<Running, String> {
    let mut command = Command::new(case.words[0]);
    command.args(&case.words[1..]).args(arguments);
    command
        .envs(variables.iter().copied())
        .envs(case.way.map(|way| ("SOFTROCE_PATH", way)))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if user == User::Nobody {
        command.uid(NOBODY).gid(NOBODY);
    }
    let mut child = command
        .spawn()
        .map_err(|error| format!("starting {}: {error}", case.words[0]))?;
    let stdout = child.stdout.take().map(collected);
    let stderr = child.stderr.take().map(collected);
    Ok(Running {
        child,
        stdout,
        stderr,
    })
}

/// Returns the path of the library to preload, in a copy that every user can read.
fn library() -> Result<PathBuf, String> {
    let built = crate::library::library();
    let open_to_all = env::temp_dir().join(format!("softroce-test-{}", std::process::id()));
    let copy = open_to_all.join("libsoftroce.so");
    if !copy.is_file() {
        let copied = fs::create_dir_all(&open_to_all)
            .and_then(|()| fs::set_permissions(&open_to_all, mode(0o755)))
            .and_then(|()| fs::copy(&built, &copy))
            .and_then(|_| fs::set_permissions(&copy, mode(0o755)));
        copied.map_err(|error| format!("copying {}: {error}", built.display()))?;
    }
    Ok(copy)
}

/// Removes the directory that [`library`] has created.
pub(crate) fn clean() {
    let made = env::temp_dir().join(format!("softroce-test-{}", std::process::id()));
    // Fails only if the directory does not exist.
    let _ = fs::remove_dir_all(made);
}

fn mode(bits: u32) -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(bits)
}

fn collected(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // The bytes before an error are still useful.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Running {
    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn wait(self) -> Result<Ended, String> {
        self.wait_for(LIMIT)
    }

    fn wait_for(mut self, limit: Duration) -> Result<Ended, String> {
        let deadline = Instant::now() + limit;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if Instant::now() >= deadline => {
                    // Fails only if the program has just ended.
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    break None;
                }
                Ok(None) => thread::sleep(Duration::from_millis(2)),
                Err(error) => return Err(format!("waiting for it: {error}")),
            }
        };
        let text = |reader: Option<JoinHandle<String>>| {
            reader
                .and_then(|reader| reader.join().ok())
                .unwrap_or_default()
        };
        Ok(Ended {
            status,
            stdout: text(self.stdout),
            stderr: text(self.stderr),
        })
    }
}

impl Ended {
    /// Returns whether the program is a client whose connection was refused.
    fn refused(&self) -> bool {
        let failed = self.status.is_some_and(|status| !status.success());
        let said = |words: &str| self.stderr.contains(words) || self.stdout.contains(words);
        failed && (said("Couldn't connect to") || said("Connection refused"))
    }

    fn judge(&self, who: &str, says: &[&str]) -> Result<(), String> {
        let problem = match self.status {
            None => format!("{who} was still running at its limit"),
            Some(status) if status.signal().is_some() => format!("{who} died: {status}"),
            Some(status) if !status.success() => format!("{who} failed: {status}"),
            Some(_) => match says.iter().find(|words| !self.stdout.contains(**words)) {
                Some(words) => format!("{who} did not print {words:?}"),
                None => return Ok(()),
            },
        };
        Err(format!(
            "{problem}\n--- standard output\n{}--- standard error\n{}",
            self.stdout, self.stderr
        ))
    }
}
