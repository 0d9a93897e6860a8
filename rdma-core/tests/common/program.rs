//! Runs C programs on the device under test.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use rdma_core::Context;

/// Makes the device under test visible to a C program: preloads softroce's library, which is built
/// along with the tests. A device of the kernel is visible without a change.
#[track_caller]
pub(crate) fn with_device<'a>(command: &'a mut Command, context: &Context) -> &'a mut Command {
    if context.device().is_emulated() {
        command.env("LD_PRELOAD", library());
    }
    command
}

#[track_caller]
fn library() -> PathBuf {
    let test = env::current_exe().expect("the path of this program");
    let beside = test
        .ancestors()
        .map(|directory| directory.join("libsoftroce.so"));
    let library = beside.into_iter().find(|library| library.is_file());
    library.expect("libsoftroce.so is beside this program, as cargo builds both")
}
