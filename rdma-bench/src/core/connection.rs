//! Connected queue pairs of rdma-core, and the memory that peers may access.

use rdma_core::{
    AccessFlags, AddressChoice, Buffer, Context, ExposedMemory, FrozenBuffer, ProtectionDomain,
    QueuePair, QueuePairMap, RemoteMemory, SharedReceiveQueue,
};

use super::completions::Completions;
use super::peer::Peer;
use super::second_queue_pair::{self, SecondQueuePair};
use super::{atomic, memory, read, send, write};
use crate::control::{self, Control};
use crate::error::{Error, Result};
use crate::plan::{Length, Plan};
use crate::report::{Address, Properties};
use crate::session::{Measure, Measured, Role};
use crate::settings::Settings;
use crate::test::{Metric, Verb};

/// This process's side of a test: all its queue pairs, which share one completion queue for sends
/// and one for receives.
#[derive(Debug)]
pub struct Connection {
    pub(super) role: Role,
    pub(super) plan: Plan,
    domain: ProtectionDomain,
    pub(super) sends: Completions,
    pub(super) receives: Completions,
    /// Memory of this process that the peers may access, as large as the largest messages. One
    /// region, unless the plan has several regions.
    pub(super) exposed: Vec<ExposedMemory>,
    /// The peers of this process, each with the queue pairs that are connected to it. A latency
    /// test uses the first queue pair of the first peer.
    pub(super) peers: Vec<Peer>,
    /// The second queue pair of a latency test, on which messages of another size are sent during
    /// the test.
    second: Option<SecondQueuePair>,
    /// The control connections with all servers except the first.
    other_servers: Vec<Control>,
    /// Maximum outstanding requests of each queue pair.
    pub(super) depth: usize,
    /// The number of receives that are posted: on each queue pair, or on the shared receive queue.
    pub(super) receive_depth: usize,
    /// The shared receive queue of this process, if the test uses one.
    pub(super) shared_receives: Option<SharedReceiveQueue<ExposedMemory>>,
    pub(super) moderation: usize,
    /// The number of requests that are posted to the device in one call.
    pub(super) list: usize,
    pub(super) inline: usize,
    pub(super) peak: bool,
    properties: Properties,
}

impl Connection {
    /// Creates the queue pairs of the test that `plan` describes, and connects them to the queue
    /// pairs of the peers. A client may have several servers as peers, each with a control
    /// connection.
    ///
    /// # Errors
    ///
    /// The errors of rdma-core and of the control connections.
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
        let domain = context.protection_domain()?;
        let mut other_servers = match role {
            Role::Server => Vec::new(),
            Role::Client => other_servers(plan, settings, control)?,
        };
        let queue_pairs = plan.queue_pairs * (1 + other_servers.len());
        let depth = settings.depth(plan);
        let receive_depth = match plan.receives_at(role) {
            true => settings.receives(plan),
            false => 1,
        };
        let inline = settings.inline_size(plan.test, attributes.as_raw().vendor_id);
        let (requests_beside, receives_beside) = SecondQueuePair::depths(role, plan, settings);
        let send_entries = depth * queue_pairs + requests_beside;
        let sends = Completions::new(&context, send_entries, settings.events)?;
        let shared_receives = match plan.shared_receives && plan.receives_at(role) {
            true => Some(shared_receive_queue(&domain, receive_depth)?),
            false => None,
        };
        let receive_queues = if shared_receives.is_some() {
            1
        } else {
            queue_pairs
        };
        let receive_entries = receive_depth * receive_queues + receives_beside;
        let receives = Completions::new(&context, receive_entries, settings.events)?;
        let outstanding = settings.outstanding_reads.unwrap_or(u8::MAX);
        let mut builder = domain
            .queue_pair()
            .address(AddressChoice {
                port: settings.port,
                gid_index: settings.gid_index,
                source: Some(control.local_ip()?),
            })
            .send_completions(&sends.queue)
            .receive_completions(&receives.queue)
            .send_requests(entries(depth)?)
            .receive_requests(entries(receive_depth)?)
            .elements(1)
            .inline_data(inline)
            .incoming_reads(outstanding)
            .outgoing_reads(outstanding);
        if let Some(queue) = &shared_receives {
            builder = builder.shared_receive_queue(queue);
        }
        let exposed = match access(plan.test.verb) {
            None => Vec::new(),
            Some(access) => memory::expose(&domain, plan, access)?,
        };
        let mut peers = Vec::new();
        for control in std::iter::once(&mut *control).chain(&mut other_servers) {
            let peer = Peer::connect(&builder, &exposed, (plan, settings), control)?;
            peers.push(peer);
        }
        let second = SecondQueuePair::connect(role, &builder, (plan, settings), control)?;
        let first = &peers[0];
        let inline = first.queue_pairs[0].inline_limit().min(inline as usize);
        let properties = Properties {
            device: context.name().to_owned(),
            firmware: attributes.firmware_version(),
            mtu: first.mtu,
            link_layer: first.queue_pairs[0].address().link_layer.to_string(),
            gid_index: first.queue_pairs[0].address().gid_index,
            inline,
            ends: ends(plan, first, &exposed)?,
        };
        Ok(Self {
            role,
            plan: plan.clone(),
            domain,
            sends,
            receives,
            exposed,
            peers,
            second,
            other_servers,
            depth,
            receive_depth,
            shared_receives,
            moderation: settings.moderation(plan),
            list: settings.post_list.min(depth),
            inline,
            peak: settings.measures_peak(plan),
            properties,
        })
    }

    /// Returns the queue pair that a latency test uses: the first queue pair of the first peer.
    pub(super) fn queue_pair(&self) -> &QueuePair {
        &self.peers[0].queue_pairs[0]
    }

    /// Returns the queue pairs of a bandwidth test, ordered by peer.
    pub(super) fn queue_pairs(&self) -> impl Iterator<Item = &QueuePair> {
        self.peers.iter().flat_map(|peer| &peer.queue_pairs)
    }

    /// Returns a map from queue pair numbers to indices in [`Self::queue_pairs`]. A completion
    /// contains the number of its queue pair.
    pub(super) fn indices(&self) -> QueuePairMap<usize> {
        let mut indices = QueuePairMap::new();
        for (position, queue_pair) in self.queue_pairs().enumerate() {
            indices.insert(queue_pair.number(), position);
        }
        indices
    }

    /// Returns the number of queue pairs in [`Self::queue_pairs`].
    pub(super) fn queue_pair_count(&self) -> usize {
        self.peers.len() * self.plan.queue_pairs
    }

    /// Returns the first `size` bytes of two memory regions. The first is a region of this process
    /// that the first peer may access. The second is a region of the first peer that this process
    /// may access.
    pub(super) fn first_peer_memory(&self, size: usize) -> Result<(ExposedMemory, RemoteMemory)> {
        match (&*self.exposed, &*self.peers[0].regions) {
            ([exposed, ..], [remote, ..]) => Ok((exposed.slice(..size)?, remote.slice(..size)?)),
            _ => Err(Error::Protocol("the test has no remote memory".into())),
        }
    }

    /// Returns one memory of `size` bytes for each queue pair, in the order of the queue pairs. The
    /// memory belongs to the queue pair's peer, and is the target of the queue pair's requests.
    pub(super) fn peer_memories(&self, size: usize) -> Result<Vec<RemoteMemory>> {
        let stride = memory::stride(&self.plan, self.plan.max_size());
        let mut targets = Vec::new();
        for peer in &self.peers {
            targets.extend(memory::remote_messages(&peer.regions, stride, size)?);
        }
        Ok(targets)
    }

    /// Allocates and registers memory for a message of `size` bytes.
    pub(super) fn allocate_message(&self, size: usize) -> Result<Buffer> {
        memory::allocate(&self.domain, self.plan.memory, size)
    }

    /// Allocates the memory of one message of `size` bytes for each queue pair, in the order of the
    /// queue pairs. The memory is frozen (read-only), so that several sends can use it at the same
    /// time.
    pub(super) fn allocate_messages(&self, size: usize) -> Result<Vec<FrozenBuffer>> {
        let (count, stride) = (self.queue_pair_count(), memory::stride(&self.plan, size));
        let memory = self.allocate_message(count * stride)?.freeze();
        let part = |number| memory.slice(number * stride..number * stride + size);
        Ok((0..count).map(part).collect::<Result<_, _>>()?)
    }

    /// Allocates memory of `size` bytes for each queue pair, such as the target of its reads. Many
    /// requests at the same time may write to the same memory. Peers cannot access the memory.
    pub(super) fn allocate_scratch(&self, size: usize) -> Result<Vec<ExposedMemory>> {
        let stride = memory::stride(&self.plan, size);
        let memory = self.allocate_message(self.queue_pair_count() * stride)?;
        let local = AccessFlags::LOCAL_WRITE;
        let memory = memory.expose(local)?;
        memory::messages(&[memory], stride, size)
    }

    /// Returns `true` on the server of a test with a duration. The server then runs the test until
    /// the client has finished, because only the client measures the duration.
    pub(super) fn ends_with_peer(&self) -> bool {
        self.role == Role::Server && matches!(self.plan.length, Length::Duration(_))
    }

    /// Returns the number of messages that each queue pair transfers. Returns `usize::MAX` (no
    /// limit) if the test runs for a duration instead.
    pub(super) fn message_count(&self) -> usize {
        self.plan.length.iterations().unwrap_or(usize::MAX)
    }

    /// Returns the number of messages that all queue pairs together transfer, or `usize::MAX` if
    /// the test has a duration instead.
    pub(super) fn total_messages(&self) -> usize {
        self.message_count().saturating_mul(self.queue_pair_count())
    }

    fn run(&self, size: usize, control: &mut Control) -> Result<Measured> {
        if let Some(second) = &self.second {
            return second_queue_pair::latency(self, second, size, control);
        }
        let test = self.plan.test;
        match (test.metric, test.verb, self.role) {
            (Metric::Latency, Verb::Send, _) => send::latency(self, size, control),
            (Metric::Latency, Verb::Write, _) if self.plan.immediate => {
                write::latency_with_immediate(self, size, control)
            }
            (Metric::Latency, Verb::Write, _) => write::latency(self, size, control),
            (Metric::Bandwidth, _, Role::Server) if self.plan.receives_at(Role::Server) => {
                send::receive_all(self, size, control)
            }
            // One-sided operations: this process's device answers them without the program.
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

impl Measure for Connection {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn measure(&mut self, size: usize, control: &mut Control) -> Result<Measured> {
        for other in &mut self.other_servers {
            other.barrier()?;
        }
        let measured = self.run(size, control)?;
        if let Measured::Bandwidth(bandwidth) = &measured {
            for other in &mut self.other_servers {
                other.finish(Some(bandwidth.clone()))?;
            }
        }
        Ok(measured)
    }
}

fn shared_receive_queue(
    domain: &ProtectionDomain,
    depth: usize,
) -> Result<SharedReceiveQueue<ExposedMemory>> {
    let builder = domain.shared_receive_queue(entries(depth)?).elements(1);
    Ok(builder.build()?)
}

/// Opens the control connections to the servers of the test, except the first server, and returns
/// these connections. `first` is the control connection to the first server.
fn other_servers(plan: &Plan, settings: &Settings, first: &Control) -> Result<Vec<Control>> {
    let host = first.peer_ip()?.to_string();
    let connect = |port: &u16| control::connect(&host, *port, plan, settings.timeout);
    settings.further_servers.iter().map(connect).collect()
}

/// Returns the addresses of both ends of the first queue pair for the report: first of this
/// process, then of the peer. Each address includes the memory that the other end may access, if
/// any. `exposed` is the memory of this process.
fn ends(plan: &Plan, peer: &Peer, exposed: &[ExposedMemory]) -> Result<[Address; 2]> {
    let queue_pair = &peer.queue_pairs[0];
    let remote = queue_pair
        .remote()
        .ok_or_else(|| Error::Protocol("the queue pair has no peer".into()))?;
    let own = exposed.first().map(ExposedMemory::remote);
    let theirs = peer.regions.first().copied();
    let outstanding = plan.test.verb.has_response();
    let ends = [(queue_pair.local(), own), (remote, theirs)];
    Ok(ends.map(|(endpoint, memory)| Address {
        lid: endpoint.lid,
        queue_pair: endpoint.queue_pair,
        packet_sequence: endpoint.packet_sequence,
        outstanding: outstanding.then_some(endpoint.incoming_reads),
        memory: memory.map(|memory| (memory.rkey, memory.address)),
        gid: endpoint.gid.0,
    }))
}

pub(super) fn entries(depth: usize) -> Result<u32> {
    u32::try_from(depth).map_err(|_| Error::Unsupported(format!("a queue depth of {depth}")))
}

/// Returns the access rights that a peer needs to the memory of this process for the operation
/// `verb`. Returns `None` if the operation accesses no memory of this process.
fn access(verb: Verb) -> Option<AccessFlags> {
    match verb {
        Verb::Send | Verb::Echo | Verb::Item | Verb::Bulk => None,
        Verb::Write => Some(AccessFlags::REMOTE_WRITE),
        Verb::Read => Some(AccessFlags::REMOTE_READ),
        Verb::FetchAndAdd | Verb::CompareAndSwap => Some(AccessFlags::REMOTE_ATOMIC),
    }
}
