//! A user-space RoCEv2 device behind the libibverbs ABI: programs written for RDMA run with no NIC,
//! no kernel module and no root.
//!
//! A Rust program links the device in, and installs it before its first verb:
//!
//! ```
//! use ibverbs_sys::{ibv_free_device_list, ibv_get_device_list, ibv_get_device_name};
//!
//! softroce::install();
//! let mut count = 0;
//! // The list is an array of `count` devices until it is freed.
//! unsafe {
//!     let list = ibv_get_device_list(&mut count);
//!     // Behind the devices that the machine has.
//!     let last = ibv_get_device_name(*list.add(count as usize - 1));
//!     assert_eq!(std::ffi::CStr::from_ptr(last), c"softroce0");
//!     ibv_free_device_list(list);
//! }
//! ```
//!
//! The features `softroce` of `rdma-core`, `rdma-async` and `rdma-rpc` do this. For every other program
//! the library is preloaded: `LD_PRELOAD=libsoftroce.so ib_send_lat`.
//!
//! Each process that uses the device is a network card of its own, with an address in 127/8 or one of
//! the host's. Packets are RoCE v2, so the kernel's Soft-RoCE and network cards are peers like any
//! other. [`config`] lists the environment variables for addresses and for faults on purpose, [`faults`]
//! arranges faults from Rust, [`counters()`] counts under the kernel's names, and [`objects`] counts the
//! objects that a program has not destroyed.
//!
//! # Inside
//! The modules form layers: each imports only from modules below it, and `tests/modules/main.rs` has their order.
//!
//! | module | content |
//! |---|---|
//! | [`wire`] | the formats: BTH and extension headers, ICRC |
//! | [`memory`], [`completion`], [`receive`], [`context`] | the objects, with their checks and their state |
//! | [`queue_pair`], [`xrc`], [`multicast`] | queue pairs, and objects that several of them share |
//! | [`limits`] | the device's limits |
//! | `nic` | the process's one NIC, which has all of these objects |
//! | `net`, `engine` | its sockets, GIDs and packets with their ICRC; the thread that works while no thread of the program polls |
//! | `address` | the addresses and ports that processes take, as peers find them |
//! | `timers` | the clock and timers of the NIC, and the place where the engine sleeps until one is due |
//! | [`path`], [`same_host`] | the ways to a peer: within the process, between processes of the host, or by packets |
//! | `random` | random keys and numbers, which other processes cannot foresee |
//! | `spin` | the mutex of state that each message needs |
//! | `sync`, `epoch` | atomics of memory without locks, of the standard library or of loom; the wait for the end of its uses |
//! | [`config`], [`fault`], [`mod@counters`] | settings in the environment; faults on purpose; counters |
//! | `transfer` | the paths without packets, and the choice of the path of each request |
//! | [`proto`] | the transport, free of input and output: RC, UC, UD and XRC queue pairs as state machines |
//! | `sim` (feature `sim`) | a network in virtual time that the transport is tested on |

mod abi;
mod address;
mod capture;
mod census;
pub mod completion;
pub mod config;
pub mod context;
pub mod counters;
mod descriptor;
mod engine;
mod epoch;
pub mod fault;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod limits;
pub mod memory;
pub mod multicast;
mod net;
mod nic;
mod number;
pub mod path;
mod per_process;
pub mod proto;
pub mod queue_pair;
mod random;
pub mod receive;
pub mod same_host;
#[cfg(any(test, fuzzing, feature = "sim"))]
pub mod sim;
mod spin;
mod sync;
mod timers;
mod transfer;
pub mod wire;
pub mod xrc;

pub use abi::install;
pub use census::{Kind, objects};
pub use counters::counters;
pub use nic::faults;
