//! Compiles the C shim: for each function of the C libraries, the shim has a function that calls
//! it.

use crate::headers::Headers;

/// The C files of the shim. `generate/mod.rs` says which of them are generated. Each file has its
/// own object: a program that uses no function of librdmacm takes nothing from the object of
/// `rdmacm.c`, and is not linked against that library.
const SOURCES: [&str; 5] = ["verbs.c", "rdmacm.c", "by_hand.c", "newer.c", "layout.c"];

pub(crate) fn compile(headers: &Headers) -> Result<(), String> {
    let mut build = cc::Build::new();
    if !headers.declare("ibv_alloc_buf") {
        build.define("RS_BUF_IS_NEWER", None);
    }
    build
        .files(SOURCES.map(|file| format!("shim/{file}")))
        .includes(&headers.include)
        .define("_GNU_SOURCE", None)
        // The data path goes through these functions, so debug builds optimise them as well.
        .opt_level(2)
        .extra_warnings(false)
        // A prototype that changed in the headers is an error of the build instead of a wrong call.
        .flag("-Werror=implicit-function-declaration")
        .flag("-Werror=incompatible-pointer-types")
        .flag("-Werror=int-conversion")
        .flag_if_supported("-Wno-deprecated-declarations")
        .try_compile("ibverbs_shim")
        .map_err(|error| {
            let version = headers
                .version
                .as_deref()
                .unwrap_or("of an unknown version");
            format!(
                "The C shim does not build against the headers of rdma-core {version}: {error}\n\
                 Where an assertion failed, these headers changed in a way that this version of \
                 ibverbs-sys does not know."
            )
        })
}
