//! softroce preloaded: programs of Debian's ibverbs-utils, as they are, find the device and talk over
//! it, as root and as a user without rights.

mod common;

use common::{Library, server_and_client, users, wait};

#[track_caller]
fn prints(program: &str, arguments: &[&str], expected: &[&str]) {
    let library = Library::new();
    for user in users() {
        let child = library.command(program, user).args(arguments).spawn();
        let output = wait(child.expect("ibverbs-utils is installed"));
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
}

#[test]
fn the_device_is_found() {
    prints("ibv_devices", &[], &["softroce0"]);
    let about = [
        "hca_id:\tsoftroce0",
        "PORT_ACTIVE",
        "Ethernet",
        "::ffff:127.",
        "RoCE v2",
        "MEM_WINDOW_TYPE_2B",
    ];
    prints("ibv_devinfo", &["-v"], &about);
}

/// Runs a ping-pong with each list of arguments.
#[track_caller]
fn ping_pong(program: &str, cases: &[&[&str]]) {
    let library = Library::new();
    for user in users() {
        for gid in ["0", "1"] {
            for case in cases {
                let arguments = [&["-g", gid], *case].concat();
                for text in server_and_client(&library, user, program, &arguments, &[]) {
                    assert!(
                        !text.contains("invalid data"),
                        "{program} {arguments:?}: {text}"
                    );
                }
            }
        }
    }
}

#[test]
fn rc_ping_pong() {
    ping_pong(
        "ibv_rc_pingpong",
        &[&[], &["-e"], &["-N"], &["-c"], &["-t"], &["-o"], &["-j"]],
    );
    let large: &[&str] = &["-c", "-s", "1000000", "-n", "20", "-m", "4096"];
    ping_pong("ibv_rc_pingpong", &[large, &["-c", "-s", "1"]]);
}

#[test]
fn uc_ping_pong() {
    ping_pong("ibv_uc_pingpong", &[&["-c"], &["-e"]]);
}

#[test]
fn ud_ping_pong() {
    ping_pong("ibv_ud_pingpong", &[&["-c"], &["-e"]]);
}

#[test]
fn srq_ping_pong() {
    ping_pong("ibv_srq_pingpong", &[&["-c"], &["-e"]]);
}

#[test]
fn xsrq_ping_pong() {
    ping_pong("ibv_xsrq_pingpong", &[&[], &["-e"]]);
}
