//! The functions for files that `libsoftroce.so` has: a C program asks them about the device.

#[path = "../../../tests/library/mod.rs"]
mod library;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use library::library;

#[test]
fn all_functions_agree_with_each_other_and_with_the_verbs() {
    let program = Program::compiled("plain", &["-O1"]);
    program.ask();
}

#[test]
fn checked_calls_have_the_same_answers() {
    let program = Program::compiled("checked", &["-O2", "-D_FORTIFY_SOURCE=2"]);
    program.ask();
}

#[test]
fn the_files_of_a_killed_process_are_removed_by_the_next() {
    let program = Program::compiled("killed", &["-O1"]);
    let mut child = program
        .command()
        .arg("wait")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "asked\n");
    let left_over = directory_of(&child);
    program.ask();
    assert!(
        left_over.is_dir(),
        "{} of a living process is gone",
        left_over.display()
    );
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(left_over.is_dir());
    program.ask();
    assert!(!left_over.exists(), "{} is left over", left_over.display());
}

#[test]
fn devices_of_the_machine_are_listed_beside_this_one() {
    // In a mount namespace of its own, the machine has another device.
    let script = "mount -t tmpfs none /sys/class && cd /sys/class \
        && env -u LD_PRELOAD mkdir -p infiniband/mlx5_0 \
        && echo 0001:0203 >infiniband/mlx5_0/node_guid && ls infiniband /sys/class/infiniband/ \
        && cat infiniband/mlx5_0/node_guid /sys/class/infiniband/mlx5_0/node_guid \
        && test ! -e infiniband_verbs/mlx5_0 && cat infiniband/softroce0/ports/1/link_layer \
        && env -u LD_PRELOAD rm -r infiniband/mlx5_0 && ls infiniband && ls .";
    let Some(output) = in_a_mount_namespace(&[], script) else {
        return;
    };
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaints}");
    assert_eq!(complaints, "");
    let both = "mlx5_0\nsoftroce0\n";
    let guid = "0001:0203\n";
    let expected = format!(
        "/sys/class/infiniband/:\n{both}\ninfiniband:\n{both}{guid}{guid}Ethernet\n\
         softroce0\ninfiniband\n"
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

#[test]
fn without_a_directory_the_c_library_answers_and_a_message_says_so() {
    // In a mount namespace of its own, the places for directories cannot be written.
    let script = "mount -t tmpfs -o ro none /dev/shm && ls /sys/class/infiniband/softroce0";
    let Some(output) = in_a_mount_namespace(&["TMPDIR=/proc"], script) else {
        return;
    };
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        complaints.contains("No such file or directory"),
        "{complaints}"
    );
    let messages = complaints.matches("softroce: ").count();
    assert_eq!(messages, 1, "{complaints}");
}

/// Runs a shell script with the library preloaded, with these environment variables, in a mount
/// namespace of its own. Returns `None` after a message if the system does not allow that.
fn in_a_mount_namespace(variables: &[&str], script: &str) -> Option<Output> {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount"]);
        command
    };
    let is_allowed = unshare().arg("true").status();
    if !is_allowed.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this system allows no mount namespace");
        return None;
    }
    let output = unshare()
        .arg("env")
        .arg(format!("LD_PRELOAD={}", library().display()))
        .args(variables)
        .args(["sh", "-c", script])
        .output();
    Some(output.unwrap())
}

/// Returns the private directory of a process that has asked.
fn directory_of(child: &Child) -> PathBuf {
    let start = format!("softroce-files-{}-", child.id());
    let entries = fs::read_dir("/dev/shm").unwrap();
    let mut names = entries.map(|entry| entry.unwrap().path());
    names
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(&start))
        })
        .expect("a process that has asked has a directory")
}

/// The compiled `files.c`, which is removed with this value.
struct Program(PathBuf);

impl Program {
    fn compiled(name: &str, options: &[&str]) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/files.c");
        let name = format!("softroce-files-test-{}-{name}", std::process::id());
        let program = env::temp_dir().join(name);
        let output = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wno-nonnull"])
            .args(options)
            .arg(source)
            .arg("-o")
            .arg(&program)
            .args(["-libverbs", "-ldl"])
            .output()
            .expect("the C compiler starts");
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{complaints}");
        Self(program)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.0);
        command.env("LD_PRELOAD", library());
        command
    }

    /// Runs the program, and checks that it succeeds without a message and leaves no directory.
    #[track_caller]
    fn ask(&self) {
        let mut command = self.command();
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let id = child.id();
        let output = child.wait_with_output().unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{complaints}");
        assert_eq!(complaints, "");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "all answers are right\n"
        );
        let left_over = Path::new("/dev/shm").join(format!("softroce-files-{id}-0"));
        assert!(!left_over.exists(), "{} is left over", left_over.display());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails only if the program was removed already.
        let _ = fs::remove_file(&self.0);
    }
}
