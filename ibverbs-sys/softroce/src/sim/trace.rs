use std::fmt::{self, Write};

use crate::proto::{Completion, Time};
use crate::transfer::RingMessage;
use crate::wire::{Packet, Syndrome};

use super::network::Fate;
use super::world::Happening;

/// Callback to which a simulation passes each line of the trace of its packets and completions.
pub type Lines<'a> = dyn FnMut(&str) + 'a;

/// A time that is displayed in microseconds, for the first column of the trace.
pub(crate) struct Micros(pub(crate) Time);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        write!(f, "{:>8}.{:03} us", nanos / 1000, nanos % 1000)
    }
}

/// A packet that is displayed as a line of a simulation's trace: the queue pair, the sequence
/// number, the operation and the other header fields.
pub(crate) struct Line<'a>(pub(crate) &'a Packet<'a>);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = &self.0.header;
        let bth = &header.bth;
        write!(
            f,
            "qp {:#x} psn {:06x} {:?}",
            bth.destination, bth.sequence, bth.opcode.operation
        )?;
        if bth.acknowledge {
            f.write_str(" ackreq")?;
        }
        if bth.solicited {
            f.write_str(" solicited")?;
        }
        if let Some(srq) = header.xrc_srq {
            write!(f, " srq {srq}")?;
        }
        if let Some(deth) = header.deth {
            write!(f, " qkey {:#x} from {:#x}", deth.queue_key, deth.source)?;
        }
        if let Some(reth) = header.reth {
            write!(
                f,
                " at {:#x} key {:#x} of {}",
                reth.address, reth.key, reth.length
            )?;
        }
        if let Some(atomic) = header.atomic {
            write!(f, " at {:#x} key {:#x}", atomic.address, atomic.key)?;
        }
        if let Some(aeth) = header.aeth {
            match aeth.syndrome {
                Syndrome::Ack { .. } => f.write_str(" ack")?,
                Syndrome::ReceiverNotReady { timer } => write!(f, " rnr {timer}")?,
                Syndrome::Nak(nak) => write!(f, " nak {nak:?}")?,
            }
            write!(f, " msn {}", aeth.message_sequence)?;
        }
        if let Some(key) = header.invalidate {
            write!(f, " invalidates {key:#x}")?;
        }
        if !self.0.payload.is_empty() {
            write!(f, " {} B", self.0.payload.len())?;
        }
        Ok(())
    }
}

/// Returns the text that describes a [`RingMessage`] (a short message without packet headers) in
/// the trace.
pub(crate) fn ring_message(ring_message: &RingMessage<'_>) -> String {
    let mut line = format!("qp {:#x} ring message", ring_message.destination);
    // Writing to a string cannot fail.
    if let Some(message) = &ring_message.message {
        let (sequence, length) = (message.sequence.value(), message.payload.len());
        let _ = write!(line, " psn {sequence:06x} {length} B");
    }
    if let Some(sequence) = ring_message.acknowledged {
        let _ = write!(line, " acks {:06x}", sequence.value());
    }
    line
}

/// Returns the word that a line of the simulation's trace adds for the effect of the network on a
/// packet, such as `LOST`. Returns an empty string if the packet is delivered unchanged.
pub(crate) fn fate(fate: Fate) -> &'static str {
    match fate {
        Fate::Deliver => "",
        Fate::Lose => "  LOST",
        Fate::Duplicate(_) => "  TWICE",
        Fate::Hold(_) => "  HELD BACK",
        Fate::Corrupt(_) => "  CORRUPTED",
    }
}

/// Returns the text of a line in the trace (log) of the simulation. The line describes `what`,
/// which is a completion or an event of a queue pair.
pub(crate) fn happening(what: &Happening) -> String {
    let of = |completion: &Completion| {
        let mut line = format!(
            "{:?} #{} {:?} {} B",
            completion.opcode, completion.id, completion.status, completion.length
        );
        if let Some(key) = completion.invalidated {
            // Writing to a string cannot fail.
            let _ = write!(line, " invalidated {key:#x}");
        }
        line
    };
    match what {
        Happening::Sent(completion) => format!("completes {}", of(completion)),
        Happening::Received(completion, None) => format!("receives {}", of(completion)),
        Happening::Received(completion, Some(srq)) => {
            format!("receives {} by srq {srq}", of(completion))
        }
        Happening::Raised(event) => format!("raises {event:?}"),
    }
}
