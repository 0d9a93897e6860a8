//! The path MTU that the route to the peer allows.

use std::net::IpAddr;

use rdma_core::Mtu;
use rustix::net::sockopt::{ip_mtu, ipv6_mtu};
use tokio::net::TcpStream;

/// Maximum number of bytes of a RoCE v2 packet besides its payload. The terms of the sum are IPv6
/// (40), UDP (8), BTH (12), XRCETH (4), AtomicETH (28) and ICRC (4). XRCETH and AtomicETH are the
/// longest headers that a packet can have after the BTH. Kernel drivers reserve the same number.
const MAX_OVERHEAD: usize = 40 + 8 + 12 + 4 + 28 + 4;

/// Returns the largest path MTU whose packets fit into the MTU of a TCP connection's route. Returns
/// `None` if the kernel does not report the MTU of the route (`IP_MTU` in `ip(7)`).
pub(super) fn of_route(stream: &TcpStream) -> Option<Mtu> {
    let bytes = match stream.local_addr().ok()?.ip().to_canonical() {
        IpAddr::V4(_) => ip_mtu(stream),
        IpAddr::V6(_) => ipv6_mtu(stream),
    };
    Some(fitting(usize::try_from(bytes.ok()?).ok()?))
}

/// Returns the largest path MTU whose packets have at most `bytes` bytes. If even the packets of
/// the smallest path MTU are longer, returns the smallest path MTU.
fn fitting(bytes: usize) -> Mtu {
    let all = [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512];
    all.into_iter()
        .find(|mtu| mtu.bytes() + MAX_OVERHEAD <= bytes)
        .unwrap_or(Mtu::Mtu256)
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn packets_fit_into_the_mtu_of_the_route() {
        let expected = [
            (65_536, Mtu::Mtu4096),
            (9000, Mtu::Mtu4096),
            (4192, Mtu::Mtu4096),
            (4191, Mtu::Mtu2048),
            (1500, Mtu::Mtu1024),
            (1119, Mtu::Mtu512),
            (576, Mtu::Mtu256),
            (0, Mtu::Mtu256),
        ];
        for (bytes, mtu) in expected {
            assert_eq!(fitting(bytes), mtu, "{bytes}");
        }
    }

    #[tokio::test]
    async fn loopback_allows_the_largest_mtu() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address).await else {
                assert_eq!(address, "[::1]:0", "only IPv6 may be missing");
                continue;
            };
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await;
            assert_eq!(of_route(&stream.unwrap()), Some(Mtu::Mtu4096));
        }
    }
}
