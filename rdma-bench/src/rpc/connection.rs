//! An rdma-rpc connection under test, whose server echoes the requests of the client.

use std::time::Duration;

use rdma_async::RdmaBuilder;
use rdma_rpc::{CallError, Client, Payload, Server};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::asynchronous::link;
use crate::asynchronous::runtime::{self, Progress};
use crate::asynchronous::window::Window;
use crate::control::Control;
use crate::error::Result;
use crate::plan::Plan;
use crate::recorder::Recorder;
use crate::report::Facts;
use crate::session::{Measure, Measured, Role};
use crate::settings::Settings;
use crate::test::Metric;

/// Room in bytes for everything in a message except the echoed bytes.
const OVERHEAD: usize = 4096;

/// Service under test.
#[rdma_rpc::service]
trait Bench {
    /// Returns its argument.
    #[rpc(raw)]
    async fn echo(&self, bytes: Payload) -> Result<Payload, ()>;
}

/// Service that counts its calls as progress.
struct Echo {
    progress: Progress,
}

impl Bench for Echo {
    async fn echo(&self, bytes: Payload) -> Result<Payload, ()> {
        self.progress.step();
        Ok(bytes)
    }
}

/// This process's side of an rdma-rpc connection that a test measures: the client makes calls, the
/// server answers them.
#[derive(Debug)]
pub struct Connection {
    // The first field: dropped before the runtime on which its tasks run.
    end: End,
    plan: Plan,
    depth: usize,
    progress: Progress,
    facts: Facts,
    runtime: Runtime,
}

#[derive(Debug)]
enum End {
    Client(BenchClient),
    Server(JoinHandle<rdma_rpc::Error>),
}

impl Connection {
    /// Connects to the peer through rdma-async. If this process is the server, also starts the RPC
    /// server.
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
        let limit = plan.largest() + OVERHEAD;
        let depth = settings.depth(plan);
        let builder = RdmaBuilder::default()
            .message_limit(limit)
            .remote_memory_limit(0);
        let (rdma, facts) = link::establish(role, (plan, settings), builder, &runtime, control)?;
        let progress = Progress::default();
        let entered = runtime.enter();
        let concurrency = u16::try_from(depth).unwrap_or(u16::MAX);
        let end = match role {
            Role::Client => {
                let client = Client::builder()
                    .message_limit(limit)
                    .concurrency(concurrency)
                    .deadline(settings.timeout)
                    .over(rdma);
                End::Client(BenchClient::new(client))
            }
            Role::Server => {
                let progress = progress.clone();
                let server = Server::new(BenchServer::new(Echo { progress }))
                    .message_limit(limit)
                    .concurrency(concurrency)
                    .grace(Duration::ZERO);
                End::Server(runtime.spawn(server.serve_connection(rdma)))
            }
        };
        drop(entered);
        Ok(Self {
            end,
            plan: plan.clone(),
            depth,
            progress,
            facts,
            runtime,
        })
    }
}

/// Calls the echo, which returns no errors of its own.
async fn echo(client: &BenchClient, request: &[u8]) -> Result<()> {
    match client.echo(request).await {
        Ok(_) | Err(CallError::Service(())) => Ok(()),
        Err(CallError::Rpc(error)) => Err(error.into()),
    }
}

/// Measures the latency of calls, made one after the other.
async fn latency(
    client: &BenchClient,
    size: usize,
    recorder: &mut Recorder,
    progress: &Progress,
) -> Result<()> {
    let request = vec![0; size];
    while recorder.more() {
        recorder.stamp();
        echo(client, &request).await?;
        progress.step();
    }
    Ok(())
}

/// Measures the rate of calls, with `depth` calls outstanding.
async fn bandwidth(client: &BenchClient, size: usize, depth: usize, window: &Window) -> Result<()> {
    let request = vec![0; size];
    let call = async || {
        while window.take() {
            echo(client, &request).await?;
            window.complete();
        }
        Ok(())
    };
    window.begin();
    window.drive((0..depth).map(|_| call())).await
}

impl Measure for Connection {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn measure(&mut self, size: usize, control: &mut Control) -> Result<Measured> {
        let Self {
            end,
            plan,
            depth,
            progress,
            runtime,
            ..
        } = self;
        control.barrier()?;
        match end {
            End::Server(server) => {
                let served = async {
                    match server.await {
                        Ok(error) => Err(error.into()),
                        Err(stopped) => std::panic::resume_unwind(stopped.into_panic()),
                    }
                };
                runtime::run(runtime, control, true, progress, served)
                    .map(|_: Option<()>| Measured::Nothing)
            }
            End::Client(client) if plan.test.metric == Metric::Latency => {
                let mut recorder = Recorder::new(plan.length);
                let calls = latency(client, size, &mut recorder, progress);
                runtime::run(runtime, control, false, progress, calls)?;
                Measured::latency(&recorder, 1)
            }
            End::Client(client) => {
                let window = Window::new(plan.length, progress);
                let calls = bandwidth(client, size, *depth, &window);
                runtime::run(runtime, control, false, progress, calls)?;
                window.measured()
            }
        }
    }
}
