//! Tests of methods that are executed at most once, while connections end and servers restart.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::frames::{frame, message, method, request};
use common::held::Counter;
use common::raw::Raw;
use common::{client, connect, over_every_transport, transport, within};
use rdma_rpc::{
    Address, Bulk, CallError, Error, Metadata, Postcard, Request, Server, ServerHandle,
};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

over_every_transport! {
    a_call_whose_connection_ends_is_executed_once;
    results_and_errors_are_those_of_the_call;
    panics_and_long_metadata_fail_the_call;
    a_bulk_in_a_result_is_refused;
    a_cancelled_call_counts_until_its_handler_ends;
    a_request_without_a_generated_client_is_executed_once;
}

mod restarts {
    pub(super) use super::{
        a_number_belongs_to_a_call_of_one_method, a_request_without_a_number_is_refused,
        a_restarted_server_does_not_execute_repeated_calls,
    };
    use crate::common::over_every_transport;

    over_every_transport! {
        @rdma_and_tcp
        a_restarted_server_does_not_execute_repeated_calls;
        a_request_without_a_number_is_refused;
        a_number_belongs_to_a_call_of_one_method;
    }
}

#[rdma_rpc::service]
trait Account {
    /// Blocks the server for a time, and then adds an amount.
    #[rpc(once)]
    async fn pay(&self, amount: u64, millis: u64) -> Result<u64, String>;
    #[rpc(once)]
    async fn wait(&self) -> Result<(), String>;
    /// Returns a bulk, which the server cannot store.
    #[rpc(once)]
    async fn receipt(&self) -> Result<Option<Bulk>, String>;
    async fn balance(&self) -> Result<(u64, u64), String>;
}

#[derive(Default)]
struct Ledger {
    balance: AtomicUsize,
    payments: Counter,
    waiting: Counter,
    release: Notify,
}

struct Bank(Arc<Ledger>);

impl Account for Bank {
    async fn pay(&self, amount: u64, millis: u64) -> Result<u64, String> {
        self.0.payments.add();
        match amount {
            0 => return Err("nothing to pay".to_owned()),
            13 => panic!("asked to"),
            _ => {}
        }
        // Blocks the whole server, because its runtime has one thread.
        thread::sleep(Duration::from_millis(millis));
        let before = self.0.balance.fetch_add(amount as usize, Ordering::SeqCst);
        Ok(before as u64 + amount)
    }

    async fn wait(&self) -> Result<(), String> {
        self.0.waiting.add();
        self.0.release.notified().await;
        Ok(())
    }

    async fn receipt(&self) -> Result<Option<Bulk>, String> {
        self.0.payments.add();
        Ok(Some(Bulk::from(vec![1; 100_000])))
    }

    async fn balance(&self) -> Result<(u64, u64), String> {
        let balance = self.0.balance.load(Ordering::SeqCst) as u64;
        Ok((balance, self.0.payments.count() as u64))
    }
}

/// Starts a server on a separate runtime with one thread.
async fn serve(address: Address, ledger: &Arc<Ledger>) -> (Runtime, ServerHandle) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let ledger = Arc::clone(ledger);
    let listening = runtime.spawn(async move {
        loop {
            let account = AccountServer::new(Bank(Arc::clone(&ledger)));
            let server = Server::new(account).transport(transport());
            match server.listen(address.clone()).await {
                Ok(server) => return server,
                // The runtime of an earlier server closes its socket in the background.
                Err(error) => assert!(error.to_string().contains("in use"), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let server = within("listening", listening).await.unwrap();
    (runtime, server)
}

/// Connects a client that reconnects, and that ends a connection whose health check is not
/// answered.
async fn reconnecting(server: &ServerHandle) -> AccountClient {
    let connecting = client()
        .health_check(Duration::from_millis(60))
        .backoff(Duration::from_millis(5), Duration::from_millis(20))
        .connect_any([server.address().clone()]);
    AccountClient::new(within("connecting", connecting).await.unwrap())
}

async fn a_call_whose_connection_ends_is_executed_once(address: Address) {
    let ledger = Arc::new(Ledger::default());
    let (runtime, server) = serve(address, &ledger).await;
    let client = reconnecting(&server).await;
    // The server does not answer for longer than the health check waits.
    for round in 1..=3 {
        let paid = within("a payment", client.pay(10, 250)).await;
        assert_eq!(paid.unwrap(), 10 * round);
        let balance = within("the balance", client.balance()).await;
        // A call of another method is not repeated when its connection ends.
        if let Ok(balance) = balance {
            assert_eq!(balance, (10 * round, round));
        }
    }
    assert_eq!(ledger.payments.count(), 3);
    runtime.shutdown_background();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_waits_for_the_settings_of_the_server() {
    let ledger = Arc::new(Ledger::default());
    let (runtime, server) = serve(common::rdma(), &ledger).await;
    let address = server.address().to_string();
    let place = address.strip_prefix("rdma://").unwrap();
    let rdma = within("connecting", transport().connect(place)).await;
    let client = AccountClient::new(client().over(rdma.unwrap()));
    assert_eq!(within("a payment", client.pay(3, 0)).await.unwrap(), 3);
    runtime.shutdown_background();
}

async fn a_cancelled_call_counts_until_its_handler_ends(address: Address) {
    let ledger = Arc::new(Ledger::default());
    let server = Server::new(AccountServer::new(Bank(Arc::clone(&ledger)))).load_limit(1);
    let server = common::listen(server, address).await;
    let client = AccountClient::new(connect(&server).await);
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.wait().await }
    });
    ledger.waiting.reached("the call's arrival", 1).await;
    waiting.abort();
    // The cancellation arrives before the next request.
    assert!(within("the cancellation", waiting).await.is_err());
    let refused = within("a call", client.pay(1, 0)).await.unwrap_err().rpc();
    assert!(
        matches!(refused, Some(Error::Overloaded { .. })),
        "{refused:?}"
    );
    ledger.release.notify_one();
    within("the end of the handler", async {
        while client.pay(1, 0).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn results_and_errors_are_those_of_the_call(address: Address) {
    let ledger = Arc::new(Ledger::default());
    let (runtime, server) = serve(address, &ledger).await;
    let client = AccountClient::new(connect(&server).await);
    let calls = (0..600).map(|_| {
        let client = client.clone();
        tokio::spawn(async move { client.pay(1, 0).await.unwrap() })
    });
    let mut results = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        results.push(within("a payment", call).await.unwrap());
    }
    results.sort_unstable();
    assert_eq!(results, (1..=600).collect::<Vec<_>>());
    let error = within("nothing", client.pay(0, 0)).await.unwrap_err();
    assert_eq!(error.service().as_deref(), Some("nothing to pay"));
    runtime.shutdown_background();
}

async fn a_request_without_a_generated_client_is_executed_once(address: Address) {
    let ledger = Arc::new(Ledger::default());
    let (runtime, server) = serve(address, &ledger).await;
    let client = connect(&server).await;
    let request = Request::new::<Postcard, _>("Account.pay", &(4_u64, 0_u64)).unwrap();
    let error = within("a call", client.request(&request)).await;
    assert!(matches!(error, Err(Error::BadRequest { .. })), "{error:?}");
    let reply = within("a call", client.request(&request.once())).await;
    let paid = reply.unwrap().decode::<Postcard, u64, String>();
    assert_eq!((paid.unwrap(), ledger.payments.count()), (4, 1));
    runtime.shutdown_background();
}

async fn panics_and_long_metadata_fail_the_call(address: Address) {
    let ledger = Arc::new(Ledger::default());
    let (runtime, server) = serve(address, &ledger).await;
    let client = AccountClient::new(connect(&server).await);
    let error = within("a panic", client.pay(13, 0))
        .await
        .unwrap_err()
        .rpc();
    assert!(matches!(error, Some(Error::Panicked)), "{error:?}");
    let long = Metadata::default().with("long", [0; 2000]);
    let outcome = within("a call", client.with_metadata(long).pay(1, 0)).await;
    let error = outcome.unwrap_err().rpc();
    assert!(matches!(error, Some(Error::TooLarge { .. })), "{error:?}");
    let paid = within("a payment", client.pay(5, 0)).await.unwrap();
    assert_eq!((paid, ledger.payments.count()), (5, 2));
    runtime.shutdown_background();
}

async fn a_bulk_in_a_result_is_refused(address: Address) {
    let ledger = Arc::new(Ledger::default());
    let (runtime, server) = serve(address, &ledger).await;
    let client = AccountClient::new(connect(&server).await);
    let refused = within("a receipt", client.receipt()).await.unwrap_err();
    let is_clear = matches!(
        refused.rpc(),
        Some(Error::BadResponse { reason }) if reason.contains("cannot return a bulk")
    );
    assert!(is_clear);
    let balance = within("the balance", client.balance()).await;
    assert_eq!(balance.unwrap(), (0, 1));
    runtime.shutdown_background();
}

async fn a_restarted_server_does_not_execute_repeated_calls(address: Address) {
    let ledger = Arc::new(Ledger::default());
    let (runtime, server) = serve(address, &ledger).await;
    let place = server.address().clone();
    let client = reconnecting(&server).await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.wait().await }
    });
    ledger.waiting.reached("the call's arrival", 1).await;
    // Ends the server abruptly, like a killed process.
    drop(server);
    runtime.shutdown_background();
    let (runtime, _server) = serve(place, &ledger).await;
    let outcome = within("the end of the call", waiting).await.unwrap();
    let unknown = matches!(
        &outcome,
        Err(CallError::Rpc(Error::ExecutionUnknown { method })) if method == "Account.wait"
    );
    assert!(unknown, "{outcome:?}");
    assert_eq!(ledger.waiting.count(), 1);
    assert_eq!(within("a payment", client.pay(1, 0)).await.unwrap(), 1);
    runtime.shutdown_background();
}

async fn a_request_without_a_number_is_refused(address: Address) {
    let ledger = Arc::new(Ledger::default());
    let (runtime, server) = serve(address, &ledger).await;
    let mut raw = Raw::connect(&server).await;
    let call = message(&[request("Account.pay", (0, 0), b"\x01\x00")]);
    within("the call", raw.say(&call)).await;
    let answer = within("the answer", raw.hear()).await.unwrap();
    assert_eq!((answer[4], answer[7]), (3, 2), "{answer:x?}");
    assert_eq!(ledger.payments.count(), 0);
    runtime.shutdown_background();
}

async fn a_number_belongs_to_a_call_of_one_method(address: Address) {
    let ledger = Arc::new(Ledger::default());
    let (runtime, server) = serve(address, &ledger).await;
    let (mut raw, settings) = Raw::connect_with_settings(&server).await;
    // The settings end with the instance ID of the server.
    let instance_id = settings.last_chunk::<8>().unwrap();
    let number = [&[7; 16][..], &[0; 16], instance_id, &[0]].concat();
    let metadata = [&[13][..], b"rdma-rpc-once", &[0, 41], &number].concat();
    for (generation, name, body, kind) in [
        (0, "Account.pay", &b"\x05\x00"[..], 2),
        (1, "Account.wait", &b""[..], 3),
        (2, "Account.pay", &b"\x05\x00"[..], 2),
    ] {
        let fields = [method(name), 0].map(u32::to_be_bytes).concat();
        let rest = [&fields, &metadata, body].concat();
        let call = frame(1, 1, metadata.len() as u16, (0, generation), &rest);
        assert!(within("the call", raw.say(&message(&[call]))).await);
        let answer = within("the answer", raw.hear()).await.unwrap();
        assert_eq!(answer[4], kind, "{answer:x?}");
        if kind == 3 {
            let reason = String::from_utf8_lossy(&answer[20..]);
            assert!(
                answer[7] == 2 && reason.contains("another method"),
                "{reason}"
            );
        }
    }
    assert_eq!((ledger.payments.count(), ledger.waiting.count()), (1, 0));
    runtime.shutdown_background();
}
