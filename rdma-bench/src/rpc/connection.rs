//! The rdma-rpc connections under test. The server echoes requests and sends streams of items.

use std::time::{Duration, Instant};

use rdma_async::RdmaBuilder;
use rdma_rpc::{Bulk, BulkMemory, CallError, Client, Payload, Sender, Server};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::asynchronous::link;
use crate::asynchronous::runtime::{self, Progress};
use crate::asynchronous::window::Window;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::plan::{Length, Plan};
use crate::recorder::Recorder;
use crate::report::Properties;
use crate::session::{Measure, Measured, Role};
use crate::settings::Settings;
use crate::statistics::{self, Bandwidth};
use crate::test::{Metric, Verb};

/// Number of bytes of a message that are reserved for the headers of requests and responses, in
/// addition to the echoed bytes.
const OVERHEAD: usize = 4096;

/// The RPC service that the tests call. The methods of the service return bytes, return bulk
/// memory, and send a stream of items.
#[rdma_rpc::service]
trait Bench {
    /// Returns `bytes` unchanged.
    #[rpc(raw)]
    async fn echo(&self, bytes: Payload) -> Result<Payload, ()>;

    /// Reads the bytes of `bulk`, which is memory of the caller, and returns them in memory of the
    /// server.
    async fn bulk(&self, bulk: Bulk) -> Result<Bulk, ()>;

    /// Sends items of `size` bytes on the stream `items` until the caller drops its end of the
    /// stream, and then succeeds. Fails only if `size` is not a valid size.
    async fn items(&self, size: u64, items: Sender<Payload>) -> Result<(), ()>;
}

/// The server's implementation of the service. Counts calls and items in `progress`, so that a
/// stalled connection is detected.
struct EchoService {
    progress: Progress,
}

impl Bench for EchoService {
    async fn echo(&self, bytes: Payload) -> Result<Payload, ()> {
        self.progress.increment();
        Ok(bytes)
    }

    async fn bulk(&self, bulk: Bulk) -> Result<Bulk, ()> {
        self.progress.increment();
        Ok(bulk.read(..).await.map_err(drop)?.into())
    }

    async fn items(&self, size: u64, mut items: Sender<Payload>) -> Result<(), ()> {
        let item = Payload::from(vec![0; usize::try_from(size).map_err(drop)?]);
        let repeated = std::iter::repeat_with(|| {
            self.progress.increment();
            &item
        });
        // Sending fails once the caller has dropped its end of the stream.
        items.send_all(repeated).await.or(Ok(()))
    }
}

/// This process's end of the rdma-rpc connections under test. The client makes calls, the server
/// answers them.
#[derive(Debug)]
pub struct Connection {
    // The first field: dropped before the runtime on which its tasks run.
    end: End,
    plan: Plan,
    depth: usize,
    progress: Progress,
    properties: Properties,
    runtime: Runtime,
}

#[derive(Debug)]
enum End {
    Clients(Vec<BenchClient>),
    /// The tasks that serve the connections. Each returns the error that ended its connection.
    Server(JoinSet<rdma_rpc::Error>),
}

impl Connection {
    /// Connects to the peer through rdma-async, and prepares RPC calls over the connections. The
    /// number of connections is the number of queue pairs in `plan`. The server also starts the
    /// tasks that answer calls.
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
        let limit = plan.max_size() + OVERHEAD;
        let depth = settings.depth(plan);
        let builder = RdmaBuilder::default()
            .message_limit(limit)
            .remote_memory_limit(0);
        let (connections, properties) =
            link::establish(role, (plan, settings), builder, &runtime, control)?;
        let progress = Progress::default();
        let entered = runtime.enter();
        let concurrency = u16::try_from(depth).unwrap_or(u16::MAX);
        let client = |rdma| {
            let client = Client::builder()
                .message_limit(limit)
                .concurrency(concurrency)
                .deadline(settings.timeout)
                .over(rdma);
            BenchClient::new(client)
        };
        let serve = |rdma| {
            let progress = progress.clone();
            Server::new(BenchServer::new(EchoService { progress }))
                .message_limit(limit)
                .concurrency(concurrency)
                .grace(Duration::ZERO)
                .serve_connection(rdma)
        };
        let connections = connections.into_iter();
        let end = match role {
            Role::Client => End::Clients(connections.map(client).collect()),
            Role::Server => End::Server(connections.map(serve).collect()),
        };
        drop(entered);
        Ok(Self {
            end,
            plan: plan.clone(),
            depth,
            progress,
            properties,
            runtime,
        })
    }
}

/// Calls the RPC method `echo` of the server once, with the bytes `request` as the argument.
async fn echo(client: &BenchClient, request: &[u8]) -> Result<()> {
    match client.echo(request).await {
        Ok(_) | Err(CallError::Service(())) => Ok(()),
        Err(CallError::Rpc(error)) => Err(error.into()),
    }
}

/// Measures the latency of calls. Each call is made when the previous call has returned.
async fn latency(
    client: &BenchClient,
    size: usize,
    recorder: &mut Recorder,
    progress: &Progress,
) -> Result<()> {
    let request = vec![0; size];
    while recorder.needs_more() {
        recorder.record();
        echo(client, &request).await?;
        progress.increment();
    }
    Ok(())
}

/// Measures the rate of calls, with `depth` calls outstanding on each connection. `window` decides
/// when the test ends, counts the calls and measures the time.
async fn bandwidth(
    clients: &[BenchClient],
    size: usize,
    depth: usize,
    window: &Window,
) -> Result<()> {
    let request = vec![0; size];
    let call = async |client: &BenchClient| {
        while window.claim() {
            echo(client, &request).await?;
            window.complete();
        }
        Ok(())
    };
    window.begin();
    let loops = clients
        .iter()
        .flat_map(|client| (0..depth).map(move |_| client));
    window.run_all(loops.map(call)).await
}

/// A caller of the method `bulk` of the server's RPC service, which copies bulk memory to the
/// server and back. All calls use the same memory of this process.
struct BulkCaller<'c> {
    client: &'c BenchClient,
    /// The memory that a call lends to the server as its argument.
    argument: BulkMemory,
    /// The memory into which this process reads the result of a call.
    result: BulkMemory,
}

impl<'c> BulkCaller<'c> {
    fn new(client: &'c BenchClient, size: usize) -> Result<Self> {
        Ok(Self {
            client,
            argument: client.client().bulk_memory(size)?,
            result: client.client().bulk_memory(size)?,
        })
    }

    async fn call(&mut self) -> Result<()> {
        let lent = Bulk::from(std::mem::take(&mut self.argument));
        let echoed = match self.client.bulk(lent.clone()).await {
            Ok(echoed) => echoed,
            Err(CallError::Rpc(error)) => return Err(error.into()),
            Err(CallError::Service(())) => {
                return Err(Error::Protocol("the server could not read a bulk".into()));
            }
        };
        let room = std::mem::take(&mut self.result);
        let (read, memory) = echoed.read_into([(0, room)]).await;
        read?;
        self.result = memory.into_iter().next().unwrap_or_default();
        let argument = lent.into_memory();
        self.argument = argument.map_err(|_| Error::Protocol("the memory is not back".into()))?;
        Ok(())
    }
}

/// Measures the latency of calls while other calls, one after the other, transfer bulk memory of
/// `beside` bytes on the same connection. Records the latency in `recorder`, and returns the rate
/// of the bulk transfers.
async fn latency_beside(
    client: &BenchClient,
    (size, beside): (usize, usize),
    recorder: &mut Recorder,
    progress: &Progress,
) -> Result<Bandwidth> {
    let mut caller = BulkCaller::new(client, beside)?;
    // The first call allocates and registers memory of the server.
    caller.call().await?;
    let begun = Instant::now();
    let (mut count, mut last) = (0, begun);
    let transfers = async {
        loop {
            if let Err(error) = caller.call().await {
                return error;
            }
            count += 1;
            last = Instant::now();
        }
    };
    tokio::select! {
        biased;
        ended = latency(client, size, recorder, progress) => ended?,
        error = transfers => return Err(error),
    }
    Ok(Bandwidth::over(count, last - begun))
}

/// Measures the rate of calls that transfer bulk memory of `size` bytes to the server and back,
/// with `depth` calls outstanding. `window` decides when the test ends, and measures the time. The
/// memory for these transfers is registered before the measured time.
async fn bulks(client: &BenchClient, size: usize, depth: usize, window: &Window) -> Result<()> {
    let mut callers = (0..depth)
        .map(|_| BulkCaller::new(client, size))
        .collect::<Result<Vec<_>>>()?;
    // The first calls allocate and register memory of the server.
    window
        .run_all(callers.iter_mut().map(BulkCaller::call))
        .await?;
    let call = async |caller: &mut BulkCaller<'_>| {
        while window.claim() {
            caller.call().await?;
            window.complete();
        }
        Ok(())
    };
    window.begin();
    window.run_all(callers.iter_mut().map(call)).await
}

/// Measures the rate at which the items of one stream arrive, each of `size` bytes. `window`
/// decides when the test ends, counts the items and measures the time.
async fn items(client: &BenchClient, size: usize, window: &Window) -> Result<()> {
    let mut items = client.items(size as u64).await?;
    window.begin();
    while window.claim() {
        match items.next().await {
            Some(Ok(item)) if item.len() == size => window.complete(),
            Some(Ok(item)) => {
                let length = item.len();
                return Err(Error::Protocol(format!("an item of {length} bytes")));
            }
            Some(Err(CallError::Rpc(error))) => return Err(error.into()),
            Some(Err(CallError::Service(()))) | None => {
                return Err(Error::Protocol("the stream has ended".into()));
            }
        }
    }
    Ok(())
}

/// Returns the average number of frames (such as RPC requests) in each rdma-async message that
/// `clients` have sent. A message can contain several frames.
fn calls_per_message(clients: &[BenchClient]) -> f64 {
    let sent = clients.iter().map(|client| client.client().sent());
    let (frames, messages) = sent.fold((0, 0), |(frames, messages), sent| {
        (frames + sent.frames, messages + sent.messages)
    });
    frames as f64 / messages.max(1) as f64
}

impl Measure for Connection {
    fn properties(&self) -> &Properties {
        &self.properties
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
        let clients = match end {
            End::Server(served) => {
                let served = async {
                    match served.join_next().await {
                        Some(Ok(error)) => Err(error.into()),
                        Some(Err(stopped)) => std::panic::resume_unwind(stopped.into_panic()),
                        None => Err(Error::PeerGone),
                    }
                };
                return runtime::run(runtime, control, true, progress, served)
                    .map(|_: Option<()>| Measured::Nothing);
            }
            End::Clients(clients) => clients,
        };
        if plan.test.metric == Metric::Latency {
            let mut recorder = Recorder::new(plan.length);
            if let Some(beside) = plan.beside {
                let sizes = (size, beside);
                let calls = latency_beside(&clients[0], sizes, &mut recorder, progress);
                let transferred = runtime::run(runtime, control, false, progress, calls)?;
                let bulk = statistics::Bulk {
                    size: beside,
                    bandwidth: transferred.ok_or(Error::PeerGone)?,
                };
                return Measured::beside(&recorder, 1, bulk);
            }
            let calls = latency(&clients[0], size, &mut recorder, progress);
            runtime::run(runtime, control, false, progress, calls)?;
            return Measured::latency(&recorder, 1);
        }
        let length = match plan.length {
            Length::Iterations(count) => Length::Iterations(count * plan.queue_pairs),
            duration @ Length::Duration(_) => duration,
        };
        let window = Window::new(length, progress);
        if plan.test.verb == Verb::Item {
            let taken = items(&clients[0], size, &window);
            runtime::run(runtime, control, false, progress, taken)?;
            return window.bandwidth().map(Measured::Bandwidth);
        }
        if plan.test.verb == Verb::Bulk {
            let calls = bulks(&clients[0], size, *depth, &window);
            runtime::run(runtime, control, false, progress, calls)?;
            return window.bandwidth().map(Measured::Bandwidth);
        }
        let calls = bandwidth(clients, size, *depth, &window);
        runtime::run(runtime, control, false, progress, calls)?;
        Ok(Measured::Bandwidth(Bandwidth {
            calls_per_message: Some(calls_per_message(clients)),
            ..window.bandwidth()?
        }))
    }
}
