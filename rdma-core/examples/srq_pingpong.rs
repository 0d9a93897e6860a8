//! Two programs send messages back and forth on several reliable connections. Each program has one
//! shared receive queue.
//!
//! Either end can be `ibv_srq_pingpong` of `ibverbs-utils`, with the same options.
//!
//! ```sh
//! cargo run -p rdma-core --example srq_pingpong -- -c
//! cargo run -p rdma-core --example srq_pingpong -- -c 127.0.0.1
//! ```

use std::process::ExitCode;

#[path = "pingpong/mod.rs"]
pub(crate) mod pingpong;

use pingpong::{
    Ball, Completions, Line, Options, Outcome, Player, Program, Report, Table, balls, play,
};
use rdma_core::{ConnectOptions, PreparedQueuePair, SharedReceiveQueue};

pub(crate) const PROGRAM: Program = Program {
    name: "srq_pingpong",
    size: 4096,
    letters: "p:d:i:s:m:q:r:n:l:eg:c",
};

/// Number of lines that each end sends, regardless of its number of queue pairs.
const LINES: usize = 256;

fn main() -> ExitCode {
    pingpong::main(&PROGRAM, run)
}

/// Plays one game.
pub(crate) fn run(options: &Options) -> Outcome<Report> {
    if options.queue_pairs == 0 || options.queue_pairs > LINES {
        return Err(format!("from 1 to {LINES} queue pairs").into());
    }
    let table = Table::meet(options)?;
    let serves = table.is_client();
    let domain = options.open()?;
    let balls = balls(&domain, options, 0)?;
    let entries = balls.len() + options.queue_pairs;
    let completions = Completions::new(domain.context(), options, entries)?;

    let mut receives: SharedReceiveQueue<Ball> = domain
        .shared_receive_queue(u32::try_from(balls.len())?)
        .elements(1)
        .build()?;
    for ball in balls {
        receives.post(ball).map_err(rdma_core::Error::from)?;
    }
    let builder = domain
        .queue_pair()
        .send_completions(completions.queue())
        .send_requests(1)
        .elements(1)
        .shared_receive_queue(&receives)
        .address(options.address());
    let prepared = (0..options.queue_pairs)
        .map(|_| builder.clone().build())
        .collect::<Result<Vec<PreparedQueuePair>, _>>()?;

    let mut own = [Line::default(); LINES];
    for (line, prepared) in own.iter_mut().zip(&prepared) {
        *line = Line::new(&prepared.endpoint(), prepared.address(), options);
    }
    let connecting = ConnectOptions::default()
        .mtu(options.mtu)
        .service_level(options.service_level);
    let mut players = table.exchange(&own, |peer| {
        let connect = |(prepared, peer): (PreparedQueuePair, &Line)| {
            let queue_pair = prepared.connect(&peer.endpoint(options.mtu), &connecting)?;
            Player::new(&domain, &queue_pair, None, options)
        };
        prepared
            .into_iter()
            .zip(peer)
            .map(connect)
            .collect::<Outcome<Vec<Player>>>()
    })?;
    play(
        options,
        &completions,
        &mut players,
        &mut receives,
        0,
        serves,
    )
}
