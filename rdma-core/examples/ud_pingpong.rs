//! Two programs send a datagram back and forth.
//!
//! Either end can be `ibv_ud_pingpong` of `ibverbs-utils`, with the same options.
//!
//! ```sh
//! cargo run -p rdma-core --example ud_pingpong -- -c
//! cargo run -p rdma-core --example ud_pingpong -- -c 127.0.0.1
//! ```

use std::process::ExitCode;

#[path = "pingpong/mod.rs"]
pub(crate) mod pingpong;

use pingpong::{Completions, Line, Options, Outcome, Player, Program, Report, Table, balls, play};
use rdma_core::address::{AddressVector, DatagramHeader, Destination};
use rdma_core::{DatagramOptions, Transport};

pub(crate) const PROGRAM: Program = Program {
    name: "ud_pingpong",
    size: 1024,
    letters: "p:d:i:s:r:n:l:eg:c",
};

/// Queue key of both ends.
const QKEY: u32 = 0x1111_1111;

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
    let header = DatagramHeader::LEN;
    let balls = balls(&domain, &options, header)?;
    let completions = Completions::new(domain.context(), &options, balls.len() + 1)?;

    let prepared = domain
        .queue_pair()
        .transport(Transport::Datagram)
        .send_completions(completions.queue())
        .send_requests(1)
        .receive_requests(u32::try_from(balls.len())?)
        .elements(1)
        .address(options.address())
        .build()?;
    let mtu = prepared.address().mtu;
    if options.size > mtu.bytes() {
        let size = options.size;
        return Err(format!("{size} bytes are more than the path MTU of {mtu}").into());
    }
    let mut receives = prepared.receive_queue();
    for ball in balls {
        receives.post(ball).map_err(rdma_core::Error::from)?;
    }

    let own = Line::new(&prepared.endpoint(), prepared.address(), &options);
    let activating = DatagramOptions::new(QKEY).packet_sequence(own.packet_sequence);
    let (queue_pair, to) = table.exchange(&[own], |peer| {
        let queue_pair = prepared.activate(&activating)?;
        let vector = AddressVector {
            service_level: options.service_level,
            ..AddressVector::new(queue_pair.address(), peer[0].gid, peer[0].lid)
        };
        let to = Destination {
            handle: domain.address_handle(&vector)?,
            queue_pair: peer[0].queue_pair,
            qkey: QKEY,
        };
        Ok((queue_pair, to))
    })?;
    let mut players = [Player::new(&domain, &queue_pair, Some(to), &options)?];
    play(
        &options,
        &completions,
        &mut players,
        &mut receives,
        header,
        serves,
    )
}
