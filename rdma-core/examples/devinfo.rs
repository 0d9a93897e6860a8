//! Prints what the C program `ibv_devinfo` prints, and takes the same options.
//!
//! ```sh
//! cargo run -p rdma-core --example devinfo -- -v
//! ```

use std::fmt::Write as _;
use std::process::ExitCode;

use rdma_core::{Device, Error, Result, devices};

const USAGE: &str = "\
Usage: devinfo             print the ca attributes

Options:
  -d, --ib-dev=<dev>     use IB device <dev> (default all devices)
  -i, --ib-port=<port>   use port <port> of IB device (default all ports)
  -l, --list             print only the IB devices names
  -v, --verbose          print all the attributes of the IB device(s)
";

fn main() -> ExitCode {
    let wanted = match Wanted::from_arguments(std::env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(problem) => {
            eprintln!("{problem}");
            print!("{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    match described(&wanted) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Options of the command line.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) device: Option<String>,
    pub(crate) port: Option<u8>,
    pub(crate) list: bool,
    pub(crate) verbose: bool,
}

impl Wanted {
    /// Parses options as C's `getopt_long` does: `-d NAME`, `-dNAME`, `--ib-dev NAME`,
    /// `--ib-dev=NAME`, and `-lv` for `-l -v`.
    pub(crate) fn from_arguments(
        arguments: impl IntoIterator<Item = String>,
    ) -> Result<Self, String> {
        let mut wanted = Self::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let (options, mut value) = match argument.strip_prefix("--") {
                Some(long) => {
                    let (name, value) = match long.split_once('=') {
                        Some((name, value)) => (name, Some(value.to_owned())),
                        None => (long, None),
                    };
                    let option = match name {
                        "ib-dev" => "d",
                        "ib-port" => "i",
                        "list" => "l",
                        "verbose" => "v",
                        _ => return Err(format!("unrecognized option '{argument}'")),
                    };
                    (option.to_owned(), value)
                }
                None => match argument.strip_prefix('-') {
                    Some(short) => {
                        let end = short.find(['d', 'i']).map_or(short.len(), |at| at + 1);
                        let (options, value) = short.split_at(end);
                        let value = (!value.is_empty()).then(|| value.to_owned());
                        (options.to_owned(), value)
                    }
                    None => return Err(format!("unexpected argument '{argument}'")),
                },
            };
            for option in options.chars() {
                match option {
                    'l' => wanted.list = true,
                    'v' => wanted.verbose = true,
                    'd' | 'i' => {
                        let value = value.take().or_else(|| arguments.next());
                        let value = value.ok_or_else(|| format!("'{argument}' needs a value"))?;
                        if option == 'd' {
                            wanted.device = Some(value);
                        } else {
                            let port = value.parse().ok().filter(|&port| port > 0);
                            wanted.port = Some(port.ok_or_else(|| format!("no port: {value}"))?);
                        }
                    }
                    _ => return Err(format!("invalid option -- '{option}'")),
                }
            }
        }
        Ok(wanted)
    }
}

/// Returns the text that the program prints.
pub(crate) fn described(wanted: &Wanted) -> Result<String> {
    let devices = devices()?;
    let mut text = String::new();
    if wanted.list {
        let count = devices.len();
        let plural = if count == 1 { "" } else { "s" };
        line(&mut text, &format!("{count} HCA{plural} found:"));
        for device in &devices {
            line(&mut text, &format!("\t{}", device.name()));
        }
        line(&mut text, "");
        return Ok(text);
    }
    let meant: Vec<_> = match &wanted.device {
        None => devices.iter().collect(),
        Some(name) => devices.iter().filter(|d| d.name() == *name).collect(),
    };
    match (&wanted.device, meant.is_empty()) {
        (_, false) => {}
        (None, true) => return Err(Error::NoDevice),
        (Some(name), true) => {
            return Err(Error::UnknownDevice {
                name: name.clone(),
                available: devices.iter().map(Device::name).collect(),
            });
        }
    }
    for device in meant {
        let mut info = device.open()?.info()?;
        if let Some(port) = wanted.port {
            info = info.only_port(port)?;
        }
        let written = if wanted.verbose {
            write!(text, "{info:#}")
        } else {
            write!(text, "{info}")
        };
        written.expect("a string takes every text");
    }
    Ok(text)
}

fn line(text: &mut String, what: &str) {
    writeln!(text, "{what}").expect("a string takes every line");
}
