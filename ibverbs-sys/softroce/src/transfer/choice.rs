use crate::proto::{SendOperation, SendRequest, Upcoming};

/// Way in which the next bytes of a request are transferred to the peer: from memory to memory,
/// through the ring that two processes share, or as packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// The sender's thread reads or writes the target's memory. No thread of the target is
    /// involved.
    OneSided,
    /// The peer is in the same process: the sender's thread copies the bytes and completes the
    /// peer's receive.
    TwoSided,
    /// The sender's thread writes the bytes to the memory of the target process. A slot of the
    /// shared ring contains only their length.
    Written,
    /// The bytes are in a slot (one cache line) of the ring that is shared with the target process.
    Slot,
    /// The bytes are in chunks (data blocks) of the ring that is shared with the target process,
    /// which copies them to a receive or to the memory that a write names.
    Chunks,
    /// A slot of the shared ring contains the addresses of the bytes. The receiving process copies
    /// the bytes from the sender's memory.
    Descriptor,
    /// Nothing is transferred before the earlier requests are acknowledged. Then the way is chosen
    /// again.
    Later,
    /// The message is sent as packets.
    Packets,
}

/// Location of a peer queue pair: in this process, in another process of this host, or elsewhere.
/// The location determines the ways in which messages can be transferred to the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The peer is in this process.
    SameProcess,
    /// The peer is in another process of the host, with which this process shares memory.
    SameHost,
    /// The peer is on another host, or not known to be connected to this queue pair.
    #[default]
    Elsewhere,
}

/// Properties of a request and of its connection that [`choose`] needs to choose the [`Transfer`]:
/// the way in which the next bytes of the request go to the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestProperties {
    pub(crate) kind: Kind,
    /// Length of the message in bytes.
    pub(crate) length: u32,
    /// Set if the bytes are in registered memory, not inline in the request.
    pub(crate) is_gathered: bool,
    /// Set if the peer process can map the memory that contains the bytes. Valid if
    /// [`depends_on_memory`] returns `true`.
    pub(crate) is_mappable: bool,
    /// Set if the beginning of the message has been sent.
    pub(crate) is_begun: bool,
    /// Set if earlier requests are not acknowledged.
    pub(crate) is_behind_others: bool,
    /// Set if a packet must first announce earlier one-sided operations to the peer, which has not
    /// counted their sequence numbers.
    pub(crate) is_gap_unannounced: bool,
    /// Set if the peer acknowledges messages, because the connection is reliable.
    pub(crate) is_reliable: bool,
    /// Set if earlier packets of an unreliable connection may still be in flight to the peer.
    pub(crate) has_packets_in_flight: bool,
    /// Set if the peer of an unreliable connection may not have received all earlier messages.
    pub(crate) awaits_receipt: bool,
    /// Set if the peer process could not copy the bytes of this message, or of several sends in a
    /// row, from the sender's memory of the same kind, or if the last one-sided request could not
    /// be executed in the peer's memory.
    pub(crate) is_declined: bool,
}

/// Kind of a send request, for the choice of its [`Transfer`]. Requests of one kind are transferred
/// by the same rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A read, a write, or an atomic operation.
    OneSided,
    WriteWithImmediate,
    Send,
    SendWithInvalidate,
    Datagram,
    /// A request of an XRC queue pair, where the target's memory depends on the request; an atomic
    /// write or a flush, which are rare; or work that needs no peer.
    Other,
}

/// Maximum length in bytes of a message that fits into a slot (one cache line of the shared ring).
pub(crate) const MAX_SLOT_BYTES: usize = 32;

/// Minimum length in bytes of a message that the receiving process copies from the sender's memory
/// by a system call. The sender then sends the addresses of the bytes instead of the bytes. For
/// shorter messages, a copy through the shared ring takes less time.
pub(crate) const MIN_OFFER: u32 = 32 << 10;

/// Minimum length in bytes of a message that the receiving process copies from the sender's memory
/// without a system call. Such a copy is possible if the receiving process can map that memory.
/// This minimum is lower than [`MIN_OFFER`], because no time is lost in a system call.
pub(crate) const MIN_OFFER_MAPPED: u32 = 512;

/// Minimum length in bytes of a read or write that waits until the peer has acknowledged earlier
/// requests, and is then executed directly in the peer's memory. A shorter request is sent as
/// packets, which take less time than the wait.
pub(crate) const MIN_WAIT: u32 = 4 << 10;

/// Maximum number of payload bytes that are copied to chunks (cache lines of payload) of the shared
/// ring in one step. The chunks of a ring hold 32 times this number, so one step fills only a small
/// part of them.
pub(crate) const MAX_CHUNKS_PART: u32 = 16 << 10;

/// Maximum number of bytes that the receiving process copies from the sender's memory in one system
/// call. With a smaller maximum, the fixed cost of a system call, more than a microsecond, would be
/// significant. With a larger maximum, the receiver's other queue pairs would wait too long.
pub(crate) const MAX_COPIED_PART: u32 = 256 << 10;

/// Maximum number of bytes that the receiving process copies in one step from mapped memory of the
/// sender. With a larger maximum, the receiver's other queue pairs would wait longer.
pub(crate) const MAX_MAPPED_PART: u32 = 64 << 10;

/// Returns whether the sender may offer another part of a message to the peer process, which then
/// copies the part from the sender's memory. At most two parts of maximum length are
/// unacknowledged: the receiver copies one part while the acknowledgement of the other part is on
/// its way. More parts would only delay the receiver's other queue pairs. `unacknowledged` is the
/// length of the unacknowledged data, and `largest` is the length of the longest part, both in
/// packets.
#[inline]
pub(crate) fn may_offer(unacknowledged: u32, largest: u32) -> bool {
    unacknowledged < 2 * largest
}

/// Chooses the way in which the next bytes of a request are transferred. No other code makes this
/// decision.
///
/// | work | peer in this process | peer in another process of the host | else | why |
/// |---|---|---|---|---|
/// | read, write, atomic | one-sided | one-sided, if no earlier request is unacknowledged | packets | no thread of the peer is needed; but earlier requests must be executed first |
/// | read or write of 4 KiB or more behind unacknowledged requests | packets | one-sided, after their acknowledgement | packets | the acknowledgement takes less time than the packets |
/// | write with immediate data, more than 16 KiB | two-sided | written, after the acknowledgement of earlier requests | packets | one copy, then the peer takes a receive |
/// | write with immediate data, shorter | two-sided | chunks | packets | two copies take less time than a system call, and no earlier request delays them |
/// | send of at most 32 bytes | two-sided | slot | packets | the bytes are in the cache line that the receiver polls |
/// | any other send | two-sided | chunks | packets | two copies cost less than a system call |
/// | send of 32 KiB or more; of 512 bytes or more from memory that the peer can map | two-sided | descriptor | packets | one copy, by the side that polls |
/// | datagram | two-sided | packets through the ring | packets | datagrams are short |
///
/// A send whose bytes the peer could not copy, and a long send of an unreliable connection, is sent
/// in chunks: a descriptor needs the acknowledgement that tells the sender when the bytes were
/// copied. Packets are also used for all XRC requests, for atomic writes and flushes, for a write
/// whose bytes could not be written, and for requests that must not overtake packets on the way to
/// the peer. On an unreliable connection between processes, one-sided work needs a receipt of the
/// peer for all earlier messages instead of their acknowledgement. Without the receipt, packets are
/// used, which request a receipt.
#[inline]
pub(crate) fn choose(request: &RequestProperties, peer: Peer) -> Transfer {
    match peer {
        Peer::Elsewhere => Transfer::Packets,
        Peer::SameProcess if request.is_behind_others => Transfer::Packets,
        Peer::SameProcess => match request.kind {
            Kind::OneSided => Transfer::OneSided,
            Kind::WriteWithImmediate | Kind::Send | Kind::SendWithInvalidate | Kind::Datagram => {
                Transfer::TwoSided
            }
            Kind::Other => Transfer::Packets,
        },
        Peer::SameHost => match request.kind {
            _ if request.has_packets_in_flight => Transfer::Packets,
            Kind::OneSided if request.is_begun || request.awaits_receipt => Transfer::Packets,
            Kind::OneSided if !request.is_behind_others => Transfer::OneSided,
            Kind::OneSided
                if request.is_reliable && request.length >= MIN_WAIT && !request.is_declined =>
            {
                Transfer::Later
            }
            Kind::WriteWithImmediate if request.is_begun => Transfer::Packets,
            Kind::WriteWithImmediate if request.length <= MAX_CHUNKS_PART => {
                report_gap(request, Transfer::Chunks)
            }
            Kind::WriteWithImmediate if is_written(request) => {
                report_gap(request, Transfer::Written)
            }
            Kind::Send if request.length as usize <= MAX_SLOT_BYTES => {
                report_gap(request, Transfer::Slot)
            }
            Kind::Send | Kind::SendWithInvalidate if is_offered(request) => {
                report_gap(request, Transfer::Descriptor)
            }
            Kind::Send | Kind::SendWithInvalidate => report_gap(request, Transfer::Chunks),
            _ => Transfer::Packets,
        },
    }
}

/// Returns whether the transfer of a request depends on [`RequestProperties::is_mappable`], which
/// is set if the peer process can map the memory of the payload. If the result is `false`, the
/// caller need not find out the value of this property. `kind` is the kind of the request, and
/// `length` is its length in bytes.
#[inline]
pub(crate) fn depends_on_memory(kind: Kind, length: u32) -> bool {
    length >= MIN_OFFER_MAPPED && matches!(kind, Kind::Send | Kind::SendWithInvalidate)
}

#[inline]
fn is_offered(request: &RequestProperties) -> bool {
    let is_long =
        request.length >= MIN_OFFER || request.is_mappable && request.length >= MIN_OFFER_MAPPED;
    // Without acknowledgements, the sender cannot know when the peer has copied the bytes.
    is_long && request.is_gathered && request.is_reliable && !request.is_declined
}

#[inline]
fn is_written(request: &RequestProperties) -> bool {
    !request.awaits_receipt && !request.is_declined
}

#[inline]
fn report_gap(request: &RequestProperties, transfer: Transfer) -> Transfer {
    if request.is_gap_unannounced {
        Transfer::Packets
    } else {
        transfer
    }
}

impl Transfer {
    /// Returns whether the bytes of this [`Transfer`] must not be sent as packets instead. The
    /// bytes must then wait if they cannot be transferred now, for example because the shared ring
    /// is full.
    pub(crate) fn excludes_packets(self) -> bool {
        matches!(
            self,
            Self::Chunks | Self::Descriptor | Self::Written | Self::Later
        )
    }
}

impl RequestProperties {
    /// Creates the properties of a new request of a reliable connection, from which [`choose`]
    /// decides how the bytes go to the peer. The result states that all earlier requests are
    /// acknowledged and that the payload is in registered memory. If one of these statements is
    /// false, the caller must change the corresponding field. `is_mappable` must be set if the peer
    /// process can map this memory.
    #[inline]
    pub(crate) fn posted(kind: Kind, length: u32, is_mappable: bool) -> Self {
        Self {
            kind,
            length,
            is_gathered: true,
            is_mappable,
            is_begun: false,
            is_behind_others: false,
            is_gap_unannounced: false,
            is_reliable: true,
            has_packets_in_flight: false,
            awaits_receipt: false,
            is_declined: false,
        }
    }

    /// Creates the properties of a queued request, from which [`choose`] decides how the next
    /// unsent bytes of the request go to the peer. `upcoming` states the position of these bytes,
    /// and describes the state of the connection.
    pub(crate) fn of(request: &SendRequest, upcoming: &Upcoming) -> Self {
        Self {
            kind: Kind::of(request),
            length: request.length,
            is_gathered: matches!(request.payload, crate::proto::Payload::Gathered(_)),
            is_mappable: upcoming.is_mappable,
            is_begun: upcoming.packet > 0,
            is_behind_others: !upcoming.is_oldest || upcoming.unacknowledged > 0,
            is_gap_unannounced: upcoming.is_gap_unannounced,
            is_reliable: upcoming.is_reliable,
            has_packets_in_flight: upcoming.has_packets_in_flight,
            awaits_receipt: upcoming.awaits_receipt,
            is_declined: upcoming.is_declined,
        }
    }
}

impl Kind {
    /// Returns the kind of the send request `request`, for example [`Kind::OneSided`] for a read,
    /// or [`Kind::Other`] for an XRC request. The kind is needed to choose the [`Transfer`] of the
    /// request.
    pub(crate) fn of(request: &SendRequest) -> Self {
        if request.xrc_srq.is_some() {
            return Self::Other;
        }
        match request.operation {
            SendOperation::Write {
                immediate: None, ..
            }
            | SendOperation::Read { .. }
            | SendOperation::CompareSwap { .. }
            | SendOperation::FetchAdd { .. } => Self::OneSided,
            SendOperation::Write { .. } => Self::WriteWithImmediate,
            SendOperation::Send {
                invalidate: None, ..
            } => Self::Send,
            SendOperation::Send { .. } => Self::SendWithInvalidate,
            SendOperation::Datagram { .. } => Self::Datagram,
            SendOperation::AtomicWrite { .. }
            | SendOperation::Flush(_)
            | SendOperation::Bind(_)
            | SendOperation::LocalInvalidate { .. } => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEND: RequestProperties = RequestProperties {
        kind: Kind::Send,
        length: 8,
        is_gathered: true,
        is_mappable: false,
        is_begun: false,
        is_behind_others: false,
        is_gap_unannounced: false,
        is_reliable: true,
        has_packets_in_flight: false,
        awaits_receipt: false,
        is_declined: false,
    };

    #[test]
    fn every_row_of_the_table_holds() {
        use Kind as K;
        use Transfer as T;
        let send = |length, is_mappable| RequestProperties {
            length,
            is_mappable,
            ..SEND
        };
        let of = |kind, length| RequestProperties {
            kind,
            ..send(length, false)
        };
        for (request, same_process, same_host) in [
            (of(K::OneSided, 8), T::OneSided, T::OneSided),
            (of(K::OneSided, 1 << 20), T::OneSided, T::OneSided),
            (
                of(K::WriteWithImmediate, MAX_CHUNKS_PART + 1),
                T::TwoSided,
                T::Written,
            ),
            (
                of(K::WriteWithImmediate, MAX_CHUNKS_PART),
                T::TwoSided,
                T::Chunks,
            ),
            (of(K::WriteWithImmediate, 0), T::TwoSided, T::Chunks),
            (send(32, false), T::TwoSided, T::Slot),
            (send(33, true), T::TwoSided, T::Chunks),
            (send(MIN_OFFER_MAPPED, true), T::TwoSided, T::Descriptor),
            (send(MIN_OFFER_MAPPED, false), T::TwoSided, T::Chunks),
            (send(MIN_OFFER - 1, false), T::TwoSided, T::Chunks),
            (send(MIN_OFFER, false), T::TwoSided, T::Descriptor),
            (of(K::SendWithInvalidate, 8), T::TwoSided, T::Chunks),
            (
                of(K::SendWithInvalidate, MIN_OFFER),
                T::TwoSided,
                T::Descriptor,
            ),
            (of(K::Datagram, 8), T::TwoSided, T::Packets),
            (of(K::Other, MIN_OFFER), T::Packets, T::Packets),
        ] {
            assert_eq!(
                choose(&request, Peer::SameProcess),
                same_process,
                "{request:?}"
            );
            assert_eq!(choose(&request, Peer::SameHost), same_host, "{request:?}");
            assert_eq!(choose(&request, Peer::Elsewhere), T::Packets, "{request:?}");
            let declined = RequestProperties {
                is_declined: true,
                ..request
            };
            // Operations that need no copy by the peer are not affected.
            let expected = match same_host {
                T::Descriptor => T::Chunks,
                T::Written => T::Packets,
                other => other,
            };
            assert_eq!(choose(&declined, Peer::SameHost), expected, "{request:?}");
        }
    }

    #[test]
    fn no_message_overtakes_a_message_in_flight() {
        for (kind, length, expected) in [
            (Kind::OneSided, 8, Transfer::Packets),
            (Kind::OneSided, MIN_WAIT, Transfer::Later),
            (Kind::Send, 8, Transfer::Slot),
            (Kind::Send, MIN_OFFER, Transfer::Descriptor),
            (Kind::WriteWithImmediate, 8, Transfer::Chunks),
            (Kind::WriteWithImmediate, MIN_OFFER, Transfer::Written),
        ] {
            let request = RequestProperties {
                kind,
                length,
                is_behind_others: true,
                ..SEND
            };
            assert_eq!(choose(&request, Peer::SameHost), expected);
            assert_eq!(choose(&request, Peer::SameProcess), Transfer::Packets);
            if kind == Kind::OneSided {
                let declined = RequestProperties {
                    is_declined: true,
                    ..request
                };
                assert_eq!(choose(&declined, Peer::SameHost), Transfer::Packets);
                continue;
            }
            let untold = RequestProperties {
                is_gap_unannounced: true,
                ..request
            };
            assert_eq!(choose(&untold, Peer::SameHost), Transfer::Packets);
        }
    }

    #[test]
    fn a_write_with_immediate_data_that_packets_have_begun_ends_as_packets() {
        for length in [MAX_CHUNKS_PART, MIN_OFFER] {
            let request = RequestProperties {
                kind: Kind::WriteWithImmediate,
                length,
                is_begun: true,
                ..SEND
            };
            assert_eq!(
                choose(&request, Peer::SameHost),
                Transfer::Packets,
                "{request:?}"
            );
        }
    }

    #[test]
    fn unreliable_connections_use_all_paths_without_acknowledgements() {
        for (kind, length, expected, behind_messages) in [
            (
                Kind::OneSided,
                MIN_OFFER,
                Transfer::OneSided,
                Transfer::Packets,
            ),
            (
                Kind::WriteWithImmediate,
                MIN_OFFER,
                Transfer::Written,
                Transfer::Packets,
            ),
            (
                Kind::WriteWithImmediate,
                8,
                Transfer::Chunks,
                Transfer::Chunks,
            ),
            (Kind::Send, 8, Transfer::Slot, Transfer::Slot),
            (Kind::Send, MIN_OFFER, Transfer::Chunks, Transfer::Chunks),
            (Kind::Datagram, 8, Transfer::Packets, Transfer::Packets),
        ] {
            let request = RequestProperties {
                kind,
                length,
                is_reliable: false,
                ..SEND
            };
            assert_eq!(choose(&request, Peer::SameHost), expected, "{request:?}");
            let request = RequestProperties {
                awaits_receipt: true,
                ..request
            };
            assert_eq!(
                choose(&request, Peer::SameHost),
                behind_messages,
                "{request:?}"
            );
            let request = RequestProperties {
                has_packets_in_flight: true,
                ..request
            };
            assert_eq!(
                choose(&request, Peer::SameHost),
                Transfer::Packets,
                "{request:?}"
            );
        }
    }
}
