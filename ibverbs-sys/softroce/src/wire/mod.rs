//! Format of RoCEv2 packets: `IP | UDP 4791 | BTH | extension headers | payload | pad | ICRC` (IBTA
//! 1.5 chapter 9, annex A17). The parsers treat all bytes as untrusted, and never panic.
#![forbid(unsafe_code)]

mod header;
pub mod icrc;
mod icrc_differences;
pub mod ip;
mod opcode;
mod run;

pub(crate) use header::BASE;
pub use header::{
    Aeth, AtomicEth, Bth, Deth, Feth, Header, Malformed, Nak, Packet, Reth, Syndrome,
};
pub use icrc_differences::IcrcDifferences;
pub use opcode::{Opcode, Operation, Transport};
pub use run::Run;
pub(crate) use run::request_acknowledgement;
