//! Measures the copy of a cached file by rdma-async's example `rdma_cp`.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::run::{RUN_TIMEOUT, Reading};
use super::source::WITHOUT_PRELOAD;
use crate::compare::ends::{free_port, run_with_servers};
use crate::error::{Error, Result};

/// Size in bytes of the copied file. The comparison that uses this measurement, the row `E13`,
/// states the same size in its description.
const SIZE: u64 = 1 << 30;
const NAME: &str = "rdma_cp";

/// Measures the rate at which `rdma_cp`, an example program of rdma-async, copies a file from one
/// process to another. `program` is the path of the example, and `args` are further options of both
/// processes. Returns the number of copied bytes per second.
pub(super) fn measure(program: &Path, args: &[&str]) -> Result<Reading> {
    let refuse = |reason: String| Error::Program {
        program: NAME.into(),
        reason,
    };
    let files = Files::create().map_err(|error| refuse(format!("creating its file: {error}")))?;
    let port = free_port()?;
    let address = format!("127.0.0.1:{port}");
    let line = |role: &[&dyn AsRef<std::ffi::OsStr>]| {
        let mut line: Vec<OsString> = WITHOUT_PRELOAD.map(OsString::from).to_vec();
        line.push(program.into());
        line.extend(role.iter().map(OsString::from));
        line.extend(args.iter().map(OsString::from));
        line
    };
    let target = files.target();
    let server = line(&[&"receive", &target, &"--listen", &address, &"--once"]);
    let client = line(&[&"send", &files.file(), &address]);
    let printed = run_with_servers(&[(server, port)], &client, NAME, RUN_TIMEOUT, None)?;
    let rate = printed.trim().strip_suffix(" MB/s");
    let rate = rate.and_then(|text| text.rsplit(' ').next()?.parse::<f64>().ok());
    let rate = rate.ok_or_else(|| refuse(format!("no rate in {printed:?}")))?;
    Ok(Reading {
        figure: rate * 1e6,
        document: Value::String(printed),
    })
}

/// A directory, if possible in memory, for the file that `rdma_cp` copies and for the copy. The
/// directory is removed when this value is dropped.
struct Files(PathBuf);

impl Files {
    fn create() -> io::Result<Self> {
        let memory = Path::new("/dev/shm");
        let parent = match memory.is_dir() {
            true => memory.to_owned(),
            false => env::temp_dir(),
        };
        let files = Self(parent.join(format!("rdma-bench-copy-{}", std::process::id())));
        fs::create_dir_all(files.target())?;
        let mut file = File::create(files.file())?;
        let piece: Vec<u8> = (0..1 << 20_u32).map(|index| (index * 7) as u8).collect();
        for _ in 0..SIZE / piece.len() as u64 {
            file.write_all(&piece)?;
        }
        Ok(files)
    }

    fn file(&self) -> PathBuf {
        self.0.join("file")
    }

    fn target(&self) -> PathBuf {
        self.0.join("copy")
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // If the removal fails, the system's cleaning of its directory for temporary files removes
        // the rest.
        let _ = fs::remove_dir_all(&self.0);
    }
}
