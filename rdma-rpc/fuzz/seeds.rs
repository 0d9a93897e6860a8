//! Writes the seed inputs of the fuzz targets to their corpora. Run
//! `RUSTFLAGS=--cfg=fuzzing cargo run --bin seeds` in this directory.

use std::path::Path;
use std::{fs, io};

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let recorded = rdma_rpc::fuzz::record();
    for (target, inputs) in [
        ("rpc_frames", recorded.frames),
        ("rpc_server", recorded.server),
        ("rpc_client", recorded.client),
    ] {
        let corpus = corpus.join(target);
        fs::create_dir_all(&corpus)?;
        for (number, input) in inputs.iter().enumerate() {
            fs::write(corpus.join(format!("call-{number}")), input)?;
        }
    }
    Ok(())
}
