//! The copy of a cached file by rdma-async's example `rdma_cp`.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::run::{LIMIT, Reading};
use super::source::WITHOUT_PRELOAD;
use crate::compare::ends::{free_port, run_with_servers};
use crate::error::{Error, Result};

/// Number of bytes of the file.
const SIZE: u64 = 1 << 30;
const NAME: &str = "rdma_cp";

/// Copies a file with the options `words`, and returns the number of copied bytes per second.
pub(super) fn measure(program: &Path, words: &[&str]) -> Result<Reading> {
    let refuse = |reason: String| Error::Program {
        program: NAME.into(),
        reason,
    };
    let place = Place::create().map_err(|error| refuse(format!("making its file: {error}")))?;
    let port = free_port()?;
    let address = format!("127.0.0.1:{port}");
    let line = |role: &[&dyn AsRef<std::ffi::OsStr>]| {
        let mut line: Vec<OsString> = WITHOUT_PRELOAD.map(OsString::from).to_vec();
        line.push(program.into());
        line.extend(role.iter().map(OsString::from));
        line.extend(words.iter().map(OsString::from));
        line
    };
    let target = place.target();
    let server = line(&[&"receive", &target, &"--listen", &address, &"--once"]);
    let client = line(&[&"send", &place.file(), &address]);
    let printed = run_with_servers(&[(server, port)], &client, NAME, LIMIT, None)?;
    let rate = printed.trim().strip_suffix(" MB/s");
    let rate = rate.and_then(|text| text.rsplit(' ').next()?.parse::<f64>().ok());
    let rate = rate.ok_or_else(|| refuse(format!("no rate in {printed:?}")))?;
    Ok(Reading {
        figure: rate * 1e6,
        document: Value::String(printed),
    })
}

/// A directory in memory with the file and a directory for its copy, removed when this value is dropped.
struct Place(PathBuf);

impl Place {
    fn create() -> io::Result<Self> {
        let memory = Path::new("/dev/shm");
        let parent = match memory.is_dir() {
            true => memory.to_owned(),
            false => env::temp_dir(),
        };
        let place = Self(parent.join(format!("rdma-bench-copy-{}", std::process::id())));
        fs::create_dir_all(place.target())?;
        let mut file = File::create(place.file())?;
        let piece: Vec<u8> = (0..1 << 20_u32).map(|index| (index * 7) as u8).collect();
        for _ in 0..SIZE / piece.len() as u64 {
            file.write_all(&piece)?;
        }
        Ok(place)
    }

    fn file(&self) -> PathBuf {
        self.0.join("file")
    }

    fn target(&self) -> PathBuf {
        self.0.join("copy")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What cannot be removed now is in a directory for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
