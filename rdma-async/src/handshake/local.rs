//! The local side of a connection before it is connected: its queue pair and reserved room.

use std::net::IpAddr;
use std::sync::Arc;

use rdma_core::{AddressChoice, Endpoint, PreparedQueuePair, QueuePair, QueuePairBuilder};

use super::hello::{Hello, Terms};
use crate::builder::Template;
use crate::connection::{Connection, Depths, Parts};
use crate::error::Result;
use crate::shard::Reservation;

/// Maximum bytes, including the header of a message, that a request copies (inline data) instead of
/// referring to memory.
const INLINE: u32 = 64;

/// Unconnected queue pair of this end, with reserved room for its completions and messages.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) prepared: PreparedQueuePair,
    pub(crate) room: Room,
}

/// Reserved room of a connection, and the device and settings that it is made from.
#[derive(Debug)]
pub(crate) struct Room {
    reservation: Reservation,
    place: Template,
}

impl Local {
    /// Creates the queue pair with the address that `choice` describes.
    pub(crate) fn prepare(place: Template, choice: AddressChoice) -> Result<Self> {
        Self::prepare_by(place, |builder| builder.address(choice).build())
    }

    /// Creates the queue pair by `build`, which gets the builder of the queue pair.
    pub(crate) fn prepare_by(
        place: Template,
        build: impl Fn(QueuePairBuilder) -> rdma_core::Result<PreparedQueuePair>,
    ) -> Result<Self> {
        let settings = &place.settings;
        let shard = place.device.shard(settings.profile())?;
        let Depths { data, control } = settings.depths();
        let messages = usize::from(data) + usize::from(control);
        let reservation = Reservation::new(shard, settings.send_depth as usize, messages)?;
        let make = |inline| {
            let builder = place
                .device
                .protection_domain()
                .queue_pair()
                .send_requests(settings.send_depth)
                .elements(2)
                .inline_data(inline);
            build(reservation.shard().prepare(builder))
        };
        // Devices do not report their inline limit; most accept this many bytes.
        let prepared = make(INLINE).or_else(|_| make(0))?;
        Ok(Self {
            prepared,
            room: Room { reservation, place },
        })
    }

    /// Returns the hello of this end.
    pub(crate) fn hello(&self) -> Hello {
        Hello {
            terms: self.room.place.terms(),
            endpoint: self.prepared.endpoint(),
        }
    }

    /// Connects the queue pair to the endpoint of the peer.
    pub(crate) fn connect(self, endpoint: &Endpoint) -> rdma_core::Result<(QueuePair, Room)> {
        let options = &self.room.place.settings.options;
        let queue_pair = self.prepared.connect(endpoint, options)?;
        Ok((queue_pair, self.room))
    }
}

impl Room {
    /// Creates the connection, with a queue pair that is connected to a peer with these terms.
    /// `address` is that of the peer's host.
    pub(crate) fn occupy(
        self,
        queue_pair: QueuePair,
        peer: Terms,
        address: IpAddr,
    ) -> Arc<Connection> {
        let Template { device, settings } = self.place;
        Connection::new(Parts {
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
