//! The build script: compiles the C shim against the installed headers, and prints what cargo must
//! link. `src/lib.rs` explains the shim.

#[cfg(feature = "bindgen")]
mod generate;
mod headers;
mod shim;

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            for line in message.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=shim");
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    if env::var_os("DOCS_RS").is_some() {
        // Documentation is built on machines without the headers, and needs no linking.
        return Ok(());
    }
    let headers = headers::find()?;
    #[cfg(feature = "bindgen")]
    if generate::requested(&headers)? {
        return Ok(());
    }
    shim::compile(&headers)?;
    headers.emit();
    Ok(())
}
