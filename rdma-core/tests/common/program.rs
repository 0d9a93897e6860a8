//! Runs C programs on the device under test.

#[path = "../../../ibverbs-sys/softroce/tests/library/mod.rs"]
mod library;

use std::process::Command;

use rdma_core::Context;

use self::library::library;

/// Makes the device under test visible to a C program: builds softroce's library, and preloads it.
/// A device of the kernel is visible without a change.
#[track_caller]
pub(crate) fn with_device<'a>(command: &'a mut Command, context: &Context) -> &'a mut Command {
    if context.device().is_emulated() {
        command.env("LD_PRELOAD", library());
    }
    command
}
