//! Two connected queue pairs, and the memory that peers reach.

use rdma_core::{
    AccessFlags, AddressChoice, Buffer, Context, Endpoint, ExposedMemory, ProtectionDomain,
    QueuePair, RemoteMemory,
};
use serde::{Deserialize, Serialize};

use super::completions::Completions;
use super::{atomic, read, send, write};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::plan::{Length, Plan, Settings};
use crate::report::{Address, Facts};
use crate::session::{Measure, Measured, Role};
use crate::test::{Metric, Verb};

/// Perftest's.
pub(super) const HOP_LIMIT: u8 = u8::MAX;

/// What one end tells the other.
#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    endpoint: Endpoint,
    memory: Option<RemoteMemory>,
}

/// This end of a connection between two queue pairs.
#[derive(Debug)]
pub struct Connection {
    pub(super) role: Role,
    pub(super) plan: Plan,
    pub(super) domain: ProtectionDomain,
    pub(super) queue_pair: QueuePair,
    pub(super) sends: Completions,
    pub(super) receives: Completions,
    /// What the peer reaches here, as large as the largest message.
    pub(super) exposed: Option<ExposedMemory>,
    /// What this end reaches there.
    pub(super) remote: Option<RemoteMemory>,
    pub(super) depth: usize,
    pub(super) receive_depth: usize,
    pub(super) moderation: usize,
    /// How many requests are handed to the device together.
    pub(super) list: usize,
    pub(super) inline: usize,
    pub(super) peak: bool,
    facts: Facts,
}

impl Connection {
    /// Makes a queue pair and connects it to that of the other end.
    ///
    /// # Errors
    ///
    /// Those of rdma-core and of the control connection.
    pub fn establish(
        role: Role,
        plan: &Plan,
        settings: &Settings,
        control: &mut Control,
    ) -> Result<Self> {
        let context = match &settings.device {
            Some(name) => Context::open(name)?,
            None => Context::open_default()?,
        };
        let attributes = context.attributes()?;
        let verb = plan.test.verb;
        let domain = context.protection_domain()?;
        let (depth, receive_depth) = (settings.depth(plan), settings.receives(plan));
        let inline = settings.inline_size(plan.test, attributes.as_raw().vendor_id);
        let sends = Completions::new(&context, depth, settings.events)?;
        let receives = Completions::new(&context, receive_depth, settings.events)?;
        let outstanding = settings.outstanding_reads.unwrap_or(u8::MAX);
        let prepared = domain
            .queue_pair()
            .address(AddressChoice {
                port: settings.port,
                gid_index: settings.gid_index,
            })
            .send_completions(&sends.queue)
            .receive_completions(&receives.queue)
            .send_requests(entries(depth)?)
            .receive_requests(entries(receive_depth)?)
            .elements(1)
            .inline_data(inline)
            .incoming_reads(outstanding)
            .outgoing_reads(outstanding)
            .build()?;
        let exposed = match access(verb) {
            None => None,
            Some(access) => {
                let memory = touched(&domain, plan.largest())?;
                Some(memory.expose(access).map_err(|(_, error)| error)?)
            }
        };
        let own = Offer {
            endpoint: prepared.endpoint(),
            memory: exposed.as_ref().map(ExposedMemory::remote),
        };
        let theirs = control.exchange(&own)?;
        let wanted = plan.largest() as u64;
        if own.memory.is_some() && theirs.memory.is_none_or(|memory| memory.len < wanted) {
            let reason = format!("the peer's memory has less than {wanted} bytes");
            return Err(Error::Protocol(reason));
        }
        let mtu = plan
            .mtu
            .unwrap_or(own.endpoint.mtu.min(theirs.endpoint.mtu));
        let options = settings.connect_options().mtu(mtu).hop_limit(HOP_LIMIT);
        let address = prepared.address().clone();
        let queue_pair = prepared.connect(&theirs.endpoint, &options)?;
        let ends = [&own, &theirs].map(|offer| Address {
            lid: offer.endpoint.lid,
            queue_pair: offer.endpoint.queue_pair,
            packet_sequence: offer.endpoint.packet_sequence,
            outstanding: verb.has_response().then_some(offer.endpoint.incoming_reads),
            memory: offer.memory.map(|memory| (memory.rkey, memory.address)),
            gid: offer.endpoint.gid.0,
        });
        let facts = Facts {
            device: context.name().to_owned(),
            firmware: attributes.firmware_version(),
            mtu: mtu.bytes(),
            link_layer: address.link_layer.to_string(),
            gid_index: address.gid_index,
            inline: queue_pair.inline_limit().min(inline as usize),
            ends,
        };
        Ok(Self {
            role,
            plan: plan.clone(),
            domain,
            inline: facts.inline,
            queue_pair,
            sends,
            receives,
            exposed,
            remote: theirs.memory,
            depth,
            receive_depth,
            moderation: settings.moderation(plan),
            list: settings.post_list.min(depth),
            peak: settings.peak(plan),
            facts,
        })
    }

    /// The first `size` bytes of what the peer reaches here and this end reaches there.
    pub(super) fn windows(&self, size: usize) -> Result<(ExposedMemory, RemoteMemory)> {
        match (&self.exposed, &self.remote) {
            (Some(exposed), Some(remote)) => Ok((exposed.slice(..size)?, remote.slice(..size)?)),
            _ => Err(Error::Protocol("the test has no remote memory".into())),
        }
    }

    /// The memory of a message.
    pub(super) fn message(&self, size: usize) -> Result<Buffer> {
        touched(&self.domain, size)
    }

    /// Memory that many requests can write at once, and peers cannot reach.
    pub(super) fn scratch(&self, size: usize) -> Result<ExposedMemory> {
        let memory = self.message(size)?;
        let local = AccessFlags::LOCAL_WRITE;
        Ok(memory.expose(local).map_err(|(_, error)| error)?)
    }

    /// Whether this end measures until the other one is done.
    pub(super) fn ends_with_peer(&self) -> bool {
        self.role == Role::Server && matches!(self.plan.length, Length::Duration(_))
    }

    /// How many messages there are; without end when the time is given.
    pub(super) fn count(&self) -> usize {
        self.plan.length.iterations().unwrap_or(usize::MAX)
    }
}

impl Measure for Connection {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn measure(&mut self, size: usize, control: &mut Control) -> Result<Measured> {
        let test = self.plan.test;
        match (test.metric, test.verb, self.role) {
            (Metric::Latency, Verb::Send, _) => send::latency(self, size, control),
            (Metric::Latency, Verb::Write, _) => write::latency(self, size, control),
            (Metric::Bandwidth, Verb::Send, Role::Server) => send::receive_all(self, size, control),
            // One-sided: this end's device answers, and the program has nothing to do.
            (_, _, Role::Server) => control.barrier().map(|()| Measured::Nothing),
            (Metric::Latency, Verb::Read, _) => read::latency(self, size, control),
            (Metric::Latency, _, _) => atomic::latency(self, control),
            (Metric::Bandwidth, Verb::Send, _) => send::send_all(self, size, control),
            (Metric::Bandwidth, Verb::Write, _) => write::bandwidth(self, size, control),
            (Metric::Bandwidth, Verb::Read, _) => read::bandwidth(self, size, control),
            (Metric::Bandwidth, _, _) => atomic::bandwidth(self, control),
        }
    }
}

/// Memory that has been written to, as perftest's has: else all of its pages may be the one page of
/// zeroes, which is faster to read than memory is.
pub(super) fn touched(domain: &ProtectionDomain, size: usize) -> Result<Buffer> {
    let mut memory = domain.allocate(size)?;
    for (place, byte) in memory.iter_mut().enumerate() {
        *byte = (place % 251) as u8 + 1;
    }
    Ok(memory)
}

pub(super) fn entries(depth: usize) -> Result<u32> {
    u32::try_from(depth).map_err(|_| Error::Unsupported(format!("a depth of {depth}")))
}

/// What the peer does to this end's memory.
fn access(verb: Verb) -> Option<AccessFlags> {
    match verb {
        Verb::Send | Verb::Echo => None,
        Verb::Write => Some(AccessFlags::REMOTE_WRITE),
        Verb::Read => Some(AccessFlags::REMOTE_READ),
        Verb::FetchAndAdd | Verb::CompareAndSwap => Some(AccessFlags::REMOTE_ATOMIC),
    }
}
