//! An rdma-async connection under test, with the memory that the peer may access.

use std::alloc::Layout;

use rdma_async::{LocalMr, Rdma, RdmaBuilder, RemoteMr};
use tokio::runtime::Runtime;

use super::runtime::{self, Progress};
use super::window::Window;
use super::{atomic, link, read, send, write};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::plan::{Length, Plan};
use crate::recorder::Recorder;
use crate::report::Properties;
use crate::session::{Measure, Measured, Role};
use crate::settings::Settings;
use crate::test::{Metric, Verb};

/// Minimum send depth (number of outstanding operations) of a connection: the default of
/// rdma-async, so that tests with few operations measure a connection of the usual size.
const SEND_DEPTH: usize = 64;

/// This process's side of the rdma-async connection that a test measures.
#[derive(Debug)]
pub struct Connection {
    // The first field, so that the connection is dropped before the runtime on which its task runs.
    setup: Setup,
    properties: Properties,
    runtime: Runtime,
}

/// The rdma-async connection under test, with the parameters of the test. Every function that
/// measures an operation gets this value.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) rdma: Rdma,
    pub(super) role: Role,
    pub(super) plan: Plan,
    /// Number of outstanding operations of a bandwidth test.
    pub(super) depth: usize,
    /// Set if one pipeline keeps the operations of a bandwidth test in flight.
    pub(super) pipeline: bool,
    /// The peer's memory that this process may access, as large as the largest message. `None` if
    /// the test accesses no memory of the peer.
    remote: Option<RemoteMr>,
    pub(super) progress: Progress,
}

impl Connection {
    /// Connects to the peer through rdma-async, and gives the peer access to the memory that the
    /// test of `plan` needs. Returns the connection, ready for the test.
    ///
    /// # Errors
    ///
    /// The errors of rdma-async and of the control connection.
    pub fn establish(
        role: Role,
        plan: &Plan,
        settings: &Settings,
        control: &mut Control,
    ) -> Result<Self> {
        let runtime = runtime::build(settings.threads)?;
        let depth = settings.depth(plan);
        let receives = u16::try_from(settings.receives(plan)).unwrap_or(u16::MAX);
        let builder = RdmaBuilder::default()
            .send_depth(u32::try_from(depth.max(SEND_DEPTH)).unwrap_or(u32::MAX))
            .receive_depth(receives);
        let parameters = (plan, settings);
        let (mut rdma, properties) = link::establish(role, parameters, builder, &runtime, control)?;
        let rdma = rdma.remove(0);
        let progress = Progress::default();
        let exchange = exchange_memory(&rdma, role, plan);
        let remote = runtime::run(&runtime, control, false, &progress, exchange)?.flatten();
        let setup = Setup {
            rdma,
            role,
            plan: plan.clone(),
            depth,
            pipeline: settings.pipeline,
            remote,
            progress,
        };
        Ok(Self {
            setup,
            properties,
            runtime,
        })
    }
}

/// Exchanges access to memory with the peer before a test. In latency tests of writes, both sides
/// give access to memory. In tests of sends, neither side gives access. In all other tests, only
/// the server gives access. Returns the peer's memory, or `None` if this process accesses no memory
/// of the peer.
async fn exchange_memory(rdma: &Rdma, role: Role, plan: &Plan) -> Result<Option<RemoteMr>> {
    let both_ways = plan.test.verb == Verb::Write && plan.test.metric == Metric::Latency;
    if plan.test.verb == Verb::Send {
        return Ok(None);
    }
    if both_ways || role == Role::Server {
        let region = rdma.alloc_local_mr(layout(plan.max_size())?)?;
        rdma.send_local_mr(region).await?;
    }
    if both_ways || role == Role::Client {
        return Ok(Some(rdma.receive_remote_mr().await?));
    }
    Ok(None)
}

fn layout(size: usize) -> Result<Layout> {
    Layout::from_size_align(size, 8)
        .map_err(|_| Error::Unsupported(format!("a message of {size} bytes")))
}

impl Setup {
    /// Allocates and registers memory of this process for a message of `size` bytes.
    pub(super) fn allocate(&self, size: usize) -> Result<LocalMr> {
        Ok(self.rdma.alloc_local_mr(layout(size)?)?)
    }

    /// Returns a new handle to the first `size` bytes of the peer's memory, on which an operation
    /// works. Each operation in flight needs a handle of its own.
    pub(super) fn target(&self, size: usize) -> Result<RemoteMr> {
        match &self.remote {
            Some(remote) => Ok(RemoteMr::from_token(remote.token().slice(..size)?)),
            None => Err(Error::Protocol("the test has no remote memory".into())),
        }
    }

    /// Returns `true` on the server of a test with a duration. The server then measures until the
    /// client has finished, because only the client measures the duration.
    pub(super) fn ends_with_peer(&self) -> bool {
        self.role == Role::Server && matches!(self.plan.length, Length::Duration(_))
    }
}

impl Connection {
    fn latency(&self, size: usize, control: &mut Control) -> Result<Measured> {
        let setup = &self.setup;
        let mut recorder = Recorder::new(setup.plan.length);
        control.barrier()?;
        let work = async {
            match setup.plan.test.verb {
                Verb::Send => send::latency(setup, size, &mut recorder).await,
                Verb::Write => write::latency(setup, size, &mut recorder).await,
                Verb::Read => read::latency(setup, size, &mut recorder).await,
                _ => atomic::latency(setup, &mut recorder).await,
            }
        };
        runtime::run(
            &self.runtime,
            control,
            setup.ends_with_peer(),
            &setup.progress,
            work,
        )?;
        let parts = if setup.plan.test.is_half_round_trip() {
            2
        } else {
            1
        };
        Measured::latency(&recorder, parts)
    }

    fn bandwidth(&self, size: usize, control: &mut Control) -> Result<Measured> {
        let setup = &self.setup;
        let receives = setup.role == Role::Server;
        let mut window = Window::new(setup.plan.length, &setup.progress);
        if setup.ends_with_peer() {
            window = window.unlimited();
        }
        control.barrier()?;
        let work = async {
            match setup.plan.test.verb {
                Verb::Send if receives => send::receive_all(setup, size, &window).await,
                Verb::Write if receives => write::receive_all(setup, &window).await,
                Verb::Send => send::bandwidth(setup, size, &window).await,
                Verb::Write => write::bandwidth(setup, size, &window).await,
                Verb::Read => read::bandwidth(setup, size, &window).await,
                _ => atomic::bandwidth(setup, &window).await,
            }
        };
        runtime::run(
            &self.runtime,
            control,
            setup.ends_with_peer(),
            &setup.progress,
            work,
        )?;
        window.bandwidth().map(Measured::Bandwidth)
    }
}

impl Measure for Connection {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn measure(&mut self, size: usize, control: &mut Control) -> Result<Measured> {
        let test = self.setup.plan.test;
        let attends = match test.metric {
            Metric::Latency => !test.is_half_round_trip(),
            Metric::Bandwidth => !self.setup.plan.receives_at(Role::Server),
        };
        if attends && self.setup.role == Role::Server {
            // One-sided operations: this process's device answers them without the program.
            return control.barrier().map(|()| Measured::Nothing);
        }
        match test.metric {
            Metric::Latency => self.latency(size, control),
            Metric::Bandwidth => self.bandwidth(size, control),
        }
    }
}
