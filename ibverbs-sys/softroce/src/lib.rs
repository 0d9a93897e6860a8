//! A user-space RoCEv2 device behind the libibverbs ABI. RDMA programs run on it without a NIC, a
//! kernel module or root privileges.
//!
//! A Rust program links the device, and installs it before its first verb:
//!
//! ```
//! use ibverbs_sys::{ibv_free_device_list, ibv_get_device_list, ibv_get_device_name};
//!
//! softroce::install();
//! let mut count = 0;
//! // The list is an array of `count` devices until it is freed.
//! unsafe {
//!     let list = ibv_get_device_list(&mut count);
//!     // The last device, after those of the machine.
//!     let last = ibv_get_device_name(*list.add(count as usize - 1));
//!     assert_eq!(std::ffi::CStr::from_ptr(last), c"softroce0");
//!     ibv_free_device_list(list);
//! }
//! ```
//!
//! The features `softroce` of `rdma-core`, `rdma-async` and `rdma-rpc` do this. For other programs,
//! the library is preloaded: `LD_PRELOAD=libsoftroce.so ib_send_lat`. The nested package
//! `softroce-preload` builds this library.
//!
//! Each process that uses the device is a network card of its own, with an address in 127/8 or an
//! address of the host. Packets are RoCE v2, so the kernel's Soft-RoCE and network cards can be
//! peers, too. [`config`] documents the environment variables for addresses and injected faults.
//! [`faults`] injects faults from Rust. [`counters()`] returns counters with the kernel's names.
//! [`objects`] returns the number of objects that a program has not destroyed.
//!
//! # Structure
//! The modules form layers: each imports only from modules below it, and `tests/modules/main.rs`
//! has their order.
//!
//! | module | content |
//! |---|---|
//! | [`wire`] | packet formats: BTH and extension headers, ICRC |
//! | [`memory`], [`completion`], [`receive`], [`context`] | verbs objects, with their checks and their state |
//! | [`queue_pair`], [`xrc`], [`multicast`] | queue pairs, and objects that several of them share |
//! | [`limits`] | the device's limits |
//! | `nic` | the process's only NIC, which has all of these objects |
//! | `net`, `engine` | sockets, GIDs and packets with their ICRC; the thread that works while no thread of the program polls |
//! | `address` | the addresses and ports that processes use, and how peers find them |
//! | `timers` | the clock and timers of the NIC, and the sleep of the engine until a timer is due |
//! | [`path`], [`same_host`] | the paths to a peer: within the process, between processes of the host, or by packets |
//! | `random` | random keys and numbers that other processes cannot predict |
//! | `spin` | the mutex for state that is used with every message |
//! | `sync`, `epoch` | atomics of the standard library or of loom; lock-free uses of memory, and the wait for their end |
//! | [`config`], [`fault`], [`mod@counters`] | environment variables; fault injection; counters |
//! | `transfer` | the paths without packets, and the choice of the path of each request |
//! | [`proto`] | the transport without I/O: RC, UC, UD and XRC queue pairs as state machines |
//! | `sysfs` | the device as files of `/sys` and `/dev`, for the library that is preloaded |
//! | `sim` (feature `sim`) | a simulated network in virtual time, for tests of the transport |

mod abi;
mod address;
mod capture;
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
mod object_counts;
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
#[doc(hidden)]
pub mod sysfs;
mod timers;
mod transfer;
pub mod wire;
pub mod xrc;

pub use abi::install;
pub use counters::counters;
pub use nic::faults;
pub use object_counts::{Kind, objects};
