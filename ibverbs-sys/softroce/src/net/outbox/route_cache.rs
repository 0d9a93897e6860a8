#![forbid(unsafe_code)]
//! Cache of routes and headers: most packets have the same route and headers as an earlier packet.

use super::batch::SendParameters;
use crate::net::network::Network;
use crate::net::route::PacketRoute;
use crate::proto::Path;
use crate::wire::icrc;
use crate::wire::ip::Headers;

/// Cache of routes and headers, for the last four different combinations of a destination and a
/// packet length. Most packets have a combination that was used shortly before.
#[derive(Debug, Default)]
pub(super) struct RouteCache {
    known: [Option<CachedRoute>; 4],
    /// Number of changes of the [recorded ports](crate::net::hosts) of other hosts when the entries
    /// were made. If the number has changed since, the entries are outdated.
    changes: u64,
    /// Index of the entry that was added most recently.
    newest: usize,
}

/// Cached route of a packet, with the IP and UDP headers of packets of one length, and their part
/// of the checksum (ICRC).
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedRoute {
    path: Path,
    queue_pair: u32,
    pub(super) way: PacketRoute,
    len: usize,
    pub(super) headers: Headers,
    pub(super) icrc: icrc::PartialIcrc,
}

impl RouteCache {
    /// Returns the route, and the IP and UDP headers, of a packet on `path` to the queue pair with
    /// the number `queue_pair`. `len` is the packet length in bytes, without these headers and the
    /// checksum (ICRC). Returns `None` if packets cannot be sent on the path.
    pub(super) fn of(
        &mut self,
        network: &Network,
        path: &Path,
        queue_pair: u32,
        len: usize,
    ) -> Option<&CachedRoute> {
        let changes = network.hosts.changes();
        if self.changes != changes {
            self.known = [None; 4];
            self.changes = changes;
        }
        let is_same = |known: &Option<CachedRoute>| {
            known.as_ref().is_some_and(|known| {
                (known.len, known.queue_pair) == (len, queue_pair)
                    && known.path == *path
                    && known.way.is_certain
            })
        };
        let place = match self.known.iter().position(is_same) {
            Some(place) => place,
            None => {
                let way = network.way(path, queue_pair)?;
                let headers = way.route.headers(len);
                self.newest = (self.newest + 1) % self.known.len();
                self.known[self.newest] = Some(CachedRoute {
                    path: *path,
                    queue_pair,
                    way,
                    len,
                    headers,
                    icrc: headers.begin_icrc(),
                });
                self.newest
            }
        };
        self.known[place].as_ref()
    }
}

impl CachedRoute {
    pub(super) fn parameters(&self) -> SendParameters {
        SendParameters {
            endpoint: self.way.endpoint,
            to: self.way.to,
            traffic_class: self.path.traffic_class,
            hop_limit: self.way.hop_limit,
            batching: self.way.batching,
        }
    }
}
