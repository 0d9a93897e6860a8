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
use crate::report::Facts;
use crate::session::{Measure, Measured, Role};
use crate::settings::Settings;
use crate::test::{Metric, Verb};

/// Minimum number of outstanding operations for which a test prepares a connection: rdma-async's
/// default.
const SEND_DEPTH: usize = 64;

/// This process's side of the rdma-async connection that a test measures.
#[derive(Debug)]
pub struct Connection {
    // The first field, so that the connection is dropped before the runtime on which its task runs.
    ends: Ends,
    facts: Facts,
    runtime: Runtime,
}

/// The connection and the parameters that the test functions use.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) rdma: Rdma,
    pub(super) role: Role,
    pub(super) plan: Plan,
    /// Number of outstanding operations of a bandwidth test.
    pub(super) depth: usize,
    /// The peer's memory that this process may access, as large as the largest message. `None` if the
    /// test accesses no memory of the peer.
    remote: Option<RemoteMr>,
    pub(super) progress: Progress,
}

impl Connection {
    /// Connects to the peer through rdma-async, and gives the peer access to the memory that the test
    /// needs.
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
        let (mut rdma, facts) = link::establish(role, parameters, builder, &runtime, control)?;
        let rdma = rdma.remove(0);
        let progress = Progress::default();
        let lending = lend(&rdma, role, plan);
        let remote = runtime::run(&runtime, control, false, &progress, lending)?.flatten();
        let ends = Ends {
            rdma,
            role,
            plan: plan.clone(),
            depth,
            remote,
            progress,
        };
        Ok(Self {
            ends,
            facts,
            runtime,
        })
    }
}

/// Gives the peer access to memory of this process, and receives access to memory of the peer, each
/// only if the test needs it. Returns the peer's memory, if this process received access to it.
async fn lend(rdma: &Rdma, role: Role, plan: &Plan) -> Result<Option<RemoteMr>> {
    let both_ways = plan.test.verb == Verb::Write && plan.test.metric == Metric::Latency;
    if plan.test.verb == Verb::Send {
        return Ok(None);
    }
    if both_ways || role == Role::Server {
        let region = rdma.alloc_local_mr(layout(plan.largest())?)?;
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

impl Ends {
    /// Allocates memory for a message of `size` bytes.
    pub(super) fn allocate(&self, size: usize) -> Result<LocalMr> {
        Ok(self.rdma.alloc_local_mr(layout(size)?)?)
    }

    /// Returns the first `size` bytes of the peer's memory. Each operation in flight needs its own
    /// handle, so the caller gets one for each.
    pub(super) fn target(&self, size: usize) -> Result<RemoteMr> {
        match &self.remote {
            Some(remote) => Ok(RemoteMr::from_token(remote.token().slice(..size)?)),
            None => Err(Error::Protocol("the test has no remote memory".into())),
        }
    }

    /// Returns whether this process measures until the peer has finished, as the server of a test with
    /// a duration does.
    pub(super) fn ends_with_peer(&self) -> bool {
        self.role == Role::Server && matches!(self.plan.length, Length::Duration(_))
    }
}

impl Connection {
    fn latency(&self, size: usize, control: &mut Control) -> Result<Measured> {
        let ends = &self.ends;
        let mut recorder = Recorder::new(ends.plan.length);
        control.barrier()?;
        let work = async {
            match ends.plan.test.verb {
                Verb::Send => send::latency(ends, size, &mut recorder).await,
                Verb::Write => write::latency(ends, size, &mut recorder).await,
                Verb::Read => read::latency(ends, size, &mut recorder).await,
                _ => atomic::latency(ends, &mut recorder).await,
            }
        };
        runtime::run(
            &self.runtime,
            control,
            ends.ends_with_peer(),
            &ends.progress,
            work,
        )?;
        let parts = if ends.plan.test.is_half_round_trip() {
            2
        } else {
            1
        };
        Measured::latency(&recorder, parts)
    }

    fn bandwidth(&self, size: usize, control: &mut Control) -> Result<Measured> {
        let ends = &self.ends;
        let receives = ends.role == Role::Server;
        let mut window = Window::new(ends.plan.length, &ends.progress);
        if ends.ends_with_peer() {
            window = window.unlimited();
        }
        control.barrier()?;
        let work = async {
            match ends.plan.test.verb {
                Verb::Send if receives => send::receive_all(ends, size, &window).await,
                Verb::Write if receives => write::receive_all(ends, &window).await,
                Verb::Send => send::bandwidth(ends, size, &window).await,
                Verb::Write => write::bandwidth(ends, size, &window).await,
                Verb::Read => read::bandwidth(ends, size, &window).await,
                _ => atomic::bandwidth(ends, &window).await,
            }
        };
        runtime::run(
            &self.runtime,
            control,
            ends.ends_with_peer(),
            &ends.progress,
            work,
        )?;
        window.measured().map(Measured::Bandwidth)
    }
}

impl Measure for Connection {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn measure(&mut self, size: usize, control: &mut Control) -> Result<Measured> {
        let test = self.ends.plan.test;
        let attends = match test.metric {
            Metric::Latency => !test.is_half_round_trip(),
            Metric::Bandwidth => !self.ends.plan.receives_at(Role::Server),
        };
        if attends && self.ends.role == Role::Server {
            // One-sided operations: this process's device answers them without the program.
            return control.barrier().map(|()| Measured::Nothing);
        }
        match test.metric {
            Metric::Latency => self.latency(size, control),
            Metric::Bandwidth => self.bandwidth(size, control),
        }
    }
}
