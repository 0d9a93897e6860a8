//! Tests of calls and their results over every transport.

mod common;

use common::{
    Computing, EverythingClient, EverythingServer, Refusal, assert_echoes, connect, listen,
    over_every_transport, pair, within,
};
use rdma_rpc::{Address, CallError, Error, Server};
use tokio::sync::mpsc;

over_every_transport! {
    values_are_echoed;
    the_error_of_a_service_reaches_its_caller;
    concurrent_calls_get_their_own_answers;
    byte_strings_are_not_encoded;
    long_values_are_echoed;
    one_way_calls_have_no_answer;
    one_way_calls_before_the_end_of_the_client_arrive;
    clients_of_different_services_share_a_connection;
    an_unknown_method_is_an_error_of_its_call;
    a_server_has_many_clients;
}

async fn values_are_echoed(address: Address) {
    let (_server, client) = pair(address).await;
    assert_echoes(&client).await;
    assert_eq!(within("a sum", client.add(2, 3)).await.unwrap(), 5);
    within("nothing", client.nothing()).await.unwrap();
    assert!(client.client().failure().is_none());
}

async fn the_error_of_a_service_reaches_its_caller(address: Address) {
    let (_server, client) = pair(address).await;
    let error = within("the answer", client.find("colour".to_owned()))
        .await
        .unwrap_err();
    let key = "colour".to_owned();
    assert_eq!(error.service(), Some(Refusal::NotFound { key }));
    let error = within("the answer", client.echo(String::new())).await;
    assert_eq!(error.unwrap_err().service(), Some(Refusal::Empty));
    assert_echoes(&client).await;
}

async fn concurrent_calls_get_their_own_answers(address: Address) {
    let (_server, client) = pair(address).await;
    let calls: Vec<_> = (0..64_u64)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for round in 0..50 {
                    let sum = client.add(task, round * 1000).await.unwrap();
                    assert_eq!(sum, task + round * 1000);
                    client.nothing().await.unwrap();
                }
            })
        })
        .collect();
    for call in calls {
        within("an answer", call).await.unwrap();
    }
}

async fn byte_strings_are_not_encoded(address: Address) {
    let (_server, client) = pair(address).await;
    for len in [0, 1, 3000, 5000, 70_000, 1_000_000] {
        let bytes: Vec<u8> = (0..len).map(|at: u32| at as u8).collect();
        let reversed = within("the answer", client.reverse(&bytes)).await.unwrap();
        let mut reversed = reversed.into_vec();
        reversed.reverse();
        assert!(reversed == bytes, "{len} bytes");
    }
}

async fn long_values_are_echoed(address: Address) {
    let (_server, client) = pair(address).await;
    let calls: Vec<_> = [10, 4000, 4096, 4100, 9000, 70_000, 300_000]
        .map(|len| {
            let client = client.clone();
            tokio::spawn(async move {
                let text = "long ".repeat(len / 5);
                assert!(client.echo(text.clone()).await.unwrap() == text, "{len}");
                let text = client.text(len as u64).await.unwrap();
                assert_eq!(text.len(), len);
            })
        })
        .into_iter()
        .collect();
    for call in calls {
        within("an answer", call).await.unwrap();
    }
}

async fn one_way_calls_have_no_answer(address: Address) {
    let (notes, mut noted) = mpsc::unbounded_channel();
    let computing = Computing { notes: Some(notes) };
    let server = listen(Server::new(EverythingServer::new(computing)), address).await;
    let client = EverythingClient::new(connect(&server).await);
    for number in 0..100 {
        let note = client.note(number.to_string());
        within("a note", note).await.unwrap();
    }
    for number in 0..100 {
        let note = within("a note", noted.recv()).await.unwrap();
        assert_eq!(note, number.to_string());
    }
    assert_echoes(&client).await;
}

async fn one_way_calls_before_the_end_of_the_client_arrive(address: Address) {
    let (notes, mut noted) = mpsc::unbounded_channel();
    let computing = Computing { notes: Some(notes) };
    let server = Server::new(EverythingServer::new(computing));
    let server = listen(server, address).await;
    for _ in 0..5 {
        let client = EverythingClient::new(connect(&server).await);
        within("a note", client.note("last".to_owned()))
            .await
            .unwrap();
        drop(client);
        assert_eq!(within("a note", noted.recv()).await.unwrap(), "last");
    }
}

#[rdma_rpc::service]
trait Other {
    async fn echo(&self, number: u32) -> Result<u32, ()>;
}

struct Negative;

impl Other for Negative {
    async fn echo(&self, number: u32) -> Result<u32, ()> {
        Ok(!number)
    }
}

async fn clients_of_different_services_share_a_connection(address: Address) {
    let server = Server::new(EverythingServer::new(Computing::default()))
        .service(OtherServer::new(Negative));
    let server = listen(server, address).await;
    let client = connect(&server).await;
    assert_echoes(&EverythingClient::new(client.clone())).await;
    let other = OtherClient::new(client);
    assert_eq!(within("the answer", other.echo(5)).await.unwrap(), !5);
}

async fn an_unknown_method_is_an_error_of_its_call(address: Address) {
    let (_server, client) = pair(address).await;
    let other = OtherClient::new(client.client().clone());
    let error = within("the answer", other.echo(5)).await.unwrap_err();
    assert!(
        matches!(
            &error,
            CallError::Rpc(Error::UnknownMethod { method }) if method == "Other.echo"
        ),
        "{error:?}"
    );
    assert_echoes(&client).await;
}

async fn a_server_has_many_clients(address: Address) {
    let server = Server::new(EverythingServer::new(Computing::default()));
    let server = listen(server, address).await;
    let mut tasks = Vec::new();
    for index in 0..4 {
        let client = EverythingClient::new(connect(&server).await);
        tasks.push(tokio::spawn(async move {
            for round in 0..25 {
                assert_eq!(
                    client.add(index * 1000, round).await.unwrap(),
                    index * 1000 + round
                );
            }
        }));
    }
    for task in tasks {
        within("a client's calls", task).await.unwrap();
    }
}

#[tokio::test]
async fn a_runtime_with_one_thread_is_enough() {
    for address in [common::rdma(), common::tcp(), common::memory()] {
        let (_server, client) = pair(address).await;
        for _ in 0..20 {
            assert_echoes(&client).await;
        }
    }
}

#[tokio::test]
async fn requests_of_one_turn_share_messages_of_at_most_32() {
    let (_server, client) = pair(common::memory()).await;
    assert_echoes(&client).await;
    let before = client.client().sent();
    let calls = (0..64).map(|number| client.add(number, number));
    for (number, sum) in within("the sums", futures_util::future::join_all(calls))
        .await
        .into_iter()
        .enumerate()
    {
        assert_eq!(sum.unwrap(), 2 * number as u64);
    }
    let after = client.client().sent();
    assert_eq!(after.frames - before.frames, 64);
    // The first request is sent immediately, the next 32 as soon as they are complete, and the rest
    // at the end of the turn.
    assert_eq!(after.messages - before.messages, 3);
}
