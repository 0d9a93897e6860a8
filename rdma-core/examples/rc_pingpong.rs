//! Two programs send a message back and forth on a reliable connection.
//!
//! Either end can be `ibv_rc_pingpong` of `ibverbs-utils`, with the same options.
//!
//! ```sh
//! cargo run -p rdma-core --example rc_pingpong -- -c
//! cargo run -p rdma-core --example rc_pingpong -- -c 127.0.0.1
//! ```

use std::process::ExitCode;

#[path = "pingpong/mod.rs"]
pub(crate) mod pingpong;

use pingpong::{Completions, Line, Options, Outcome, Player, Program, Report, Table, balls, play};
use rdma_core::ConnectOptions;

pub(crate) const PROGRAM: Program = Program {
    name: "rc_pingpong",
    size: 4096,
    letters: "p:d:i:s:m:r:n:l:eg:tc",
};

fn main() -> ExitCode {
    pingpong::main(&PROGRAM, run)
}

/// Plays one game.
pub(crate) fn run(options: &Options) -> Outcome<Report> {
    let options = Options {
        queue_pairs: 1,
        ..options.clone()
    };
    let table = Table::meet(&options)?;
    let serves = table.is_client();
    let domain = options.open()?;
    let balls = balls(&domain, &options, 0)?;
    let completions = Completions::new(domain.context(), &options, balls.len() + 1)?;

    let prepared = domain
        .queue_pair()
        .send_completions(completions.queue())
        .send_requests(1)
        .receive_requests(u32::try_from(balls.len())?)
        .elements(1)
        .address(options.address())
        .build()?;
    let mut receives = prepared.receive_queue();
    for ball in balls {
        receives.post(ball).map_err(rdma_core::Error::from)?;
    }

    let own = Line::new(&prepared.endpoint(), prepared.address(), &options);
    let connecting = ConnectOptions::default()
        .mtu(options.mtu)
        .service_level(options.service_level);
    let queue_pair = table.exchange(&[own], |peer| {
        Ok(prepared.connect(&peer[0].endpoint(options.mtu), &connecting)?)
    })?;
    let mut players = [Player::new(&domain, &queue_pair, None, &options)?];
    play(
        &options,
        &completions,
        &mut players,
        &mut receives,
        0,
        serves,
    )
}
