//! Helpers of the tests that run programs written for TCP over the streams of rdma-async: the
//! transports, time limits of tests, data, and a gRPC service.
//!
//! Each test is one function, generic over the [`Transport`]. It runs over RDMA, and also over TCP,
//! which proves the test itself.

pub mod data;
pub mod echo;
mod limit;
mod transport;

pub use self::limit::{LIMIT, in_time, run, run_within};
pub use self::transport::{Rdma, Tcp, Transport, builder, pair};

/// Defines each named function as two tests, `rdma::NAME` and `tcp::NAME`. The functions are
/// asynchronous and generic over a [`Transport`].
#[macro_export]
macro_rules! over_each_transport {
    ($($test:ident),+ $(,)?) => {
        mod rdma {
            $(
                #[test]
                fn $test() {
                    $crate::run(super::$test::<$crate::Rdma>());
                }
            )+
        }

        mod tcp {
            $(
                #[test]
                fn $test() {
                    $crate::run(super::$test::<$crate::Tcp>());
                }
            )+
        }
    };
}
