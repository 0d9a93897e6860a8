//! `cargo xtask bindgen`.

use xshell::Shell;

pub(crate) fn run(_shell: &Shell, _check: bool) -> anyhow::Result<()> {
    anyhow::bail!("not there yet")
}
