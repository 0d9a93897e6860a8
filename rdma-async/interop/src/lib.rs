//! Common parts of the tests that run programs written for TCP over the streams of rdma-async:
//! transports, time limits, test data, and a gRPC service.
//!
//! Each test is one function, generic over the [`Transport`]. Each test runs over RDMA, and also
//! over TCP, to prove that the test itself is correct.

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
