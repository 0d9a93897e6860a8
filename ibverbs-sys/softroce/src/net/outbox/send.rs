#![forbid(unsafe_code)]
//! Sending the packets of an outbox to the kernel, in bursts.

use std::io::{ErrorKind, IoSlice};
use std::ops::Range;
use std::thread;
use std::time::Duration;

use smallvec::SmallVec;

use super::batch::{Batch, Encoded, SendParameters};
use crate::config::Segmentation;
use crate::descriptor;
use crate::net::bursts;
use crate::net::gid_table::LocalAddress;
use crate::net::network::Network;
use crate::net::route::Batching;
use crate::net::socket::{Burst, Socket};
use crate::proto::Counter;

/// Maximum number of attempts to pass packets to a kernel that has no buffer space. The thread
/// yields the processor after each attempt. After the last attempt, the packets are discarded, as
/// if the network had lost them.
const MAX_ATTEMPTS: u32 = 16;

/// Minimum length in bytes at which even a single datagram is sent by the kernel's burst interface
/// (UDP segmentation). The kernel then stores the datagram in memory pages instead of a buffer of a
/// power of two in size. More long packets thus fit into the receiver's socket buffer.
const MIN_PAGED_LENGTH: usize = 512;

/// Returns whether the kernel stores packets with the path MTU `mtu` in memory pages, if the socket
/// supports bursts. Such a packet has at least [`MIN_PAGED_LENGTH`] bytes.
pub(in crate::net) fn uses_pages(mtu: usize) -> bool {
    mtu >= MIN_PAGED_LENGTH
}

/// Creates a burst: a message that the kernel splits into datagrams of `segment` bytes. `payloads`
/// are the bytes of the datagrams, and `parameters` their socket, destination and header fields.
/// `segments` is `true` if the kernel can split messages of the socket.
fn burst<'a>(
    parameters: SendParameters,
    payloads: &'a [IoSlice<'a>],
    segment: usize,
    segments: bool,
) -> Burst<'a> {
    let large = segments && parameters.batching == Batching::Any && segment >= MIN_PAGED_LENGTH;
    let is_alone = payloads.len() == 1 && payloads[0].len() == segment;
    Burst {
        payloads,
        segment: u16::try_from(segment).ok().filter(|_| !is_alone || large),
        to: parameters.to,
        traffic_class: parameters.traffic_class,
        hop_limit: parameters.hop_limit,
    }
}

impl Network {
    /// Sends the packets of an outbox now, and removes them from `batch`.
    pub(in crate::net) fn transmit(&self, batch: &mut Batch) {
        batch.divide_into_bursts(self);
        if self.is_captured() {
            // While packets are captured, there are no runs.
            for packet in &batch.sealed {
                self.capture(&packet.headers, &batch.bytes[packet.transport.clone()]);
            }
        }
        self.send(batch);
        let trial = self.due_trial(batch);
        batch.clear();
        if let Some(trial) = trial {
            self.send_trial(&trial);
        }
    }

    /// Holds back the packets of `batch` for `latency`, which simulates a slow network. Discards
    /// them if too many packets are held back.
    pub(super) fn hold(&self, batch: Box<Batch>, latency: Duration) {
        let now = self.timers.now();
        if let Err(mut batch) = self.delay.hold_batch(batch, now, latency) {
            self.counters
                .count(Counter::SendDiscarded, batch.packets() as u64);
            batch.clear();
            self.recycle(batch);
        }
        self.schedule_delayed();
    }

    /// Sends the packets of an outbox to the kernel, in the bursts (messages of several packets)
    /// that were [arranged](Batch::divide_into_bursts).
    fn send(&self, batch: &Batch) {
        // Usually there is one burst, and an acknowledgement after it.
        let mut payloads: SmallVec<[IoSlice<'_>; 2]> = SmallVec::new();
        payloads.reserve(batch.pieces.len());
        for piece in &batch.pieces {
            payloads.push(IoSlice::new(batch.datagrams(piece)));
        }
        let of = |pieces: &Range<usize>| &batch.sealed[batch.pieces[pieces.start].sealed];
        let socket_of = |pieces: &Range<usize>| of(pieces).parameters.endpoint;
        for all in (batch.bursts).chunk_by(|a, b| socket_of(a) == socket_of(b)) {
            let Some(socket) = self
                .local_address(socket_of(&all[0]))
                .and_then(LocalAddress::socket)
            else {
                continue;
            };
            let segments = self.segmentation != Segmentation::Never && socket.sends_bursts();
            let mut bursts: SmallVec<[Burst<'_>; 2]> = SmallVec::new();
            bursts.reserve(all.len());
            for pieces in all {
                let first = of(pieces);
                let segment = first.datagram.len();
                let payloads = &payloads[pieces.clone()];
                bursts.push(burst(first.parameters, payloads, segment, segments));
            }
            self.send_bursts(socket, &bursts);
        }
    }

    /// Returns the number of packets that can be sent next as one burst (message that the kernel
    /// splits into datagrams). A burst consists of consecutive packets with the same destination,
    /// header fields and length, except that the last packet may be shorter. `sealed` has the
    /// encoded packets in the order of sending. The first `packet` packets of `sealed` belong to
    /// earlier bursts.
    pub(super) fn burst(&self, sealed: &[Encoded], packet: usize) -> usize {
        let Some(first) = sealed.first() else {
            return 0;
        };
        let allowed = match (self.segmentation, first.parameters.batching) {
            (Segmentation::Never, _) | (_, Batching::None) => false,
            (Segmentation::Peers, Batching::Numbered) => self.has_passed_trial(&first.parameters),
            (Segmentation::Peers | Segmentation::Always, _) => true,
        };
        let socket = self
            .local_address(first.parameters.endpoint)
            .and_then(LocalAddress::socket);
        if !allowed || !socket.is_some_and(Socket::sends_bursts) {
            return 1;
        }
        let same = (sealed.iter()).take_while(|sealed| sealed.parameters == first.parameters);
        let sizes = same.flat_map(|s| std::iter::repeat_n(s.datagram.len(), s.count()));
        bursts::burst_length(sizes.skip(packet))
    }

    /// Returns whether a [trial](crate::net::trial) has shown that the destination of a datagram
    /// accepts packets that were sent in bursts.
    fn has_passed_trial(&self, parameters: &SendParameters) -> bool {
        let local_address = self.local_address(parameters.endpoint);
        local_address.is_some_and(|local_address| {
            self.trials
                .is_proven(local_address.local.ip(), parameters.to.ip())
        })
    }

    /// Sends bursts by a socket. If the kernel still has no buffer space after [`MAX_ATTEMPTS`]
    /// attempts, discards the remaining datagrams.
    fn send_bursts(&self, socket: &Socket, bursts: &[Burst<'_>]) {
        if descriptor::has_lost() {
            // The number of the socket's descriptor may now belong to a file of the program.
            return;
        }
        let (mut rest, mut tries) = (bursts, 0);
        while let Some(first) = rest.first() {
            match socket.send(rest) {
                Ok(sent) if sent > 0 => {
                    rest = &rest[sent.min(rest.len())..];
                    tries = 0;
                }
                Err(error) if is_temporary(&error) => {
                    tries += 1;
                    if tries > MAX_ATTEMPTS {
                        let lost: usize = rest.iter().map(Burst::datagrams).sum();
                        self.counters.count(Counter::SendDiscarded, lost as u64);
                        return;
                    }
                    thread::yield_now();
                }
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK)) =>
                {
                    descriptor::report_loss();
                    return;
                }
                Err(error) if first.segment.is_some() => {
                    // EIO: the interface cannot split bursts (udp(7)). Other errors may concern
                    // only this burst.
                    if error.raw_os_error() == Some(libc::EIO) {
                        socket.disable_bursts();
                    }
                    self.send_separately(socket, first);
                    rest = &rest[1..];
                }
                // The first datagram is too long for the interface, has no route, or is refused by
                // a filter.
                _ => {
                    self.counters.count(Counter::SendDiscarded, 1);
                    rest = &rest[1..];
                }
            }
        }
    }

    /// Sends each datagram of a burst separately, because the kernel has refused the burst as a
    /// whole.
    fn send_separately(&self, socket: &Socket, burst: &Burst<'_>) {
        let size = burst.segment.map_or(usize::MAX, usize::from);
        for datagram in burst
            .payloads
            .iter()
            .flat_map(|payload| payload.chunks(size))
        {
            let alone = Burst {
                payloads: &[IoSlice::new(datagram)],
                segment: None,
                ..*burst
            };
            self.send_bursts(socket, &[alone]);
        }
    }
}

/// Returns whether an error means that the kernel lacks buffer space. The kernel may soon accept
/// the same datagram.
fn is_temporary(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
        || matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}
