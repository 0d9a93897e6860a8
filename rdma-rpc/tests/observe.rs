//! Tests of metrics, and of traces across servers. This test is a separate program, because the
//! recorder of metrics and the log are global to the process.

mod common;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use common::held::{HeldClient, HeldServer, SharedHolding};
use common::{another, client, listen, over_every_transport, within};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use rdma_rpc::{
    Address, CallError, Context, Error, Metadata, Sender, Server, ServerHandle, TraceContext,
};

over_every_transport! {
    calls_are_counted_by_their_outcome;
    a_call_within_a_handler_belongs_to_its_trace;
}

static SNAPSHOTS: LazyLock<Snapshotter> = LazyLock::new(|| {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().expect("there is no other recorder");
    snapshotter
});

#[rdma_rpc::service]
trait Relay {
    /// Returns the trace contexts of the handlers, beginning with this handler: for each, the
    /// context of the caller, its own context, and the state of the trace.
    async fn traces(&self, cx: &Context) -> Result<Vec<String>, String>;
    /// Returns the trace contexts of the handlers, with execution at most once.
    #[rpc(once)]
    async fn traces_once(&self, cx: &Context) -> Result<Vec<String>, String>;
}

/// Service that calls the next server, if there is one.
struct Link(Option<RelayClient>);

impl Relay for Link {
    async fn traces(&self, cx: &Context) -> Result<Vec<String>, String> {
        self.trace(cx, false).await
    }

    async fn traces_once(&self, cx: &Context) -> Result<Vec<String>, String> {
        self.trace(cx, true).await
    }
}

impl Link {
    async fn trace(&self, cx: &Context, is_once: bool) -> Result<Vec<String>, String> {
        let own = TraceContext::current().ok_or("no trace")?;
        tokio::task::yield_now().await;
        assert_eq!(
            TraceContext::current().as_ref(),
            Some(&own),
            "it is that of the task too"
        );
        let parent = cx.metadata().get_str("traceparent").ok_or("no parent")?;
        assert_eq!(own.state(), cx.metadata().get_str("tracestate"));
        let mut traces = vec![parent.to_owned(), own.to_string()];
        traces.push(own.state().unwrap_or_default().to_owned());
        if let Some(next) = &self.0 {
            let next = next.clone();
            let calling = own.scope(async move {
                match is_once {
                    true => next.traces_once().await,
                    false => next.traces().await,
                }
            });
            let further = tokio::spawn(calling).await.map_err(|_| "panicked")?;
            traces.extend(further.map_err(|error| error.to_string())?);
        }
        Ok(traces)
    }
}

async fn calls_are_counted_by_their_outcome(address: Address) {
    // The tests of all transports run concurrently and share the counters.
    static ONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _one = ONE.lock().await;
    LazyLock::force(&SNAPSHOTS);
    // Taking a snapshot resets the counters.
    SNAPSHOTS.snapshot();
    let holding = SharedHolding::default();
    let state = Arc::clone(&holding.0);
    let server = Server::new(HeldServer::new(holding))
        .service(TillServer::new(Drawer))
        .method_limit("Held.busy", 0)
        .metrics();
    let server = listen(server, address).await;
    let connecting = client().metrics().connect(server.address());
    let client = HeldClient::new(within("connecting", connecting).await.unwrap());
    for _ in 0..3 {
        within("a call", client.echo("x".to_owned())).await.unwrap();
    }
    within("a panic", client.panic(false)).await.unwrap_err();
    within("a late panic", client.panic(true))
        .await
        .unwrap_err();
    within("a refusal", client.busy(1)).await.unwrap_err();
    let till = TillClient::new(client.client().clone());
    assert_eq!(within("a payment", till.pay(7)).await.unwrap(), 7);
    within("a one-way call", till.ring()).await.unwrap();
    let mut coins = within("a stream", till.change(3)).await.unwrap();
    within("a coin", coins.next()).await.unwrap().unwrap();
    within("the end", coins.finish()).await.unwrap();
    drop(within("a stream", till.change(5)).await.unwrap());
    let late = client.with_deadline(Duration::from_millis(30));
    let outcome = within("a late call", late.wait("x".to_owned())).await;
    let is_late = matches!(outcome, Err(CallError::Rpc(Error::DeadlineExceeded { .. })));
    assert!(is_late, "{outcome:?}");
    state.dropped.reached("the end of the handler", 1).await;
    within("the end of the server", server.shutdown()).await;

    let by = |pairs: &[(&str, u64)]| -> HashMap<String, u64> {
        pairs
            .iter()
            .map(|&(name, count)| (name.to_owned(), count))
            .collect()
    };
    // A single snapshot for all checks, because a snapshot resets the counters.
    let snapshot = SNAPSHOTS.snapshot().into_vec();
    let count_of = |side: &str, method: &str| {
        let mut counts = HashMap::new();
        let (mut in_flight, mut durations) = (0.0, 0);
        for (key, _, _, value) in &snapshot {
            let label = |name: &str| {
                let mut labels = key.key().labels();
                labels
                    .find(|label| label.key() == name)
                    .map(|label| label.value().to_owned())
            };
            if label("side").as_deref() != Some(side) || label("method").as_deref() != Some(method)
            {
                continue;
            }
            match (key.key().name(), value) {
                ("rdma_rpc_calls_total", DebugValue::Counter(count)) if *count > 0 => {
                    *counts.entry(label("outcome").unwrap()).or_insert(0) += count;
                }
                ("rdma_rpc_calls_in_flight", DebugValue::Gauge(value)) => in_flight += value.0,
                ("rdma_rpc_call_seconds", DebugValue::Histogram(values)) => {
                    durations += values.len();
                }
                _ => {}
            }
        }
        assert!(
            in_flight.abs() < 0.5,
            "{side} {method}: {in_flight} in flight"
        );
        (counts, durations)
    };
    assert_eq!(count_of("server", "Held.echo"), (by(&[("ok", 3)]), 3));
    assert_eq!(
        count_of("server", "Held.panic"),
        (by(&[("panicked", 2)]), 2)
    );
    assert_eq!(count_of("server", "Held.busy"), (by(&[("refused", 1)]), 0));
    assert_eq!(
        count_of("server", "Held.wait"),
        (by(&[("cancelled", 1)]), 1)
    );
    assert_eq!(count_of("client", "Held.echo"), (by(&[("ok", 3)]), 3));
    assert_eq!(count_of("client", "Held.panic"), (by(&[("failed", 2)]), 2));
    assert_eq!(count_of("client", "Held.busy"), (by(&[("failed", 1)]), 1));
    assert_eq!(count_of("client", "Held.wait"), (by(&[("failed", 1)]), 1));
    assert_eq!(count_of("client", "Till.pay"), (by(&[("ok", 1)]), 1));
    assert_eq!(count_of("client", "Till.ring"), (by(&[("ok", 1)]), 1));
    let streams = by(&[("ok", 1), ("cancelled", 1)]);
    assert_eq!(count_of("client", "Till.change"), (streams, 2));
}

#[rdma_rpc::service]
trait Till {
    #[rpc(once)]
    async fn pay(&self, amount: u64) -> Result<u64, String>;
    #[rpc(oneway)]
    async fn ring(&self);
    async fn change(&self, count: u64, coins: Sender<u64>) -> Result<u64, String>;
}

struct Drawer;

impl Till for Drawer {
    async fn pay(&self, amount: u64) -> Result<u64, String> {
        Ok(amount)
    }

    async fn ring(&self) {}

    async fn change(&self, count: u64, mut coins: Sender<u64>) -> Result<u64, String> {
        for coin in 0..count {
            coins.send(coin).await.map_err(|error| error.to_string())?;
        }
        Ok(count)
    }
}

async fn relay(address: Address, next: Option<RelayClient>) -> (ServerHandle, RelayClient) {
    let server = Server::new(RelayServer::new(Link(next))).traces();
    let server = listen(server, address).await;
    let connecting = client().traces().connect(server.address());
    let client = RelayClient::new(within("connecting", connecting).await.unwrap());
    (server, client)
}

async fn a_call_within_a_handler_belongs_to_its_trace(address: Address) {
    let (_second, next) = relay(another(&address), None).await;
    let (_first, client) = relay(address, Some(next)).await;
    let root = TraceContext::new();
    let metadata = Metadata::default()
        .with("traceparent", root.to_string())
        .with("tracestate", "vendor=7");
    let known = client.with_metadata(metadata);
    for (client, parent, is_once) in [
        (&known, Some(&root), false),
        (&client, None, false),
        (&known, Some(&root), true),
        (&client, None, true),
    ] {
        let calling = async {
            match is_once {
                true => client.traces_once().await,
                false => client.traces().await,
            }
        };
        let mut traces = within("the calls", calling).await.unwrap();
        assert_eq!(traces.len(), 6, "two servers: {traces:?}");
        let states = [traces.remove(5), traces.remove(2)];
        let state = if parent.is_some() { "vendor=7" } else { "" };
        assert_eq!(states, [state; 2]);
        let contexts: Vec<TraceContext> = traces.iter().map(|text| text.parse().unwrap()).collect();
        assert!(parent.is_none_or(|parent| contexts[0] == *parent));
        let trace = contexts[0].trace_id();
        assert!(
            contexts.iter().all(|context| context.trace_id() == trace),
            "{traces:?}"
        );
        let spans: std::collections::HashSet<u64> =
            contexts.iter().map(TraceContext::span_id).collect();
        assert_eq!(spans.len(), 4, "{traces:?}");
    }
    assert_eq!(TraceContext::current(), None);
}
