//! Fuzz targets for the code that handles bytes of a peer.
//!
//! Each function takes the bytes of one input, and panics if an invariant is violated. The targets
//! in `fuzz/` call these functions with inputs of libFuzzer. The tests in this module call them
//! with fixed inputs.

mod calls;
mod client;
mod frames;
mod peer;
mod record;
mod script;
mod server;

pub use self::client::client;
pub use self::frames::frames;
#[cfg(test)]
pub(crate) use self::peer::RawPeer;
pub use self::record::record;
pub use self::server::server;

/// Runs a future on a current-thread runtime with a paused clock: time advances only while every
/// task waits.
fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.expect("a runtime without I/O").block_on(future)
}

/// Yields to the runtime several times, so that all ready tasks, and the tasks that they wake, run.
async fn run_ready_tasks() {
    for _ in 0..16 {
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    /// Returns fixed inputs with which a test runs the fuzz targets: empty, a repeated byte,
    /// counting bytes, pseudo-random bytes, and the recorded messages of clients and servers.
    fn inputs() -> impl Iterator<Item = Vec<u8>> {
        let same = [0, 1, 0x55, 0xff].map(|byte| vec![byte; 300]);
        let counting = (0..=255).cycle().take(600).collect();
        let random = (1..60_u32).map(|seed| {
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            (0..seed * 30).map(|_| next()).collect()
        });
        let recorded = super::record();
        let seeds = [recorded.frames, recorded.server, recorded.client].concat();
        [Vec::new(), counting]
            .into_iter()
            .chain(same)
            .chain(random)
            .chain(seeds)
    }

    #[test]
    fn decoders_accept_fixed_inputs() {
        inputs().for_each(|bytes| super::frames(&bytes));
    }

    #[test]
    fn servers_accept_fixed_inputs() {
        inputs().for_each(|bytes| super::server(&bytes));
    }

    #[test]
    fn clients_accept_fixed_inputs() {
        inputs().for_each(|bytes| super::client(&bytes));
    }
}
