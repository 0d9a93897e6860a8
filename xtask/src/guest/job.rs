//! The job of one boot of the guest: the command to run, and the files that describe the command to
//! the guest.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A choice of the Soft-RoCE devices that the guest (the virtual machine) creates before it runs
/// the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuestDevices {
    /// No Soft-RoCE devices. Soft-RoCE's kernel modules are not loaded either.
    None,
    /// A single Soft-RoCE device, `rxe_0`, on the network device `dummy0` with the address
    /// 10.77.0.1.
    Dummy,
    /// Two Soft-RoCE devices, `rxe_0` and `rxe_1`, on the two sides of a veth pair with the
    /// addresses 10.77.0.1 and 10.77.0.2.
    Veth,
}

/// A command to run in the guest (the virtual machine), with its working directory, environment
/// variables and writable directories of the host, and the settings of the guest's network devices.
#[derive(Debug)]
pub(crate) struct Job {
    /// The program to run, with its arguments.
    pub(crate) command: Vec<OsString>,
    /// The working directory of the command.
    pub(crate) directory: PathBuf,
    /// All environment variables of the command.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// The Soft-RoCE devices that the guest creates.
    pub(crate) guest_devices: GuestDevices,
    /// The MTU of the guest's network devices.
    pub(crate) mtu: u32,
    /// Directories of the host that the guest may write to.
    pub(crate) shares: Vec<PathBuf>,
}

impl Job {
    /// Returns the contents of the configuration file that the guest's scripts `init.sh` and
    /// `session.sh` read, which sets shell variables. `module_tree` is the host's directory that
    /// becomes `/lib/modules` in the guest; `mark` is the text that ends each output of the
    /// command.
    pub(crate) fn config(&self, module_tree: &Path, mark: &str) -> Vec<u8> {
        let links = match self.guest_devices {
            GuestDevices::None => "none",
            GuestDevices::Dummy => "dummy",
            GuestDevices::Veth => "veth",
        };
        let mut config = format!("links={links}\nmtu={}\nmark=", self.mtu).into_bytes();
        quote(mark.as_ref(), &mut config);
        config.extend_from_slice(b"\nmodule_tree=");
        quote(module_tree.as_os_str(), &mut config);
        config.push(b'\n');
        config
    }

    /// Returns shell code that mounts the shared directories in the guest. For each directory, the
    /// code calls the function `share`, which the guest's script `init.sh` defines.
    pub(crate) fn share_calls(&self) -> Vec<u8> {
        let mut calls = Vec::new();
        for (index, directory) in self.shares.iter().enumerate() {
            calls.extend_from_slice(format!("share {} ", share_tag(index)).as_bytes());
            quote(directory.as_os_str(), &mut calls);
            calls.push(b'\n');
        }
        calls
    }

    /// Returns a shell script for the guest that executes the command of this job, in the working
    /// directory and with the environment variables of the job.
    pub(crate) fn script(&self) -> Vec<u8> {
        let mut script = b"cd ".to_vec();
        quote(self.directory.as_os_str(), &mut script);
        script.extend_from_slice(b" || exit 125\nexec env -i --");
        for (name, value) in &self.environment {
            let mut pair = name.clone();
            pair.push("=");
            pair.push(value);
            script.push(b' ');
            quote(&pair, &mut script);
        }
        for word in &self.command {
            script.push(b' ');
            quote(word, &mut script);
        }
        script.push(b'\n');
        script
    }
}

/// Returns the tag (the name of a virtual 9p device) by which the guest mounts the shared directory
/// with the index `index`.
pub(crate) fn share_tag(index: usize) -> String {
    format!("share{index}")
}

/// Appends `word` to `script`, quoted so that a shell reads it as one word.
fn quote(word: &OsStr, script: &mut Vec<u8>) {
    script.push(b'\'');
    for &byte in word.as_bytes() {
        match byte {
            b'\'' => script.extend_from_slice(b"'\\''"),
            byte => script.push(byte),
        }
    }
    script.push(b'\'');
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn job() -> Job {
        Job {
            command: ["printf", "%s|", "a b", "it's", "", "$HOME", "new\nline"]
                .map(OsString::from)
                .to_vec(),
            directory: PathBuf::from("/"),
            environment: vec![
                ("PATH".into(), "/usr/bin:/bin".into()),
                ("X".into(), "'".into()),
            ],
            guest_devices: GuestDevices::Veth,
            mtu: 1500,
            shares: vec![PathBuf::from("/a b"), PathBuf::from("/c")],
        }
    }

    fn shell(script: &[u8]) -> String {
        let output = Command::new("sh")
            .arg("-c")
            .arg(OsStr::from_bytes(script))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn the_shell_restores_the_words_of_the_command() {
        assert_eq!(shell(&job().script()), "a b|it's||$HOME|new\nline|");
    }

    #[test]
    fn the_environment_is_the_jobs_and_no_more() {
        let job = Job {
            command: vec!["env".into()],
            ..job()
        };
        let mut lines: Vec<_> = shell(&job.script()).lines().map(str::to_owned).collect();
        lines.retain(|line| !line.starts_with("PWD=") && !line.starts_with("_="));
        assert_eq!(lines, ["PATH=/usr/bin:/bin", "X='"]);
    }

    #[test]
    fn shares_are_numbered_and_quoted() {
        assert_eq!(
            job().share_calls(),
            b"share share0 '/a b'\nshare share1 '/c'\n"
        );
    }

    #[test]
    fn config_is_shell_variables() {
        let config = String::from_utf8(job().config(Path::new("/m"), "<end>")).unwrap();
        assert_eq!(
            config,
            "links=veth\nmtu=1500\nmark='<end>'\nmodule_tree='/m'\n"
        );
    }
}
