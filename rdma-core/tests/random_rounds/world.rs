//! Objects of every kind, and random operations on them.

use std::any::Any;
use std::net::IpAddr;
use std::time::Duration;

use rdma_core::address::{AddressHandle, AddressVector, Destination, multicast_gid};
use rdma_core::completion::CompletionFields;
use rdma_core::receive::XrcDomain;
use rdma_core::{
    AccessFlags, Buffer, CompletionChannel, CompletionQueue, ConnectOptions, Context,
    DatagramOptions, Endpoint, ExposedMemory, FrozenBuffer, PreparedQueuePair, ProtectionDomain,
    QueuePair, ReceiveQueue, RemoteMemory, SendQueue, SendRequest, SharedReceiveQueue, Transport,
    WorkCompletion,
};

use crate::chance::Chance;

/// Number of operations in a round.
const STEPS: usize = 100;

/// Maximum number of objects of a kind.
const MOST: usize = 5;

/// Length of every buffer in bytes.
const LEN: usize = 256;

/// Maximum time that a scope waits for completions.
const MAX_WAIT: Duration = Duration::from_millis(50);

/// Queue pair that is not connected yet, and its domain.
struct Prepared {
    pair: PreparedQueuePair,
    domain: ProtectionDomain,
}

/// Queue pair and its queues.
struct End {
    pair: QueuePair,
    sends: SendQueue<Buffer>,
    receives: ReceiveQueue<Buffer>,
    domain: ProtectionDomain,
}

impl End {
    fn is_at_work(&self) -> bool {
        self.sends.in_flight() + self.receives.in_flight() > 0
    }
}

pub(crate) struct World {
    chance: Chance,
    context: Context,
    channels: Vec<CompletionChannel>,
    queues: Vec<CompletionQueue>,
    domains: Vec<ProtectionDomain>,
    buffers: Vec<Buffer>,
    frozen: Vec<FrozenBuffer>,
    exposed: Vec<ExposedMemory>,
    shared: Vec<SharedReceiveQueue<Buffer>>,
    xrc: Vec<XrcDomain>,
    addresses: Vec<AddressHandle>,
    prepared: Vec<Prepared>,
    ends: Vec<End>,
    /// Objects that are only created and dropped.
    others: Vec<Box<dyn Any>>,
    tally: Tally,
}

/// Numbers of operations.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) posted: usize,
    pub(crate) refused: usize,
    pub(crate) succeeded: usize,
    pub(crate) failed: usize,
    /// Queue pairs that were dropped or forgotten with requests in flight.
    pub(crate) abandoned: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.posted += other.posted;
        self.refused += other.refused;
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.abandoned += other.abandoned;
    }
}

impl World {
    pub(crate) fn new(context: Context, chance: Chance) -> Self {
        Self {
            chance,
            context,
            channels: Vec::new(),
            queues: Vec::new(),
            domains: Vec::new(),
            buffers: Vec::new(),
            frozen: Vec::new(),
            exposed: Vec::new(),
            shared: Vec::new(),
            xrc: Vec::new(),
            addresses: Vec::new(),
            prepared: Vec::new(),
            ends: Vec::new(),
            others: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Performs random operations.
    pub(crate) fn live(&mut self) {
        // The first objects of the round.
        for _ in 0..2 {
            self.make_prepared();
            self.make_prepared();
            self.bring_up();
            self.make_buffer();
            self.change_memory();
        }
        for _ in 0..STEPS {
            match self.chance.within(0..12) {
                0..3 => self.make(),
                3..8 => self.post(),
                8..10 => self.poll(),
                10 if self.chance.one_in(3) => self.fail(),
                _ => self.drop_one(),
            }
        }
    }

    /// Drops all objects, in random order.
    pub(crate) fn end(self) -> Tally {
        let Self {
            mut chance,
            context,
            mut tally,
            ..
        } = self;
        let mut all = self.others;
        all.push(Box::new(context));
        for Prepared { pair, domain } in self.prepared {
            all.push(Box::new(pair));
            all.push(Box::new(domain));
        }
        for end in self.ends {
            tally.abandoned += usize::from(end.is_at_work());
            all.push(Box::new(end.pair));
            all.push(Box::new(end.sends));
            all.push(Box::new(end.receives));
            all.push(Box::new(end.domain));
        }
        fn add<T: 'static>(all: &mut Vec<Box<dyn Any>>, list: Vec<T>) {
            all.extend(
                list.into_iter()
                    .map(|object| Box::new(object) as Box<dyn Any>),
            );
        }
        add(&mut all, self.channels);
        add(&mut all, self.queues);
        add(&mut all, self.domains);
        add(&mut all, self.buffers);
        add(&mut all, self.frozen);
        add(&mut all, self.exposed);
        add(&mut all, self.shared);
        add(&mut all, self.xrc);
        add(&mut all, self.addresses);
        chance.shuffle(&mut all);
        all.into_iter().for_each(drop);
        tally
    }

    fn make(&mut self) {
        match self.chance.within(0..13) {
            0 => keep(&mut self.channels, self.context.completion_channel()),
            1 => self.make_queue(),
            2 => keep(&mut self.domains, self.context.protection_domain()),
            3 | 4 => self.make_buffer(),
            5 => self.change_memory(),
            6 => self.make_shared(),
            7 => keep(&mut self.xrc, XrcDomain::anonymous(&self.context)),
            8 => self.make_prepared(),
            9 => self.make_address(),
            10 => self.make_other(),
            _ => self.bring_up(),
        }
    }

    fn domain(&mut self) -> ProtectionDomain {
        // Uses mostly the same domain, so that objects can be combined.
        let place = match self.chance.one_in(8) {
            true => self.chance.place(self.domains.len()),
            false => (!self.domains.is_empty()).then_some(0),
        };
        match place {
            Some(place) => self.domains[place].clone(),
            None => self
                .context
                .protection_domain()
                .expect("a protection domain"),
        }
    }

    fn make_queue(&mut self) {
        // Some queues are so small that they overrun.
        let entries = [1, 8, 64, 512][self.chance.within(0..4)];
        let mut builder = self.context.completion_queue(entries);
        if let Some(place) = self.chance.place(self.channels.len()) {
            builder = builder.channel(&self.channels[place]);
        }
        keep(&mut self.queues, builder.build());
    }

    fn make_buffer(&mut self) {
        let domain = self.domain();
        keep(&mut self.buffers, domain.allocate(LEN));
    }

    /// Turns a buffer into another kind of memory, or another kind of memory into a buffer.
    fn change_memory(&mut self) {
        match self.chance.within(0..4) {
            0 => {
                if let Some(buffer) = self.take_buffer() {
                    self.frozen.push(buffer.freeze());
                }
            }
            1 => {
                if let Some(buffer) = self.take_buffer() {
                    keep(&mut self.exposed, buffer.expose(AccessFlags::REMOTE));
                }
            }
            2 => {
                if let Some(frozen) = self.frozen.pop() {
                    keep(&mut self.buffers, frozen.thaw());
                }
            }
            _ => {
                if let Some(place) = self.chance.place(self.exposed.len()) {
                    let exposed = self.exposed.swap_remove(place);
                    keep(&mut self.buffers, exposed.revoke());
                }
            }
        }
    }

    fn take_buffer(&mut self) -> Option<Buffer> {
        let place = self.chance.place(self.buffers.len())?;
        Some(self.buffers.swap_remove(place))
    }

    fn make_shared(&mut self) {
        let domain = self.domain();
        let requests = [1, 16][self.chance.within(0..2)];
        let mut builder = domain.shared_receive_queue(requests);
        let (xrc, queue) = (
            self.chance.place(self.xrc.len()),
            self.chance.place(self.queues.len()),
        );
        if let (Some(xrc), Some(queue)) = (xrc, queue) {
            builder = builder.xrc(&self.xrc[xrc], &self.queues[queue]);
        }
        keep(&mut self.shared, builder.build());
    }

    fn make_prepared(&mut self) {
        let domain = self.domain();
        let mut builder = domain.queue_pair().send_requests(8).receive_requests(8);
        let kinds = [
            Transport::ReliableConnected,
            Transport::ReliableConnected,
            Transport::UnreliableConnected,
            Transport::Datagram,
        ];
        builder = builder.transport(kinds[self.chance.within(0..kinds.len())]);
        if let Some(place) = self.chance.place(self.queues.len()) {
            builder = builder.send_completions(&self.queues[place]);
        }
        if let Some(place) = self.chance.place(self.queues.len()) {
            builder = builder.receive_completions(&self.queues[place]);
        }
        if let Some(place) = self.chance.place(self.shared.len())
            && self.chance.one_in(3)
        {
            builder = builder.shared_receive_queue(&self.shared[place]);
        }
        let made = builder.build();
        keep(
            &mut self.prepared,
            made.map(|pair| Prepared { pair, domain }),
        );
    }

    fn make_address(&mut self) {
        let domain = self.domain();
        let local = self
            .context
            .address(Default::default())
            .expect("an address");
        let vector = AddressVector::new(&local, local.gid, local.lid);
        keep(&mut self.addresses, domain.address_handle(&vector));
    }

    /// Makes an object of a less common kind.
    fn make_other(&mut self) {
        let domain = self.domain();
        match self.chance.within(0..7) {
            0 => {
                let thread = self.context.thread_domain();
                self.keep_other(thread);
                keep(&mut self.domains, domain.parent());
            }
            1 => keep(&mut self.buffers, domain.register(vec![0_u8; LEN])),
            2 => {
                let memory = self.context.device_memory(LEN, 3);
                self.keep_other(memory);
            }
            3 => self.keep_other(domain.null_region()),
            4 => {
                let builder = self.context.completion_queue(16);
                let made = builder.extended(CompletionFields::STANDARD).build();
                if let Ok(made) = &made {
                    keep(&mut self.queues, Ok::<_, ()>(made.queue().clone()));
                }
                self.keep_other(made);
            }
            5 => {
                let group = multicast_gid(IpAddr::from([224, 0, 0, 77])).expect("a group");
                if let Some(place) = self.chance.place(self.ends.len()) {
                    let member = self.ends[place].pair.attach_to_group(group, 0);
                    self.keep_other(member);
                }
            }
            _ => {
                let events = self.context.async_events().expect("events");
                while events.take().expect("an event, or none").is_some() {}
            }
        }
    }

    fn keep_other<T: 'static, E>(&mut self, made: Result<T, E>) {
        keep(
            &mut self.others,
            made.map(|made| Box::new(made) as Box<dyn Any>),
        );
    }

    /// Connects two queue pairs to each other, or connects one to itself or to a peer that does not
    /// exist, or activates one.
    fn bring_up(&mut self) {
        let Some(place) = self.chance.place(self.prepared.len()) else {
            return;
        };
        let Prepared { pair: left, domain } = self.prepared.swap_remove(place);
        let options = ConnectOptions::default()
            .ack_timeout_exponent(10)
            .retries(1)
            .rnr_retries(1);
        let receives = left.receive_queue();
        if !left.kind().is_connected() {
            let active = left.activate(&DatagramOptions::default());
            return self.add_end(active, receives, domain);
        }
        let peer = self.chance.place(self.prepared.len());
        let peer = peer.filter(|&place| self.prepared[place].pair.kind() == left.kind());
        let own = left.endpoint();
        let Some(place) = peer else {
            let nobody = Endpoint {
                queue_pair: 0x00ff_fff0,
                ..own
            };
            let to = if self.chance.one_in(4) { nobody } else { own };
            return self.add_end(left.connect(&to, &options), receives, domain);
        };
        let Prepared {
            pair: right,
            domain: of_right,
        } = self.prepared.swap_remove(place);
        let to_right = right.endpoint();
        let receives_of_right = right.receive_queue();
        self.add_end(left.connect(&to_right, &options), receives, domain);
        self.add_end(right.connect(&own, &options), receives_of_right, of_right);
    }

    fn add_end(
        &mut self,
        pair: rdma_core::Result<QueuePair>,
        receives: ReceiveQueue<Buffer>,
        domain: ProtectionDomain,
    ) {
        let made = pair.map(|pair| End {
            sends: pair.send_queue(),
            receives,
            pair,
            domain,
        });
        keep(&mut self.ends, made);
    }
}

impl World {
    /// Posts a valid or invalid request. A refused request returns its memory.
    fn post(&mut self) {
        let Some(place) = self.chance.place(self.ends.len()) else {
            return;
        };
        let memory = match self.take_buffer() {
            // A buffer of another domain than the queue pair's makes the request fail.
            Some(buffer) if self.chance.one_in(8) => buffer,
            _ => match self.ends[place].domain.allocate(LEN) {
                Ok(buffer) => buffer,
                Err(_) => return,
            },
        };
        if self.chance.one_in(64) {
            return self.post_borrowed(place, memory);
        }
        if self.chance.one_in(2) {
            return self.post_receive(place, memory);
        }
        let request = self.request(place, memory);
        let Self {
            ends,
            chance,
            tally,
            buffers,
            ..
        } = self;
        let sends = &mut ends[place].sends;
        let refused = if chance.one_in(3) {
            let mut batch = sends.batch();
            let refused = batch.push(request).err();
            match chance.within(0..4) {
                0 => std::mem::forget(batch),
                1 => drop(batch),
                _ => tally.posted += batch.post().unwrap_or(0),
            }
            refused
        } else {
            let refused = sends.post(request).err();
            tally.posted += usize::from(refused.is_none());
            refused
        };
        if let Some(refused) = refused {
            tally.refused += 1;
            keep(buffers, Ok::<_, ()>(refused.memory));
        }
    }

    /// Posts a write and a read of borrowed memory, and waits for them or not.
    fn post_borrowed(&mut self, place: usize, mut memory: Buffer) {
        let half = memory.len() / 2;
        let Ok(remote) = self.remote().slice(..half) else {
            return;
        };
        let waits = self.chance.one_in(2);
        let (source, target) = memory.as_slice_mut().split_at_mut(half);
        let outcome = self.ends[place].pair.scope(MAX_WAIT, |scope| {
            let write = scope.post(SendRequest::write(source, remote))?;
            let read = scope.post(SendRequest::read(target, remote))?;
            if waits {
                read.wait()?;
                write.wait()?;
            }
            rdma_core::Result::Ok(())
        });
        match outcome.and_then(|posted| posted) {
            Ok(()) => self.tally.succeeded += 2,
            Err(_) => self.tally.failed += 1,
        }
        keep(&mut self.buffers, Ok::<_, ()>(memory));
    }

    fn post_receive(&mut self, place: usize, memory: Buffer) {
        let refused = match self.chance.place(self.shared.len()) {
            Some(shared) if self.chance.one_in(2) => self.shared[shared].post(memory),
            _ => self.ends[place].receives.post(memory),
        };
        if let Err(refused) = refused {
            keep(&mut self.buffers, Ok::<_, ()>(refused.memory));
        }
    }

    /// Returns remote memory that exists or does not exist.
    fn remote(&mut self) -> RemoteMemory {
        match self.chance.place(self.exposed.len()) {
            Some(exposed) if !self.chance.one_in(8) => self.exposed[exposed].remote(),
            _ => RemoteMemory {
                address: 0x1000,
                len: LEN as u64,
                rkey: 0xdead,
            },
        }
    }

    fn request(&mut self, place: usize, memory: Buffer) -> SendRequest<Buffer> {
        let remote = self.remote();
        let short = |memory: Buffer| memory.split_at(8).0;
        let request = match self.chance.within(0..7) {
            0 => SendRequest::send(memory),
            1 => SendRequest::send_with_immediate(memory, 7),
            2 => SendRequest::write(memory, remote),
            3 => SendRequest::write_with_immediate(memory, remote, 8),
            4 => SendRequest::read(memory, remote),
            5 => SendRequest::compare_and_swap(short(memory), remote, 0, 1),
            _ => SendRequest::fetch_and_add(short(memory), remote, 1),
        };
        let request = if self.chance.one_in(4) {
            request.unsignaled()
        } else {
            request
        };
        let pair = &self.ends[place].pair;
        match self.chance.place(self.addresses.len()) {
            Some(address) if pair.kind() == Transport::Datagram => request.to(&Destination {
                handle: self.addresses[address].clone(),
                queue_pair: pair.number(),
                qkey: DatagramOptions::DEFAULT_QKEY,
            }),
            _ => request,
        }
    }

    /// Takes completions, and the memory of the completed requests.
    fn poll(&mut self) {
        let queues: Vec<CompletionQueue> = self
            .ends
            .iter()
            .flat_map(|end| [end.pair.send_completions(), end.pair.receive_completions()])
            .cloned()
            .collect();
        let mut room = [WorkCompletion::default(); 4];
        for queue in queues {
            // A queue that has overrun fails for ever.
            let Ok(completions) = queue.poll(&mut room) else {
                continue;
            };
            for completion in completions {
                self.complete(completion);
            }
        }
    }

    fn complete(&mut self, completion: &WorkCompletion) {
        match completion.result() {
            Ok(()) => self.tally.succeeded += 1,
            Err(_) => self.tally.failed += 1,
        }
        let Self {
            ends,
            shared,
            buffers,
            ..
        } = self;
        let mut back: Vec<Buffer> = Vec::new();
        for end in ends {
            back.extend(end.sends.complete(completion));
            back.extend(end.receives.complete(completion));
        }
        back.extend(shared.iter().filter_map(|queue| queue.complete(completion)));
        // Each request completes once, together with the unsignaled requests before it.
        back.into_iter()
            .filter(|buffer| buffer.len() == LEN)
            .for_each(|buffer| keep(buffers, Ok::<_, ()>(buffer)));
    }

    /// Moves a queue pair to the error state, or passes an invalid argument.
    fn fail(&mut self) {
        match self.chance.within(0..4) {
            0 | 1 => {
                if let Some(place) = self.chance.place(self.ends.len()) {
                    let pair = &self.ends[place].pair;
                    if let Err(error) = pair.fail() {
                        // A scope has reset the queue pair, because its completions did not arrive
                        // in time.
                        assert_eq!(
                            pair.state(),
                            Ok(rdma_core::QueuePairState::Reset),
                            "{error}"
                        );
                    }
                }
            }
            2 => {
                let refused = self.domain().allocate(0);
                assert!(refused.is_err(), "0 bytes");
            }
            _ => {
                let refused = self.domain().queue_pair().elements(u32::MAX).build();
                assert!(refused.is_err(), "elements without end");
            }
        }
    }

    fn drop_one(&mut self) {
        fn one<T>(chance: &mut Chance, list: &mut Vec<T>) {
            if let Some(place) = chance.place(list.len()) {
                list.swap_remove(place);
            }
        }
        let Self { chance, tally, .. } = self;
        match chance.within(0..12) {
            0 => one(chance, &mut self.channels),
            1 => one(chance, &mut self.queues),
            2 => one(chance, &mut self.domains),
            3 => one(chance, &mut self.buffers),
            4 => one(chance, &mut self.frozen),
            5 => one(chance, &mut self.exposed),
            6 => one(chance, &mut self.shared),
            7 => one(chance, &mut self.xrc),
            8 => one(chance, &mut self.addresses),
            9 => one(chance, &mut self.prepared),
            10 => one(chance, &mut self.others),
            _ => {
                if let Some(place) = chance.place(self.ends.len()) {
                    let end = self.ends.swap_remove(place);
                    tally.abandoned += usize::from(end.is_at_work());
                }
            }
        }
    }
}

/// Adds an object to the list if it could be made. Errors are expected: limits of the device and
/// objects that cannot be combined are part of the test.
fn keep<T, E>(list: &mut Vec<T>, made: Result<T, E>) {
    if let Ok(made) = made {
        list.push(made);
    }
    if list.len() > MOST {
        list.swap_remove(0);
    }
}
