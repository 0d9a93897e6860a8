//! The kernel modules of the guest: finds them with their dependencies, and reduces their size.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use xshell::{Shell, cmd};

/// The kernel modules by which the guest accesses the host's files and communicates with the host.
pub(crate) const TRANSPORT: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
];

/// The kernel modules of a Soft-RoCE device, in the order in which the guest loads them.
/// `crc32_generic` is loaded explicitly: rdma_rxe requests crc32 from the crypto layer only when it
/// runs, and the guest has no program that loads modules on the kernel's request.
pub(crate) const SOFT_ROCE: &[&str] = &[
    "crc32_generic",
    "dummy",
    "veth",
    "ib_uverbs",
    "rdma_rxe",
    "rdma_ucm",
    "ib_umad",
];

/// The paths and the dependencies of all modules of a kernel, read from the files of `depmod`.
#[derive(Debug)]
pub(crate) struct Table {
    root: PathBuf,
    /// For each module name, the path below `root`, and the paths of the modules that it depends
    /// on, in the order in which they can be unloaded.
    modules: HashMap<String, (String, Vec<String>)>,
    builtin: Vec<String>,
}

impl Table {
    /// Reads the paths and dependencies of a kernel's modules from the files that `depmod` wrote.
    /// `root` is the directory of these files, `lib/modules/RELEASE`.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let text = |name: &str| {
            let path = root.join(name);
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        Ok(Self::parse(
            root,
            &text("modules.dep")?,
            &text("modules.builtin")?,
        ))
    }

    fn parse(root: &Path, dependencies: &str, builtin: &str) -> Self {
        let modules = dependencies
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(path, needs)| {
                let needs = needs.split_whitespace().map(str::to_owned).collect();
                (name_of(path), (path.to_owned(), needs))
            })
            .collect();
        Self {
            root: root.to_owned(),
            modules,
            builtin: builtin.lines().map(name_of).collect(),
        }
    }

    /// Returns the paths of the modules `names` and of all modules that they depend on, without
    /// duplicates, in the order in which they must be loaded.
    pub(crate) fn resolve<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> anyhow::Result<Vec<PathBuf>> {
        let mut order: Vec<&str> = Vec::new();
        for name in names {
            let name = normalized(name);
            let Some((path, needs)) = self.modules.get(&name) else {
                if self.builtin.contains(&name) {
                    continue;
                }
                bail!(
                    "the guest's kernel has no module `{name}` (see {})",
                    self.root.display()
                );
            };
            // depmod lists the nearest dependency first.
            for path in needs.iter().rev().chain([path]) {
                if !order.contains(&path.as_str()) {
                    order.push(path);
                }
            }
        }
        Ok(order.into_iter().map(|path| self.root.join(path)).collect())
    }
}

/// Returns the contents of the module `file` without signature, debug information and type
/// information. The result has about a third of the size of the module, and is cached in the
/// directory `kept`.
pub(crate) fn stripped(shell: &Shell, file: &Path, kept: &Path) -> anyhow::Result<Vec<u8>> {
    let name = name_of(file.to_str().context("a module's path is not UTF-8")?);
    let result = kept.join(format!("{name}.ko"));
    if !result.exists() {
        fs::create_dir_all(kept)?;
        let unpacked = kept.join(format!("{name}.{}.tmp", std::process::id()));
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("xz") => fs::write(&unpacked, decompress(shell, "xz", file)?)?,
            Some("zst") => fs::write(&unpacked, decompress(shell, "zstd", file)?)?,
            Some("gz") => fs::write(&unpacked, decompress(shell, "gzip", file)?)?,
            _ => fs::write(&unpacked, fs::read(file)?)?,
        }
        cmd!(
            shell,
            "strip --strip-debug --remove-section=.BTF {unpacked}"
        )
        .quiet()
        .run()?;
        fs::rename(&unpacked, &result)?;
    }
    fs::read(&result).with_context(|| format!("reading {}", result.display()))
}

fn decompress(shell: &Shell, tool: &str, file: &Path) -> anyhow::Result<Vec<u8>> {
    Ok(cmd!(shell, "{tool} -dc {file}").quiet().output()?.stdout)
}

/// Returns the name of the module with the file `path`: `9pnet_virtio` for
/// `kernel/net/9p/9pnet_virtio.ko.xz`.
fn name_of(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    normalized(file.split(".ko").next().unwrap_or(file))
}

/// Returns the module name `name` with underscores in place of dashes. Both characters are
/// equivalent in a module's name.
fn normalized(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let dependencies = "\
            kernel/a/ib_core.ko:\n\
            kernel/a/ib_uverbs.ko: kernel/a/ib_core.ko\n\
            kernel/n/ip6_udp_tunnel.ko:\n\
            kernel/n/udp_tunnel.ko.xz:\n\
            kernel/r/rdma_rxe.ko: kernel/a/ib_uverbs.ko kernel/n/ip6_udp_tunnel.ko \
            kernel/n/udp_tunnel.ko.xz kernel/a/ib_core.ko\n\
            kernel/c/crc32-pclmul.ko:\n";
        Table::parse(
            Path::new("/m"),
            dependencies,
            "kernel/crypto/crc32c_generic.ko\n",
        )
    }

    fn resolved(names: &[&str]) -> Vec<String> {
        let files = table().resolve(names.iter().copied()).unwrap();
        files
            .iter()
            .map(|path| name_of(path.to_str().unwrap()))
            .collect()
    }

    #[test]
    fn dependencies_load_first_and_once() {
        assert_eq!(
            resolved(&["ib_uverbs", "rdma-rxe"]),
            [
                "ib_core",
                "ib_uverbs",
                "udp_tunnel",
                "ip6_udp_tunnel",
                "rdma_rxe"
            ]
        );
    }

    #[test]
    fn names_are_normalized_and_builtins_need_no_file() {
        assert_eq!(
            resolved(&["crc32c-generic", "crc32_pclmul"]),
            ["crc32_pclmul"]
        );
    }

    #[test]
    fn an_unknown_module_is_named() {
        let error = table().resolve(["no_such"]).unwrap_err().to_string();
        assert!(error.contains("`no_such`"), "{error}");
    }
}
