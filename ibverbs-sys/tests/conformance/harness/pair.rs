//! Two connected queue pairs of one process.

use ibverbs_sys::ibv_qp_type as Service;
use ibverbs_sys::*;

use super::check::Outcome;
use super::completion::Cq;
use super::device::Device;
use super::memory::{ALL_ACCESS, Mr, Pd, pattern};
use super::queue_pair::{Plan, QKEY, Qp, path};
use super::request::Request;

/// Length of the memory of an end, in bytes.
pub(crate) const SPACE: usize = 64 << 10;

/// A queue pair, its completion queue and its memory.
pub(crate) struct End {
    pub(crate) qp: Qp,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
}

impl End {
    pub(crate) fn new(pd: &Pd, plan: &Plan, space: usize) -> Self {
        let cq = Cq::new(pd.device(), 64);
        Self {
            qp: Qp::new(pd, &cq, plan),
            cq,
            mr: Mr::new(pd, space, ALL_ACCESS),
        }
    }

    /// Posts a receive into the memory.
    #[track_caller]
    pub(crate) fn receive(&self, id: u64, offset: usize, length: usize) {
        self.qp.receive(id, &[self.mr.sge(offset, length)]);
    }

    /// Returns a send from the memory of this end.
    pub(crate) fn send(&self, offset: usize, length: usize) -> Request {
        Request::send(&[self.mr.sge(offset, length)])
    }

    /// Returns a write from the memory of this end to the same offset at the other end.
    pub(crate) fn write(&self, to: &Self, offset: usize, length: usize) -> Request {
        Request::write(
            &[self.mr.sge(offset, length)],
            to.mr.at(offset),
            to.mr.rkey(),
        )
    }

    /// Returns a read into the memory of this end from the same offset at the other end.
    pub(crate) fn read(&self, from: &Self, offset: usize, length: usize) -> Request {
        Request::read(
            &[self.mr.sge(offset, length)],
            from.mr.at(offset),
            from.mr.rkey(),
        )
    }
}

/// Two ends, connected to each other.
pub(crate) struct Pair {
    pub(crate) a: End,
    pub(crate) b: End,
    pub(crate) pd: Pd,
}

impl Pair {
    pub(crate) fn rc(device: &Device) -> Self {
        Self::new(device, &Plan::new(Service::IBV_QPT_RC))
    }

    pub(crate) fn uc(device: &Device) -> Self {
        Self::new(device, &Plan::new(Service::IBV_QPT_UC))
    }

    pub(crate) fn new(device: &Device, plan: &Plan) -> Self {
        Self::with(device, plan, plan, SPACE)
    }

    /// Creates a pair with a plan for each end and `space` bytes of memory.
    pub(crate) fn with(device: &Device, a: &Plan, b: &Plan, space: usize) -> Self {
        let pd = Pd::new(device);
        let (a, b) = (End::new(&pd, a, space), End::new(&pd, b, space));
        a.qp.connect(b.qp.number());
        b.qp.connect(a.qp.number());
        Self { a, b, pd }
    }

    /// Sends bytes, and checks the received bytes.
    #[track_caller]
    pub(crate) fn exchange(&self, length: usize) {
        let sent = pattern(length, length as u8);
        self.a.mr.write(0, &sent);
        self.b.receive(70, 0, length);
        self.a.qp.post(self.a.send(0, length).id(71));
        self.a.cq.success(71);
        let received = self.b.cq.success(70);
        assert!(
            received.byte_len as usize == length,
            "{} bytes came, not {length}",
            received.byte_len
        );
        assert!(
            self.b.mr.read(0, length) == sent,
            "the bytes are not those sent"
        );
    }
}

/// An address handle, which is destroyed before its protection domain.
pub(crate) struct Ah {
    raw: *mut ibv_ah,
    _pd: Pd,
}

impl Ah {
    /// Creates an address handle of the device itself.
    pub(crate) fn own(pd: &Pd) -> Self {
        Self::create(pd, path(pd.device())).succeeds("ibv_create_ah")
    }

    pub(crate) fn create(pd: &Pd, mut attr: ibv_ah_attr) -> Result<Self, i32> {
        let raw = super::check::pointer(unsafe { ibv_create_ah(pd.raw(), &mut attr) })?;
        Ok(Self::from_raw(pd, raw))
    }

    pub(crate) fn from_raw(pd: &Pd, raw: *mut ibv_ah) -> Self {
        Self {
            raw,
            _pd: pd.clone(),
        }
    }

    pub(crate) fn raw(&self) -> *mut ibv_ah {
        self.raw
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        super::device::must("ibv_destroy_ah", unsafe { ibv_destroy_ah(self.raw) });
    }
}

/// Two datagram queue pairs and the handle that leads to both.
pub(crate) struct Datagrams {
    pub(crate) ah: Ah,
    pub(crate) a: End,
    pub(crate) b: End,
    pub(crate) pd: Pd,
}

/// Length of the header before a received datagram, in bytes.
pub(crate) const GRH: usize = 40;

impl Datagrams {
    pub(crate) fn new(device: &Device) -> Self {
        Self::with(device, &Plan::new(Service::IBV_QPT_UD))
    }

    pub(crate) fn with(device: &Device, plan: &Plan) -> Self {
        let pd = Pd::new(device);
        let (a, b) = (End::new(&pd, plan, SPACE), End::new(&pd, plan, SPACE));
        a.qp.connect(0);
        b.qp.connect(0);
        let ah = Ah::own(&pd);
        Self { ah, a, b, pd }
    }

    /// Returns a datagram from `a` to `b`.
    pub(crate) fn to_b(&self, length: usize) -> Request {
        let send = self.a.send(0, length);
        send.to(self.ah.raw(), self.b.qp.number(), QKEY)
    }
}
