//! The local end of a connection before it is connected: its queue pair and the resources that are
//! reserved for it.

use std::net::IpAddr;
use std::sync::Arc;

use rdma_core::{AddressChoice, Endpoint, Mtu, PreparedQueuePair, QueuePair, QueuePairBuilder};

use super::hello::{EndLimits, Hello};
use crate::builder::Template;
use crate::connection::{Connection, ConnectionParts, Depths};
use crate::error::Result;
use crate::shard::Reservation;

/// Number of bytes, including the header of a message, that a request can copy (inline data)
/// instead of referring to memory. Most devices support this number, and verbs do not report the
/// maximum.
const INLINE_DATA: u32 = 128;

/// Queue pair of this end before it is connected to the peer, with reserved room for its
/// completions and messages.
#[derive(Debug)]
pub(crate) struct LocalEnd {
    pub(crate) prepared: PreparedQueuePair,
    pub(crate) room: ReservedRoom,
    /// Path MTU that the route to the peer allows; `None` if the route is not known.
    pub(crate) route_mtu: Option<Mtu>,
}

/// Resources of a shard that are reserved for one connection: room in the completion queue, and
/// receives in the shared receive queue. Also contains the device and the settings of the
/// connection.
#[derive(Debug)]
pub(crate) struct ReservedRoom {
    reservation: Reservation,
    template: Template,
}

impl LocalEnd {
    /// Creates the queue pair of this end, not yet connected, and reserves room for its completions
    /// and messages. `choice` selects the local port and GID. `template` contains the device and
    /// the settings.
    pub(crate) fn prepare(template: Template, choice: AddressChoice) -> Result<Self> {
        Self::prepare_by(template, |builder| builder.address(choice).build())
    }

    /// Creates the queue pair of this end, and reserves room for its completions and messages.
    /// `build` gets a builder with the settings, and builds the queue pair. If `build` fails, calls
    /// `build` again without inline data, because the device perhaps does not support so much
    /// inline data.
    pub(crate) fn prepare_by(
        template: Template,
        build: impl Fn(QueuePairBuilder) -> rdma_core::Result<PreparedQueuePair>,
    ) -> Result<Self> {
        let settings = &template.settings;
        let shard = template.device.shard(settings.profile())?;
        let Depths { data, control } = settings.depths();
        let messages = usize::from(data) + usize::from(control);
        let reservation = Reservation::new(shard, settings.send_depth as usize, messages)?;
        let make = |inline| {
            let builder = template
                .device
                .protection_domain()
                .queue_pair()
                .send_requests(settings.send_depth)
                .elements(2)
                .inline_data(inline);
            build(reservation.shard().prepare(builder))
        };
        // Falls back to no inline data if the device does not support this number of bytes.
        let prepared = make(INLINE_DATA).or_else(|_| make(0))?;
        Ok(Self {
            prepared,
            room: ReservedRoom {
                reservation,
                template,
            },
            route_mtu: None,
        })
    }

    /// Returns the hello of this end, the first message of the handshake. The MTU in the hello is
    /// the smallest of the MTUs of the port, of the route and of the options.
    pub(crate) fn hello(&self) -> Hello {
        let Template { settings, .. } = &self.room.template;
        let mut endpoint = self.prepared.endpoint();
        let limits = [settings.options.path_mtu(), self.route_mtu];
        for mtu in limits.into_iter().flatten() {
            endpoint.mtu = endpoint.mtu.min(mtu);
        }
        Hello {
            limits: self.room.template.limits(),
            endpoint,
        }
    }

    /// Connects the queue pair to `endpoint`, the queue pair of the peer, with the smaller MTU of
    /// the two ends. Returns the queue pair and its reserved resources, from which the caller
    /// creates the connection.
    pub(crate) fn connect(
        self,
        endpoint: &Endpoint,
    ) -> rdma_core::Result<(QueuePair, ReservedRoom)> {
        let mtu = self.hello().endpoint.mtu.min(endpoint.mtu);
        let options = self.room.template.settings.options.mtu(mtu);
        let queue_pair = self.prepared.connect(endpoint, &options)?;
        Ok((queue_pair, self.room))
    }
}

impl ReservedRoom {
    /// Creates the connection, with the device, the settings and the resources that were reserved
    /// for it. `queue_pair` is connected to a peer with the limits `peer`, and `address` is the
    /// address of the peer's host.
    pub(crate) fn into_connection(
        self,
        queue_pair: QueuePair,
        peer: EndLimits,
        address: IpAddr,
    ) -> Arc<Connection> {
        let Template { device, settings } = self.template;
        Connection::new(ConnectionParts {
            queue_pair,
            device,
            reservation: self.reservation,
            settings,
            peer: peer.depths,
            peer_payload: peer.payload as usize,
            peer_address: address,
        })
    }
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use rdma_core::ConnectOptions;

    use super::*;
    use crate::builder::RdmaBuilder;

    #[tokio::test]
    async fn both_ends_use_the_smallest_mtu_of_their_options_and_ports() {
        let end = |mtu: Option<Mtu>| {
            let options = ConnectOptions::default();
            let options = mtu.map_or(options, |mtu| options.mtu(mtu));
            let builder = RdmaBuilder::default().device("softroce0").options(options);
            let end = LocalEnd::prepare(builder.template().unwrap(), AddressChoice::default());
            end.unwrap()
        };
        let port = end(None).hello().endpoint.mtu;
        assert!(port > Mtu::Mtu512, "{port}");
        for (left, right, expected) in [
            (None, None, port),
            (Some(Mtu::Mtu512), None, Mtu::Mtu512),
            (None, Some(Mtu::Mtu512), Mtu::Mtu512),
            (Some(Mtu::Mtu256), Some(Mtu::Mtu512), Mtu::Mtu256),
        ] {
            let (left, right) = (end(left), end(right));
            let (to_right, to_left) = (left.hello().endpoint, right.hello().endpoint);
            let (left, _left_room) = left.connect(&to_left).unwrap();
            let (right, _right_room) = right.connect(&to_right).unwrap();
            for pair in [left, right] {
                let used = pair.attributes().unwrap().path_mtu();
                assert_eq!(used, Some(expected));
            }
        }
    }
}
