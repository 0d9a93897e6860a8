//! softroce preloaded: programs of Debian's ibverbs-utils, as they are, find the device, as root and
//! as a user without rights.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The library, where every user can read it.
fn library() -> PathBuf {
    let built = env::current_exe().unwrap().with_file_name("libsoftroce.so");
    let directory = env::temp_dir().join(format!("softroce-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    let library = directory.join("libsoftroce.so");
    fs::copy(&built, &library).expect("cargo builds the library where it builds the tests");
    fs::set_permissions(&library, fs::Permissions::from_mode(0o644)).unwrap();
    library
}

fn is_root() -> bool {
    // SAFETY: there are no arguments, and it always succeeds.
    unsafe { libc::geteuid() == 0 }
}

/// Runs a program on softroce, and checks what it prints.
fn run(program: &str, arguments: &[&str], expected: &[&str]) {
    const NOBODY: u32 = 65534;
    let library = library();
    let users = if is_root() {
        vec![None, Some(NOBODY)]
    } else {
        vec![None]
    };
    for user in users {
        let mut command = Command::new(program);
        command.args(arguments).env("LD_PRELOAD", &library);
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let output = command.output().expect("ibverbs-utils is installed");
        let (told, complained) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(
            output.status.success(),
            "{program} as {user:?}: {told}{complained}"
        );
        assert!(complained.is_empty(), "{program} as {user:?}: {complained}");
        for expected in expected {
            assert!(
                told.contains(expected),
                "{program} as {user:?}: no {expected} in {told}"
            );
        }
    }
    fs::remove_dir_all(library.parent().unwrap()).unwrap();
}

#[test]
fn programs_of_ibverbs_utils_find_the_device() {
    run("ibv_devices", &[], &["softroce0"]);
    let about = [
        "hca_id:\tsoftroce0",
        "PORT_ACTIVE",
        "Ethernet",
        "::ffff:127.",
        "RoCE v2",
        "MEM_WINDOW_TYPE_2B",
    ];
    run("ibv_devinfo", &["-v"], &about);
}
