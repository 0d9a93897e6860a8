//! The Debian packages that a test run installs.

use xshell::Shell;

use crate::packages::{self, Group};

/// The groups of Debian packages that this run of the tests has tried to install, with the
/// failures. This record is kept so that each group is tried only once.
#[derive(Debug, Default)]
pub(crate) struct Installed {
    tried: Vec<&'static Group>,
    /// The groups that could not be installed, with the reasons.
    absent: Vec<(&'static Group, String)>,
}

impl Installed {
    /// Installs the missing packages of all `groups` that were not tried before. Prints the groups
    /// that cannot be installed.
    pub(crate) fn install(&mut self, shell: &Shell, mut groups: Vec<&'static Group>) {
        groups.retain(|group| !self.tried.contains(group));
        groups.dedup();
        for (group, error) in packages::install_all(shell, &groups) {
            eprintln!("{error:#}");
            self.absent.push((group, format!("{error:#}")));
        }
        self.tried.extend(groups);
    }

    /// Returns the reason why the packages of `group` could not be installed; `None` if they were
    /// installed, or if no installation was tried.
    pub(crate) fn problem(&self, group: &Group) -> Option<&str> {
        let absent = self.absent.iter().find(|(absent, _)| *absent == group);
        absent.map(|(_, problem)| problem.as_str())
    }
}
