//! Generates the files that are checked in: the Rust bindings (`src/bindings.rs`), and in `shim/`
//! the C functions that only call a function of a library (`verbs.c`, `rdmacm.c`) and the
//! assertions about the layouts that the bindings assume (`layout.h`, `layout.c`).
//!
//! `cargo xtask bindgen` sets [`OUT`] to the directory that receives these files.

mod bind;
mod c;
mod model;
mod policy;

use std::env;
use std::fs;
use std::path::PathBuf;

use crate::headers::{Headers, RECORDED};

/// The environment variable with the directory under which the files are written.
const OUT: &str = "IBVERBS_SYS_GENERATE";

/// Generates the files if [`OUT`] is set. Returns whether it is set.
pub(crate) fn requested(headers: &Headers) -> Result<bool, String> {
    println!("cargo::rerun-if-env-changed={OUT}");
    let Some(out) = env::var_os(OUT).map(PathBuf::from) else {
        return Ok(false);
    };

    // Cargo runs this script again if the directory was removed since.
    println!("cargo::rerun-if-changed={}", out.display());
    let version = headers
        .version
        .as_deref()
        .unwrap_or("of an unknown version");
    if version != RECORDED {
        return Err(format!(
            "The bindings are generated from the headers of rdma-core {RECORDED}, but those installed are {version}."
        ));
    }
    let rust = bind::bindings(headers)?;
    let model = model::Model::read(&rust)?;
    for (file, text) in [
        ("src/bindings.rs", rust),
        ("shim/verbs.c", c::functions(&model, c::Library::Verbs)?),
        ("shim/rdmacm.c", c::functions(&model, c::Library::Rdmacm)?),
        ("shim/layout.h", c::sizes(&model)?),
        ("shim/layout.c", c::assertions(&model)),
    ] {
        let path = out.join(file);
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&path, text))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(true)
}
