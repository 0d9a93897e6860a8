//! The kernel of the guest: a kernel of Debian that is unpacked from its package into the cache
//! directory, and not installed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use xshell::{Shell, cmd};

use super::bzimage;
use super::modules::{self, Table};
use crate::packages::{Privilege, run_quietly};
use crate::project;

/// The Debian package that depends on the package of the current kernel. The guest, a virtual
/// machine, boots this kernel.
const META_PACKAGE: &str = "linux-image-amd64";

/// A Debian kernel for the guest (the virtual machine), unpacked in the cache directory and not
/// installed on this machine.
#[derive(Debug)]
pub(crate) struct Kernel {
    directory: PathBuf,
    release: String,
}

impl Kernel {
    /// Returns the newest kernel in the cache directory; `None` if the directory has no kernel.
    pub(crate) fn cached() -> anyhow::Result<Option<Self>> {
        let Ok(entries) = fs::read_dir(kernels()?) else {
            return Ok(None);
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            // The directory of an incompletely unpacked kernel has this suffix until it is renamed.
            if let Ok(release) = entry.file_name().into_string()
                && !release.ends_with(".partial")
            {
                found.push((entry.metadata()?.modified()?, entry.path(), release));
            }
        }
        let newest = found.into_iter().max();
        Ok(newest.map(|(_, directory, release)| Self { directory, release }))
    }

    /// Returns a kernel from the cache directory. If the directory has no kernel, downloads and
    /// unpacks one first.
    pub(crate) fn prepare(shell: &Shell) -> anyhow::Result<Self> {
        if let Some(kernel) = Self::cached()? {
            return Ok(kernel);
        }
        ensure!(
            cfg!(target_arch = "x86_64"),
            "the guest runs on x86-64 only"
        );
        let kernels = kernels()?;
        fs::create_dir_all(&kernels)
            .with_context(|| format!("creating the cache directory {}", kernels.display()))?;
        // One of several processes unpacks the kernel; the others wait here.
        let lock = File::create(kernels.with_extension("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        if let Some(kernel) = Self::cached()? {
            return Ok(kernel);
        }
        let begin = Instant::now();
        let kernel = unpack(shell, &kernels).context("preparing the guest's kernel")?;
        eprintln!(
            "guest: kernel {} unpacked into {} in {:.1} s",
            kernel.release,
            kernel.directory.display(),
            begin.elapsed().as_secs_f64()
        );
        Ok(kernel)
    }

    /// Returns the version string that `uname -r` prints in the guest.
    pub(crate) fn release(&self) -> &str {
        &self.release
    }

    /// Returns the path of the image of this kernel that QEMU loads.
    pub(crate) fn image(&self) -> PathBuf {
        self.directory.join("vmlinux")
    }

    /// Returns the host's directory with the modules of this kernel, which becomes `/lib/modules`
    /// in the guest.
    pub(crate) fn module_tree(&self) -> PathBuf {
        self.directory.join("modules")
    }

    /// Returns the kernel modules `names` and the modules that they depend on, in the order in
    /// which they must be loaded. Each element has the name and the contents of a module.
    pub(crate) fn modules<'a>(
        &self,
        shell: &Shell,
        names: impl IntoIterator<Item = &'a str>,
    ) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
        let table = Table::read(&self.module_tree().join(&self.release))?;
        let kept = self.directory.join("stripped");
        let mut loaded = Vec::new();
        for file in table.resolve(names)? {
            let stem = file
                .file_name()
                .context("a module has no file name")?
                .to_string_lossy();
            let name = stem.split('.').next().unwrap_or_default().to_owned();
            loaded.push((name, modules::stripped(shell, &file, &kept)?));
        }
        Ok(loaded)
    }
}

fn kernels() -> anyhow::Result<PathBuf> {
    Ok(project::cache()?.join("kernels"))
}

fn unpack(shell: &Shell, kernels: &Path) -> anyhow::Result<Kernel> {
    let partial = kernels.join("download.partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir_all(&partial)?;
    let package = download(shell, &partial)?;
    let tree = partial.join("tree");
    run_quietly(cmd!(shell, "dpkg-deb --extract {package} {tree}"))?;
    fs::remove_file(&package)?;

    // In a package for systems with a merged /usr, the first path may exist.
    let modules = ["usr/lib/modules", "lib/modules"].map(|below| tree.join(below));
    let modules = modules.into_iter().find(|path| path.is_dir());
    let modules = modules.context("the kernel's package has no modules")?;
    let release = only_entry(&modules)?;
    let image = tree.join("boot").join(format!("vmlinuz-{release}"));
    decompress(shell, &image, &partial.join("vmlinux"))?;
    fs::rename(&modules, partial.join("modules"))?;
    fs::remove_dir_all(&tree)?;

    // depmod expects the modules at the path that they have on a running system.
    let lib = partial.join("lib");
    fs::create_dir(&lib)?;
    std::os::unix::fs::symlink("../modules", lib.join("modules"))?;
    let depmod = depmod()?;
    run_quietly(cmd!(shell, "{depmod} --basedir {partial} {release}"))?;

    let directory = kernels.join(&release);
    fs::rename(&partial, &directory)?;
    Ok(Kernel { directory, release })
}

/// Downloads the package that [`META_PACKAGE`] depends on into the directory `into`. Returns the
/// path of the file.
fn download(shell: &Shell, into: &Path) -> anyhow::Result<PathBuf> {
    let name = match kernel_package(shell)? {
        Some(name) => name,
        None => {
            update_lists(shell)?;
            let known = kernel_package(shell)?;
            known.with_context(|| format!("apt knows no package {META_PACKAGE}"))?
        }
    };
    eprintln!("to download: {name} (the guest's kernel, which is not installed on this machine)");
    let directory = shell.push_dir(into);
    let fetched = run_quietly(cmd!(shell, "apt-get -qq download {name}"));
    if fetched.is_err() {
        // An old package list may name a version that has been removed from the archive.
        update_lists(shell)?;
        let name = kernel_package(shell)?.unwrap_or(name);
        run_quietly(cmd!(shell, "apt-get -qq download {name}"))?;
    }
    drop(directory);
    Ok(into.join(only_entry(into)?))
}

fn update_lists(shell: &Shell) -> anyhow::Result<()> {
    match Privilege::acquire(shell) {
        Some(privilege) => privilege.run(shell, &["apt-get", "-qq", "update"]),
        None => bail!(
            "apt's lists do not have the guest's kernel. Run\n    sudo apt-get update\n\
             then this command again"
        ),
    }
}

fn kernel_package(shell: &Shell) -> anyhow::Result<Option<String>> {
    let depends = cmd!(shell, "apt-cache depends {META_PACKAGE}")
        .quiet()
        .ignore_status()
        .ignore_stderr();
    Ok(dependency(
        &depends
            .read()
            .context("apt-cache: the guest needs Debian's packages")?,
    ))
}

/// Returns the name of the package of the current kernel, which [`META_PACKAGE`] depends on.
/// `depends` is the output of `apt-cache depends` for [`META_PACKAGE`]. Returns `None` if the
/// output names no kernel package.
fn dependency(depends: &str) -> Option<String> {
    let names = depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "));
    names
        .map(str::to_owned)
        .find(|name| name.starts_with("linux-image-"))
}

fn decompress(shell: &Shell, image: &Path, vmlinux: &Path) -> anyhow::Result<()> {
    let bytes = fs::read(image).with_context(|| format!("reading {}", image.display()))?;
    let (compression, stream) = bzimage::payload(&bytes)?;
    let tool = compression.tool();
    let plain = cmd!(shell, "{tool} -dc")
        .quiet()
        .stdin(stream)
        .output()?
        .stdout;
    ensure!(
        plain.starts_with(b"\x7fELF"),
        "the decompressed kernel is no ELF file"
    );
    fs::write(vmlinux, plain)?;
    Ok(())
}

/// Returns the path of the program `depmod`. Searches the directories of system programs, which are
/// not in every user's PATH.
fn depmod() -> anyhow::Result<PathBuf> {
    let places = ["/usr/sbin/depmod", "/sbin/depmod"].map(PathBuf::from);
    places
        .into_iter()
        .find(|path| path.exists())
        .context("no depmod: install the package kmod")
}

fn only_entry(directory: &Path) -> anyhow::Result<String> {
    let mut entries = fs::read_dir(directory)?;
    let entry = entries
        .next()
        .with_context(|| format!("{} is empty", directory.display()))??;
    ensure!(
        entries.next().is_none(),
        "{} has more than one entry",
        directory.display()
    );
    entry
        .file_name()
        .into_string()
        .ok()
        .context("a file name is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::dependency;

    #[test]
    fn the_kernel_is_what_the_meta_package_depends_on() {
        let depends = "linux-image-amd64\n  Depends: linux-image-6.1.0-37-amd64\n";
        assert_eq!(
            dependency(depends).as_deref(),
            Some("linux-image-6.1.0-37-amd64")
        );
        assert_eq!(dependency("linux-image-amd64\n"), None);
        assert_eq!(dependency(""), None);
    }
}
