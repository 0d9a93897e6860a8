//! Queue pairs that are brought up step by step.

use super::parts::Parts;
use super::{
    ConnectOptions, DatagramOptions, Endpoint, EnhancedEstablishment, Modification,
    PreparedQueuePair, QueuePair, QueuePairAttributes, QueuePairState, Transport,
};
use crate::device::LocalAddress;
use crate::error::{Error, Result};

/// A queue pair whose states the program goes through itself.
///
/// Each step is there as a function that takes it, and as the [`Modification`] that it consists of,
/// to be changed before it is taken. Nothing can be posted: when the queue pair has got far enough,
/// it becomes one with queues, [`PreparedQueuePair`] in INIT or [`QueuePair`] in RTS.
///
/// It is `Send` and `Sync`: verbs are thread-safe.
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
///     // The step to RTS, with a change.
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

    /// One that was just reset. It gets a packet sequence number that late packets do not hit.
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

    /// What the peer must know.
    pub fn endpoint(&self) -> Endpoint {
        self.parts.local
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.parts.handle.number()
    }

    /// Which service it gives.
    #[doc(alias = "qp_type")]
    pub fn kind(&self) -> Transport {
        self.parts.handle.kind()
    }

    /// Its port and GID.
    pub fn address(&self) -> &LocalAddress {
        &self.parts.address
    }

    /// The state it is in.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self) -> Result<QueuePairState> {
        self.parts.state()
    }

    /// Everything that it tells about itself.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "ibv_query_qp")]
    pub fn attributes(&self) -> Result<QueuePairAttributes> {
        QueuePairAttributes::of(&self.parts.handle)
    }

    /// Changes its attributes, perhaps its state.
    ///
    /// # Errors
    ///
    /// [`Error::RefusedModification`], and [`Error::InUse`] for a change to RESET while there are
    /// queues of it, because what was posted to them would never complete.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, change: &Modification) -> Result<()> {
        if change.state() == Some(QueuePairState::Reset) {
            return self.parts.reset(change);
        }
        self.parts.modify(change)
    }

    /// The step from RESET to INIT: port, partition key, and what peers may do.
    pub fn initial(&self) -> Modification {
        self.parts.initial()
    }

    /// The step from INIT to RTR, towards a peer.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for options out of range, an endpoint that cannot be, or a queue
    /// pair without a peer.
    pub fn ready_to_receive(
        &self,
        remote: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<Modification> {
        let [step, _] = self.parts.connecting(remote, options)?;
        Ok(step)
    }

    /// The step from RTR to RTS, towards a peer.
    ///
    /// # Errors
    ///
    /// As [`Self::ready_to_receive`].
    pub fn ready_to_send(
        &self,
        remote: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<Modification> {
        let [_, step] = self.parts.connecting(remote, options)?;
        Ok(step)
    }

    /// The steps from INIT to RTR and from RTR to RTS of a queue pair without a peer.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for options out of range, or a queue pair with a peer.
    pub fn activation(&self, options: &DatagramOptions) -> Result<[Modification; 2]> {
        self.parts.activating(options)
    }

    /// RESET to INIT.
    ///
    /// # Errors
    ///
    /// [`Error::RefusedModification`].
    #[doc(alias = "IBV_QPS_INIT")]
    pub fn to_init(&self) -> Result<()> {
        self.parts.modify(&self.initial())
    }

    /// INIT to RTR, towards a peer.
    ///
    /// # Errors
    ///
    /// As [`Self::ready_to_receive`], and [`Error::RefusedModification`].
    #[doc(alias = "IBV_QPS_RTR")]
    pub fn to_rtr(&self, remote: &Endpoint, options: &ConnectOptions) -> Result<()> {
        self.parts.modify(&self.ready_to_receive(remote, options)?)
    }

    /// RTR to RTS, towards a peer.
    ///
    /// # Errors
    ///
    /// As [`Self::ready_to_receive`], and [`Error::RefusedModification`].
    #[doc(alias = "IBV_QPS_RTS")]
    pub fn to_rts(&self, remote: &Endpoint, options: &ConnectOptions) -> Result<()> {
        self.parts.modify(&self.ready_to_send(remote, options)?)
    }

    /// Any state to RESET, from where it can be brought up again, with another peer too.
    ///
    /// The device forgets every request that has not completed: its memory is freed.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while there are queues of it, because what was posted to them would never
    /// complete, and [`Error::RefusedModification`].
    #[doc(alias = "IBV_QPS_RESET")]
    pub fn to_reset(&self) -> Result<()> {
        self.parts.reset(&Modification::to(QueuePairState::Reset))
    }

    /// What the device offers to agree on with the peer's.
    ///
    /// # Errors
    ///
    /// The verb's: most devices have nothing to offer ([`Error::is_unsupported`]).
    #[doc(alias = "ibv_query_ece")]
    pub fn enhancements(&self) -> Result<EnhancedEstablishment> {
        self.parts.handle.query_ece().map(Into::into)
    }

    /// Sets what was agreed on with the peer's device. In RESET or INIT.
    ///
    /// # Errors
    ///
    /// As [`Self::enhancements`].
    #[doc(alias = "ibv_set_ece")]
    pub fn agree(&self, on: EnhancedEstablishment) -> Result<()> {
        self.parts.handle.set_ece(on.into())
    }

    /// It as a queue pair that receives can be posted to, when it is in INIT.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] in another state, and the verb's.
    pub fn prepared(self) -> Result<PreparedQueuePair> {
        self.in_state(QueuePairState::Init)?;
        Ok(PreparedQueuePair::new(self.parts))
    }

    /// It as a queue pair in operation, connected to `remote`, when it is in RTS.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] in another state, and the verb's.
    pub fn connected(self, remote: &Endpoint) -> Result<QueuePair> {
        self.in_state(QueuePairState::ReadyToSend)?;
        Ok(self.parts.in_operation(Some(*remote)))
    }

    /// It as a queue pair in operation, without a peer, when it is in RTS.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] in another state, and the verb's.
    pub fn activated(self) -> Result<QueuePair> {
        self.in_state(QueuePairState::ReadyToSend)?;
        Ok(self.parts.in_operation(None))
    }

    fn in_state(&self, wanted: QueuePairState) -> Result<()> {
        let state = self.state()?;
        if state == wanted {
            return Ok(());
        }
        let reason = format!("it is in {state}, not in {wanted}");
        Err(Error::invalid("queue pair", reason))
    }

    /// The C object, valid for as long as this.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_qp {
        self.parts.handle.as_raw()
    }
}
