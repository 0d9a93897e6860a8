//! The error of a modification that the device refused, with the flaws of the modification.

use std::fmt;

use super::{AttributeMask, QueuePairState, Transport};
use crate::device::Gid;
use crate::error::Errno;

/// The error of a modification that the device refused. The error contains the error number of
/// `ibv_modify_qp` and the flaws (mistakes) of the modification. This crate finds the flaws by
/// comparing the modification with the specification's tables and the device's limits.
///
/// `Debug` prints the same text as `Display`.
#[doc(alias = "ibv_modify_qp")]
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct RefusedModification {
    /// The name of the queue pair and of its device.
    pub queue_pair: String,
    /// The transport type of the queue pair.
    pub kind: Transport,
    /// The state of the queue pair, or `None` if the state could not be queried.
    pub from: Option<QueuePairState>,
    /// The requested state, or `None` if the modification did not contain a state.
    pub to: Option<QueuePairState>,
    /// The set of attributes that the modification contained.
    pub mask: AttributeMask,
    /// The error number that `ibv_modify_qp` returned.
    pub errno: Errno,
    /// The flaws of the modification, the most certain first. Empty if the crate found no flaw.
    pub flaws: Vec<ModificationFlaw>,
}

/// A mistake in a modification of a queue pair. The mistake explains why the device refused the
/// modification.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModificationFlaw {
    /// The requested state cannot follow the current state.
    NoTransition {
        /// The current state.
        from: QueuePairState,
        /// The requested state.
        to: QueuePairState,
        /// The states that can follow the current state.
        possible: Vec<QueuePairState>,
    },
    /// The queue pair is not in the current state that the modification assumes.
    OtherState {
        /// The state that the modification assumes.
        assumed: QueuePairState,
        /// The actual state of the queue pair.
        actual: QueuePairState,
    },
    /// The send queue has not finished draining.
    Draining,
    /// The modification does not set an attribute that the state transition requires.
    Missing(AttributeMask),
    /// The modification sets an attribute that the state transition does not allow.
    Misplaced(AttributeMask),
    /// The value of an attribute is outside of the range that the specification or the device
    /// allows.
    OutOfRange {
        /// The attribute whose value is out of range.
        attribute: AttributeMask,
        /// The value of the attribute in the modification.
        value: u64,
        /// The smallest value that is allowed for the attribute.
        least: u64,
        /// The largest value that is allowed for the attribute.
        most: u64,
        /// The party that sets the limit, for example `the device`.
        limit: &'static str,
    },
    /// The device does not support the feature to which the attribute belongs.
    Unsupported(AttributeMask),
    /// The path uses another port than the queue pair.
    OtherPort {
        /// The port that the path uses.
        path: u8,
        /// The port to which the queue pair is bound.
        queue_pair: u8,
    },
    /// The path has no GID, which Ethernet requires.
    NoGid,
    /// The port's GID table has no entry at this index.
    NoSuchGid {
        /// The index of the GID in the modification.
        index: u32,
        /// The indices of the port's GID table that hold a GID, each with the GID and its type.
        valid: Vec<String>,
    },
    /// The source GID and the destination GID belong to different address families, IPv4 and IPv6.
    OtherFamily {
        /// The source GID, at the index in the GID table that the path contains.
        source: Gid,
        /// The destination GID, which is the GID of the peer.
        destination: Gid,
    },
    /// The destination is a GID that no queue pair can have, for example a multicast GID.
    NoPeer(Gid),
    /// Only one of the two GIDs, source and destination, is a loopback address.
    NoLoopback {
        /// The source GID, at the index in the GID table that the path contains.
        source: Gid,
        /// The destination GID, which is the GID of the peer.
        destination: Gid,
    },
    /// The system has no route from the source to the destination.
    NoRoute {
        /// The source GID, at the index in the GID table that the path contains. `None` if the
        /// source GID is not known.
        source: Option<Gid>,
        /// The destination GID, which is the GID of the peer.
        destination: Gid,
    },
    /// The port with this number is not active.
    PortDown(u8),
    /// The specification allows the modification, but Linux does not support it. The text names the
    /// unsupported change.
    NotOnLinux(&'static str),
}

impl RefusedModification {
    /// Returns whether the device refused the modification because it does not support a feature.
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
            Self::NotOnLinux(what) => write!(f, "Linux does not support {what}"),
        }
    }
}
