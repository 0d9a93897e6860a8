use super::endpoint::Endpoint;
use super::responder::failed_receive;
use super::{Arrival, Completion, CompletionStatus, Counter, Host, Work};
use crate::wire::Packet;

/// Takes a datagram. A wrong queue key, too many bytes or no receive: it is dropped (IBTA 9.8.3.2). An error is
/// that of the receive, whose completion was told.
pub(super) fn receive(
    endpoint: &Endpoint,
    arrival: &Arrival,
    packet: &Packet<'_>,
    host: &mut impl Host,
) -> Result<(), CompletionStatus> {
    let length = packet.payload.len() as u32;
    let deth = packet
        .header
        .deth
        .filter(|deth| deth.queue_key == endpoint.attributes.queue_key)
        .filter(|_| length <= endpoint.mtu());
    let Some(deth) = deth else {
        host.count(Counter::ReceiveDropped, 1);
        return Ok(());
    };
    let Some(receive) = host.next_receive(None) else {
        host.count(Counter::ReceiveDropped, 1);
        return Ok(());
    };
    // The message begins behind the room for a GRH, which is filled because one came, if that of IPv4.
    let route = arrival.route.len() as u32;
    let total = route + length;
    let scattered = if u64::from(total) > receive.length {
        Err(CompletionStatus::LocalLength)
    } else {
        host.scatter(&receive.segments, 0, &arrival.route)
            .and_then(|()| match length {
                0 => Ok(()),
                _ => host.scatter(&receive.segments, route, packet.payload),
            })
            .map_err(|_| CompletionStatus::LocalProtection)
    };
    let status = scattered.err().unwrap_or(CompletionStatus::Success);
    let mut completion = failed_receive(&receive, status, Work::Receive);
    if scattered.is_ok() {
        completion = Completion {
            length: total,
            immediate: packet.header.immediate,
            source: deth.source,
            route: true,
            solicited: packet.header.bth.solicited,
            ..completion
        };
    }
    host.complete_receive(completion, None);
    scattered
}
