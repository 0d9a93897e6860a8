//! Tests of streams over every transport.

mod common;

use std::time::Duration;

use common::frames::{frame, message};
use common::raw::Raw;
use common::{Refusal, assert_echoes, connect, listen, over_every_transport, pair, within};
use futures_util::StreamExt;
use rdma_rpc::{Address, CallError, Error, Receiver, Sender, Server};

over_every_transport! {
    a_handler_sends_items_and_then_its_result;
    a_handler_receives_items;
    items_are_sent_in_both_directions_concurrently;
    items_of_an_iterator_arrive_in_order;
    an_iterator_is_sent_up_to_the_first_invalid_item;
    long_and_short_items_arrive_in_order;
    an_error_ends_a_stream;
    a_stream_that_is_dropped_ends_its_handler;
    a_slow_reader_makes_the_sender_wait;
    a_sender_that_outlives_its_handler_is_harmless;
}

async fn a_handler_sends_items_and_then_its_result(address: Address) {
    let (_server, client) = pair(address).await;
    for count in [0, 1, 5, 1000] {
        let mut items = within("the stream", client.count(count, 3)).await.unwrap();
        for number in 0..count {
            let item = within("an item", items.next()).await.unwrap().unwrap();
            assert_eq!(item, (number, "nnn".to_owned()));
        }
        assert!(within("the end", items.next()).await.is_none());
        let result = within("the result", items.finish()).await;
        assert_eq!(result.unwrap(), count);
    }
    assert_echoes(&client).await;
}

async fn a_handler_receives_items(address: Address) {
    let (_server, client) = pair(address).await;
    for count in [0, 1, 1000_u64] {
        let (mut numbers, sum) = within("the call", client.sum(7)).await.unwrap();
        for number in 0..count {
            within("sending", numbers.send(number)).await.unwrap();
        }
        drop(numbers);
        let sum = within("the sum", sum).await.unwrap();
        assert_eq!(sum, 7 + (0..count).sum::<u64>());
    }
}

async fn items_are_sent_in_both_directions_concurrently(address: Address) {
    let (_server, client) = pair(address).await;
    let (mut numbers, doubled) = within("the call", client.double()).await.unwrap();
    let sending = tokio::spawn(async move {
        for number in 0..2000_u64 {
            numbers.send(number).await.unwrap();
        }
    });
    let received: Vec<_> = within("the items", doubled.map(Result::unwrap).collect()).await;
    assert_eq!(
        received,
        (0..2000).map(|number| 2 * number).collect::<Vec<u64>>()
    );
    within("sending", sending).await.unwrap();
}

#[rdma_rpc::service]
trait Texts {
    /// Sends the text numbers 0 to `count`.
    async fn texts(&self, count: usize, texts: Sender<String>) -> Result<(), String>;
}

struct Made;

/// Returns a text whose length depends on its number. More than half of the texts are longer than a
/// batch.
fn text(number: usize) -> String {
    "x".repeat(number * 37 % 9000)
}

impl Texts for Made {
    async fn texts(&self, count: usize, mut texts: Sender<String>) -> Result<(), String> {
        let sent = texts.send_all((0..count).map(text)).await;
        sent.map_err(|error| error.to_string())
    }
}

async fn items_of_an_iterator_arrive_in_order(address: Address) {
    let server = listen(Server::new(TextsServer::new(Made)), address).await;
    let client = TextsClient::new(connect(&server).await);
    for count in [0, 1, 64, 65, 1000] {
        let mut texts = within("the stream", client.texts(count)).await.unwrap();
        for number in 0..count {
            let item = within("an item", texts.next()).await.unwrap().unwrap();
            assert_eq!(item.len(), text(number).len(), "item {number} of {count}");
        }
        within("the result", texts.finish()).await.unwrap();
    }
}

async fn an_iterator_is_sent_up_to_the_first_invalid_item(address: Address) {
    let server = Server::new(TextsServer::new(Made)).message_limit(8192);
    let server = listen(server, address).await;
    let client = TextsClient::new(connect(&server).await);
    // The headers and the length of the text take 26 bytes.
    let is_too_long = |number: &usize| text(*number).len() + 26 > 8192;
    let first = (0..).find(is_too_long).unwrap();
    let mut texts = within("the stream", client.texts(1000)).await.unwrap();
    for number in 0..first {
        let item = within("an item", texts.next()).await.unwrap().unwrap();
        assert_eq!(item.len(), text(number).len());
    }
    let error = match within("the end", texts.next()).await {
        Some(Err(CallError::Service(error))) => error,
        other => panic!("{other:?}"),
    };
    assert!(error.contains("8192"), "{error}");
}

async fn long_and_short_items_arrive_in_order(address: Address) {
    let (_server, client) = pair(address).await;
    let mut items = within("the stream", client.count(200, 20_000))
        .await
        .unwrap();
    for number in 0..200 {
        let (index, text) = within("an item", items.next()).await.unwrap().unwrap();
        assert_eq!(index, number);
        assert_eq!(text.len(), if number % 10 == 7 { 20_000 } else { 3 });
    }
    assert_eq!(within("the result", items.finish()).await.unwrap(), 200);
}

#[rdma_rpc::service]
trait Pages {
    /// Sends `count` texts of `len` bytes.
    async fn pages(&self, count: u64, len: u64, pages: Sender<String>) -> Result<(), Refusal>;
}

struct Printing;

impl Pages for Printing {
    async fn pages(&self, count: u64, len: u64, mut pages: Sender<String>) -> Result<(), Refusal> {
        let page = "p".repeat(len as usize);
        for _ in 0..count {
            pages.send(&page).await.map_err(|_| Refusal::Empty)?;
        }
        Ok(())
    }
}

/// Checks a stream of long items. If each item consumed a few additional bytes of the window, the
/// window would be exhausted. The window is the same for all transports, so one transport is
/// enough.
#[tokio::test]
async fn a_long_item_uses_only_its_length_of_the_window() {
    const COUNT: u64 = 7000;
    const LEN: u64 = 5000;
    let server = listen(Server::new(PagesServer::new(Printing)), common::memory()).await;
    let client = PagesClient::new(connect(&server).await);
    let mut pages = within("the call", client.pages(COUNT, LEN)).await.unwrap();
    for _ in 0..COUNT {
        let page = within("a page", pages.next()).await.unwrap().unwrap();
        assert_eq!(page.len() as u64, LEN);
    }
    assert!(within("the end", pages.next()).await.is_none());
    server.shutdown().await;
}

async fn an_error_ends_a_stream(address: Address) {
    let (_server, client) = pair(address).await;
    let mut items = within("the stream", client.count(13, 3)).await.unwrap();
    for _ in 0..13 {
        within("an item", items.next()).await.unwrap().unwrap();
    }
    let key = "13".to_owned();
    let error = within("the error", items.next())
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error.service(), Some(Refusal::NotFound { key }));
    assert!(within("the end", items.next()).await.is_none());
}

async fn a_stream_that_is_dropped_ends_its_handler(address: Address) {
    let (_server, client) = pair(address).await;
    let mut items = within("the stream", client.count(u64::MAX, 3))
        .await
        .unwrap();
    within("an item", items.next()).await.unwrap().unwrap();
    drop(items);
    assert_echoes(&client).await;
    // The test does not wait for the response, because the handler waits for items that are never
    // sent.
    let (mut numbers, sum) = within("the call", client.sum(0)).await.unwrap();
    within("sending", numbers.send(1)).await.unwrap();
    drop(sum);
    let refused = async {
        loop {
            if let Err(error) = numbers.send(1).await {
                break error;
            }
        }
    };
    let error = within("the end of the call", refused).await;
    assert!(matches!(error, Error::Cancelled), "{error:?}");
    assert_echoes(&client).await;
}

async fn a_slow_reader_makes_the_sender_wait(address: Address) {
    let (_server, client) = pair(address).await;
    let mut items = within("the stream", client.count(5000, 3)).await.unwrap();
    for number in 0..5000 {
        if number % 500 == 0 {
            // Other calls are answered while the stream waits.
            assert_echoes(&client).await;
        }
        let item = within("an item", items.next()).await.unwrap().unwrap();
        assert_eq!(item.0, number);
    }
    let short = client.with_deadline(std::time::Duration::from_millis(50));
    let mut items = within("the stream", short.count(u64::MAX, 3))
        .await
        .unwrap();
    let late = async {
        loop {
            match items.next().await {
                Some(Ok(_)) => {}
                end => break end,
            }
        }
    };
    let end = within("the deadline", late).await;
    assert!(
        matches!(
            end,
            Some(Err(CallError::Rpc(Error::DeadlineExceeded { .. })))
        ),
        "{end:?}"
    );
}

#[rdma_rpc::service]
trait Taking {
    async fn take(&self, texts: Receiver<String>) -> Result<(), ()>;
}

#[tokio::test]
async fn the_deadline_of_a_call_ends_the_sending_of_an_item_that_the_server_does_not_receive() {
    for len in [1000, 60_000] {
        let (mut raw, client) = Raw::accept(common::tcp()).await;
        let client = TakingClient::new(client.with_deadline(Duration::from_millis(500)));
        let (mut texts, result) = within("the call", client.take()).await.unwrap();
        let request = within("the request", raw.hear()).await.unwrap();
        let word = |at: usize| u32::from_be_bytes(*request[at..].first_chunk().unwrap());
        let window = [u32::MAX, u32::MAX].map(u32::to_be_bytes).concat();
        let window = frame(6, 0, 0, (word(12), word(16)), &window);
        assert!(within("the window", raw.say(&message(&[window]))).await);
        // The server receives nothing more, so that the transport accepts no more messages.
        let sending = async {
            loop {
                if let Err(error) = texts.send("x".repeat(len)).await {
                    return error;
                }
            }
        };
        let error = within("sending", sending).await;
        assert!(matches!(error, Error::Cancelled), "{error}");
        let late = within("the result", result).await.unwrap_err().rpc();
        assert!(
            matches!(late, Some(Error::DeadlineExceeded { .. })),
            "{late:?}"
        );
        drop(raw);
    }
}

mod leaking {
    use rdma_rpc::Sender;

    #[rdma_rpc::service]
    pub(super) trait Leaking {
        /// Moves the sender to a task, and returns.
        async fn leave(&self, numbers: Sender<u64>) -> Result<(), ()>;
    }

    pub(super) struct Tasks;

    impl Leaking for Tasks {
        async fn leave(&self, mut numbers: Sender<u64>) -> Result<(), ()> {
            tokio::spawn(async move {
                let mut number = 0;
                while numbers.send(number).await.is_ok() {
                    number += 1;
                }
            });
            tokio::task::yield_now().await;
            Ok(())
        }
    }
}

/// Checks that items that a task sends while its handler returns are received in order, or not at
/// all.
async fn a_sender_that_outlives_its_handler_is_harmless(address: Address) {
    let service = leaking::LeakingServer::new(leaking::Tasks);
    let server = common::listen(rdma_rpc::Server::new(service), address).await;
    let client = leaking::LeakingClient::new(common::connect(&server).await);
    for _ in 0..200 {
        let mut items = within("the stream", client.leave()).await.unwrap();
        let mut expected = 0;
        while let Some(item) = within("an item", items.next()).await {
            assert_eq!(item.unwrap(), expected);
            expected += 1;
        }
        within("the result", items.finish()).await.unwrap();
    }
    assert!(client.client().failure().is_none());
}
