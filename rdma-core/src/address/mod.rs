//! Where datagrams go: address vectors, address handles, groups.
//!
//! A datagram queue pair is connected to nobody, so each of its requests says where it goes: a
//! [`Destination`], which is an [`AddressHandle`] (the way to a port), the queue pair's number and
//! its Q_Key. The handle is made from an [`AddressVector`], or from a datagram that came from there.

#![forbid(unsafe_code)]

mod handle;
mod vector;

pub use handle::{AddressHandle, Destination};
pub use vector::AddressVector;
