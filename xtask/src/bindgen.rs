//! `cargo xtask bindgen`: generates the checked-in bindings and shim of ibverbs-sys.
//!
//! The generator is a part of the build script of ibverbs-sys, behind the feature `bindgen` of that
//! crate. This command installs the packages that the generator needs and runs the generator with a
//! temporary output directory. Then it either replaces the checked-in files by the generated files,
//! or compares the two.

use std::env;
use std::path::Path;

use anyhow::{Context, bail};
use xshell::{Shell, cmd};

use crate::packages::{self, Group};
use crate::project;

/// The files that `cargo xtask bindgen` generates: the bindings and the C code that belongs to
/// them. Paths are relative to `ibverbs-sys`.
const GENERATED: [&str; 5] = [
    "src/bindings.rs",
    "shim/verbs.c",
    "shim/rdmacm.c",
    "shim/layout.h",
    "shim/layout.c",
];

/// The Debian packages with the C headers of the verbs libraries and with libclang, in the versions
/// from which the checked-in bindings were generated.
const PACKAGES: Group = Group {
    names: &[
        "libibverbs-dev",
        "librdmacm-dev",
        "pkg-config",
        "libclang1-14",
        "libclang-common-14-dev",
    ],
    purpose: "generate the bindings",
};

/// The directory of libclang 14 on Debian, for the case that `LIBCLANG_PATH` is not set.
const LIBCLANG: &str = "/usr/lib/llvm-14/lib";

pub(crate) fn run(shell: &Shell, check: bool) -> anyhow::Result<()> {
    let root = project::root();
    let _in_root = shell.push_dir(root);
    packages::install(shell, &PACKAGES)?;

    let out = shell.create_temp_dir()?;
    let generated = generate(shell, out.path());

    let mut stale = Vec::new();
    for file in GENERATED {
        let new = out.path().join(file);
        if !new.exists() {
            generated?;
            bail!("the generator did not write {file}");
        }
        let new = shell.read_file(new)?;
        let checked_in = root.join("ibverbs-sys").join(file);
        if shell.read_file(&checked_in).ok().as_ref() != Some(&new) {
            stale.push(file);
            if !check {
                shell.write_file(checked_in, new)?;
            }
        }
    }
    match (stale.join(", "), check) {
        (stale, _) if stale.is_empty() => println!("The bindings are up to date."),
        (stale, false) => println!("Written under ibverbs-sys: {stale}."),
        (stale, true) => bail!("stale under ibverbs-sys: {stale}. Run `cargo xtask bindgen`"),
    }
    Ok(())
}

/// Runs the build script of ibverbs-sys, which generates the bindings and their C code in the
/// directory `out`. An error does not mean that these files are incomplete: after the build script,
/// cargo compiles the crate with the checked-in bindings, and this compilation fails if these
/// bindings are out of date.
fn generate(shell: &Shell, out: &Path) -> anyhow::Result<()> {
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let libclang = env::var("LIBCLANG_PATH").unwrap_or_else(|_| LIBCLANG.to_owned());
    cmd!(
        shell,
        "{cargo} check --quiet --package ibverbs-sys --lib --features bindgen"
    )
    .env("IBVERBS_SYS_GENERATE", out)
    .env("LIBCLANG_PATH", libclang)
    .run()
    .context("the generator failed")
}
