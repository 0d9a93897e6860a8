//! Finds the headers and libraries, and checks that they are recent enough.

use std::env;
use std::path::{Path, PathBuf};

/// The version of the headers that the bindings were generated from, which is also the oldest
/// version that the shim can be built with.
pub(crate) const RECORDED: &str = include_str!("../shim/HEADERS").trim_ascii();

/// The environment variable with the root of another installation, such as MOFED's or DOCA's, whose
/// headers and libraries are used instead of the installation that pkg-config finds.
const PREFIX: &str = "IBVERBS_SYS_PREFIX";

/// A function that was added in version [`RECORDED`]. The declaration of the function shows that
/// headers without a known version are recent enough.
const NEWEST_BOUND: &str = "ibv_wr_atomic_write";

const LIBRARIES: [&str; 2] = ["ibverbs", "rdmacm"];

/// One header of each library, which must exist in the directories of headers. The other headers of
/// the library are in the same directory.
const HEADERS: [&str; 2] = ["infiniband/verbs.h", "rdma/rdma_cma.h"];

const MISSING: &str = "\
Install the package that brings them:
  Debian, Ubuntu:               apt install libibverbs-dev librdmacm-dev pkg-config
  Fedora, RHEL, Rocky, Alma:    dnf install rdma-core-devel pkgconf-pkg-config
  SUSE:                         zypper install rdma-core-devel pkg-config
  Arch:                         pacman -S rdma-core pkgconf
  Alpine:                       apk add rdma-core-dev pkgconf
Where they are installed elsewhere, set IBVERBS_SYS_PREFIX to the directory that has them under include/ and lib/.";

/// The locations of the headers and libraries against which the shim is compiled and linked.
#[derive(Default)]
pub(crate) struct Headers {
    /// Directories to search for headers.
    pub(crate) include: Vec<PathBuf>,
    /// Directories to search for libraries.
    pub(crate) lib: Vec<PathBuf>,
    /// The version of rdma-core, such as `44.0`, if it is known.
    pub(crate) version: Option<String>,
}

impl Headers {
    /// Returns whether `verbs.h` declares `function`. Returns `true` if the file cannot be read;
    /// the C compiler then reports what is missing.
    pub(crate) fn declare(&self, function: &str) -> bool {
        let text = |dir: &PathBuf| std::fs::read_to_string(dir.join("infiniband/verbs.h")).ok();
        self.include
            .iter()
            .find_map(text)
            .is_none_or(|text| text.contains(function))
    }

    /// Prints the directives by which cargo links the libraries, and by which build scripts of
    /// dependent crates find the headers.
    pub(crate) fn emit(&self) {
        for dir in &self.lib {
            println!("cargo::rustc-link-search=native={}", dir.display());
        }
        for library in LIBRARIES {
            println!("cargo::rustc-link-lib=dylib={library}");
        }
        let include = env::join_paths(&self.include).unwrap_or_default();
        let include = include.display();
        let version = self.version.as_deref().unwrap_or("unknown");
        println!("cargo::metadata=include={include}");
        println!("cargo::metadata=version={version}");
        // For this crate's own tests, which read the same headers.
        println!("cargo::rustc-env=IBVERBS_SYS_INCLUDE={include}");
        println!("cargo::rustc-env=IBVERBS_SYS_VERSION={version}");
    }
}

/// Finds headers that the shim can be built with. The error message says how to provide them.
pub(crate) fn find() -> Result<Headers, String> {
    let target = |key: &str| env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    if target("OS") != "linux" || target("POINTER_WIDTH") != "64" {
        return Err(
            "ibverbs-sys is for 64-bit Linux: its bindings hold for no other target.".into(),
        );
    }
    println!("cargo::rerun-if-env-changed={PREFIX}");
    let headers = match env::var_os(PREFIX).filter(|prefix| !prefix.is_empty()) {
        Some(prefix) => in_prefix(Path::new(&prefix))?,
        None => by_pkg_config()?,
    };
    for header in HEADERS {
        let found = headers
            .include
            .iter()
            .map(|dir| dir.join(header))
            .find(|path| path.is_file());
        let found = found.ok_or_else(|| format!("There is no {header}.\n{MISSING}"))?;
        println!("cargo::rerun-if-changed={}", found.display());
    }
    let too_old = match headers.version.as_deref() {
        Some(found) if older(found, RECORDED) => Some(found),
        _ if !headers.declare(NEWEST_BOUND) => Some("(without a known version)"),
        _ => None,
    };
    match too_old {
        None => Ok(headers),
        Some(found) => Err(format!(
            "The headers of rdma-core {found} are too old: ibverbs-sys needs {RECORDED} or newer, \
             which declare {NEWEST_BOUND}.\n\
             Upgrade them, or set {PREFIX} to a newer tree."
        )),
    }
}

fn in_prefix(prefix: &Path) -> Result<Headers, String> {
    let include = prefix.join("include");
    for header in HEADERS {
        if !include.join(header).is_file() {
            let prefix = prefix.display();
            return Err(format!(
                "{PREFIX} is {prefix}, but there is no include/{header} in it."
            ));
        }
    }
    let mut lib: Vec<PathBuf> = ["lib64", "lib"].map(|dir| prefix.join(dir)).into();
    if let Ok(arch) = env::var("CARGO_CFG_TARGET_ARCH") {
        lib.push(prefix.join(format!("lib/{arch}-linux-gnu")));
    }
    lib.retain(|dir| dir.is_dir());
    let version = lib
        .iter()
        .find_map(|dir| version_in(&dir.join("pkgconfig/libibverbs.pc")));
    Ok(Headers {
        include: vec![include],
        lib,
        version,
    })
}

fn version_in(pc: &Path) -> Option<String> {
    let text = std::fs::read_to_string(pc).ok()?;
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("Version:"))?;
    rdma_core_version(version.trim())
}

fn by_pkg_config() -> Result<Headers, String> {
    let mut headers = Headers::default();
    for library in LIBRARIES {
        let found = pkg_config::Config::new()
            .cargo_metadata(false)
            .print_system_cflags(true)
            .print_system_libs(false)
            .probe(&format!("lib{library}"))
            .map_err(|error| explain(library, &error))?;
        headers.include.extend(found.include_paths);
        headers.lib.extend(found.link_paths);
        if library == "ibverbs" {
            headers.version = rdma_core_version(&found.version);
        }
    }
    // Removes the directories of further libraries that these libraries depend on.
    headers
        .include
        .retain(|dir| HEADERS.iter().any(|header| dir.join(header).is_file()));
    headers.include.dedup();
    headers.lib.dedup();
    Ok(headers)
}

fn explain(library: &str, error: &pkg_config::Error) -> String {
    let what = match error {
        pkg_config::Error::Command { .. } => {
            format!("pkg-config is not installed, so lib{library} cannot be looked for.")
        }
        pkg_config::Error::CrossCompilation => format!(
            "pkg-config is not set up for cross-compilation: set PKG_CONFIG_SYSROOT_DIR, or {PREFIX}."
        ),
        _ => format!("The headers of lib{library} were not found."),
    };
    format!("{what}\n{MISSING}")
}

/// Returns the version of rdma-core, given the version of one of its libraries: `44.0` for
/// `1.14.44.0`. Returns `None` for the version numbers of other vendors; then only the static
/// assertions of the shim check the headers.
fn rdma_core_version(library: &str) -> Option<String> {
    let parts: Vec<&str> = library.split('.').collect();
    let numeric = parts.iter().all(|part| part.parse::<u32>().is_ok());
    match parts[..] {
        [_, _, major, minor] if numeric => Some(format!("{major}.{minor}")),
        _ => None,
    }
}

fn older(version: &str, than: &str) -> bool {
    let key = |text: &str| -> Vec<u32> { text.split('.').flat_map(str::parse).collect() };
    key(version) < key(than)
}
