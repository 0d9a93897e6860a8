//! Checks Arrow Flight between two processes, by record batches in both directions.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use arrow_array::{Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightClient, FlightData, FlightDescriptor, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
};
use axum::serve::Listener;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use rdma_async_interop::{Transport, in_time, over_each_transport};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

over_each_transport!(
    record_batches_are_received_from_another_process,
    record_batches_are_sent_to_another_process,
    several_streams_of_one_client_are_received_and_sent_concurrently,
);

/// Environment variable with the name of the transport, which is set in the process of the server.
const SERVER: &str = "INTEROP_FLIGHT_SERVER";

/// Start of the line in which the server prints its address.
const ADDRESS: &str = "listening at ";

const BATCHES: usize = 30;
const ROWS: usize = 10_000;

fn batch(number: usize) -> RecordBatch {
    let rows = || (number * ROWS..).take(ROWS);
    let keys = Int64Array::from_iter_values(rows().map(|row| row as i64));
    let names = StringArray::from_iter_values(rows().map(|row| format!("row {row}")));
    let values: Float64Array = rows()
        .map(|row| (row % 7 != 0).then_some(row as f64 / 3.0))
        .collect();
    RecordBatch::try_from_iter_with_nullable([
        ("key", Arc::new(keys) as _, false),
        ("name", Arc::new(names) as _, false),
        ("value", Arc::new(values) as _, true),
    ])
    .expect("columns of one length")
}

fn encoded(count: usize) -> impl futures_util::Stream<Item = Result<FlightData, FlightError>> {
    FlightDataEncoderBuilder::new().build(stream::iter((0..count).map(batch).map(Ok)))
}

/// Checks that a stream contains `count` batches, some of which the encoder has split, and returns
/// the number of their rows.
async fn check(mut batches: FlightRecordBatchStream, count: usize) -> Result<usize, FlightError> {
    let mut rows = 0;
    while let Some(found) = in_time("a batch", batches.try_next()).await? {
        let (number, offset) = (rows / ROWS, rows % ROWS);
        let expected = batch(number);
        if number >= count || found != expected.slice(offset, found.num_rows()) {
            let problem = format!("wrong data after {rows} rows");
            return Err(FlightError::DecodeError(problem));
        }
        rows += found.num_rows();
    }
    Ok(rows)
}

#[derive(Clone)]
struct Flights;

type Items<T> = BoxStream<'static, Result<T, Status>>;

fn unused<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not part of the test"))
}

#[tonic::async_trait]
impl FlightService for Flights {
    type HandshakeStream = Items<HandshakeResponse>;
    type ListFlightsStream = Items<FlightInfo>;
    type DoGetStream = Items<FlightData>;
    type DoPutStream = Items<PutResult>;
    type DoActionStream = Items<arrow_flight::Result>;
    type ListActionsStream = Items<ActionType>;
    type DoExchangeStream = Items<FlightData>;

    /// Returns the number of batches that the ticket requests.
    async fn do_get(
        &self,
        request: Request<Ticket>,
    ) -> Result<Response<Items<FlightData>>, Status> {
        let ticket = String::from_utf8_lossy(&request.get_ref().ticket).parse();
        let count = ticket.map_err(|_| Status::invalid_argument("the ticket is no number"))?;
        let items = encoded(count).map_err(Status::from);
        Ok(Response::new(items.boxed()))
    }

    /// Checks the received batches, and returns the number of their rows.
    async fn do_put(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Items<PutResult>>, Status> {
        let items = request.into_inner().map_err(FlightError::from);
        let batches = FlightRecordBatchStream::new_from_flight_data(items);
        let rows = check(batches, BATCHES).await?;
        let result = PutResult {
            app_metadata: rows.to_string().into(),
        };
        Ok(Response::new(stream::iter([Ok(result)]).boxed()))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Items<HandshakeResponse>>, Status> {
        unused()
    }

    async fn list_flights(
        &self,
        _: Request<Criteria>,
    ) -> Result<Response<Items<FlightInfo>>, Status> {
        unused()
    }

    async fn get_flight_info(
        &self,
        _: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        unused()
    }

    async fn poll_flight_info(
        &self,
        _: Request<FlightDescriptor>,
    ) -> Result<Response<PollInfo>, Status> {
        unused()
    }

    async fn get_schema(
        &self,
        _: Request<FlightDescriptor>,
    ) -> Result<Response<SchemaResult>, Status> {
        unused()
    }

    async fn do_action(
        &self,
        _: Request<Action>,
    ) -> Result<Response<Items<arrow_flight::Result>>, Status> {
        unused()
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Items<ActionType>>, Status> {
        unused()
    }

    async fn do_exchange(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Result<Response<Items<FlightData>>, Status> {
        unused()
    }
}

/// Process of the server. Dropping the value kills the process.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Serves until this process is killed or its standard input ends.
async fn serve<T: Transport>() {
    let listener = T::listen().await;
    let address = listener.local_addr().expect("its address");
    // Begins with a new line, because the harness prints the test's name without one.
    let line = format!("\n{ADDRESS}{address}\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
    let serving = Server::builder()
        .add_service(FlightServiceServer::new(Flights))
        .serve_with_incoming(T::incoming(listener));
    let parent = tokio::task::spawn_blocking(|| std::io::stdin().lines().count());
    tokio::select! {
        outcome = serving => outcome.unwrap(),
        _ = parent => {}
    }
}

/// Starts this program again as a server, in the test `name`.
fn start<T: Transport>(name: &str) -> (Process, SocketAddr) {
    let program = env::current_exe().expect("this program's path");
    let test = format!("{}::{name}", T::NAME);
    let child = Command::new(program)
        .args(["--exact", &test, "--nocapture"])
        .env(SERVER, T::NAME)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut process = Process(child.expect("this program can be run again"));
    let stdout = process.0.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(stdout).lines().map(Result::unwrap);
    let address = lines.find_map(|line| line.strip_prefix(ADDRESS)?.parse().ok());
    (process, address.expect("the server prints its address"))
}

/// Runs `test` with a client of a server in another process, which runs the test `name` of this
/// program.
async fn with_client<T: Transport>(name: &str, test: impl AsyncFnOnce(FlightClient<Channel>)) {
    if env::var_os(SERVER).is_some() {
        return serve::<T>().await;
    }
    let (_process, address) = start::<T>(name);
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let connecting = endpoint.connect_with_connector(T::connector());
    let channel = in_time("a channel", connecting).await.unwrap();
    test(FlightClient::new(channel)).await;
}

async fn get(client: &mut FlightClient<Channel>) {
    let ticket = Ticket::new(BATCHES.to_string());
    let batches = in_time("do_get", client.do_get(ticket)).await.unwrap();
    assert_eq!(check(batches, BATCHES).await.unwrap(), BATCHES * ROWS);
}

async fn put(client: &mut FlightClient<Channel>) {
    let results = in_time("do_put", client.do_put(encoded(BATCHES))).await;
    let results = in_time("the results", results.unwrap().try_collect()).await;
    let results: Vec<PutResult> = results.unwrap();
    let rows = (BATCHES * ROWS).to_string();
    assert_eq!(results.len(), 1);
    assert_eq!(results[0].app_metadata, rows);
}

async fn record_batches_are_received_from_another_process<T: Transport>() {
    let name = "record_batches_are_received_from_another_process";
    with_client::<T>(name, async |mut client| {
        get(&mut client).await;
        get(&mut client).await;
        let refused = client.do_get(Ticket::new("x")).await;
        assert!(refused.is_err());
    })
    .await;
}

async fn record_batches_are_sent_to_another_process<T: Transport>() {
    let name = "record_batches_are_sent_to_another_process";
    with_client::<T>(name, async |mut client| {
        put(&mut client).await;
        put(&mut client).await;
    })
    .await;
}

async fn several_streams_of_one_client_are_received_and_sent_concurrently<T: Transport>() {
    let name = "several_streams_of_one_client_are_received_and_sent_concurrently";
    with_client::<T>(name, async |client| {
        let clone = || FlightClient::new_from_inner(client.inner().clone());
        let mut clients = [clone(), clone(), clone(), clone()];
        let [a, b, c, d] = &mut clients;
        tokio::join!(get(a), put(b), get(c), put(d));
    })
    .await;
}
