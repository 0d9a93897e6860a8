//! Automation of the workspace.
//!
//! xtask depends on no other crate of the workspace. Therefore it builds on a machine that has only
//! cargo and a C compiler, and can install what the other crates need.

mod bench;
mod bindgen;
mod callgrind;
mod cargo;
mod environment;
mod flags;
mod fuzz;
mod guest;
mod limit;
mod packages;
mod plant;
mod project;
mod rxe;
mod sanitize;
mod soak;
mod soft_roce;
mod softroce;
mod test;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use xshell::Shell;

use crate::flags::{Bench, Fuzz, OnCmd, Plant, Rxe, Soak, SoftroceSetup, Test, Xtask, XtaskCmd};
use crate::guest::job::GuestDevices;
use crate::rxe::Requirements;
use crate::soft_roce::Request;
use crate::test::Target;

fn main() -> ExitCode {
    let command = match Xtask::from_env() {
        Ok(command) => command,
        // A reader such as `head` may close standard output before all of the help is written.
        Err(help) if help.is_help() => {
            drop(writeln!(io::stdout(), "{help}"));
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    match command.run() {
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
            XtaskCmd::SoftroceSetup(flags) if flags.check => soft_roce::check(&shell),
            XtaskCmd::SoftroceSetup(SoftroceSetup { netdev, name, .. }) => {
                soft_roce::setup(&shell, &Request { netdev, name }).map(|()| 0)
            }
            XtaskCmd::On(on) => match on.subcommand {
                OnCmd::Rxe(flags) => rxe::run(&shell, &flags.requirements(), flags.command),
                OnCmd::Softroce(flags) => softroce::run(&shell, flags.as_library, &flags.command),
            },
            XtaskCmd::Test(flags) => test::run(&shell, &flags.selection()?),
            XtaskCmd::Bench(flags) => bench::run(&shell, flags.options()),
            XtaskCmd::Callgrind(_) => callgrind::run(&shell),
            XtaskCmd::Fuzz(flags) => fuzz::run(&shell, &flags.options()?),
            XtaskCmd::Soak(flags) => soak::run(&shell, &flags.options()?),
            XtaskCmd::Sanitize(flags) => sanitize::run(&shell, &flags.test),
            XtaskCmd::Plant(flags) => plant::run(&shell, &flags.options()),
            XtaskCmd::RunPlan(flags) => test::run_plan(&flags.plan, &flags.outcomes).map(|()| 0),
            XtaskCmd::Bindgen(flags) => bindgen::run(&shell, flags.check).map(|()| 0),
        }
    }
}

impl Rxe {
    fn requirements(&self) -> Requirements {
        let usual = Requirements::default();
        let guest_devices = match (self.no_link, self.veth) {
            (true, _) => GuestDevices::None,
            (false, true) => GuestDevices::Veth,
            (false, false) => usual.guest_devices,
        };
        let limit = self.timeout.map_or(usual.limit, limit_of);
        Requirements {
            guest: self.guest,
            guest_devices,
            modules: self.module.clone(),
            mtu: self.mtu.unwrap_or(usual.mtu),
            limit,
            cpus: self.cpu.unwrap_or(usual.cpus),
            memory: self.memory.unwrap_or(usual.memory),
            shares: self.share.clone(),
            ..usual
        }
    }
}

impl Test {
    fn selection(self) -> anyhow::Result<test::Selection> {
        let devices = match self.quick {
            true => vec![Target::Softroce],
            false => Target::chosen(self.device.clone()),
        };
        ensure!(
            !self.quick
                || self
                    .device
                    .is_none_or(|name| devices == Target::chosen(Some(name))),
            "--quick tests on softroce only"
        );
        ensure!(
            !(self.host_only && self.device_only),
            "--host-only and --device-only leave no test"
        );
        Ok(test::Selection {
            host: !self.device_only,
            device: !self.host_only,
            quick: self.quick,
            packages: self.package,
            programs: self.program,
            filter: self.filter,
            exact: self.exact,
            devices,
        })
    }
}

impl Bench {
    fn options(self) -> bench::Options {
        bench::Options {
            quick: self.quick,
            only: self.only,
            device: Target::measured(self.device),
            limit: limit_of(self.timeout.unwrap_or(if self.quick { 1800 } else { 7200 })),
            arguments: self.arguments,
        }
    }
}

impl Plant {
    fn options(self) -> plant::Options {
        plant::Options {
            bugs: self.bug,
            schedules: self.schedules.unwrap_or(500),
        }
    }
}

impl Fuzz {
    fn options(self) -> anyhow::Result<fuzz::Options> {
        Ok(fuzz::Options {
            targets: self.target,
            time: Duration::from_secs(self.seconds.unwrap_or(60)),
            replay: self.replay.map(std::path::absolute).transpose()?,
            keep: self.keep,
        })
    }
}

impl Soak {
    fn options(self) -> anyhow::Result<soak::Options> {
        let minutes = self.minutes.unwrap_or(20);
        ensure!(minutes > 0, "--minutes must be at least 1");
        Ok(soak::Options {
            name: self.name,
            time: Duration::from_secs(minutes.saturating_mul(60)),
            list: self.list,
        })
    }
}

/// Returns the time limit `seconds`, or `None` for 0, which means no limit.
fn limit_of(seconds: u64) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds))
}
