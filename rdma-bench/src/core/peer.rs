//! A peer of this process in a test, with the queue pairs that are connected to it.

use rdma_core::{
    Endpoint, ExposedMemory, PreparedQueuePair, QueuePair, QueuePairBuilder, RemoteMemory,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::settings::Settings;

/// The hop limit of the packets that this process sends: the maximum, as in perftest.
const HOP_LIMIT: u8 = u8::MAX;

/// A peer of this process in a test. A client has one or several servers as peers, a server has one
/// client.
#[derive(Debug)]
pub(super) struct Peer {
    /// The queue pairs of this process that are connected to the peer.
    pub(super) queue_pairs: Vec<QueuePair>,
    /// The memory regions of the peer that this process may access.
    pub(super) regions: Vec<RemoteMemory>,
    /// The path MTU in bytes.
    pub(super) mtu: usize,
}

impl Peer {
    /// Creates the queue pairs for one peer, in the number that `plan` says, and connects each to a
    /// queue pair of the peer. Sends the peer the keys and addresses of `exposed`, the memory that
    /// the peer may access, and receives the keys and addresses of the peer's memory.
    ///
    /// # Errors
    ///
    /// The errors of rdma-core and of the control connection.
    pub(super) fn connect(
        builder: &QueuePairBuilder,
        exposed: &[ExposedMemory],
        (plan, settings): (&Plan, &Settings),
        control: &mut Control,
    ) -> Result<Self> {
        let mut prepared = Vec::new();
        for _ in 0..plan.queue_pairs {
            prepared.push(builder.clone().build()?);
        }
        let own: Vec<Endpoint> = prepared.iter().map(PreparedQueuePair::endpoint).collect();
        let theirs = exchange_all(control, &own)?;
        if theirs.len() != own.len() {
            let reason = format!("the peer has {} queue pairs", theirs.len());
            return Err(Error::Protocol(reason));
        }
        let offered: Vec<RemoteMemory> = exposed.iter().map(ExposedMemory::remote).collect();
        let regions = exchange_all(control, &offered)?;
        let lengths = |regions: &[RemoteMemory]| -> Vec<u64> {
            regions.iter().map(|region| region.len).collect()
        };
        if lengths(&regions) != lengths(&offered) {
            let reason = "the peer's memory has not the size of this end's";
            return Err(Error::Protocol(reason.into()));
        }
        let mtu = plan.mtu.unwrap_or(own[0].mtu.min(theirs[0].mtu));
        let options = settings.connect_options().mtu(mtu).hop_limit(HOP_LIMIT);
        let connected = prepared
            .into_iter()
            .zip(&theirs)
            .map(|(prepared, endpoint)| prepared.connect(endpoint, &options));
        Ok(Self {
            queue_pairs: connected.collect::<Result<_, _>>()?,
            regions,
            mtu: mtu.bytes(),
        })
    }
}

/// Sends the list `own` to the peer over the control connection, and returns the list that the peer
/// sent. Splits both lists into several messages, because the length of a message is limited.
fn exchange_all<T: Serialize + DeserializeOwned + Clone>(
    control: &mut Control,
    own: &[T],
) -> Result<Vec<T>> {
    const AT_ONCE: usize = 64;
    let count: usize = control.exchange(&own.len())?;
    let mut theirs: Vec<T> = Vec::new();
    for round in 0..own.len().max(count).div_ceil(AT_ONCE) {
        let part = own.chunks(AT_ONCE).nth(round).unwrap_or_default();
        theirs.extend(control.exchange(&part.to_vec())?);
    }
    Ok(theirs)
}
