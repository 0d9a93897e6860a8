//! Automation of the workspace.
//!
//! It depends on none of the workspace's crates, so it builds on a machine that has cargo and a C
//! compiler and nothing else, and installs what the others need.

mod bindgen;
mod environment;
mod flags;
mod guest;
mod limit;
mod packages;
mod project;
mod rxe;
mod soft_roce;

use std::process::ExitCode;
use std::time::Duration;

use xshell::Shell;

use crate::flags::{OnCmd, Rxe, Xtask, XtaskCmd};
use crate::guest::job::Links;
use crate::rxe::Requirements;

fn main() -> ExitCode {
    match Xtask::from_env_or_exit().run() {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Xtask {
    fn run(self) -> anyhow::Result<u8> {
        let shell = Shell::new()?;
        match self.subcommand {
            XtaskCmd::On(on) => match on.subcommand {
                OnCmd::Rxe(flags) => rxe::run(&shell, &flags.requirements(), flags.command),
            },
            XtaskCmd::Bindgen(flags) => bindgen::run(&shell, flags.check).map(|()| 0),
        }
    }
}

impl Rxe {
    fn requirements(&self) -> Requirements {
        let usual = Requirements::default();
        let links = match (self.no_link, self.veth) {
            (true, _) => Links::None,
            (false, true) => Links::Veth,
            (false, false) => usual.links,
        };
        let limit = match self.timeout {
            None => usual.limit,
            Some(0) => None,
            Some(seconds) => Some(Duration::from_secs(seconds)),
        };
        Requirements {
            guest: self.guest,
            links,
            modules: self.module.clone(),
            mtu: self.mtu.unwrap_or(usual.mtu),
            limit,
            cpus: self.cpu.unwrap_or(usual.cpus),
            memory: self.memory.unwrap_or(usual.memory),
            shares: self.share.clone(),
        }
    }
}
