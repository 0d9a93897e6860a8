//! Writes over many queue pairs, to many regions of memory, at one or several servers.

use std::collections::HashMap;

use rdma_core::{
    AccessFlags, AddressChoice, Context, Endpoint, ExposedMemory, ProtectionDomain, QueuePair,
    RemoteMemory, SendQueue, SendRequest, WorkCompletion,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::completions::Completions;
use super::connection::{HOP_LIMIT, entries, touched};
use crate::control::{self, Control};
use crate::error::{Error, Result};
use crate::plan::{Plan, Settings, Spread as Shape};
use crate::report::{Address, Facts};
use crate::session::{Measure, Measured, Role};
use crate::statistics::Bandwidth;

/// One end of a test of [`crate::Spread`].
#[derive(Debug)]
pub struct Spread {
    role: Role,
    plan: Plan,
    completions: Completions,
    /// Places in this end's regions.
    places: Vec<ExposedMemory>,
    servers: Vec<Server>,
    /// The control connections with all servers but the first.
    further: Vec<Control>,
    depth: usize,
    list: usize,
    facts: Facts,
}

/// One server, as the client has it; the client, as a server has it.
#[derive(Debug)]
struct Server {
    queue_pairs: Vec<QueuePair>,
    places: Vec<RemoteMemory>,
}

/// A queue pair at work.
struct Lane<'s> {
    queue: SendQueue<ExposedMemory>,
    places: &'s [RemoteMemory],
}

impl Spread {
    /// Makes and connects the queue pairs of all servers.
    ///
    /// # Errors
    ///
    /// Those of rdma-core and of the control connections.
    pub fn establish(
        role: Role,
        plan: &Plan,
        settings: &Settings,
        control: &mut Control,
    ) -> Result<Self> {
        let shape = plan.spread.unwrap_or_default();
        let context = match &settings.device {
            Some(name) => Context::open(name)?,
            None => Context::open_default()?,
        };
        let domain = context.protection_domain()?;
        let further = match role {
            Role::Server => Vec::new(),
            Role::Client => {
                let host = control.peer_ip()?.to_string();
                let connect = |port: &u16| control::connect(&host, *port, plan, settings.timeout);
                let ports = settings.further_servers.iter();
                ports.map(connect).collect::<Result<_>>()?
            }
        };
        let depth = settings.depth(plan);
        let lanes = shape.queue_pairs * (1 + further.len());
        let completions = Completions::new(&context, depth * lanes, settings.events)?;
        let access = match role {
            Role::Server => AccessFlags::REMOTE_WRITE,
            Role::Client => AccessFlags::LOCAL_WRITE,
        };
        let regions = regions(&domain, shape, plan.largest(), access)?;
        let mut spread = Self {
            role,
            plan: plan.clone(),
            completions,
            places: places(&regions, plan.largest())?,
            servers: Vec::new(),
            further,
            depth,
            list: settings.post_list.min(depth),
            facts: Facts {
                device: context.name().to_owned(),
                firmware: context.attributes()?.firmware_version(),
                mtu: 0,
                link_layer: String::new(),
                gid_index: 0,
                inline: 0,
                ends: [unknown(), unknown()],
            },
        };
        let offered: Vec<RemoteMemory> = match role {
            Role::Server => regions.iter().map(ExposedMemory::remote).collect(),
            Role::Client => Vec::new(),
        };
        let mut further = std::mem::take(&mut spread.further);
        for control in std::iter::once(control).chain(&mut further) {
            let server = spread.meet(&domain, shape, settings, &offered, control)?;
            spread.servers.push(server);
        }
        spread.further = further;
        Ok(spread)
    }

    /// Connects the queue pairs with one other end.
    fn meet(
        &mut self,
        domain: &ProtectionDomain,
        shape: Shape,
        settings: &Settings,
        offered: &[RemoteMemory],
        control: &mut Control,
    ) -> Result<Server> {
        let mut prepared = Vec::new();
        for _ in 0..shape.queue_pairs {
            let builder = domain
                .queue_pair()
                .address(AddressChoice {
                    port: settings.port,
                    gid_index: settings.gid_index,
                })
                .send_completions(&self.completions.queue)
                .receive_completions(&self.completions.queue)
                .send_requests(entries(self.depth)?)
                .receive_requests(1)
                .elements(1);
            prepared.push(builder.build()?);
        }
        let own: Vec<Endpoint> = prepared.iter().map(|queue| queue.endpoint()).collect();
        let theirs = exchange_all(control, &own)?;
        let memory: Vec<RemoteMemory> = exchange_all(control, offered)?;
        let wanted = match self.role {
            Role::Server => 0,
            Role::Client => shape.regions,
        };
        if theirs.len() != own.len() || memory.len() != wanted {
            let reason = format!("{} queue pairs, {} regions", theirs.len(), memory.len());
            return Err(Error::Protocol(reason));
        }
        let mut queue_pairs = Vec::new();
        for (prepared, endpoint) in prepared.into_iter().zip(&theirs) {
            let mtu = self.plan.mtu.unwrap_or(own[0].mtu.min(endpoint.mtu));
            let options = settings.connect_options().mtu(mtu).hop_limit(HOP_LIMIT);
            let address = prepared.address().clone();
            self.facts.mtu = mtu.bytes();
            self.facts.link_layer = address.link_layer.to_string();
            self.facts.gid_index = address.gid_index;
            queue_pairs.push(prepared.connect(endpoint, &options)?);
        }
        self.facts.ends = [&own[0], &theirs[0]].map(|endpoint| Address {
            lid: endpoint.lid,
            queue_pair: endpoint.queue_pair,
            packet_sequence: endpoint.packet_sequence,
            outstanding: None,
            memory: None,
            gid: endpoint.gid.0,
        });
        let size = self.plan.largest();
        let mut places = Vec::new();
        for region in &memory {
            let count = usize::try_from(region.len).unwrap_or(0) / size;
            for place in 0..count {
                places.push(region.slice(place * size..(place + 1) * size)?);
            }
        }
        Ok(Server {
            queue_pairs,
            places,
        })
    }

    /// Writes from every place here to every place there, a list over each queue pair in turn.
    fn pump(&mut self, control: &mut Control) -> Result<Bandwidth> {
        let mut lanes: Vec<Lane<'_>> = Vec::new();
        // Neighbours are of different servers.
        for number in 0..self.servers[0].queue_pairs.len() {
            for server in &self.servers {
                lanes.push(Lane {
                    queue: server.queue_pairs[number].send_queue(),
                    places: &server.places,
                });
            }
        }
        let numbers: HashMap<u32, usize> = (lanes.iter().enumerate())
            .map(|(number, lane)| (lane.queue.queue_pair(), number))
            .collect();
        let goal = self.plan.length.iterations().unwrap_or(0);
        let mut room = [WorkCompletion::default(); Completions::BATCH];
        let (mut posted, mut completed, mut turn, mut full) = (0, 0, 0, 0);
        control.barrier()?;
        for other in &mut self.further {
            other.barrier()?;
        }
        let mut watch = control.watch(false)?;
        let begun = std::time::Instant::now();
        while completed < goal {
            let lane = &mut lanes[turn];
            let count = self.list.min(goal - posted);
            turn = if turn + 1 == numbers.len() {
                0
            } else {
                turn + 1
            };
            if count > 0 && lane.queue.in_flight() + count <= self.depth {
                posted += lane.post(&self.places, posted, count)?;
                full = 0;
            } else {
                full += 1;
            }
            let found = match full < numbers.len() && posted < goal {
                true => self.completions.poll(&mut room)?,
                false => self.completions.wait(&mut room, &mut watch)?,
            };
            for completion in &room[..found] {
                let number = numbers.get(&completion.queue_pair());
                let lane = number.map(|number| &mut lanes[*number]);
                let lane = lane.ok_or_else(super::send::foreign)?;
                completed += lane.queue.complete(completion).count();
                full = 0;
            }
        }
        Ok(Bandwidth::over(goal, begun.elapsed()))
    }
}

impl Lane<'_> {
    /// Posts `count` writes, of which the last is signaled, and returns how many.
    #[inline]
    fn post(&mut self, from: &[ExposedMemory], first: usize, count: usize) -> Result<usize> {
        let mut batch = self.queue.batch();
        for number in first..first + count {
            let source = from[number % from.len()].clone();
            let request = SendRequest::write(source, self.places[number % self.places.len()]);
            let request = match number + 1 == first + count {
                true => request,
                false => request.unsignaled(),
            };
            batch.push(request).map_err(rdma_core::Error::from)?;
        }
        Ok(batch.post().map_err(|refused| refused.error)?)
    }
}

impl Measure for Spread {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn measure(&mut self, _size: usize, control: &mut Control) -> Result<Measured> {
        if self.role == Role::Server {
            return control.barrier().map(|()| Measured::Nothing);
        }
        let bandwidth = self.pump(control)?;
        for other in &mut self.further {
            other.finish(Some(bandwidth.clone()))?;
        }
        Ok(Measured::Bandwidth(bandwidth))
    }
}

/// One stretch of memory in as many regions as the shape says, of equal numbers of places.
fn regions(
    domain: &ProtectionDomain,
    shape: Shape,
    size: usize,
    access: AccessFlags,
) -> Result<Vec<ExposedMemory>> {
    let mut rest = touched(domain, Shape::PLACES * size)?;
    let mut regions = Vec::new();
    for number in 0..shape.regions {
        let left = shape.regions - number;
        let count = (rest.len() / size).div_ceil(left);
        let (region, behind) = match left {
            1 => (rest, None),
            _ => {
                let (region, behind) = rest.split_at(count * size);
                (region, Some(behind))
            }
        };
        regions.push(region.expose(access).map_err(|(_, error)| error)?);
        match behind {
            Some(behind) => rest = behind,
            None => break,
        }
    }
    Ok(regions)
}

/// The places in regions.
fn places(regions: &[ExposedMemory], size: usize) -> Result<Vec<ExposedMemory>> {
    let mut places = Vec::new();
    for region in regions {
        for place in 0..region.len() / size {
            places.push(region.slice(place * size..(place + 1) * size)?);
        }
    }
    Ok(places)
}

fn unknown() -> Address {
    Address {
        lid: 0,
        queue_pair: 0,
        packet_sequence: 0,
        outstanding: None,
        memory: None,
        gid: [0; 16],
    }
}

/// Gives the other end a list and gets its own, in messages that are not too long.
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
