//! Checks the codecs of tokio-util.

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, TryStreamExt};
use rdma_async_interop::data;
use rdma_async_interop::{Transport, in_time, over_each_transport, pair};
use tokio_util::codec::{Framed, LengthDelimitedCodec, LinesCodec, LinesCodecError};

over_each_transport!(
    frames_of_any_length_are_echoed_complete,
    frames_of_one_flush_arrive_in_order,
    lines_are_echoed_one_at_a_time,
    a_line_above_the_limit_is_refused,
);

fn lengths() -> impl Iterator<Item = usize> + Send {
    let edges = [
        0, 1, 4091, 4092, 4096, 32_764, 32_768, 262_140, 262_144, 1_000_000,
    ];
    (0..8).flat_map(move |round| edges.map(|edge| edge + round * 31 % 17))
}

async fn frames_of_any_length_are_echoed_complete<T: Transport>() {
    let (client, server) = pair::<T>().await;
    let echo = tokio::spawn(async move {
        let (sink, frames) = Framed::new(server, LengthDelimitedCodec::new()).split();
        frames.map_ok(Bytes::from).forward(sink).await.unwrap();
    });
    let (mut sink, mut frames) = Framed::new(client, LengthDelimitedCodec::new()).split();
    let writing = tokio::spawn(async move {
        for len in lengths() {
            sink.send(data::bytes(len)).await.unwrap();
        }
        sink.close().await.unwrap();
    });
    for len in lengths() {
        let frame = in_time("a frame", frames.next()).await;
        assert!(frame.unwrap().unwrap() == data::bytes(len), "{len} bytes");
    }
    assert!(in_time("the end", frames.next()).await.is_none());
    in_time("both ends", writing).await.unwrap();
    in_time("both ends", echo).await.unwrap();
}

async fn frames_of_one_flush_arrive_in_order<T: Transport>() {
    let (client, server) = pair::<T>().await;
    let mut sender = Framed::new(client, LengthDelimitedCodec::new());
    let mut receiver = Framed::new(server, LengthDelimitedCodec::new());
    let sending = tokio::spawn(async move {
        for round in 0..50 {
            for number in 0..100_u32 {
                let frame = Bytes::copy_from_slice(&(round * 100 + number).to_be_bytes());
                sender.feed(frame).await.unwrap();
            }
            SinkExt::<Bytes>::flush(&mut sender).await.unwrap();
        }
        sender
    });
    for number in 0..5000_u32 {
        let frame = in_time("a frame", receiver.next()).await;
        assert_eq!(frame.unwrap().unwrap()[..], number.to_be_bytes());
    }
    drop(in_time("the sender", sending).await.unwrap());
    assert!(in_time("the end", receiver.next()).await.is_none());
}

async fn lines_are_echoed_one_at_a_time<T: Transport>() {
    let (client, server) = pair::<T>().await;
    let echo = tokio::spawn(async move {
        let (sink, lines) = Framed::new(server, LinesCodec::new()).split();
        lines.forward(sink).await.unwrap();
    });
    let mut client = Framed::new(client, LinesCodec::new());
    for number in 0..500_usize {
        let line = format!("{number} {}", "x".repeat(number * 7 % 9000));
        client.send(&line).await.unwrap();
        let answer = in_time("a line", client.next()).await;
        assert_eq!(answer.unwrap().unwrap(), line);
    }
    SinkExt::<&str>::close(&mut client).await.unwrap();
    assert!(in_time("the end", client.next()).await.is_none());
    in_time("the echo", echo).await.unwrap();
}

async fn a_line_above_the_limit_is_refused<T: Transport>() {
    let (client, server) = pair::<T>().await;
    let mut client = Framed::new(client, LinesCodec::new());
    let mut server = Framed::new(server, LinesCodec::new_with_max_length(100));
    client.send("y".repeat(10_000)).await.unwrap();
    client.send("short").await.unwrap();
    let refused = in_time("a line", server.next()).await.unwrap();
    assert!(matches!(
        refused,
        Err(LinesCodecError::MaxLineLengthExceeded)
    ));
    // After an error, a framed stream returns `None`. The codec then continues after the line.
    let mut next = in_time("a line", server.next()).await;
    while next.is_none() {
        next = in_time("a line", server.next()).await;
    }
    assert_eq!(next.unwrap().unwrap(), "short");
}
