//! `cargo xtask bindgen`: the checked-in bindings and shim of ibverbs-sys.
//!
//! The generator is a part of that crate's build script, behind its feature `bindgen`. This
//! command brings what the generator needs, runs it into a directory under `target`, and then
//! either copies its output over the checked-in files or compares the two.

use std::env;
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, bail};
use xshell::{Shell, cmd};

use crate::packages;

/// What the generator writes, under `ibverbs-sys`.
const GENERATED: [&str; 5] = [
    "src/bindings.rs",
    "shim/verbs.c",
    "shim/rdmacm.c",
    "shim/layout.h",
    "shim/layout.c",
];

/// libclang at the version that the bindings were last generated with: Debian 12's.
const LIBCLANG: &str = "libclang1-14";

/// Where Debian puts that version, for the loader to find it beside others.
const LLVM: &str = "/usr/lib/llvm-14/lib";

pub(crate) fn run(shell: &Shell, check: bool) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()?;
    let _dir = shell.push_dir(&root);
    packages::install(shell, &[LIBCLANG])?;
    packages::install(shell, packages::BUILD)?;

    let out = match env::var_os("CARGO_TARGET_DIR") {
        Some(target) => root.join(target),
        None => root.join("target"),
    }
    .join("bindgen");
    shell.remove_path(&out)?;
    shell.create_dir(&out)?;
    // A set variable makes cargo run the build script again when its value changes; the file it
    // touches does so for every run.
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    cmd!(
        shell,
        "{cargo} check --quiet --package ibverbs-sys --features bindgen --lib"
    )
    .env("IBVERBS_SYS_GENERATE", &out)
    .env("LIBCLANG_PATH", libclang())
    .run()
    .context("the generator failed")?;

    let checked_in = root.join("ibverbs-sys");
    let mut stale = Vec::new();
    for file in GENERATED {
        let text = shell.read_file(out.join(file))?;
        let path = checked_in.join(file);
        if shell.read_file(&path).ok().as_deref() != Some(text.as_str()) {
            stale.push(file);
            if !check {
                shell.write_file(path, text)?;
            }
        }
    }
    match (stale.is_empty(), check) {
        (true, _) => println!("The bindings are up to date."),
        (false, false) => println!("Written under ibverbs-sys: {}.", stale.join(", ")),
        (false, true) => bail!(
            "under ibverbs-sys, {} differ from what the generator makes: run `cargo xtask bindgen`",
            stale.join(", ")
        ),
    }
    Ok(())
}

/// The directory of libclang: the caller's choice, or Debian's.
fn libclang() -> OsString {
    env::var_os("LIBCLANG_PATH").unwrap_or_else(|| LLVM.into())
}
