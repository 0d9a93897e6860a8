//! The error of a modification that was refused, with what is wrong with it.

use std::fmt;

use super::{AttributeMask, QueuePairState, Transport};
use crate::device::Gid;
use crate::error::Errno;

/// Why a queue pair was not modified: the number that `ibv_modify_qp` returned, and the flaws that a
/// comparison of the request with the specification's tables and with the device finds.
///
/// `Debug` prints the same text as `Display`.
#[doc(alias = "ibv_modify_qp")]
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct RefusedModification {
    /// The queue pair.
    pub queue_pair: String,
    /// Its kind.
    pub kind: Transport,
    /// The state that it was in, if it told.
    pub from: Option<QueuePairState>,
    /// The state that it should change to; `None` for a change of attributes alone.
    pub to: Option<QueuePairState>,
    /// The attributes that were to change.
    pub mask: AttributeMask,
    /// The number that the verb returned.
    pub errno: Errno,
    /// What is wrong with the request, most certain first. Empty when nothing was found.
    pub flaws: Vec<ModificationFlaw>,
}

/// What is wrong with a modification of a queue pair.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModificationFlaw {
    /// The state cannot follow the one that the queue pair is in.
    NoTransition {
        /// The state that it is in.
        from: QueuePairState,
        /// The state that was wanted.
        to: QueuePairState,
        /// The states that can follow.
        possible: Vec<QueuePairState>,
    },
    /// The queue pair is not in the state that the request assumes.
    OtherState {
        /// The state that was assumed.
        assumed: QueuePairState,
        /// The state that it is in.
        actual: QueuePairState,
    },
    /// The send queue has not finished draining.
    Draining,
    /// The transition needs this attribute, and the request does not set it.
    Missing(AttributeMask),
    /// The request sets an attribute that the transition does not change.
    Misplaced(AttributeMask),
    /// A value outside of what the specification or the device allows.
    OutOfRange {
        /// The attribute.
        attribute: AttributeMask,
        /// Its value.
        value: u64,
        /// The smallest value that is allowed.
        least: u64,
        /// The largest.
        most: u64,
        /// Who sets the limit.
        limit: &'static str,
    },
    /// The device does not have what the attribute is for.
    Unsupported(AttributeMask),
    /// The path leaves from another port than the one that the queue pair is bound to.
    OtherPort {
        /// The port of the path.
        path: u8,
        /// The port of the queue pair.
        queue_pair: u8,
    },
    /// The path has no GID, and on Ethernet there are no other addresses.
    NoGid,
    /// The port's GID table has nothing at this index.
    NoSuchGid {
        /// The index.
        index: u32,
        /// The indices that hold a GID, each with the GID and its type.
        valid: Vec<String>,
    },
    /// Source and destination are of different families, IPv4 and IPv6.
    OtherFamily {
        /// The GID at the index of the path.
        source: Gid,
        /// The peer's.
        destination: Gid,
    },
    /// The destination is no GID that a queue pair can have.
    NoPeer(Gid),
    /// The source is an address of this machine alone and the destination is not, or the other way
    /// round.
    NoLoopback {
        /// The GID at the index of the path.
        source: Gid,
        /// The peer's.
        destination: Gid,
    },
    /// The system knows no way to the destination from the source.
    NoRoute {
        /// The GID at the index of the path.
        source: Option<Gid>,
        /// The peer's.
        destination: Gid,
    },
    /// The port does not carry traffic.
    PortDown(u8),
    /// The specification allows it, and Linux does not: what of it.
    NotOnLinux(&'static str),
}

impl RefusedModification {
    /// Whether the device lacks what was asked for.
    pub fn is_unsupported(&self) -> bool {
        let lacks = |flaw: &_| matches!(flaw, ModificationFlaw::Unsupported(_));
        self.errno.is_unsupported() || self.flaws.iter().any(lacks)
    }
}

impl fmt::Debug for RefusedModification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for RefusedModification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ibv_modify_qp on {} ({}, ", self.queue_pair, self.kind)?;
        match self.from {
            Some(from) => write!(f, "{from}")?,
            None => f.write_str("in an unknown state")?,
        }
        if let Some(to) = self.to {
            write!(f, " to {to}")?;
        }
        write!(f, ") failed: {}", self.errno)?;
        for (index, flaw) in self.flaws.iter().enumerate() {
            let before = if index == 0 { ": " } else { "; " };
            write!(f, "{before}{flaw}")?;
        }
        if self.flaws.is_empty() {
            write!(
                f,
                ": no flaw was found in {}; the kernel's log may have the cause",
                self.mask
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for ModificationFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTransition { from, to, possible } => {
                let possible: Vec<_> = possible.iter().map(ToString::to_string).collect();
                let possible = possible.join(", ");
                write!(f, "{to} does not follow {from}; {possible} can")
            }
            Self::OtherState { assumed, actual } => {
                write!(
                    f,
                    "IBV_QP_CUR_STATE is {assumed}, but the queue pair is in {actual}"
                )
            }
            Self::Draining => f.write_str("the send queue has not drained yet: wait and try again"),
            Self::Missing(attribute) => write!(f, "{attribute} is missing"),
            Self::Misplaced(attribute) => {
                write!(f, "{attribute} cannot change in this transition")
            }
            Self::OutOfRange {
                attribute,
                value,
                least,
                most,
                limit,
            } => write!(
                f,
                "{attribute} is {value}, but {limit} allows {least} to {most}"
            ),
            Self::Unsupported(attribute) => {
                write!(f, "the device does not support {attribute}")
            }
            Self::OtherPort { path, queue_pair } => write!(
                f,
                "the path leaves from port {path}, but the queue pair is bound to port {queue_pair}"
            ),
            Self::NoGid => f.write_str(
                "the path has no GID, and Ethernet has no other addresses: set one (is_global)",
            ),
            Self::NoSuchGid { index, valid } => {
                let valid = if valid.is_empty() {
                    "none".to_owned()
                } else {
                    valid.join(", ")
                };
                write!(f, "no GID at index {index}; valid: {valid}")
            }
            Self::OtherFamily {
                source,
                destination,
            } => write!(
                f,
                "the path leads from {source} to {destination}, which is of another address family: \
                 choose a GID index of the destination's family"
            ),
            Self::NoPeer(gid) => write!(f, "{gid} cannot be the GID of a peer"),
            Self::NoLoopback {
                source,
                destination,
            } => write!(
                f,
                "one of {source} and {destination} is a loopback address and the other is not"
            ),
            Self::NoRoute {
                source: Some(source),
                destination,
            } => write!(f, "no route from {source} to {destination}"),
            Self::NoRoute {
                source: None,
                destination,
            } => write!(f, "no route to {destination}"),
            Self::PortDown(port) => write!(f, "port {port} is not active"),
            Self::NotOnLinux(what) => write!(f, "Linux does not let {what}"),
        }
    }
}
