//! Queue pairs whose state transitions the program performs step by step.

use super::parts::Parts;
use super::{
    ConnectOptions, DatagramOptions, Endpoint, EnhancedEstablishment, Modification,
    PreparedQueuePair, QueuePair, QueuePairAttributes, QueuePairState, Transport,
};
use crate::device::LocalAddress;
use crate::error::{Error, Result};

/// A queue pair whose state transitions the program performs itself.
///
/// Each transition is available in two forms: as a method that performs the transition, and as a
/// [`Modification`] that the program can change before applying it. The program cannot post
/// requests to this type. To post requests, the program converts the value to a type with queues:
/// to [`PreparedQueuePair`] in INIT, or to [`QueuePair`] in RTS.
///
/// `ManualQueuePair` is `Send` and `Sync`, because verbs are thread-safe on queue pairs.
///
/// ```
/// use rdma_core::{ConnectOptions, Context, QueuePairState};
///
/// let domain = Context::open_default()?.protection_domain()?;
/// let (left, right) = (domain.queue_pair().create()?, domain.queue_pair().create()?);
/// let options = ConnectOptions::default();
/// for (near, far) in [(&left, &right), (&right, &left)] {
///     near.to_init()?;
///     near.to_rtr(&far.endpoint(), &options)?;
/// // The transition to RTS, with one attribute changed.
///     let step = near.ready_to_send(&far.endpoint(), &options)?;
///     near.modify(&step.retries(3))?;
///     assert_eq!(near.state()?, QueuePairState::ReadyToSend);
/// }
/// let (to_left, to_right) = (left.endpoint(), right.endpoint());
/// let left = left.connected(&to_right)?;
/// let right = right.connected(&to_left)?;
/// # Ok::<(), rdma_core::Error>(())
/// ```
#[derive(Debug)]
pub struct ManualQueuePair {
    parts: Parts,
}

impl ManualQueuePair {
    pub(crate) fn new(parts: Parts) -> Self {
        Self { parts }
    }

    pub(crate) fn into_parts(self) -> Parts {
        self.parts
    }

    /// Creates a `ManualQueuePair` from a queue pair that was just reset. The function chooses a
    /// new packet sequence number, so that late packets of the earlier connection are unlikely to
    /// be accepted.
    pub(super) fn renewed(parts: Parts) -> Self {
        let local = Endpoint {
            packet_sequence: Endpoint::random_packet_sequence(),
            ..parts.local
        };
        Self::new(Parts {
            local,
            remote: None,
            ..parts
        })
    }

    /// Returns the parameters that the peer needs in order to connect to this queue pair.
    pub fn endpoint(&self) -> Endpoint {
        self.parts.local
    }

    /// Returns the queue pair number.
    pub fn number(&self) -> u32 {
        self.parts.handle.number()
    }

    /// Returns the transport type of the queue pair.
    #[doc(alias = "qp_type")]
    pub fn kind(&self) -> Transport {
        self.parts.handle.kind()
    }

    /// Returns the local port and GID of the queue pair.
    pub fn address(&self) -> &LocalAddress {
        &self.parts.address
    }

    /// Returns the state of the queue pair.
    ///
    /// # Errors
    ///
    /// The error of `ibv_query_qp`.
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self) -> Result<QueuePairState> {
        self.parts.state()
    }

    /// Returns all attributes of the queue pair.
    ///
    /// # Errors
    ///
    /// The error of `ibv_query_qp`.
    #[doc(alias = "ibv_query_qp")]
    pub fn attributes(&self) -> Result<QueuePairAttributes> {
        QueuePairAttributes::of(&self.parts.handle)
    }

    /// Applies `change`: sets the attributes that `change` contains, which may include the state of
    /// the queue pair.
    ///
    /// # Errors
    ///
    /// [`Error::RefusedModification`] if the device refuses the change. [`Error::InUse`] for a
    /// change to RESET while queues of the queue pair exist: requests of such a queue would never
    /// complete.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, change: &Modification) -> Result<()> {
        if change.state() == Some(QueuePairState::Reset) {
            return self.parts.reset(change);
        }
        self.parts.modify(change)
    }

    /// Returns the modification that moves the queue pair from RESET to INIT. The modification sets
    /// the port and, depending on the transport, the partition key and the remote access rights.
    /// [`Self::to_init`] applies this modification.
    pub fn initial(&self) -> Modification {
        self.parts.initial()
    }

    /// Returns the modification that moves the queue pair from INIT to RTR (ready to receive), for
    /// a connection to `remote`. [`Self::to_rtr`] applies this modification.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for options out of range, for an invalid endpoint, or if the
    /// transport has no peer.
    pub fn ready_to_receive(
        &self,
        remote: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<Modification> {
        let [step, _] = self.parts.connecting(remote, options)?;
        Ok(step)
    }

    /// Returns the modification that moves the queue pair from RTR to RTS (ready to send), for a
    /// connection to `remote`. [`Self::to_rts`] applies this modification.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::ready_to_receive`].
    pub fn ready_to_send(
        &self,
        remote: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<Modification> {
        let [_, step] = self.parts.connecting(remote, options)?;
        Ok(step)
    }

    /// Returns the two modifications that make a queue pair without a peer ready to send and
    /// receive. The first modification moves the queue pair from INIT to RTR, and the second moves
    /// the queue pair from RTR to RTS.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for options out of range, or if the transport has a peer.
    pub fn activation(&self, options: &DatagramOptions) -> Result<[Modification; 2]> {
        self.parts.activating(options)
    }

    /// Moves the queue pair from RESET to INIT.
    ///
    /// # Errors
    ///
    /// [`Error::RefusedModification`] if the device refuses the modification.
    #[doc(alias = "IBV_QPS_INIT")]
    pub fn to_init(&self) -> Result<()> {
        self.parts.modify(&self.initial())
    }

    /// Moves the queue pair from INIT to RTR (ready to receive), for a connection to `remote`.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::ready_to_receive`], and [`Error::RefusedModification`].
    #[doc(alias = "IBV_QPS_RTR")]
    pub fn to_rtr(&self, remote: &Endpoint, options: &ConnectOptions) -> Result<()> {
        self.parts.modify(&self.ready_to_receive(remote, options)?)
    }

    /// Moves the queue pair from RTR to RTS (ready to send), for a connection to `remote`.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::ready_to_receive`], and [`Error::RefusedModification`].
    #[doc(alias = "IBV_QPS_RTS")]
    pub fn to_rts(&self, remote: &Endpoint, options: &ConnectOptions) -> Result<()> {
        self.parts.modify(&self.ready_to_send(remote, options)?)
    }

    /// Moves the queue pair from any state to RESET. The queue pair can then be connected again, to
    /// the same or another peer.
    ///
    /// The device discards every request that has not completed. The memory of these requests is
    /// freed.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while queues of the queue pair exist, because requests of such a queue
    /// would never complete, and [`Error::RefusedModification`].
    #[doc(alias = "IBV_QPS_RESET")]
    pub fn to_reset(&self) -> Result<()> {
        self.parts.reset(&Modification::to(QueuePairState::Reset))
    }

    /// Returns the enhanced connection establishment (ECE) options that the device supports:
    /// vendor-specific options for a connection.
    ///
    /// # Errors
    ///
    /// The error of `ibv_query_ece`. Most devices do not support ECE ([`Error::is_unsupported`]).
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<EnhancedEstablishment> {
        self.parts.handle.query_ece().map(Into::into)
    }

    /// Sets the enhanced connection establishment (ECE) options that both sides have agreed to use.
    /// The queue pair must be in the state RESET or INIT.
    ///
    /// # Errors
    ///
    /// The error of `ibv_set_ece`. Most devices do not support ECE ([`Error::is_unsupported`]).
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&self, on: EnhancedEstablishment) -> Result<()> {
        self.parts.handle.set_ece(on.into())
    }

    /// Converts a queue pair in INIT to a [`PreparedQueuePair`], to which receives can be posted.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the state is not INIT, and the error of `ibv_query_qp`.
    pub fn prepared(self) -> Result<PreparedQueuePair> {
        self.in_state(QueuePairState::Init)?;
        Ok(PreparedQueuePair::new(self.parts))
    }

    /// Converts a connected queue pair in RTS to a [`QueuePair`], which can send and receive.
    /// `remote` is the endpoint of the peer.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the state is not RTS, and the error of `ibv_query_qp`.
    pub fn connected(self, remote: &Endpoint) -> Result<QueuePair> {
        self.in_state(QueuePairState::ReadyToSend)?;
        Ok(self.parts.into_queue_pair(Some(*remote)))
    }

    /// Converts a queue pair in RTS without a peer to a [`QueuePair`], which can send and receive.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the state is not RTS, and the error of `ibv_query_qp`.
    pub fn activated(self) -> Result<QueuePair> {
        self.in_state(QueuePairState::ReadyToSend)?;
        Ok(self.parts.into_queue_pair(None))
    }

    fn in_state(&self, wanted: QueuePairState) -> Result<()> {
        let state = self.state()?;
        if state == wanted {
            return Ok(());
        }
        let reason = format!("it is in {state}, not in {wanted}");
        Err(Error::invalid("queue pair", reason))
    }

    /// Returns a pointer to the underlying C object, `ibv_qp`. The pointer is valid as long as this
    /// queue pair exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_qp {
        self.parts.handle.as_raw()
    }
}
