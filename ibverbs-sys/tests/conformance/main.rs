//! The conformance suite: checks every verb, every completion status and every state transition of
//! a device behind libibverbs. The program runs on any device, reports its cases in the format of
//! the standard test harness, and counts them per device.
//!
//! ```text
//! conformance [FILTER...] [--exact] [--skip FILTER] [--list] [--isolate] [--long] [--device NAME]
//! ```
//!
//! - The device is the one that `--device` or `RDMA_DEVICE` names, else the first. softroce is
//!   there behind all others, so the first is a NIC's or the kernel's where there is one.
//! - Cases run one after the other in a worker process with a time limit for each case. A case that
//!   crashes it or does not end has failed, and the next one gets a new process; `--isolate`
//!   gives each case its own.
//! - A case that needs what the device does not claim to have says so and is `ignored`.
//!   Nothing is chosen by a device's name.
//! - The specification decides what is right. Where a driver is known to differ, `deviations.rs`
//!   holds the difference and the clause; such a case is a `deviation`, counted apart. One that
//!   does not differ any more, or differs in another way, has failed.
//! - `--long` adds what takes minutes or gigabytes.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every block is a call of C with the arguments that its manual page asks for, or reads \
              the field of a union that the call before has filled"
)]

mod deviations;
mod harness;

mod buffer;
mod channel;
mod cq;
mod cq_ex;
mod device;
mod error;
mod event;
mod import;
mod long;
mod mr;
mod multicast;
mod mw;
mod pd;
mod port;
mod qp;
mod qp_ex;
mod rc;
mod rest;
mod srq;
mod state;
mod uc;
mod ud;
mod xrc;

use std::process::ExitCode;

fn main() -> ExitCode {
    let subjects = [
        device::cases,
        port::cases,
        pd::cases,
        mr::cases,
        buffer::cases,
        cq::cases,
        cq_ex::cases,
        channel::cases,
        srq::cases,
        qp::cases,
        state::cases,
        qp_ex::cases,
        rc::cases,
        uc::cases,
        ud::cases,
        xrc::cases,
        multicast::cases,
        mw::cases,
        long::cases,
        error::cases,
        event::cases,
        import::cases,
        rest::cases,
    ];
    let cases: Vec<_> = subjects.iter().flat_map(|cases| cases()).collect();
    // softroce is listed after the devices of the machine.
    softroce::install();
    harness::main(&cases)
}
