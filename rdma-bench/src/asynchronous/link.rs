//! Connects client and server through rdma-async, which uses another TCP port than the control
//! connection.

use std::net::SocketAddr;

use rdma_async::{CompletionMode, Rdma, RdmaBuilder, RdmaDevice};
use rdma_core::{Context, Endpoint};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use super::runtime::{self, Progress};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::report::{Address, Properties};
use crate::session::Role;
use crate::settings::{Completion, Settings};

/// The message that server and client send each other on the control connection before they connect
/// by rdma-async. The server's message contains the TCP port on which the server accepts rdma-async
/// connections. The client's message contains no port.
#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    port: Option<u16>,
}

/// Connects to the peer through rdma-async, as the test `plan` and the options in `settings`
/// require. Returns one connection for each queue pair of `plan`, all on one device, and the
/// properties of the first connection, which the report shows.
///
/// The caller sets some parameters of the connections in `builder`, such as queue depths. This
/// function adds the device and the parameters that `plan` and `settings` determine.
pub(crate) fn establish(
    role: Role,
    (plan, settings): (&Plan, &Settings),
    builder: RdmaBuilder,
    runtime: &Runtime,
    control: &mut Control,
) -> Result<(Vec<Rdma>, Properties)> {
    let context = match &settings.device {
        Some(name) => Context::open(name)?,
        None => Context::open_default()?,
    };
    let device = RdmaDevice::new(&context)?;
    let builder = configure(builder.on(&device), plan, settings);
    let mut connections = Vec::new();
    match role {
        Role::Server => {
            let address = SocketAddr::new(control.local_ip()?, 0);
            let mut listener = runtime.block_on(builder.bind(address))?;
            let port = Some(listener.local_address()?.port());
            control.exchange(&Offer { port })?;
            for _ in 0..plan.queue_pairs {
                let accepted = async { Ok(listener.accept().await?) };
                let accepted =
                    runtime::run(runtime, control, false, &Progress::default(), accepted)?;
                connections.push(accepted.ok_or(Error::PeerGone)?);
            }
        }
        Role::Client => {
            let offer = control.exchange(&Offer { port: None })?;
            let port = offer
                .port
                .ok_or_else(|| Error::Protocol("the server sent no port".into()))?;
            let address = SocketAddr::new(control.peer_ip()?, port);
            for _ in 0..plan.queue_pairs {
                connections.push(runtime.block_on(builder.clone().connect(address))?);
            }
        }
    };
    let queue_pair = connections[0].queue_pair();
    let local = queue_pair.local();
    let remote = queue_pair
        .remote()
        .ok_or_else(|| Error::Protocol("the queue pair has no peer".into()))?;
    let address = queue_pair.address();
    let properties = Properties {
        device: context.name().to_owned(),
        firmware: context.attributes()?.firmware_version(),
        mtu: plan.mtu.unwrap_or(local.mtu.min(remote.mtu)).bytes(),
        link_layer: address.link_layer.to_string(),
        gid_index: address.gid_index,
        inline: 0,
        ends: [local, remote].map(|end| end_of(end, plan)),
    };
    Ok((connections, properties))
}

fn configure(mut builder: RdmaBuilder, plan: &Plan, settings: &Settings) -> RdmaBuilder {
    let mut options = settings.connect_options();
    if let Some(mtu) = plan.mtu {
        options = options.mtu(mtu);
    }
    builder = builder.options(options).connect_timeout(settings.timeout);
    if let Some(port) = settings.port {
        builder = builder.port(port);
    }
    if let Some(index) = settings.gid_index {
        builder = builder.gid_index(index);
    }
    match settings.completion {
        None => builder,
        Some(Completion::Event) => builder.completion(CompletionMode::Event),
        Some(Completion::Adaptive(spin)) => builder.completion(CompletionMode::Adaptive { spin }),
        Some(Completion::Busy) => builder.completion(CompletionMode::Busy),
    }
}

fn end_of(end: Endpoint, plan: &Plan) -> Address {
    Address {
        lid: end.lid,
        queue_pair: end.queue_pair,
        packet_sequence: end.packet_sequence,
        outstanding: plan.test.verb.has_response().then_some(end.incoming_reads),
        memory: None,
        gid: end.gid.0,
    }
}
